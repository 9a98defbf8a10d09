//! What differs between two descriptions of a host apart from its virtio vifs, and what of that a
//! running host takes over.

use std::collections::BTreeSet;
use std::fmt::Debug;

use ringway_xenbus::limits::Scope;
use ringway_xenbus::{LIMITS, VifLimits};

use crate::{Bridge, Host, Switch, Uplink};

/// A key, and its value as text, which is only compared.
type Key = (&'static str, fn(&Host) -> String);

/// Every key of `[host]`, `[uplink]` and `[switch]` but limits.
const KEYS: &[Key] = &[
    ("host.dir", |it| text(&it.dir)),
    ("host.network", |it| text(&it.network)),
    ("host.isolate", |it| text(&it.is_isolated)),
    ("host.without-landlock", |it| text(&it.without_landlock)),
    ("host.workers", |it| text(&it.workers.count)),
    ("host.policy", |it| it.workers.policy.to_string()),
    ("host.cpus", |it| text(&it.workers.cpus)),
    ("host.poll-us", |it| text(&it.workers.poll_us)),
    ("host.max-queues", |it| text(&it.max_queues)),
    ("host.balance-flows", |it| text(&it.balances_flows)),
    ("host.flow-key", |it| it.flow_key.map_or_else(String::new, |key| key.to_string())),
    ("host.split-event-channels", |it| text(&it.split_event_channels)),
    ("host.sg", |it| text(&it.offloads.sg)),
    ("host.csum", |it| text(&it.offloads.csum)),
    ("host.gso", |it| text(&it.offloads.gso)),
    ("host.frame-memory-mib", |it| text(&it.workers.frame_memory_mib)),
    ("host.socket-group", |it| text(&it.socket_group)),
    ("uplink.name", |it| of_uplink(it, |it| text(&it.name))),
    ("uplink.mac", |it| of_uplink(it, |it| text(&it.mac))),
    ("uplink.addresses", |it| of_uplink(it, |it| text(&it.addresses))),
    ("uplink.queues", |it| of_uplink(it, |it| text(&it.queues))),
    ("uplink.mtu", |it| of_uplink(it, |it| text(&it.mtu))),
    ("uplink.vlan", |it| of_uplink(it, |it| text(&it.vlan))),
    ("uplink.trunk", |it| of_uplink(it, |it| text(&it.trunk))),
    ("uplink.multicast-router", |it| of_uplink(it, |it| text(&it.multicast_router))),
    ("switch.fdb-entries", |it| text(&it.switch.fdb_entries)),
    ("switch.addresses-per-vif", |it| text(&it.switch.addresses_per_vif)),
    ("switch.locking-mode", |it| text(&it.switch.locking_mode)),
    ("switch.ageing-seconds", |it| text(&it.switch.ageing_seconds)),
    ("switch.multicast-snooping", |it| text(&it.switch.multicast.is_snooped)),
    ("switch.multicast-groups", |it| text(&it.switch.multicast.groups)),
    ("switch.multicast-groups-per-vif", |it| text(&it.switch.multicast.groups_per_vif)),
    ("switch.unregistered-multicast", |it| text(&it.switch.multicast.unregistered)),
];

fn text(value: &impl Debug) -> String {
    format!("{value:?}")
}

/// The value of a key that only an uplink has.
fn of_uplink(host: &Host, value: fn(&Uplink) -> String) -> String {
    host.uplink.as_ref().map_or_else(String::new, value)
}

impl Host {
    /// This host once it has taken over from a description, read again while it runs, what can
    /// change then: queues, limits and rules of vifs without their own; of the uplink, its VLANs,
    /// limits and routers; and bridges that it did not have. Rules are for one network, so
    /// those for another uplink, by its name, are not taken over.
    pub fn taking_over(&self, described: &Host) -> Host {
        let Switch { limits, locking_mode, addresses_per_vif, .. } = described.switch;
        let switch = Switch { limits, locking_mode, addresses_per_vif, ..self.switch.clone() };
        let max_queues = described.max_queues;
        let mut host = Host { switch, max_queues, ..self.clone() };
        let is_new = |bridge: &&Bridge| self.bridges.iter().all(|it| it.name != bridge.name);
        host.bridges.extend(described.bridges.iter().filter(is_new).cloned());
        if let (Some(uplink), Some(described)) = (&mut host.uplink, &described.uplink) {
            if uplink.name == described.name {
                let Uplink { vlan, trunk, multicast_router, limits, .. } = described.clone();
                *uplink = Uplink { vlan, trunk, multicast_router, limits, ..uplink.clone() };
            }
        }
        host
    }
}

/// What the second description says in another way than the first, apart from virtio vifs: keys
/// such as `host.workers`, and sections such as `guest web`.
pub fn differences(before: &Host, now: &Host) -> Vec<String> {
    // A host has drawn a key if its description has none.
    let now = &Host { flow_key: now.flow_key.or(before.flow_key), ..now.clone() };
    let uplinks = [before, now].map(|it| it.uplink.as_ref().map(|uplink| uplink.limits));
    let has_uplink = uplinks.map(|limits| limits.is_some());
    // A section that comes or goes as a whole is one difference.
    let is_one = has_uplink[0] != has_uplink[1];
    let differs = |key: &&Key| (key.1)(before) != (key.1)(now);
    let keys = KEYS.iter().filter(differs).map(|(name, _)| (*name).to_owned());
    let keys = keys.filter(|name| !(is_one && name.starts_with("uplink.")));
    let [of_uplink, uplink_now] = uplinks.map(Option::unwrap_or_default);
    let of_uplink = limits("uplink", Scope::Uplink, &of_uplink, &uplink_now);
    let of_switch = limits("switch", Scope::Switch, &before.switch.limits, &now.switch.limits);
    let of_uplink = of_uplink.into_iter().filter(|_| !is_one);
    let whole = is_one.then(|| "uplink".to_owned());
    let guests = |it: &Host| it.guests.iter().map(|it| (it.name.0.clone(), text(it))).collect();
    let bridges = |it: &Host| it.bridges.iter().map(|it| (it.name.0.clone(), text(it))).collect();
    let of_guests = sections("guest", &guests(before), &guests(now));
    let of_bridges = sections("bridge", &bridges(before), &bridges(now));
    keys.chain(whole).chain(of_uplink).chain(of_switch).chain(of_bridges).chain(of_guests).collect()
}

/// Limits that differ.
fn limits(section: &str, scope: Scope, before: &VifLimits, now: &VifLimits) -> Vec<String> {
    let value = |limits: &VifLimits, key| limits.keys().find(|(known, _)| *known == key);
    let differs = LIMITS.iter().filter(|limit| limit.is_of(scope));
    let differs = differs.filter(|limit| value(before, limit.key) != value(now, limit.key));
    differs.map(|limit| format!("{section}.{}", limit.name())).collect()
}

/// Named sections that differ, with their contents as text.
fn sections(
    kind: &str,
    before: &BTreeSet<(String, String)>,
    now: &BTreeSet<(String, String)>,
) -> BTreeSet<String> {
    before.symmetric_difference(now).map(|(name, _)| format!("{kind} {name}")).collect()
}

#[cfg(test)]
mod tests {
    use ringway_xenbus::Limit;

    use super::*;
    use crate::{Usage, parse};

    fn described(text: &str) -> Host {
        parse("test", text, Usage::default()).expect("good")
    }

    #[test]
    fn each_key_of_the_host_is_compared() {
        for (section, scope) in [("host", None), ("uplink", Some(Scope::Uplink))]
            .into_iter()
            .chain([("switch", Some(Scope::Switch))])
        {
            let error = parse("test", &format!("[{section}]\nunknown = 1\n"), Usage::default());
            let error = error.expect_err("it is unknown").to_string();
            let (_, known) = error.split_once("expected one of ").expect("all keys");
            let known: BTreeSet<String> =
                known.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            let prefix = format!("{section}.");
            let keys = KEYS.iter().filter_map(|(name, _)| name.strip_prefix(&prefix));
            let limits = LIMITS.iter().filter(|limit| scope.is_some_and(|it| limit.is_of(it)));
            let all = keys.chain(limits.map(Limit::name));
            assert_eq!(known, all.map(str::to_owned).collect());
        }
    }

    #[test]
    fn what_differs_is_named_as_it_is_written() {
        let before = described(
            "[uplink]\nmtu = 1400\n[[bridge]]\nname = 'br0'\n[[guest]]\nname = 'a'\n\
             [[guest]]\nname = 'b'\n",
        );
        assert!(differences(&before, &before).is_empty());
        let now = described(
            "[host]\nworkers = 3\ngso = false\n[uplink]\nmtu = 1300\nbroadcast-rate = 5\n\
             [switch]\nflood-rate = 7\nmulticast-snooping = true\n[[guest]]\nname = 'a'\n\
             [[guest.vif]]\n[[guest]]\nname = 'b'\n[[vhost]]\nname = 'vm1'\nsocket = '/vm1'\n",
        );
        let expected = [
            "host.workers",
            "host.gso",
            "uplink.mtu",
            "switch.multicast-snooping",
            "uplink.broadcast-rate",
            "switch.flood-rate",
            "bridge br0",
            "guest a",
        ];
        assert_eq!(differences(&before, &now), expected);
        let without =
            described("[[bridge]]\nname = 'br0'\n[[guest]]\nname = 'a'\n[[guest]]\nname = 'b'\n");
        assert_eq!(differences(&before, &without), ["uplink"]);
    }

    #[test]
    fn a_running_host_takes_over_queues_limits_and_rules_of_vifs_and_of_the_same_uplink() {
        let before = described("[uplink]\nmtu = 1400\n");
        let text = |name: &str| {
            let uplink = "mtu = 1300\nvlan = 5\ntrunk = [6]\nmulticast-router = 'never'\n\
                          broadcast-rate = 5\n[switch]\nflood-rate = 7\nageing-seconds = 9\n\
                          addresses-per-vif = 3\nlocking-mode = 'unlocked'\n\
                          [host]\nmax-queues = 61\n";
            format!("[uplink]\nname = '{name}'\n{uplink}")
        };
        let now = described(&text("ringway0"));
        let then = before.taking_over(&now);
        let of_uplink =
            ["uplink.vlan", "uplink.trunk", "uplink.multicast-router", "uplink.broadcast-rate"];
        let of_vifs = [
            "host.max-queues",
            "switch.addresses-per-vif",
            "switch.locking-mode",
            "switch.flood-rate",
        ];
        let names = |names: Vec<String>| names.into_iter().collect::<BTreeSet<_>>();
        let all = of_uplink.into_iter().chain(of_vifs).map(str::to_owned).collect();
        assert_eq!(names(differences(&before, &then)), names(all));
        assert_eq!(differences(&then, &now), ["uplink.mtu", "switch.ageing-seconds"]);
        assert!(differences(&then, &then.taking_over(&now)).is_empty());
        let another = described(&text("up1"));
        let of_another = differences(&before, &before.taking_over(&another));
        assert_eq!(names(of_another), names(of_vifs.map(str::to_owned).to_vec()));
        let without = before.taking_over(&described(""));
        assert!(differences(&before, &without).is_empty(), "an uplink does not go");
    }

    #[test]
    fn a_running_host_takes_over_new_bridges_and_no_other_change_of_them() {
        let bridge = |name: &str, more: &str| format!("[[bridge]]\nname = '{name}'\n{more}");
        let before = described(&(bridge("br0", "") + &bridge("br1", "")));
        let address = "addresses = ['10.77.0.1/24']\n";
        let now = described(&(bridge("br0", address) + &bridge("br2", address)));
        let then = before.taking_over(&now);
        assert_eq!(differences(&before, &then), ["bridge br2"]);
        assert_eq!(differences(&then, &now), ["bridge br0", "bridge br1"]);
    }

    #[test]
    fn a_key_that_the_host_has_drawn_is_not_one_that_the_description_lost() {
        let [one, other] = ["6d5a56da255b0ec24167253d43a38fb0", "00000000000000010000000000000002"]
            .map(|key| described(&format!("[host]\nflow-key = '{key}'\n")));
        assert!(differences(&one, &described("")).is_empty());
        assert_eq!(differences(&one, &other), ["host.flow-key"]);
    }
}

//! `ringway vif show`: all about one vif. What `vif set` changes has the name by which that knows
//! it, and a value that it takes.

use anyhow::Result;
use clap::Args;
use ringway_control::{
    HashStatus, LimitsStatus, NamespaceStatus, OvsStatus, QueueStatus, RateStatus, RefusalsStatus,
    VifStatus, VirtioStatus, WaitStatus,
};
use ringway_terminal::output::{print, print_json};
use ringway_terminal::table;
use ringway_xenbus::Rate;

use super::{attached_to, counters};
use crate::cells;
use crate::target::Target;

#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    target: Target,
    /// The vif, such as vif1.0
    vif: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Show) -> Result<()> {
    let vif = super::vif(&args.target, &args.vif)?;
    if args.json {
        return print_json(&vif);
    }
    let mut text = String::new();
    let offloads = if vif.offloads.is_empty() { "none".to_owned() } else { vif.offloads.join(" ") };
    for (key, value) in [
        ("name", vif.name.as_str()),
        ("kind", cells::kind(&vif)),
        ("guest", vif.guest.as_deref().unwrap_or("-")),
        ("domain", &vif.domid.map_or_else(|| "-".to_owned(), |domid| domid.to_string())),
        ("handle", &vif.handle.to_string()),
        ("state", &vif.state),
        ("mac", vif.mac.as_deref().unwrap_or("-")),
        ("multicast", &multicast(&vif)),
        ("groups wanted", &vif.groups_wanted.as_ref().map_or("all".to_owned(), |it| joined(it))),
        ("headroom", &vif.headroom.to_string()),
        ("announced", &vif.announced.map_or("no".to_owned(), |sent| format!("{sent} times"))),
        ("refused", &cells::drops(&vif.refused)),
        ("taken", vif.taken.as_deref().unwrap_or("-")),
        ("attached to", &attached_to(&vif)),
        ("tenant", vif.tenant.as_deref().unwrap_or("-")),
        ("max-queues", &max_queues(&vif)),
        ("offloads in force", &offloads),
        ("  because", &vif.offloads_because),
        ("version", &vif.version),
        ("restarts", &vif.restarts.to_string()),
        ("staged pages", &vif.staged_pages.to_string()),
        ("hash", &vif.hash.as_ref().map_or_else(|| "-".to_owned(), hash)),
        ("flows moved", &vif.flows_moved.map_or_else(|| "-".to_owned(), |it| it.to_string())),
        ("error", vif.error.as_deref().unwrap_or("-")),
        ("refusals", &vif.refusals.as_ref().map_or_else(|| "-".to_owned(), refusals)),
    ] {
        text += &format!("{key:17} {}\n", table::shown(value));
    }
    for (key, value) in vif.virtio.iter().flat_map(virtio) {
        text += &format!("{key:17} {}\n", table::shown(&value));
    }
    for (key, value) in vif.namespace.iter().flat_map(namespace) {
        text += &format!("{key:17} {}\n", table::shown(&value));
    }
    for (key, value) in vif.ovs.iter().flat_map(ovs) {
        text += &format!("{key:17} {}\n", table::shown(&value));
    }
    for (key, value) in rules(&vif).into_iter().chain(limits(&vif.limits)) {
        text += &format!("{key:17} {}\n", table::shown(&value));
    }
    let waits = waits(&vif);
    print(&(text + "\n" + &counters(&[vif]) + &waits))
}

/// What a vif and the sides of its queues wait for, in lines for people.
fn waits(vif: &VifStatus) -> String {
    let line = |what: &str, wait: &WaitStatus| {
        let WaitStatus { reason, milliseconds, .. } = wait;
        format!("{what} for {milliseconds} ms: {}\n", table::shown(reason))
    };
    let whole = vif.waits.iter().map(|wait| line("it waits", wait));
    let of_queue = |queue: &QueueStatus| {
        let index = queue.index;
        let tx = format!("queue {index}: frames from the guest wait");
        let rx = format!("queue {index}: frames to the guest wait");
        let sides = [(tx, &queue.tx_wait), (rx, &queue.rx_wait)];
        sides.map(|(what, wait)| wait.as_ref().map_or_else(String::new, |it| line(&what, it)))
    };
    whole.chain(vif.queues.iter().flat_map(of_queue)).collect()
}

/// What XenStore has refused, for people.
fn refusals(refusals: &RefusalsStatus) -> String {
    let RefusalsStatus { count, last, milliseconds } = refusals;
    format!("{count}, the last {milliseconds} ms ago: {last}")
}

/// The most queues of a vif, now and for its next front-end, for people.
fn max_queues(vif: &VifStatus) -> String {
    let now = vif.max_queues;
    match vif.virtio.as_ref().map_or(now, |virtio| virtio.max_queues_next) {
        next if next == now || next == 0 => now.to_string(),
        next => format!("{now}, {next} from the next start of its machine"),
    }
}

/// The hash that a guest has chosen, for people.
fn hash(hash: &HashStatus) -> String {
    let types = if hash.types.is_empty() { "nothing".to_owned() } else { hash.types.join(" ") };
    let mapping: Vec<String> = hash.mapping.iter().map(ToString::to_string).collect();
    let mapping = if mapping.is_empty() { "none".to_owned() } else { mapping.join(",") };
    format!("toeplitz of {types}, key {}, mapping {mapping}", hash.key)
}

/// The memory of a virtio vif's guest, for people.
fn memory(virtio: &VirtioStatus) -> String {
    let seals = match (virtio.memory_mib, virtio.memory_sealed) {
        (0, _) => "",
        (_, true) => ", sealed",
        (_, false) => ", not sealed: its owner may truncate it",
    };
    format!("{} MiB{seals}", virtio.memory_mib)
}

fn joined(items: &[String]) -> String {
    if items.is_empty() { "-".to_owned() } else { items.join(" ") }
}

/// The state of a virtio vif, for people.
fn virtio(virtio: &VirtioStatus) -> [(&'static str, String); 10] {
    let origin = if virtio.at_run_time { "vif add" } else { "description" };
    [
        ("socket", virtio.socket.clone()),
        ("mode", virtio.mode.clone()),
        ("from", origin.to_owned()),
        ("memory", memory(virtio)),
        ("features", joined(&virtio.features)),
        ("not taken", joined(&virtio.not_taken)),
        ("not offered", joined(&virtio.not_offered)),
        ("protocol", joined(&virtio.protocol)),
        ("  not taken", joined(&virtio.protocol_not_taken)),
        ("  not offered", joined(&virtio.protocol_not_offered)),
    ]
}

/// The network device of a namespace, for people.
fn namespace(namespace: &NamespaceStatus) -> [(&'static str, String); 2] {
    [("namespace", namespace.path.clone()), ("device", namespace.device.clone())]
}

/// The port of a vif on a bridge of Open vSwitch, for people.
fn ovs(port: &OvsStatus) -> [(&'static str, String); 5] {
    let id = |id: &Option<String>| id.clone().unwrap_or_else(|| "-".to_owned());
    [
        ("port", port.port.clone()),
        ("  bridge", port.bridge.clone()),
        ("  iface-id", id(&port.iface_id)),
        ("  attached-mac", id(&port.attached_mac)),
        ("  vm-uuid", id(&port.vm_uuid)),
    ]
}

/// A vif's part in multicast for people: `3 groups`, `router`, `3 groups, receives all groups`.
fn multicast(vif: &VifStatus) -> String {
    let Some(multicast) = vif.multicast else { return "not snooped".to_owned() };
    let groups = format!("{} groups", multicast.groups);
    match (multicast.is_router, multicast.hears_all) {
        (true, _) => "router".to_owned(),
        (false, true) => groups + ", receives all groups",
        (false, false) => groups,
    }
}

/// A vif's rules, for people.
fn rules(vif: &VifStatus) -> [(&'static str, String); 14] {
    [
        ("locking-mode", vif.locking_mode.clone()),
        ("allowed-ips", list(&vif.allowed_ips)),
        ("addresses-per-vif", vif.addresses_max.to_string()),
        ("allowed-macs", list(&vif.allowed_macs)),
        ("shared-macs", list(&vif.shared_macs)),
        ("router", vif.is_router.to_string()),
        ("dhcp-server", vif.is_dhcp_server.to_string()),
        ("announce", (!vif.is_unannounced).to_string()),
        ("vlan", vif.vlan.map_or_else(none, |vid| vid.to_string())),
        ("trunk", list(&vif.trunk)),
        ("private", vif.is_private.to_string()),
        ("multicast-router", vif.multicast_router.clone()),
        ("link-local-to", vif.link_local_to.clone().unwrap_or_else(none)),
        ("mirror", list(&vif.mirror)),
    ]
}

/// A vif's limits, for people.
fn limits(limits: &LimitsStatus) -> [(&'static str, String); 14] {
    let rate = |rate: Option<RateStatus>| {
        let rate = rate.map(|it| Rate { bytes: it.bytes, interval_us: it.interval_us });
        rate.map_or_else(none, |rate| rate.to_string())
    };
    let frames = |frames: Option<u32>| frames.map_or_else(none, |frames| frames.to_string());
    let megabits = |bytes: Option<u64>| {
        bytes.map_or_else(none, |bytes| format!("{}Mb/s", bytes / BYTES_OF_A_MEGABIT))
    };
    let LimitsStatus { broadcast, multicast, unknown, .. } = limits;
    [
        ("link", if limits.link_down { "down" } else { "up" }.to_owned()),
        ("offloads", limits.offloads.clone()),
        ("rate", rate(limits.rate)),
        ("rate-rx", rate(limits.rate_rx)),
        ("weight", limits.weight.to_string()),
        ("flood-rate", frames(limits.flood_frames_per_second)),
        ("flood-mbit", megabits(limits.flood_bytes_per_second)),
        ("broadcast-rate", frames(broadcast.frames_per_second)),
        ("broadcast-mbit", megabits(broadcast.bytes_per_second)),
        ("multicast-rate", frames(multicast.frames_per_second)),
        ("multicast-mbit", megabits(multicast.bytes_per_second)),
        ("unknown-rate", frames(unknown.frames_per_second)),
        ("unknown-mbit", megabits(unknown.bytes_per_second)),
        ("mtu", limits.mtu().map_or_else(none, |mtu| mtu.to_string())),
    ]
}

const BYTES_OF_A_MEGABIT: u64 = 125_000;

fn none() -> String {
    "none".to_owned()
}

/// A list as `vif set` takes it.
fn list<T: ToString>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(T::to_string).collect();
    if items.is_empty() { none() } else { items.join(",") }
}

#[cfg(test)]
mod tests {
    use ringway_control::FloodStatus;
    use ringway_xenbus::{Keys, LIMITS, Limit, RULES, VifLimits};

    use super::*;

    #[test]
    fn each_wait_has_a_line_with_its_time_and_its_reason() {
        let wait = |reason: &str, milliseconds| WaitStatus {
            reason: reason.to_owned(),
            milliseconds,
            ..WaitStatus::default()
        };
        let (tx_wait, rx_wait) = (Some(wait("a\nb has no room", 7)), Some(wait("no buffers", 60)));
        let queue = |index| QueueStatus { index, ..QueueStatus::default() };
        let queues = vec![
            queue(0),
            QueueStatus { tx_wait, ..queue(1) },
            QueueStatus { rx_wait, ..queue(2) },
        ];
        let vif = VifStatus { waits: vec![wait("too fast", 3)], queues, ..VifStatus::default() };
        let shown = waits(&vif);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), 3, "{shown}");
        assert_eq!(lines[0], "it waits for 3 ms: too fast");
        assert!(lines[1].starts_with("queue 1: frames from the guest wait for 7 ms: a"), "{shown}");
        assert_eq!(lines[2], "queue 2: frames to the guest wait for 60 ms: no buffers");
        assert_eq!(waits(&VifStatus::default()), "");
    }

    #[test]
    fn each_key_of_json_is_in_the_page() {
        let page = include_str!("../../../../../docs/virtio.md");
        let (_, tables) = page.split_once("| key of a vif | value |").expect("its table");
        let keys = |value: serde_json::Value| -> Vec<String> {
            value.as_object().expect("an object").keys().cloned().collect()
        };
        let vif = serde_json::to_value(VifStatus::default()).expect("JSON");
        let queue = serde_json::to_value(QueueStatus::default()).expect("JSON");
        let limits = keys(vif["limits"].clone());
        for key in keys(vif).into_iter().chain(keys(queue)).chain(limits) {
            assert!(tables.contains(&format!("`{key}`")), "{key} is in no table");
        }
    }

    #[test]
    fn each_rule_has_the_name_by_which_it_is_set() {
        let (locking_mode, multicast_router) = ("default".to_owned(), "never".to_owned());
        let fewest = VifStatus { locking_mode, multicast_router, ..VifStatus::default() };
        let shown = rules(&fewest);
        let names: Vec<&str> = shown.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, RULES.iter().map(|rule| rule.name).collect::<Vec<_>>());
        for (rule, (name, value)) in RULES.iter().zip(shown) {
            let key = rule.key_value(&value).expect(name);
            let read = Keys::new("", [(rule.key.to_owned(), key)]).rules();
            assert!(read.is_ok(), "{name} {value}: {read:?}");
        }
    }

    #[test]
    fn each_limit_has_the_name_by_which_it_is_set() {
        let rate = Some(RateStatus { bytes: 125_000, interval_us: 10_000 });
        let of_kind = FloodStatus { frames_per_second: Some(3), bytes_per_second: Some(1_250_000) };
        let all = LimitsStatus {
            link_down: true,
            offloads: "none".to_owned(),
            weight: 4,
            rate,
            rate_rx: rate,
            flood_frames_per_second: Some(5),
            flood_bytes_per_second: Some(312_500_000),
            broadcast: of_kind,
            multicast: of_kind,
            unknown: of_kind,
            frame_len_max: Some(1518),
        };
        let offloads = "auto".to_owned();
        let fewest = LimitsStatus { weight: 1, offloads, ..LimitsStatus::default() };
        for shown in [limits(&all), limits(&fewest)] {
            let names: Vec<&str> = shown.iter().map(|(name, _)| *name).collect();
            let known: Vec<&str> = LIMITS.iter().map(Limit::name).chain(["mtu"]).collect();
            assert_eq!(names, known);
            for (name, value) in shown {
                let Some(limit) = Limit::named(name) else { continue };
                let key = limit.key_value(&value).expect(name);
                let bad = VifLimits::read(&Keys::new("", [(limit.key.to_owned(), key)])).1;
                assert!(bad.is_empty(), "{name} {value}: {bad:?}");
            }
        }
        let [.., multicast, _, _, mtu] = limits(&all);
        assert_eq!((multicast.1.as_str(), mtu.1.as_str()), ("10Mb/s", "1500"));
    }
}

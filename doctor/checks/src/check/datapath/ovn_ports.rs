//! D54: OVN does not forward for a port, or two hosts claim it.

use std::collections::BTreeMap;

use crate::check::{Check, Group, Judged, Verdicts, all_well, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity, shell_word};
use ringway_evidence::fact::{
    Basis, OvnClaims, OvnConnection, SwitchDatabase, SwitchSettings, Taken, Tried,
};
use ringway_evidence::parse::claims::Taking;
use ringway_evidence::parse::ovsdb::Port;
use ringway_evidence::{facts, squeezed};

pub(crate) const CHECK: Check = Check {
    id: "D54",
    slug: "ovn-ports",
    title: "OVN does not forward for a port",
    group: Group::Datapath,
    sources: &["ovn-binding-blog:claim", "ovn-binding-blog:storm"],
    explanation: include_str!("ovn_ports.txt"),
    absent: "no OVN",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        settings: SwitchSettings,
        database: Tried<SwitchDatabase>,
        connection: Tried<OvnConnection>,
        claims: Tried<OvnClaims>,
        taken: Tried<Taken>,
    }
}

/// Claims within a minute from which two hosts fight for a port (`ovn-binding-blog:storm`): a move
/// is one.
const CLAIMS_MIN: usize = 3;
/// Minutes after which such claims are a thing of the past.
const RECENT: u32 = 5;
/// Minutes of a day.
const DAY: u32 = 24 * 60;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let settings = &facts.settings.settings;
    if settings.remote.is_none() {
        return not_here(CHECK.absent);
    }
    let SwitchDatabase(span) = facts.database.get()?;
    let past: BTreeMap<&str, &Port> =
        span.before.ports.iter().map(|port| (port.name.as_str(), port)).collect();
    // A port that is just being bound has not been so at both samples.
    let was = |port: &Port, is_so: fn(&Port) -> bool| match span.basis {
        Basis::SinceBoot => true,
        Basis::Samples => past
            .get(port.name.as_str())
            .is_some_and(|past| past.iface_id() == port.iface_id() && is_so(past)),
    };
    let bridge = settings.bridge();
    let mut found = Vec::from_iter(disconnected(facts));
    let (mut installed, mut new) = (0, 0);
    for port in &span.after.ports {
        match port.iface_id() {
            None if port.bridge != bridge || !port.is_of_guests() => {}
            None if was(port, |_| true) => found.push(unnamed(port)),
            Some(id) => {
                // A log that is not whole hides who fights, and not what is missing.
                found.extend(fought_for(facts, port, id));
                if port.is_installed() {
                    installed += 1;
                } else if was(port, |past| !past.is_installed()) {
                    found.push(uninstalled(facts, port, id, bridge));
                } else {
                    new += 1;
                }
            }
            None => new += 1,
        }
    }
    if found.is_empty() {
        let new = if new > 0 { format!("; just added: {new}") } else { String::new() };
        found.push(all_well(format!("OVN has installed {installed} ports{new}"), None));
    }
    out.add(found);
    if let Err(gap) = facts.connection.get() {
        out.unread("ovn-controller", &gap);
    }
    if let Err(gap) = facts.claims.get() {
        out.unread("ports that other hosts claim", &gap);
    }
    Ok(())
}

/// OVN's controller is without its database.
fn disconnected(facts: &Facts) -> Option<Finding> {
    let OvnConnection(text) = facts.connection.ok()?;
    let quote = text.quote_where(|line| line.trim() == "not connected")?;
    let summary = "ovn-controller is not connected to OVN's southbound database";
    Some(
        Finding::new(Severity::Problem, "ovn-controller", summary)
            .cause("Ports that are installed go on as they are; none is installed or moved.")
            .quote([quote, facts.settings.text.quote(2)])
            .advise(Advice::by_hand(
                "Find out whether that address can be reached, whether a certificate has expired, \
                 and whether the database runs there. The controller's log has the reason.",
                &["ovs-vsctl get open_vswitch . external_ids:ovn-remote"],
            )),
    )
}

fn unnamed(port: &Port) -> Finding {
    let summary = format!("OVN does not know {}: it has no iface-id", port.name);
    let cause = format!(
        "OVN forwards for a port of {} whose external_ids:iface-id is the name of a logical port. \
         It drops the frames of others.",
        squeezed(&port.bridge)
    );
    let text = format!(
        "If a guest is behind it: ovs-vsctl set interface {} external_ids:iface-id=ID, where ID \
         is the logical port's name (ovn-nbctl lsp-list SWITCH). For a vif of ringway, set \
         iface-id in its description or in /etc/ringway/ovs.toml; in libvirt, interfaceid in the \
         <parameters> of <virtualport type='openvswitch'>.",
        shell_word(&port.name)
    );
    Finding::new(Severity::Warning, &port.name, summary)
        .cause(cause)
        .quote([port.quote_ids()])
        .advise(Advice::by_hand(text, &[&shows(port)]))
}

fn uninstalled(facts: &Facts, port: &Port, id: &str, bridge: &str) -> Finding {
    let id = squeezed(id);
    let left = facts.claims.ok().and_then(|OvnClaims { claims, text }| {
        let last = claims.left.iter().rev().find(|(left, _)| *left == id);
        last.map(|(_, line)| text.quote(*line))
    });
    let (severity, cause) = if let Some(error) = &port.error {
        (Severity::Problem, format!("Open vSwitch could not open it: {}.", squeezed(error)))
    } else if port.bridge != bridge {
        let [own, ovns] = [port.bridge.as_str(), bridge].map(squeezed);
        (Severity::Problem, format!("It is on {own}, and OVN takes ports of {ovns} only."))
    } else if left.is_some() {
        let cause = "OVN's configuration reserves it for another host (requested-chassis), as \
                     while a guest moves. Until that changes, frames are dropped here.";
        (Severity::Warning, cause.to_owned())
    } else {
        // A log that is not whole cannot tell this from the above.
        let cause = "OVN has no logical port of that name, or another host has it, or \
                     ovn-controller does not work. Frames of the port are dropped.";
        (Severity::Warning, cause.to_owned())
    };
    let summary = format!("OVN has not installed {}, which is for {id}", port.name);
    Finding::new(severity, &port.name, summary)
        .cause(cause)
        .quote([port.quote_ids()])
        .quote(left)
        .confidence(Confidence::Medium)
        .advise(Advice::by_hand(
            format!(
                "Compare it with OVN's databases, where they can be read: ovn-sbctl find \
                 port_binding logical_port={} shows whether there is such a port, which host has \
                 it (chassis), and for which it is reserved (requested_chassis).",
                shell_word(&id)
            ),
            &[&shows(port), "ovn-appctl -t ovn-controller connection-status"],
        ))
}

/// A port that this host took from another one again and again.
fn fought_for(facts: &Facts, port: &Port, id: &str) -> Option<Finding> {
    let OvnClaims { claims, text } = facts.claims.ok()?;
    let chassis = facts.settings.settings.chassis.as_deref()?;
    let is_own = |one: &&Taking| one.port == id && one.to == chassis;
    let own: Vec<&Taking> = claims.taken.iter().filter(is_own).collect();
    let of_minute = |minute: &str| own.iter().filter(|one| one.minute == minute).count();
    let last = own.iter().rev().find(|one| of_minute(&one.minute) >= CLAIMS_MIN)?;
    let now = facts.taken.ok().map(|Taken(now)| now.value());
    let is_over = !now.is_some_and(|now| is_recent(&last.minute, now));
    let (count, from) = (of_minute(&last.minute), squeezed(&last.from));
    let id = squeezed(id);
    let first = own.iter().find(|one| one.minute == last.minute)?;
    let finding = Finding::new(Severity::Problem, &port.name, "")
        .quote([text.quote(first.line), text.quote(last.line), port.quote_ids()])
        .cause(format!(
            "Both have a port with this iface-id. In one minute this host took it from the other \
             one {count} times; frames for the guest go to the one that had it last."
        ));
    if is_over {
        let summary = format!("{from} and this host both claimed {id}, at {}", last.minute);
        return Some(Finding { severity: Severity::Note, summary, ..finding });
    }
    let summary = format!("{from} and this host both claim {id}, the port of {}", port.name);
    Some(Finding { summary, ..finding }.advise(Advice::by_hand(
        "Find out on which of the two the guest runs, and remove the iface-id on the other one: \
         ovs-vsctl remove interface PORT external_ids iface-id. What makes ports before guests \
         arrive should set it when the guest runs, as ringway does without bind = \"plugged\"; or \
         set requested-chassis of the logical port.",
        &[&shows(port)],
    )))
}

/// The command that shows what the database has of a port.
fn shows(port: &Port) -> String {
    let condition = format!("name={}", port.name);
    format!("ovs-vsctl --columns=name,error,external_ids find interface {}", shell_word(&condition))
}

/// Whether the minute of a log is at most some minutes before that of the evidence. Both begin with
/// the date, and the time is from the twelfth column.
fn is_recent(minute: &str, now: &str) -> bool {
    let clock = |text: &str| {
        let (hours, minutes) = text.get(11..16)?.split_once(':')?;
        let minutes = hours.parse::<u32>().ok()? * 60 + minutes.parse::<u32>().ok()?;
        Some(minutes).filter(|minutes| *minutes < DAY)
    };
    let (Some(then), Some(today)) = (clock(minute), clock(now)) else { return false };
    let is_same_day = minute.get(..10) == now.get(..10);
    (today + DAY - then) % DAY <= RECENT && is_same_day == (then <= today)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_evidence::fact::Host;
    use ringway_evidence::{Source, command_path};

    const OVN: &str = "hv1\n\"tcp:192.0.2.1:6642\"\n\n\n\n";

    /// What the check says of one port for `id`, or of a database that could not be read.
    fn found(settings: &str, id: &str, refused: &str) -> Vec<Finding> {
        let of = |piece: &str| {
            let pieces = ringway_evidence::Piece::each(CHECK.rule.pieces);
            let words = pieces.iter().find_map(|one| match one {
                ringway_evidence::Piece::Command(words)
                | ringway_evidence::Piece::Sampled(words) => {
                    words.contains(&piece).then_some(*words)
                }
                _ => None,
            });
            command_path(words.expect("it is read"))
        };
        let tables = format!(
            r#"{{"data":[["br-int","",["uuid","p"]]],"headings":["name","datapath_type","ports"]}}
            {{"data":[[["uuid","p"],["uuid","i"]]],"headings":["_uuid","interfaces"]}}
            {{"data":[[["uuid","i"],"a","",1500,["set",[]],
            ["map",[["iface-id","{id}"]]],["map",[]]]],
            "headings":["_uuid","name","type","mtu","error","external_ids","status"]}}{}"#,
            "\n"
        );
        let mut pieces = vec![
            ("proc/uptime".to_owned(), "9.0 9\n".to_owned()),
            ("proc/net/dev".to_owned(), "a\nb\n".to_owned()),
            ("refused".to_owned(), format!("{}\t{refused}\n", of("interface"))),
            (of("open_vswitch"), settings.to_owned()),
            (of("connection-status"), "not connected\n".to_owned()),
        ];
        if refused.is_empty() {
            pieces.push((of("interface"), tables));
        }
        CHECK.run(&Host::new(Source::Memory(pieces.into_iter().collect())))
    }

    #[test]
    fn open_vswitch_without_ovn_is_not_judged_and_a_silent_database_is_named() {
        assert_eq!(found("\n\n\n\n\n", "", ""), []);
        let silent = found(OVN, "", "no reply in 10 s");
        let [gap] = silent.as_slice() else { panic!("{silent:#?}") };
        assert!(gap.severity == Severity::Unknown && gap.summary.ends_with("no reply in 10 s"));
        assert_eq!(found(OVN, "\"", "")[0].severity, Severity::Unknown, "no JSON");
    }

    #[test]
    fn what_a_port_is_for_may_be_anything_and_is_shown_as_one_line() {
        for id in [r"\u001b[2J\n\u0000", "a';reboot;'", "$(x)", &"9".repeat(10 << 20)] {
            let found = found(OVN, id, "");
            let said: Vec<&str> = found.iter().map(|one| one.summary.as_str()).collect();
            assert!(said[0].starts_with("ovn-controller is not connected"), "{said:?}");
            assert!(said[1].starts_with("OVN has not installed a, which is for"), "{said:?}");
            let shown = format!("{:?}", found[1]);
            assert!(shown.len() < 3000 && !shown.contains("\\u{1b}"), "{shown}");
        }
    }

    #[test]
    fn a_claim_is_recent_over_midnight_too() {
        assert!(is_recent("2026-01-31T23:58", "2026-02-01 00:01 UTC"));
        assert!(is_recent("2026-01-31T12:00", "2026-01-31 12:05 UTC"));
        for now in ["2026-01-31 12:06 UTC", "2026-02-01 12:00 UTC", "2026-01-31 11:59 UTC", "x"] {
            assert!(!is_recent("2026-01-31T12:00", now), "{now}");
        }
        assert!(!is_recent("2026-01-31T99:99", "2026-01-31 12:00 UTC"));
    }
}

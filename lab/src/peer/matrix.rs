//! What of a study a path to another machine can show: the lab builds neither end, and changes no
//! setting of a real interface.

use crate::record::{Interface, Peer};
use crate::setup::Setup;
use crate::study::{LeftOut, Study, TopologyKind};
use crate::value::Cell;
use crate::word::{
    Attached, Direction, Driver, Encapsulation, Layout, Offloads, Peers, Placement, Policy, Sender,
    name_of,
};

/// What the report says about the topology.
const ABOUT: &str = "This machine as it is, and another one: streams go over the network between \
    them. Interfaces, queues and settings of both are what they were.";

/// A study for a path to another machine, without the values that such a path cannot have, and
/// what to report about them.
///
/// # Errors
/// Why the study cannot be run with a peer.
pub fn with_peer(study: &Study) -> Result<(Study, Vec<String>), String> {
    let refused = |why: &str| format!("`{}` cannot run with a peer: {why}", study.id);
    match study.topology.kind {
        TopologyKind::Wire | TopologyKind::InterHost => {}
        TopologyKind::Guests => return Err(refused("both of its ends are guests of one host")),
        TopologyKind::Router | TopologyKind::RouterBypass => {
            return Err(refused("it has a guest that routes between its ends"));
        }
    }
    let mut left = study.clone();
    let mut notices = Vec::new();
    left.topology.kind = TopologyKind::InterHost;
    ABOUT.clone_into(&mut left.topology.about);
    if !left.baselines.is_empty() {
        notices.push("baselines are left out: they are measured within one machine".to_owned());
    }
    left.baselines.clear();
    left.baseline_axes.clear();
    if let Some(why) = unfit(&Setup::of(&left, &Cell::default())?) {
        return Err(refused(why));
    }
    for axis in &mut left.axis {
        let mut why = None;
        axis.values.retain(|value| {
            let cell = Cell::default().with(&axis.name, value.clone());
            let reason = Setup::of(study, &cell).ok().and_then(|setup| unfit(&setup));
            if let Some(why) = reason {
                let reason = format!("{} = {value} is left out: {why}", axis.name);
                notices.push(reason.clone());
                left.left_out.push(LeftOut {
                    axis: axis.name.clone(),
                    value: value.clone(),
                    reason,
                });
            }
            why = reason.or(why);
            reason.is_none()
        });
        if axis.values.is_empty() {
            return Err(refused(why.unwrap_or("an axis has no values")));
        }
    }
    if left.setup.get("guest-cpus").is_some() {
        left.setup = left.setup.retained(|name| name != "guest-cpus");
        notices.push("guest-cpus is left out: the tools may use all CPUs of this machine".into());
    }
    left.leave_out_impossible();
    Ok((left, notices))
}

/// Why a path to another machine cannot have a set-up.
fn unfit(setup: &Setup) -> Option<&'static str> {
    let faults = [
        (setup.guests != 1 || setup.targets != 1, "there is one end here and one on the peer"),
        (setup.peers == Peers::Guests, "both of its ends are guests of one host"),
        (setup.sender == Sender::Host, "the near end is this machine, be it a host or a guest"),
        (setup.unanswered.is_some(), "only ringway's own frontend has a limit of unanswered pages"),
        (
            setup.workers.is_some()
                || setup.layout != Layout::Free
                || setup.policy != Policy::Balanced,
            "only ringway's own backend has workers",
        ),
        (setup.attached != Attached::Switch, "the lab builds no switch for it"),
        (
            setup.driver != Driver::Netfront
                || setup.encapsulation != Encapsulation::None
                || setup.queue_changes > 0,
            "there is no router on the path",
        ),
        (
            !SEEN.contains(&setup.offloads),
            "the lab changes no offload of a real interface, and looks only at GRO and LRO",
        ),
        (!setup.settings.is_empty(), "the lab changes no kernel setting of a real machine"),
        (setup.line_bps.is_some() || !setup.delay.is_zero(), "the wire is a real one"),
        (setup.cpus.is_some(), "the lab restricts no CPUs of a real machine"),
        (setup.placement != Placement::Random, "the queue of a stream is unknown there"),
        (!setup.tool.has_source_ports(), "the ports of its streams are unknown"),
    ];
    faults.iter().find(|(is_so, _)| *is_so).map(|(_, why)| *why)
}

/// Offloads that the interface which receives is seen to have, or not.
const SEEN: [Offloads; 3] = [Offloads::All, Offloads::NoGro, Offloads::Lro];

/// Why a cell cannot be measured on the path as it is now, with the remedy. A user changes the
/// interface and repeats the command.
///
/// # Errors
/// The reason.
pub fn fits_now(study: &Study, cell: &Cell, peer: &Peer) -> Result<(), String> {
    let all = study.setup(cell);
    let Interface { name, mtu, tx_queues, rx_queues, .. } = &peer.near_interface;
    if let Some(wanted) = all.number("queues") {
        let is_receiving = Setup::of(study, cell)?.direction == Direction::Receive;
        let queues = if is_receiving { rx_queues } else { tx_queues };
        let Some(queues) = queues else {
            return Err(format!("the number of queues of {name} is not in /sys/class/net"));
        };
        if u64::from(*queues) != wanted {
            return Err(format!(
                "queues = {wanted} is left out, because {name} has {queues}: change it, as with \
                 `ethtool -L {name} combined {wanted}`, and repeat the command"
            ));
        }
    }
    if all.get("offloads").is_some() {
        merges(&Setup::of(study, cell)?, peer)?;
    }
    let far = peer.interface.mtu;
    match all.number("mtu") {
        Some(wanted) if u64::from(*mtu) != wanted || u64::from(far) != wanted => Err(format!(
            "mtu = {wanted} is left out, because {name} has {mtu} and {} of {} has {far}: set \
             both, and repeat the command",
            peer.interface.name, peer.name
        )),
        _ => Ok(()),
    }
}

/// Checks that the interface which receives merges packets as a cell says.
fn merges(setup: &Setup, peer: &Peer) -> Result<(), String> {
    let (interface, whose) = match setup.direction {
        Direction::Receive => (&peer.near_interface, String::new()),
        Direction::Transmit => (&peer.interface, format!(" of {}", peer.name)),
    };
    let wanted = [setup.offloads != Offloads::NoGro, setup.offloads == Offloads::Lro];
    let has = [interface.gro, interface.lro];
    let (name, offloads) = (&interface.name, name_of(setup.offloads));
    for ((feature, wanted), has) in ["gro", "lro"].into_iter().zip(wanted).zip(has) {
        let why = match has {
            Some(has) if has != wanted => {
                let state = if wanted { "on" } else { "off" };
                format!(
                    "{name}{whose} has another state of {feature}: change it there, as with \
                     `ethtool -K {name} {feature} {state}`, and repeat the command"
                )
            }
            // Where nothing tells, all offloads are what an interface comes with.
            None if setup.offloads != Offloads::All => {
                format!("{feature} of {name}{whose} is unknown without ethtool: install it there")
            }
            _ => continue,
        };
        return Err(format!("offloads = {offloads} is left out: {why}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Host;
    use crate::study::{Subject, ids, shipped};

    fn peer(queues: Option<u16>) -> Peer {
        let interface = |name: &str| Interface {
            name: name.to_owned(),
            address: [192, 0, 2, 7].into(),
            mtu: 1500,
            tx_queues: queues,
            rx_queues: queues,
            gro: Some(true),
            lro: Some(false),
        };
        Peer {
            name: "red".to_owned(),
            interface: interface("eth1"),
            near_interface: interface("eth0"),
            host: Host::default(),
        }
    }

    #[test]
    fn studies_of_one_guest_and_a_wire_can_run_and_others_say_why_not() {
        let mut can = Vec::new();
        for id in ids() {
            match with_peer(&shipped(id).expect("it is shipped")) {
                Ok((study, _)) => {
                    assert!(study.matrix().all(|(subject, _)| subject == Subject::Machine), "{id}");
                    can.push(id);
                }
                Err(why) => assert!(why.contains("cannot run with a peer: "), "{why}"),
            }
        }
        let wanted =
            ["jumbo", "latency-under-load", "offloads", "placement", "receive", "transmit"];
        for id in wanted {
            assert!(can.contains(&id), "{id}: {can:?}");
        }
        for id in ["guest-to-guest", "network-node", "latency", "workers", "tcp-settings"] {
            assert!(!can.contains(&id), "{id}");
        }
    }

    #[test]
    fn a_study_keeps_what_the_path_can_have() {
        let (study, notices) = with_peer(&shipped("offloads").expect("shipped")).expect("it can");
        let seen = ["all", "no-gro", "lro"].map(Into::into);
        assert_eq!(study.axis("offloads").expect("an axis").values, seen);
        assert_eq!(study.axis("direction").expect("an axis").values.len(), 2);
        assert!(notices.iter().any(|one| one.starts_with("offloads = no-sg is left out")));
        let why = study.why_left_out("receive.no-sg.guest").expect("it is left out");
        assert!(why.starts_with("offloads = no-sg is left out"), "{why}");
        assert!(study.subjects() == [Subject::Machine] && study.baseline_axes.is_empty());
        let text = study.to_toml();
        assert_eq!(Study::parse("a copy", &text).expect("it is a study"), study);
        let (again, notices) = with_peer(&study).expect("it is one already");
        assert!(again == study && notices.is_empty(), "{notices:?}");
    }

    #[test]
    fn cells_wait_until_the_receiving_interface_merges_packets_as_they_say() {
        let (study, _) = with_peer(&shipped("offloads").expect("shipped")).expect("it can");
        let of = |label: &str, peer: &Peer| {
            fits_now(&study, &study.cell_of_label(label).expect("a cell"), peer)
        };
        let usual = peer(Some(1));
        assert_eq!(of("receive.all.guest", &usual), Ok(()));
        let why = of("receive.lro.guest", &usual).expect_err("it is off");
        assert!(why.contains("`ethtool -K eth0 lro on`"), "{why}");
        let why = of("transmit.no-gro.guest", &usual).expect_err("it is on");
        assert!(why.contains("eth1 of red") && why.contains("`ethtool -K eth1 gro off`"), "{why}");
        let mut merging = usual.clone();
        merging.near_interface.lro = Some(true);
        assert_eq!(of("receive.lro.guest", &merging), Ok(()));
        assert!(of("receive.all.guest", &merging).expect_err("it is on").contains("lro off"));
        let mut unknown = usual;
        (unknown.near_interface.gro, unknown.near_interface.lro) = (None, None);
        assert_eq!(of("receive.all.guest", &unknown), Ok(()));
        let why = of("receive.no-gro.guest", &unknown).expect_err("no one knows");
        assert!(why.contains("gro of eth0 is unknown without ethtool"), "{why}");
    }

    #[test]
    fn cells_wait_until_the_interface_has_their_queues() {
        let (study, _) = with_peer(&shipped("transmit").expect("shipped")).expect("it can");
        let cell = study.cell_of_label("q4.s8").expect("a cell");
        assert_eq!(fits_now(&study, &cell, &peer(Some(4))), Ok(()));
        let why = fits_now(&study, &cell, &peer(Some(2))).expect_err("two");
        assert!(why.contains("eth0 has 2") && why.contains("ethtool -L eth0 combined 4"), "{why}");
        assert!(fits_now(&study, &cell, &peer(None)).expect_err("unknown").contains("/sys/class"));
        let (study, _) = with_peer(&shipped("jumbo").expect("shipped")).expect("it can");
        let cell = study.cell_of_label("all.m9000").expect("a cell");
        let why = fits_now(&study, &cell, &peer(Some(4))).expect_err("1500");
        assert!(why.contains("eth1 of red has 1500"), "{why}");
    }
}

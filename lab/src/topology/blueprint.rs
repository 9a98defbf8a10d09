//! What to build for a cell of a study, and what cannot be built.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringway_rig::child::PartError;
use ringway_rig::host::PROGRAM;
use ringway_rig::launcher;
use ringway_steering::FlowKey;

use super::addresses::{INNER, INNER_PREFIX_LEN, OUTER, OUTER_PREFIX_LEN, TUNNEL};
use super::{GUEST_BRIDGE, PEER_BRIDGE, PREFIX_LEN, UPLINK, far_address, near_address};
use crate::setup::{MTU_DEFAULT, Setup};
use crate::study::{Study, Subject, TopologyKind};
pub use crate::word::{Attached, Driver, Encapsulation, Layout};
use crate::word::{GuestCpus, Offloads, Peers, Placement, Policy, Sender, name_of};

/// What to build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blueprint {
    /// The measured subject.
    pub subject: Subject,
    /// The shape.
    pub kind: TopologyKind,
    /// The ringway program; `None` for the one beside this program, or in `PATH`.
    pub program: Option<PathBuf>,
    /// The part of this program that copies, if the subject is the relay; `None` for
    /// [`RELAY`](crate::part::RELAY).
    pub relay: Option<&'static str>,
    /// Guests that are measured.
    pub guests: u16,
    /// Hosts behind a guest that routes.
    pub targets: u16,
    /// What drives the interfaces of that guest.
    pub driver: Driver,
    /// What a machine boots: a folder with `vmlinux` and `guest.cpio`.
    pub image: Option<PathBuf>,
    /// The encapsulation between those and the guest.
    pub encapsulation: Encapsulation,
    /// Queues of every vif, and of the uplink.
    pub queues: u16,
    /// Limit of a sender's unanswered pages, if it waits for responses.
    pub unanswered: Option<u16>,
    /// Further lines of the description: of `[host]`, and of each vif.
    pub more: More,
    /// Threads of the backend; one a CPU if `None`.
    pub workers: Option<u16>,
    /// How the backend places queues on them.
    pub policy: Policy,
    /// Where threads run.
    pub layout: Layout,
    /// CPUs of each guest; all if `None`.
    pub cpus: Option<usize>,
    /// MTU of every link, in bytes.
    pub mtu: u16,
    /// Which offloads are on.
    pub offloads: Offloads,
    /// The rate of a line of the wire; unlimited if `None`.
    pub line_bps: Option<u64>,
    /// How many lines it has.
    pub lines: u16,
    /// The delay that a relay adds between the ends, in each direction; no relay for zero.
    pub delay: Duration,
    /// What guests are attached to.
    pub attached: Attached,
    /// Whether the host itself sends, without a guest.
    pub sends_from_host: bool,
    /// Whether ringway's backend moves flows from queues that cannot keep up.
    pub balances_flows: bool,
    /// The key of ringway's flows; a random one if `None`.
    pub flow_key: Option<FlowKey>,
    /// Settings of both kernels, as in `settings` of a study.
    pub settings: BTreeMap<String, String>,
}

/// Settings of ringway that are not its default, as lines of a description.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct More {
    /// Of `[host]`.
    pub host: String,
    /// Of each `[[guest.vif]]` between two guests.
    pub vifs: String,
}

/// The lines of a wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lines {
    /// One, or two.
    pub(crate) count: u16,
    /// The rate of each.
    pub(crate) bps: u64,
}

impl Lines {
    /// The kernel's modules that shape them.
    pub(crate) fn modules(self) -> &'static str {
        if self.count > 1 { "sch_tbf, sch_htb and cls_u32" } else { "sch_tbf" }
    }
}

impl Blueprint {
    /// The ringway program that runs hosts and guests.
    ///
    /// # Errors
    /// None is named, beside this program or in `PATH`.
    pub(super) fn program(&self) -> Result<PathBuf, PartError> {
        let missing = || PartError::Failed(format!("there is no program {PROGRAM}"));
        self.program.clone().or_else(|| launcher::find_ours(PROGRAM)).ok_or_else(missing)
    }

    /// Two ends with default settings.
    pub fn pair(subject: Subject) -> Blueprint {
        Blueprint {
            subject,
            kind: TopologyKind::Guests,
            program: None,
            relay: None,
            guests: 1,
            targets: 1,
            driver: Driver::Netfront,
            image: None,
            encapsulation: Encapsulation::None,
            queues: 1,
            unanswered: None,
            more: More::default(),
            workers: None,
            policy: Policy::Balanced,
            layout: Layout::Free,
            cpus: None,
            mtu: MTU_DEFAULT,
            offloads: Offloads::All,
            line_bps: None,
            lines: 1,
            delay: Duration::ZERO,
            attached: Attached::Switch,
            sends_from_host: false,
            balances_flows: false,
            flow_key: None,
            settings: BTreeMap::new(),
        }
    }

    /// The blueprint of a set-up.
    ///
    /// # Errors
    /// What cannot be built, as part of a sentence.
    pub fn of(kind: TopologyKind, subject: Subject, setup: &Setup) -> Result<Blueprint, String> {
        let kind = with_peers(kind, setup.peers)?;
        if kind == TopologyKind::InterHost || subject == Subject::Machine {
            return Err("second machine without --peer HOST".to_owned());
        }
        if subject == Subject::TapRelay && (setup.guests > 1 || kind.has_router()) {
            return Err("a relay between more than two devices".to_owned());
        }
        if setup.unanswered.is_some() && kind.has_router() {
            return Err("limit of unanswered pages for a router".to_owned());
        }
        if setup.placement == Placement::Balanced && setup.attached != Attached::Switch {
            return Err("balance of flows but with switch = \"ringway\"".to_owned());
        }
        if setup.driver != Driver::Netfront && !kind.has_router() {
            return Err("choice of a driver but for a router".to_owned());
        }
        if setup.driver == Driver::Machine && setup.encapsulation != Encapsulation::None {
            return Err("tunnel in a machine".to_owned());
        }
        if setup.queue_changes > 0 && setup.driver != Driver::Machine {
            return Err("change of queues during a run but with driver = \"qemu\"".to_owned());
        }
        if setup.lines > 1 && setup.line_bps.is_none() {
            return Err("second line without a rate of each: `line`".to_owned());
        }
        if setup.lines > 1 && setup.encapsulation == Encapsulation::Gre {
            return Err("second line for GRE, which has no ports".to_owned());
        }
        if !setup.delay.is_zero() {
            if kind.has_router() {
                return Err("delay in a topology with a router".to_owned());
            }
            if kind == TopologyKind::Guests && setup.attached != Attached::Switch {
                return Err("delay between guests but with switch = \"ringway\"".to_owned());
            }
        }
        Ok(Blueprint {
            kind,
            guests: setup.guests,
            targets: setup.targets,
            driver: setup.driver,
            encapsulation: setup.encapsulation,
            queues: setup.queues,
            unanswered: setup.unanswered,
            workers: setup.workers,
            policy: setup.policy,
            layout: setup.layout,
            cpus: setup.cpus.or_else(|| part_of_host(setup.guest_cpus)),
            mtu: setup.mtu,
            offloads: setup.offloads,
            line_bps: setup.line_bps,
            lines: setup.lines,
            delay: setup.delay,
            attached: setup.attached,
            sends_from_host: setup.sender == Sender::Host,
            balances_flows: setup.placement == Placement::Balanced,
            settings: setup.settings.clone(),
            ..Blueprint::pair(subject)
        })
    }

    /// The lines of the wire, if their rate is limited.
    pub(crate) fn lines(&self) -> Option<Lines> {
        self.line_bps.map(|bps| Lines { count: self.lines, bps })
    }

    /// The description of ringway's host for `ringway run`.
    pub fn description(&self) -> String {
        let Blueprint { queues, mtu, .. } = self;
        let (policy, queues_max) = (name_of(self.policy), self.queues_max());
        let mut text = format!(
            "[host]\nnetwork = \"private\"\nmax-queues = {queues_max}\npolicy = \"{policy}\"\n"
        );
        text += &self.more.host;
        if let Some(workers) = self.workers {
            text += &format!("workers = {workers}\n");
        }
        if self.balances_flows {
            text += "balance-flows = true\n";
        }
        if let Some(key) = self.flow_key {
            text += &format!("flow-key = \"{key}\"\n");
        }
        if self.kind != TopologyKind::Guests {
            text += &format!("[uplink]\nname = \"{UPLINK}\"\nqueues = {queues}\nmtu = {mtu}\n");
        }
        if self.kind.has_router() {
            let is_guest = self.driver == Driver::Netfront;
            return if is_guest { text + &self.router() } else { text };
        }
        let bridges = self.bridges();
        for bridge in bridges.into_iter().flatten().collect::<BTreeSet<_>>() {
            text += &format!("[[bridge]]\nname = \"{bridge}\"\n");
        }
        let vif_bridge = |is_near| {
            let [near, far] = bridges;
            let bridge = if is_near { near } else { far };
            bridge.map(|name| format!("bridge = \"{name}\"\n")).unwrap_or_default()
        };
        let near = |index| (format!("near{index}"), near_address(index), vif_bridge(true));
        let far = |index| (format!("far{index}"), far_address(index), vif_bridge(false));
        let (near, far) = ((0..self.guests).map(near), (0..self.guests).map(far));
        let far_count = if self.kind == TopologyKind::Wire { 0 } else { usize::from(self.guests) };
        for (name, address, bridge) in near.chain(far.take(far_count)) {
            text += &format!(
                "[[guest]]\nname = \"{name}\"\n[[guest.vif]]\n\
                 addresses = [\"{address}/{PREFIX_LEN}\"]\nqueues = {queues}\nmtu = {mtu}\n\
                 {bridge}{}{}",
                self.limit_of_unanswered(),
                self.more.vifs
            );
        }
        text
    }

    /// Whether a relay delays frames between guests.
    pub(super) fn is_split(&self) -> bool {
        self.kind == TopologyKind::Guests && !self.delay.is_zero()
    }

    /// The bridges of the measured guests and of their peers; `None` is the switch.
    fn bridges(&self) -> [Option<&'static str>; 2] {
        match self.attached {
            _ if self.is_split() => [Some(GUEST_BRIDGE), Some(PEER_BRIDGE)],
            Attached::Switch => [None; 2],
            Attached::Bridge | Attached::OpenVswitch => [Some(GUEST_BRIDGE); 2],
        }
    }

    /// The part of the description for the guest that routes.
    fn router(&self) -> String {
        let Blueprint { queues, mtu, .. } = self;
        let vif = |address, len| {
            format!(
                "[[guest.vif]]\naddresses = [\"{address}/{len}\"]\nqueues = {queues}\nmtu = {mtu}\n"
            )
        };
        let vifs = [vif(OUTER, OUTER_PREFIX_LEN), vif(self.router_inner(), INNER_PREFIX_LEN)];
        format!("[[guest]]\nname = \"router\"\n{}", vifs.concat())
    }

    /// The interfaces of a router with virtio, each behind the socket in a directory that has its
    /// name.
    pub(super) fn sockets(&self, names: [&str; 2], dir: &Path) -> String {
        let Blueprint { mtu, .. } = self;
        let queues = self.queues_max();
        let vif = |name: &str| {
            format!(
                "[[vhost]]\nname = \"{name}\"\nsocket = \"{}\"\nmode = \"server\"\n\
                 queues = {queues}\nmtu = {mtu}\n",
                dir.join(name).display()
            )
        };
        names.map(vif).concat()
    }

    /// Queues of an interface of a router with virtio. A virtual machine has at least two, so that
    /// their number can be changed.
    pub(super) fn queues_max(&self) -> u16 {
        self.queues.max(if self.driver == Driver::Machine { 2 } else { 1 })
    }

    /// The router's address on its inner interface.
    pub(super) fn router_inner(&self) -> Ipv4Addr {
        match self.encapsulation {
            Encapsulation::None => INNER,
            Encapsulation::Vxlan | Encapsulation::Gre => TUNNEL,
        }
    }

    /// The lines of a guest's vif. Without segmentation offload a page holds one frame, so the
    /// limit does not depend on how much the kernel sends at once.
    fn limit_of_unanswered(&self) -> String {
        let lines = |pages| format!("gso = false\nmax-unanswered = {pages}\n");
        self.unanswered.map(lines).unwrap_or_default()
    }
}

/// The topology of a study with these peers.
fn with_peers(kind: TopologyKind, peers: Peers) -> Result<TopologyKind, String> {
    match (kind, peers) {
        (kind, Peers::Uplink) => Ok(kind),
        (TopologyKind::Wire, Peers::Guests) => Ok(TopologyKind::Guests),
        _ => Err("choice of peers but for guests on a wire".to_owned()),
    }
}

/// The number of CPUs in a fraction of the host's; `None` for all.
fn part_of_host(part: GuestCpus) -> Option<usize> {
    // If the host's CPUs are unknown, a guest gets one.
    let all = || ringway_sys::process::allowed_cpus().map_or(1, |cpus| cpus.len());
    match part {
        GuestCpus::All => None,
        GuestCpus::Half => Some((all() / 2).max(1)),
    }
}

/// Why a study cannot be run, as a sentence; `None` if it can.
pub fn unsupported(study: &Study) -> Option<String> {
    let what = study.matrix().find_map(|(subject, cell)| {
        let setup = Setup::of(study, &cell);
        setup.and_then(|setup| Blueprint::of(study.topology.kind, subject, &setup)).err()
    })?;
    let what = what.strip_prefix("a ").unwrap_or(&what);
    Some(format!("the lab cannot run `{}`: there is no {what}", study.id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::{ids, shipped};
    use crate::value::Cell;

    fn blueprint(study: &Study, cell: &Cell) -> Blueprint {
        let setup = Setup::of(study, cell).expect("it means something");
        Blueprint::of(study.topology.kind, Subject::Ringway, &setup).expect("it can be built")
    }

    #[test]
    fn every_shipped_study_can_be_built() {
        for id in ids() {
            assert_eq!(unsupported(&shipped(id).expect("it is shipped")), None);
        }
    }

    #[test]
    fn further_lines_are_in_the_table_that_they_belong_to() {
        let more = More { host: "poll-us = 0\n".to_owned(), vifs: "gro = false\n".to_owned() };
        let text = Blueprint { more, ..Blueprint::pair(Subject::Ringway) }.description();
        let (host, guests) = text.split_once("[[guest]]").expect("it has guests");
        assert!(host.contains("\npoll-us = 0\n") && !host.contains("gro"), "{text}");
        assert_eq!(guests.matches("\ngro = false\n").count(), 2, "{text}");
    }

    #[test]
    fn a_path_says_how_many_pages_a_sender_may_have_unanswered() {
        let study = shipped("latency").expect("it is shipped");
        let text = |path: &str| {
            let cell = study.cell_of_label(&format!("{path}.iperf3")).expect(path);
            blueprint(&study, &cell).description()
        };
        assert!(text("guest-asynchronous").contains("gso = false\nmax-unanswered = 2\n"));
        assert!(text("guest-staged").contains("gso = false\nmax-unanswered = 256\n"));
    }

    #[test]
    fn a_cell_says_what_is_built() {
        let study = shipped("transmit").expect("it is shipped");
        let cell = study.cell_of_label("q4.s8").expect("a cell");
        let blueprint = blueprint(&study, &cell);
        assert_eq!((blueprint.queues, blueprint.guests, blueprint.line_bps), (4, 1, None));
        let text = blueprint.description();
        assert_eq!(text.matches("queues = 4").count(), 3, "host, uplink, vif: {text}");
        assert_eq!(text.matches("[[guest]]").count(), 1);
        assert!(!text.contains("max-unanswered"), "{text}");
    }

    #[test]
    fn a_delay_is_between_two_bridges_and_a_cell_without_one_has_neither() {
        let study = shipped("tcp-settings").expect("it is shipped");
        let of = |label: &str| blueprint(&study, &study.cell_of_label(label).expect("a cell"));
        let text = of("s1.d25.today").description();
        assert_eq!(text.matches("[[bridge]]").count(), 2, "{text}");
        let near = "near0\"\n[[guest.vif]]\naddresses = [\"198.18.0.1/15\"]\nqueues = 4\n\
                    mtu = 1500\n\
                    bridge = \"guests0\"";
        assert!(text.contains(near), "{text}");
        assert_eq!(text.matches("\nbridge = \"peers0\"").count(), 1, "{text}");
        assert_eq!(of("s1.d25.today").delay, Duration::from_millis(25));
        assert!(!of("s1.d0.today").description().contains("bridge"));
    }

    #[test]
    fn old_settings_have_their_offloads() {
        let study = shipped("tcp-settings").expect("it is shipped");
        let of = |label: &str| blueprint(&study, &study.cell_of_label(label).expect("a cell"));
        let value = |label: &str, name: &str| of(label).settings.get(name).cloned();
        assert_eq!(value("s8.d0.guide-defaults", "gro").as_deref(), Some("off"));
        assert_eq!(value("s8.d0.demo-etch", "gso").as_deref(), Some("off"));
        let wmem = value("s8.d0.demo-etch", "net.ipv4.tcp_wmem");
        assert_eq!(wmem.as_deref(), Some("4096 16384 262144"));
        assert!(of("s8.d0.today").settings.is_empty());
    }

    #[test]
    fn hosts_without_guests_are_on_a_bridge_or_on_open_vswitch() {
        let study = shipped("bridge-or-ovs").expect("it is shipped");
        let of = |label: &str| blueprint(&study, &study.cell_of_label(label).expect("a cell"));
        for (label, attached) in
            [("s4.host-bridge", Attached::Bridge), ("s4.host-ovs", Attached::OpenVswitch)]
        {
            let one = of(label);
            assert!(one.sends_from_host && one.attached == attached, "{label}: {one:?}");
        }
        assert!(!of("s4.ovs").sends_from_host);
        let study = shipped("offloads").expect("it is shipped");
        let cell = study.cell_of_label("receive.no-gro.host").expect("a cell");
        let one = blueprint(&study, &cell);
        assert!(one.sends_from_host && one.offloads == Offloads::NoGro, "{one:?}");
    }

    #[test]
    fn a_router_has_two_interfaces_of_all_queues() {
        let study = shipped("network-node").expect("it is shipped");
        let of = |label: &str| blueprint(&study, &study.cell_of_label(label).expect("a cell"));
        let blueprint = of("t12.q8.xen");
        assert_eq!((blueprint.targets, blueprint.guests, blueprint.cpus), (12, 1, Some(8)));
        let text = blueprint.description();
        assert_eq!(text.matches("[[guest]]").count(), 1, "{text}");
        assert_eq!(text.matches("[[guest.vif]]").count(), 2, "{text}");
        assert_eq!(text.matches("queues = 8").count(), 4, "host, uplink, vifs: {text}");

        let virtio = of("t12.q8.virtio");
        assert!(!virtio.description().contains("[[guest]]"), "it is behind sockets");
        let text = virtio.sockets(["one", "two"], Path::new("/run"));
        assert_eq!(text.matches("[[vhost]]").count(), 2, "{text}");
        assert_eq!(text.matches("\nqueues = 8\n").count(), 2, "{text}");
        assert!(text.contains("socket = \"/run/two\""), "{text}");
        // A virtual machine has two, so that the number can change.
        assert_eq!(of("t6.q1.ethtool").queues_max(), 2);
        assert_eq!(of("t6.q8.ethtool").queues_max(), 8);
    }
}

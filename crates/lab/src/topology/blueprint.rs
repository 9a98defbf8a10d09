//! What a cell of a study needs to be built, and what cannot be built.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use super::addresses::{INNER, INNER_PREFIX_LEN, OUTER, OUTER_PREFIX_LEN, TUNNEL};
use super::{GUEST_BRIDGE, PREFIX_LEN, UPLINK, far_address, near_address};
use crate::study::{Study, Subject, TopologyKind};
use crate::tools::Tool;
use crate::value::{Cell, bits_per_second};

/// What ordinary Ethernet carries, and every link if nobody says otherwise.
pub(super) const MTU_DEFAULT: u16 = 1500;
const POLICY_DEFAULT: &str = "balanced";
const OFFLOADS_DEFAULT: &str = "all";

/// Pages that a sender may have unanswered, where it is limited and the study does not say: two
/// frames, which is closest to what `arm64-latency-report:tx` has under way.
const UNANSWERED_DEFAULT: u16 = 2;

/// When a sender may get its buffers back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// As the parameter `completion` says it.
    name: &'static str,
    /// When the backend answers, as the key `completion` of `[host]` says it.
    answered: &'static str,
    /// Whether the frontend waits for answers, or has copies of all that it sends.
    waits: bool,
}

/// What the data plane offers; where the parameter is missing, it is left alone.
const COMPLETIONS: [Completion; 3] = [
    Completion { name: "asynchronous", answered: "copied", waits: true },
    Completion { name: "synchronous", answered: "sent", waits: true },
    Completion { name: "staged", answered: "sent", waits: false },
];

impl Completion {
    /// From the value of the parameter `completion`, if there is one.
    fn from_name(name: &str) -> Result<Option<Completion>, String> {
        let found = COMPLETIONS.into_iter().find(|completion| completion.name == name);
        match name {
            "" => Ok(None),
            _ => found.map(Some).ok_or_else(|| format!("{name} completion in the data plane")),
        }
    }
}

/// What is to be built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blueprint {
    /// Who is measured.
    pub subject: Subject,
    /// The shape.
    pub kind: TopologyKind,
    /// The program that is ringway; `None` if it is our own.
    pub program: Option<PathBuf>,
    /// Guests that are looked at.
    pub guests: u16,
    /// Hosts behind a guest that routes.
    pub targets: u16,
    /// What is between those and the guest.
    pub encapsulation: Encapsulation,
    /// Queues of every vif, and of the uplink.
    pub queues: u16,
    /// When a sender may get its buffers back; as ringway does it unasked if `None`.
    pub completion: Option<Completion>,
    /// Pages that a sender may have unanswered, where it waits for answers.
    pub unanswered: u16,
    /// Threads of the backend; one a CPU if `None`.
    pub workers: Option<u16>,
    /// How the backend places queues on them, as the parameter `policy` says.
    pub policy: String,
    /// Where threads run.
    pub layout: Layout,
    /// CPUs of each guest; all if `None`.
    pub cpus: Option<usize>,
    /// Of every link, in bytes.
    pub mtu: u16,
    /// Which work is left to the other side, as the parameter `offloads` says.
    pub offloads: String,
    /// The rate of the wire; as fast as it goes if `None`.
    pub line_bps: Option<u64>,
    /// What guests are attached to.
    pub attached: Attached,
    /// Whether the host itself sends, without a guest.
    pub sends_from_host: bool,
    /// Settings of both kernels, as in `settings` of a study.
    pub settings: BTreeMap<String, String>,
}

/// What guests are attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attached {
    /// ringway's switch.
    Switch,
    /// A Linux bridge, by a TAP device each.
    Bridge,
    /// Open vSwitch, by a TAP device each.
    OpenVswitch,
}

/// What frames to the targets are packed into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encapsulation {
    /// Nothing.
    None,
    /// VXLAN (RFC 7348), by the kernels of router and targets.
    Vxlan,
}

/// Where the threads of frontend and backend run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Where the kernel puts them.
    Free,
    /// All on one CPU.
    OneCpu,
    /// Thread N of both ends on one CPU, different numbers on different CPUs.
    Paired,
    /// Every thread on a CPU of its own, as far as they go.
    Spread,
}

impl Attached {
    /// From the value of the parameter `switch`.
    fn from_name(name: &str) -> Attached {
        match name {
            "" | "ringway" => Attached::Switch,
            "bridge" => Attached::Bridge,
            _ => Attached::OpenVswitch,
        }
    }
}

impl Encapsulation {
    /// From the value of the parameter `encapsulation`.
    fn from_name(name: &str) -> Encapsulation {
        match name {
            "vxlan" => Encapsulation::Vxlan,
            _ => Encapsulation::None,
        }
    }
}

impl Layout {
    /// From the value of the parameter `layout`.
    fn from_name(name: &str) -> Layout {
        match name {
            "" | "free" => Layout::Free,
            "one-cpu" => Layout::OneCpu,
            "paired" => Layout::Paired,
            _ => Layout::Spread,
        }
    }
}

impl Blueprint {
    /// Two ends and nothing special.
    pub fn pair(subject: Subject) -> Blueprint {
        Blueprint {
            subject,
            kind: TopologyKind::Guests,
            program: None,
            guests: 1,
            targets: 1,
            encapsulation: Encapsulation::None,
            queues: 1,
            completion: None,
            unanswered: UNANSWERED_DEFAULT,
            workers: None,
            policy: POLICY_DEFAULT.to_owned(),
            layout: Layout::Free,
            cpus: None,
            mtu: MTU_DEFAULT,
            offloads: OFFLOADS_DEFAULT.to_owned(),
            line_bps: None,
            attached: Attached::Switch,
            sends_from_host: false,
            settings: BTreeMap::new(),
        }
    }

    /// What a cell of a study needs.
    ///
    /// # Errors
    /// What cannot be built, as a part of a sentence.
    pub fn of(study: &Study, subject: Subject, cell: &Cell) -> Result<Blueprint, String> {
        let setup = study.setup(cell);
        let word = |name: &str| setup.text(name).unwrap_or_default();
        let count = |name: &str| setup.number(name).and_then(|number| u16::try_from(number).ok());
        let guests = count("guests").unwrap_or(1);
        let kind = study.topology.kind;
        if subject == Subject::TapRelay && (guests > 1 || kind == TopologyKind::Router) {
            return Err("a relay between more than two devices".to_owned());
        }
        let completion = Completion::from_name(word("completion"))?;
        if completion.is_some() && kind == TopologyKind::Router {
            return Err("choice of completion for a router".to_owned());
        }
        let or = |name: &str, default: &str| {
            setup.text(name).map_or_else(|| default.to_owned(), str::to_owned)
        };
        let settings = study.settings.get(word("tcp")).cloned().unwrap_or_default();
        Ok(Blueprint {
            kind,
            guests,
            targets: count("targets").unwrap_or(1),
            encapsulation: Encapsulation::from_name(word("encapsulation")),
            queues: count("queues").unwrap_or(1),
            completion,
            unanswered: count("unanswered").unwrap_or(UNANSWERED_DEFAULT),
            workers: count("workers"),
            policy: or("policy", POLICY_DEFAULT),
            layout: Layout::from_name(word("layout")),
            cpus: count("cpus").map(usize::from).filter(|cpus| *cpus > 0),
            mtu: count("mtu").unwrap_or(MTU_DEFAULT),
            offloads: or("offloads", OFFLOADS_DEFAULT),
            line_bps: bits_per_second(word("line")),
            attached: Attached::from_name(word("switch")),
            sends_from_host: word("sender") == "host",
            settings,
            ..Blueprint::pair(subject)
        })
    }

    /// ringway's host, as `ringway run` reads it.
    pub fn description(&self) -> String {
        let Blueprint { queues, mtu, policy, .. } = self;
        let mut text = format!(
            "[host]\nnetwork = \"private\"\nmax-queues = {queues}\npolicy = \"{policy}\"\n"
        );
        if let Some(Completion { answered, .. }) = self.completion {
            text += &format!("completion = \"{answered}\"\n");
        }
        if let Some(workers) = self.workers {
            text += &format!("workers = {workers}\n");
        }
        if self.kind != TopologyKind::Guests {
            text += &format!("[uplink]\nname = \"{UPLINK}\"\nqueues = {queues}\nmtu = {mtu}\n");
        }
        if self.kind == TopologyKind::Router {
            return text + &self.router();
        }
        let mut vif_bridge = String::new();
        if self.attached != Attached::Switch {
            text += &format!("[[bridge]]\nname = \"{GUEST_BRIDGE}\"\n");
            vif_bridge = format!("bridge = \"{GUEST_BRIDGE}\"\n");
        }
        let near = (0..self.guests).map(|index| (format!("near{index}"), near_address(index)));
        let far = (0..self.guests).map(|index| (format!("far{index}"), far_address(index)));
        let far_count = if self.kind == TopologyKind::Wire { 0 } else { usize::from(self.guests) };
        for (name, address) in near.chain(far.take(far_count)) {
            text += &format!(
                "[[guest]]\nname = \"{name}\"\n[[guest.vif]]\n\
                 addresses = [\"{address}/{PREFIX_LEN}\"]\nqueues = {queues}\nmtu = {mtu}\n\
                 {vif_bridge}{}",
                self.vif_completion()
            );
        }
        text
    }

    /// The guest that routes, as `ringway run` reads it.
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

    /// The router's address on its inner interface.
    pub(super) fn router_inner(&self) -> Ipv4Addr {
        match self.encapsulation {
            Encapsulation::None => INNER,
            Encapsulation::Vxlan => TUNNEL,
        }
    }

    /// The lines of a guest's vif. Without segmentation offload a page is a frame, so that the
    /// limit means the same whatever the size of what the kernel sends at once.
    fn vif_completion(&self) -> String {
        match self.completion {
            None => String::new(),
            Some(Completion { waits: false, .. }) => "gso = false\n".to_owned(),
            Some(_) => format!("gso = false\nmax-unanswered = {}\n", self.unanswered),
        }
    }
}

/// Why a study cannot be run, as a sentence; `None` if it can.
pub fn unsupported(study: &Study) -> Option<String> {
    let what = study.matrix().find_map(|(subject, cell)| {
        let tool = Tool::of(&study.setup(&cell)).err();
        tool.or_else(|| Blueprint::of(study, subject, &cell).err())
    })?;
    let what = what.strip_prefix("a ").unwrap_or(&what);
    Some(format!("the lab cannot run `{}`: there is no {what}", study.id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::{ids, shipped};

    #[test]
    fn every_shipped_study_can_be_built() {
        for id in ids() {
            assert_eq!(unsupported(&shipped(id).expect("it is shipped")), None);
        }
    }

    #[test]
    fn a_path_says_who_waits_for_whom() {
        let study = shipped("latency").expect("it is shipped");
        let lines = |path: &str| {
            let cell = study.cell_of_label(&format!("{path}.iperf3")).expect(path);
            let text = Blueprint::of(&study, Subject::Ringway, &cell).expect(path).description();
            let is_ours = |line: &&str| line.starts_with("compl") || line.starts_with("max-un");
            text.lines().filter(is_ours).map(str::to_owned).collect::<Vec<_>>()
        };
        let (copied, sent) = ("completion = \"copied\"", "completion = \"sent\"");
        assert_eq!(lines("guest-asynchronous"), [copied, "max-unanswered = 2"]);
        assert_eq!(lines("guest-synchronous"), [sent, "max-unanswered = 2"]);
        assert_eq!(lines("guest-synchronous-16"), [sent, "max-unanswered = 16"]);
        assert_eq!(lines("guest-staged"), [sent]);
    }

    #[test]
    fn a_cell_says_what_is_built() {
        let study = shipped("transmit").expect("it is shipped");
        let cell = study.cell_of_label("q4.s8").expect("a cell");
        let blueprint = Blueprint::of(&study, Subject::Ringway, &cell).expect("it can be built");
        assert_eq!((blueprint.queues, blueprint.guests, blueprint.line_bps), (4, 1, None));
        let text = blueprint.description();
        assert_eq!(text.matches("queues = 4").count(), 3, "host, uplink, vif: {text}");
        assert_eq!(text.matches("[[guest]]").count(), 1);
        assert!(!text.contains("completion") && !text.contains("max-unanswered"), "{text}");
    }

    #[test]
    fn a_router_has_two_interfaces_of_all_queues() {
        let study = shipped("network-node").expect("it is shipped");
        let cell = study.cell_of_label("t12.q8").expect("a cell");
        let blueprint = Blueprint::of(&study, Subject::Ringway, &cell).expect("it can be built");
        assert_eq!((blueprint.targets, blueprint.guests), (12, 1));
        let text = blueprint.description();
        assert_eq!(text.matches("[[guest]]").count(), 1, "{text}");
        assert_eq!(text.matches("[[guest.vif]]").count(), 2, "{text}");
        assert_eq!(text.matches("queues = 8").count(), 4, "host, uplink, vifs: {text}");
    }
}

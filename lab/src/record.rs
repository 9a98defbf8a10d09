//! Records of a measurement: the study, the machine, and the runs.
//!
//! [`journal`](crate::journal) stores them in files.

mod ends;

use std::collections::BTreeMap;

pub use ends::{EndUse, Ends, Interface, InterfaceUse, Peer};
pub use ringway_rig::machine::Host;
pub use ringway_rig::tools::{Course, ToolRun};
use serde::{Deserialize, Serialize};

use crate::study::{Study, Subject};
use crate::value::Cell;

/// The note on a run whose streams went around a router.
pub const AROUND_ROUTER: &str = "streams went around the router";
/// The note on a run whose streams crossed a router that they need not cross.
pub const CROSSED_ROUTER: &str = "streams crossed the router";

/// All records of a study.
#[derive(Debug, Clone, PartialEq)]
pub struct Records {
    /// The study as it was run.
    pub study: Study,
    /// The machine.
    pub host: Host,
    /// The other machine, if the far end was there.
    pub peer: Option<Peer>,
    /// The runs in chronological order.
    pub runs: Vec<Run>,
    /// Problems in the files that could be worked around.
    pub notices: Vec<String>,
}

impl Records {
    /// Whether both are of one study on one machine, with the same other machine.
    pub fn is_of_same(&self, other: &Records) -> bool {
        let is_same_path = match (&self.peer, &other.peer) {
            (Some(one), Some(other)) => one.is_same_path(other),
            (one, other) => one == other,
        };
        self.study.goes_on(&other.study) && self.host.is_same_machine(&other.host) && is_same_path
    }

    /// The runs of a cell whose figures are not contradicted.
    pub fn of_cell<'a>(
        &'a self,
        subject: Subject,
        cell: &'a Cell,
    ) -> impl Iterator<Item = &'a Run> {
        self.all_of_cell(subject, cell).filter(|run| run.contradiction().is_none())
    }

    /// The runs of a cell whose own counters contradict them: no figure is based on these.
    pub fn contradicted<'a>(
        &'a self,
        subject: Subject,
        cell: &'a Cell,
    ) -> impl Iterator<Item = Contradiction> + 'a {
        self.all_of_cell(subject, cell).filter_map(Run::contradiction)
    }

    /// The runs of a cell that are done.
    pub fn all_of_cell<'a>(
        &'a self,
        subject: Subject,
        cell: &'a Cell,
    ) -> impl Iterator<Item = &'a Run> {
        self.runs.iter().filter(move |run| run.subject == subject && run.cell == *cell)
    }
}

/// Streams cannot have carried more than this multiple of what their queues carried: both are
/// measured over almost the same seconds, and frames have headers that streams do not count.
const CLAIMED_PART_MAX: f64 = 1.25;
/// Bytes that a stream may claim beyond that: a sender counts what is still in its socket, up to
/// the default maximum of `tcp_wmem`.
const CLAIMED_MORE: f64 = 4_194_304.0;

/// Streams that claim to have carried more than their queues did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Contradiction {
    /// Bytes of all streams together, as the tool measured them.
    pub claimed: f64,
    /// Bytes that all queues carried, in the direction with more.
    pub carried: f64,
}

impl Run {
    /// Whether its streams claim more than its queues carried. That happens if they did not all run
    /// at the same time: each is then faster than it would be beside the others, and their sum was
    /// never reached.
    pub fn contradiction(&self) -> Option<Contradiction> {
        let bps: Option<Vec<f64>> = self.streams.iter().map(|stream| stream.bps).collect();
        let claimed = bps?.iter().sum::<f64>() * self.seconds / 8.0;
        let carried = |bytes: fn(&QueueUse) -> u64| {
            let sum = self.queues.iter().map(bytes).fold(0_u64, u64::saturating_add);
            ringway_stats::float(usize::try_from(sum).unwrap_or(usize::MAX))
        };
        let of_queues = carried(|queue| queue.tx_bytes).max(carried(|queue| queue.rx_bytes));
        let (carried, is_known) = match &self.ends {
            Some(Ends { near: EndUse { interface, .. }, .. }) => {
                let most = interface.tx_bytes.max(interface.rx_bytes);
                (ringway_stats::float(usize::try_from(most).unwrap_or(usize::MAX)), true)
            }
            None => (of_queues, self.subject == Subject::Ringway && !self.queues.is_empty()),
        };
        let in_sockets = ringway_stats::float(self.streams.len()) * CLAIMED_MORE;
        (is_known && claimed > carried * CLAIMED_PART_MAX + in_sockets)
            .then_some(Contradiction { claimed, carried })
    }
}

impl Run {
    /// CPU time by station, of both machines if there were two.
    pub fn stations(&self) -> Vec<(&'static str, Option<f64>)> {
        let mut stations = self.cpu.stations().to_vec();
        if let Some(Ends { near, far }) = &self.ends {
            stations.extend([
                ("tools here", Some(near.tools_user + near.tools_system)),
                ("tools on the peer", Some(far.tools_user + far.tools_system)),
                ("softirqs of the peer", Some(far.host_softirq)),
                ("steal of the peer", Some(far.steal)),
            ]);
        }
        stations
    }
}

/// One measurement of one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Run {
    /// The study's id.
    pub study: String,
    /// The point of the matrix.
    pub cell: Cell,
    /// Which repeat of the cell, from 0.
    pub repeat: u32,
    /// The seed of the order of runs and of the choice of ports.
    pub seed: u64,
    /// The key by which ringway chose a queue of each stream, if it took part: with it, the ports
    /// of the streams lead to the same queues. Runs of earlier versions had no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_key: Option<String>,
    /// When it began: RFC 3339, UTC.
    pub started: String,
    /// Measured seconds.
    pub seconds: f64,
    /// Warm-up seconds before them.
    pub warmup_seconds: f64,
    /// What was measured.
    pub subject: Subject,
    /// The tools that made the load.
    pub tools: Vec<ToolRun>,
    /// By name of the metric.
    pub values: BTreeMap<String, f64>,
    /// The course of some of these over the run, by name of the metric.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub courses: BTreeMap<String, Course>,
    /// The streams, if the tool reports them separately.
    #[serde(default)]
    pub streams: Vec<Stream>,
    /// What each queue carried.
    #[serde(default)]
    pub queues: Vec<QueueUse>,
    /// CPU time during the measured seconds.
    #[serde(default)]
    pub cpu: Cpu,
    /// What else the machine did meanwhile.
    #[serde(default)]
    pub disturbance: Disturbance,
    /// What both machines did, if the far end was on another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<Ends>,
    /// What else to know about this run, such as where Open vSwitch forwards.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What differed from the recorded description of the machine, such as the build.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<String>,
}

/// A run without figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Failure {
    /// What was to be measured.
    pub subject: Subject,
    /// Where.
    pub cell: Cell,
    /// Which repeat.
    pub repeat: u32,
    /// When it began: RFC 3339, UTC.
    pub started: String,
    /// Why nothing was measured.
    pub reason: String,
}

/// A stream of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Stream {
    /// From 0.
    pub index: u32,
    /// The guest that has it, from 0.
    #[serde(default)]
    pub guest: u32,
    /// The sender's port.
    pub source_port: u16,
    /// Its queue, if known.
    pub queue: Option<u16>,
    /// What it carried, in bit/s, where the tool measures that.
    #[serde(default)]
    pub bps: Option<f64>,
}

/// A queue during a run. Directions are the guest's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct QueueUse {
    /// The vif.
    pub vif: String,
    /// From 0.
    pub index: u16,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
}

/// Seconds of CPU time by station; `None` if not known.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Cpu {
    /// The guest's tools, in user mode.
    pub guest_user: Option<f64>,
    /// The guest's kernel on their behalf.
    pub guest_system: Option<f64>,
    /// The guest's softirqs.
    pub guest_softirq: Option<f64>,
    /// The frontend's threads.
    pub netfront: Option<f64>,
    /// The backend's workers.
    pub netback: Option<f64>,
    /// The switch, where it has threads of its own.
    pub switch: Option<f64>,
    /// Softirqs of the whole host.
    pub host_softirq: Option<f64>,
    /// Time that the hypervisor below stole.
    pub steal: Option<f64>,
    /// The tools at the far end, if that is on this machine; records of earlier versions lack it.
    pub far_tools: Option<f64>,
}

impl Cpu {
    /// Every station with its name for people.
    pub fn stations(&self) -> [(&'static str, Option<f64>); 9] {
        [
            ("guest user", self.guest_user),
            ("guest system", self.guest_system),
            ("guest softirq", self.guest_softirq),
            ("netfront", self.netfront),
            ("netback", self.netback),
            ("switch", self.switch),
            ("host softirq", self.host_softirq),
            ("steal", self.steal),
            ("far tools", self.far_tools),
        ]
    }
}

/// What else the machine did during a run; `None` if not known.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Disturbance {
    /// The share of all CPUs that the hypervisor below stole, from 0 to 1.
    pub steal_share: Option<f64>,
    /// The share of all CPUs that processes outside this measurement used, from 0 to 1.
    pub foreign_share: Option<f64>,
    /// The mean frequency of the CPUs at the end, in MHz.
    pub cpu_mhz: Option<f64>,
}

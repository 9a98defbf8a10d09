//! The tools that make load, each behind a small adapter: those of published measurements, and no
//! generator of our own.
//!
//! Each stream has its own client and server: some servers serve one client at a time, and only a
//! client with a single stream takes any source port. The client is always the sender.

mod adapter;
mod begun;
mod course;
mod ddsperf;
mod half;
mod iperf2;
mod iperf3;
mod listener;
mod nbd;
mod netperf;
mod readings;
mod sockperf;
mod version;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::child::PartError;
use crate::launcher::Launcher;
use adapter::{Adapter, Listens, Program};
pub use course::Course;
pub use half::{Half, Place, Role, StreamReport, StreamResult};

/// A tool that makes load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    /// TCP streams by iperf3.
    Iperf3,
    /// TCP streams by iperf 2, which the oldest published measurements used.
    Iperf2,
    /// TCP streams by netperf.
    Netperf,
    /// Writes to a network block device, by fio and nbdkit.
    Nbd,
    /// Ping-pong over TCP by sockperf.
    Sockperf,
    /// A DDS publisher and a subscriber, by Cyclone DDS.
    DdsperfThroughput,
    /// DDS ping-pong, by Cyclone DDS.
    DdsperfPing,
}

/// A stream to make.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Flow {
    /// The index of its guest, or of the target that it goes to.
    pub guest: u32,
    /// A process in the sender's network namespace.
    #[serde(skip)]
    pub sender: u32,
    /// A process in the receiver's network namespace.
    #[serde(skip)]
    pub receiver: u32,
    /// The receiver's address.
    pub address: Ipv4Addr,
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub port: u16,
}

/// The load to make.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Load {
    /// The streams, all at once.
    pub flows: Vec<Flow>,
    /// Seconds that are measured.
    pub seconds: f64,
    /// Seconds of load before those.
    pub warmup_seconds: f64,
    /// Bytes of the sockets' buffers; the kernel chooses if this is `None`.
    pub window: Option<u64>,
    /// Bytes of a write; the tool chooses if this is `None`.
    pub buffer: Option<u64>,
}

/// What a tool measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measured {
    /// Bit/s of each flow; `None` if the tool measures something else.
    pub bps: Vec<Option<f64>>,
    /// Other values by the name of the metric.
    pub values: BTreeMap<String, f64>,
    /// The course of values over the run, by the name of the metric.
    pub courses: BTreeMap<String, Course>,
    /// How the tool was run.
    pub tools: Vec<ToolRun>,
}

/// How a tool was run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ToolRun {
    /// Its name.
    pub name: String,
    /// Its version, as it prints it.
    pub version: String,
    /// The whole command line.
    pub command: String,
    /// Its exit status.
    pub exit_status: i32,
}

/// A tool at work.
#[derive(Debug)]
pub struct Working {
    senders: Half,
    receivers: Half,
}

impl Tool {
    /// All tools with the names that studies and records use.
    pub const NAMES: &'static [(&'static str, Tool)] = &[
        ("iperf3", Tool::Iperf3),
        ("iperf2", Tool::Iperf2),
        ("netperf", Tool::Netperf),
        ("nbd", Tool::Nbd),
        ("sockperf", Tool::Sockperf),
        ("ddsperf-throughput", Tool::DdsperfThroughput),
        ("ddsperf-ping", Tool::DdsperfPing),
    ];

    /// The program that is started for each stream.
    pub fn program(self) -> &'static str {
        self.about().client
    }

    /// The client's program and the server's.
    pub fn programs(self) -> [&'static str; 2] {
        [self.about().client, self.about().server]
    }

    /// The Debian package that contains it.
    pub fn package(self) -> &'static str {
        self.about().package
    }

    /// Whether its streams are TCP connections whose source ports the caller chooses.
    pub fn has_source_ports(self) -> bool {
        self.about().listens == Listens::OnTcp
    }

    /// Seconds after its start for which it reports nothing usable.
    pub fn settling_seconds(self) -> f64 {
        self.about().settling_seconds
    }

    /// The receiver's port of a stream if the server listens on `port`.
    pub fn stream_port(self, port: u16) -> u16 {
        port.wrapping_add(self.about().stream_port_offset)
    }

    /// Its version, from its own output or from its package; `None` if it is not installed.
    pub fn version(self) -> Option<String> {
        version::of(self.about())
    }

    fn about(self) -> &'static Program {
        &self.adapter().program
    }

    fn adapter(self) -> &'static Adapter {
        match self {
            Tool::Iperf3 => &iperf3::ADAPTER,
            Tool::Iperf2 => &iperf2::ADAPTER,
            Tool::Netperf => &netperf::ADAPTER,
            Tool::Nbd => &nbd::ADAPTER,
            Tool::Sockperf => &sockperf::ADAPTER,
            Tool::DdsperfThroughput => &ddsperf::THROUGHPUT,
            Tool::DdsperfPing => &ddsperf::PING,
        }
    }

    /// Starts servers and clients of all streams. Where the tool sends as fast as it can, returns
    /// once all streams run, or after 20 seconds.
    ///
    /// # Errors
    /// If a program does not start, or a server does not listen.
    pub fn start(self, launcher: &Launcher, load: &Load) -> Result<Working, PartError> {
        let begin = |role| Half::start(self, role, Place::Namespaces, launcher, load);
        let receivers = begin(Role::Receiver)?;
        Ok(Working { senders: begin(Role::Sender)?, receivers })
    }
}

impl Working {
    /// Process ids of the senders, in the order of the flows.
    pub fn senders(&self) -> impl Iterator<Item = u32> {
        self.senders.pids()
    }

    /// Process ids of the receivers, in the order of the flows.
    pub fn receivers(&self) -> impl Iterator<Item = u32> {
        self.receivers.pids()
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// If the tool fails, with what it printed.
    pub fn finish(self) -> Result<Measured, PartError> {
        let senders = self.senders.finish()?;
        Measured::of(senders, self.receivers.finish()?)
    }
}

/// One stream with a tenth of a second of warm-up and a fifth of measurement, as in the recorded
/// runs.
#[cfg(test)]
fn example() -> Load {
    let flow = Flow {
        guest: 0,
        sender: 1,
        receiver: 2,
        address: Ipv4Addr::new(198, 19, 0, 1),
        source_port: 20_001,
        port: 5201,
    };
    Load {
        flows: vec![flow],
        seconds: 0.2,
        warmup_seconds: 0.1,
        window: Some(262_144),
        buffer: Some(131_072),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_found_by_the_names_that_studies_have() {
        for (name, tool) in Tool::NAMES {
            assert_eq!(tool.about().name, *name);
        }
    }

    #[test]
    fn the_port_that_steers_is_in_every_command_line() {
        let load = example();
        for (_, tool) in Tool::NAMES.iter().filter(|(_, tool)| tool.has_source_ports()) {
            let words = (tool.adapter().client)(&load, &load.flows[0]);
            assert!(words.iter().any(|word| word.contains("20001")), "{tool:?}: {words:?}");
            assert!(words.iter().any(|word| word.contains("198.19.0.1")), "{tool:?}: {words:?}");
        }
    }

    #[test]
    fn of_several_streams_counts_add_up_and_the_worst_time_counts() {
        let mut measured = Measured::default();
        for (bps, values) in [
            (Some(1.0), vec![("retransmits", 2.0), ("rtt-max-us", 9.0)]),
            (Some(2.0), vec![("retransmits", 3.0), ("rtt-max-us", 7.0)]),
        ] {
            measured.add(&adapter::Reading { bps, values, course: None }.into());
        }
        assert_eq!(measured.bps, [Some(1.0), Some(2.0)]);
        assert_eq!((measured.values["retransmits"], measured.values["rtt-max-us"]), (5.0, 9.0));
    }
}

//! The tools that make the load, each behind a small adapter: what others measured with, not a
//! generator of our own.
//!
//! Every stream has a client and a server of its own: some servers serve one client at a time, and
//! only a client of its own can be given any source port. The sender is always the client.

mod ddsperf;
mod iperf2;
mod iperf3;
mod netperf;
mod readings;
mod sockperf;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::child::{Child, Ended};
use crate::part::{self, Launcher, PartError};
use crate::record::ToolRun;
use crate::stop::Stop;

/// From the start of a server until it listens; after the end of a run until all is told.
const PATIENCE: Duration = Duration::from_secs(20);
/// For a program to tell its version.
const VERSION_PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at whether a server listens.
const LOOK_PAUSE: Duration = Duration::from_millis(5);
/// Seconds that a client goes on after those that count, so that it is watched to their end.
const TAIL: f64 = 0.2;
/// A socket that listens, as `/proc/PID/net/tcp` spells it.
const LISTENS: &str = "0A";

/// A tool, and what it is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    /// TCP streams by iperf3.
    Iperf3,
    /// TCP streams by iperf 2, which the oldest sources used.
    Iperf2,
    /// TCP streams by netperf.
    Netperf,
    /// Ping-pong over TCP by sockperf.
    Sockperf,
    /// A DDS publisher and a subscriber, by Cyclone DDS.
    DdsperfThroughput,
    /// DDS ping-pong, by Cyclone DDS.
    DdsperfPing,
}

/// What differs between tools.
struct Adapter {
    /// As the parameter `tool` has it.
    name: &'static str,
    /// The clients' program.
    program: &'static str,
    /// The servers' program.
    server_program: &'static str,
    /// The Debian package that has both.
    package: &'static str,
    /// Words with which the client tells its version; none if it cannot.
    version_words: &'static [&'static str],
    /// Whether a server listens on a TCP port before its client may start.
    listens: Listens,
    /// Whose output is read.
    told_by: Side,
    /// The words of a stream's server.
    server: fn(&Load, &Flow) -> Vec<String>,
    /// The words of a stream's client.
    client: fn(&Load, &Flow) -> Vec<String>,
    /// What the output says of the seconds that count.
    parse: fn(&str, &Load) -> Result<Reading, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listens {
    OnTcp,
    No,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

/// What a tool said of one stream.
#[derive(Debug, Clone, PartialEq, Default)]
struct Reading {
    /// Bit/s, if it is about that.
    bps: Option<f64>,
    /// Anything else, by name of the metric.
    values: Vec<(&'static str, f64)>,
}

/// A stream that is to be made.
#[derive(Debug, Clone)]
pub struct Flow {
    /// The guest that has it, or the target that it goes to, from 0.
    pub guest: u32,
    /// A process in the sender's network namespace.
    pub sender: u32,
    /// A process in the receiver's.
    pub receiver: u32,
    /// The receiver's address.
    pub address: Ipv4Addr,
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's.
    pub port: u16,
}

/// What is asked of a tool.
#[derive(Debug, Clone)]
pub struct Load {
    /// The streams, all at once.
    pub flows: Vec<Flow>,
    /// Seconds that count.
    pub seconds: f64,
    /// Seconds before them.
    pub warmup_seconds: f64,
    /// Bytes of the sockets' buffers, if they are not the kernel's choice.
    pub window: Option<u64>,
    /// Bytes of a write, if that is not the tool's choice.
    pub buffer: Option<u64>,
}

/// What a tool measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Of each flow, in bit/s; none if the tool measures something else.
    pub bps: Vec<Option<f64>>,
    /// Anything else, by name of the metric.
    pub values: BTreeMap<String, f64>,
    /// How the tool was run.
    pub tools: Vec<ToolRun>,
}

/// A tool at work.
#[derive(Debug)]
pub struct Working {
    tool: Tool,
    senders: Vec<(Child, String)>,
    receivers: Vec<Child>,
    load: Load,
    version: String,
}

impl Tool {
    /// All of them.
    pub const ALL: [Tool; 6] = [
        Tool::Iperf3,
        Tool::Iperf2,
        Tool::Netperf,
        Tool::Sockperf,
        Tool::DdsperfThroughput,
        Tool::DdsperfPing,
    ];

    /// From the value of the parameter `tool`.
    pub fn from_name(name: &str) -> Option<Tool> {
        Tool::ALL.into_iter().find(|tool| tool.adapter().name == name)
    }

    /// The program that is started for each stream.
    pub fn program(self) -> &'static str {
        self.adapter().program
    }

    /// All of its programs.
    pub fn programs(self) -> [&'static str; 2] {
        [self.adapter().program, self.adapter().server_program]
    }

    /// The Debian package that has it.
    pub fn package(self) -> &'static str {
        self.adapter().package
    }

    /// Whether its streams are TCP connections whose source ports we choose.
    pub fn has_source_ports(self) -> bool {
        self.adapter().listens == Listens::OnTcp
    }

    /// Seconds from the start of the tool on of which it tells nothing that counts.
    pub fn settling_seconds(self) -> f64 {
        if self.has_source_ports() { 0.0 } else { ddsperf::SETTLING_SECONDS }
    }

    /// The receiver's port of a stream whose server listens on `port`.
    pub fn stream_port(self, port: u16) -> u16 {
        if self == Tool::Netperf { netperf::data_port(port) } else { port }
    }

    /// Its version, as it says itself or as its package does; `None` if it is not installed.
    pub fn version(self) -> Option<String> {
        let Adapter { program, package, version_words, .. } = self.adapter();
        match version_words {
            [] => package_version(package),
            words => said(program, words),
        }
    }

    fn adapter(self) -> &'static Adapter {
        match self {
            Tool::Iperf3 => &iperf3::ADAPTER,
            Tool::Iperf2 => &iperf2::ADAPTER,
            Tool::Netperf => &netperf::ADAPTER,
            Tool::Sockperf => &sockperf::ADAPTER,
            Tool::DdsperfThroughput => &ddsperf::THROUGHPUT,
            Tool::DdsperfPing => &ddsperf::PING,
        }
    }

    /// Starts it: when this returns, all streams are about to begin.
    ///
    /// # Errors
    /// What stands in the way.
    pub fn start(self, launcher: &Launcher, load: Load) -> Result<Working, PartError> {
        let adapter = self.adapter();
        let version = self.version().unwrap_or_else(|| "unknown".to_owned());
        let mut receivers = Vec::new();
        for flow in &load.flows {
            let mut server = launcher.command_in(flow.receiver, adapter.server_program);
            server.args((adapter.server)(&load, flow)).env_remove(ddsperf::SETTINGS);
            receivers.push(launcher.start(adapter.server_program, server)?);
        }
        if adapter.listens == Listens::OnTcp {
            for (server, flow) in receivers.iter_mut().zip(&load.flows) {
                wait_for_listener(launcher, server, flow.port)?;
            }
        }
        let mut senders = Vec::new();
        for flow in &load.flows {
            let words = (adapter.client)(&load, flow);
            let mut client = launcher.command_in(flow.sender, adapter.program);
            client.args(&words).env_remove(ddsperf::SETTINGS);
            let child = launcher.start(adapter.program, client)?;
            senders.push((child, shown(adapter.program, &words)));
        }
        Ok(Working { tool: self, senders, receivers, load, version })
    }
}

impl Working {
    /// Processes of the senders, in the order of the flows.
    pub fn senders(&self) -> impl Iterator<Item = u32> {
        self.senders.iter().map(|(child, _)| child.pid())
    }

    /// Processes of the receivers, in the order of the flows.
    pub fn receivers(&self) -> impl Iterator<Item = u32> {
        self.receivers.iter().map(Child::pid)
    }

    /// Waits until it is done.
    ///
    /// # Errors
    /// If it fails, in its own words.
    pub fn finish(self) -> Result<Measured, PartError> {
        let Working { tool, senders, receivers, load, version } = self;
        let adapter = tool.adapter();
        let patience = PATIENCE + Duration::from_secs_f64(whole_seconds(&load));
        let mut measured = Measured { bps: vec![], values: BTreeMap::new(), tools: vec![] };
        for ((client, command), server) in senders.into_iter().zip(receivers) {
            let Ended { status, output } = client.ended(patience)?;
            let told = match adapter.told_by {
                Side::Client => output,
                Side::Server => server.ended(patience)?.output,
            };
            let program = adapter.program;
            let reading = (adapter.parse)(&told, &load).map_err(|fault| {
                PartError::Failed(match told.trim() {
                    "" => format!("{program} ended and said nothing ({status})"),
                    _ => format!("{program} ({status}): {fault}"),
                })
            })?;
            measured.add(&reading);
            measured.tools.push(ToolRun {
                name: adapter.name.to_owned(),
                version: version.clone(),
                command,
                exit_status: status.code().unwrap_or(-1),
            });
        }
        Ok(measured)
    }
}

impl Measured {
    /// Adds one stream: counts add up, and of times the worst stream's counts.
    fn add(&mut self, reading: &Reading) {
        self.bps.push(reading.bps);
        for (name, value) in &reading.values {
            let all = self.values.entry((*name).to_owned()).or_insert(0.0);
            *all = if name.ends_with("-us") { all.max(*value) } else { *all + value };
        }
    }
}

/// Waits until a server listens on a port of its network namespace.
fn wait_for_listener(launcher: &Launcher, server: &mut Child, port: u16) -> Result<(), PartError> {
    let deadline = Instant::now() + PATIENCE;
    while !listens(server.pid(), port) {
        if launcher.stop().is_due() {
            return Err(PartError::Interrupted);
        }
        if let Some(trouble) = server.early_end() {
            return Err(trouble);
        }
        if Instant::now() > deadline {
            return Err(PartError::Failed(format!("a server does not listen on port {port}")));
        }
        thread::sleep(LOOK_PAUSE);
    }
    Ok(())
}

fn listens(pid: u32, port: u16) -> bool {
    ["tcp", "tcp6"].into_iter().any(|table| {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        has_listener(&text, port)
    })
}

fn has_listener(table: &str, port: u16) -> bool {
    table.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next().and_then(|word| word.rsplit_once(':'));
        let is_here = local.is_some_and(|(_, digits)| u16::from_str_radix(digits, 16) == Ok(port));
        is_here && words.nth(1) == Some(LISTENS)
    })
}

/// Seconds that a client is asked to go on, for tools that take whole ones.
fn whole_seconds(load: &Load) -> f64 {
    (load.warmup_seconds + load.seconds + TAIL).ceil()
}

/// The first line of what a program says about its version.
fn said(program: &str, words: &[&str]) -> Option<String> {
    // iperf 2 fails when it has told it.
    let Ended { output, .. } = ran(program, words)?;
    output.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// How a program ended that has nothing to wait for.
fn ran(program: &str, words: &[&str]) -> Option<Ended> {
    let mut command = Command::new(part::find(program)?);
    command.args(words);
    Child::start(program, command, Stop::default()).ok()?.ended(VERSION_PATIENCE).ok()
}

/// The version of a Debian package; `None` if it is not installed, or this is no Debian.
fn package_version(package: &str) -> Option<String> {
    let show = ["--show", "--showformat=${Package} ${Version}", package];
    let Ended { status, output } = ran("dpkg-query", &show)?;
    let text = output.trim();
    (status.success() && !text.is_empty()).then(|| text.to_owned())
}

/// A command line for people.
fn shown(name: &str, words: &[String]) -> String {
    std::iter::once(name).chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join(" ")
}

/// Words and values that are no strings yet.
fn words(plain: &[&dyn fmt::Display]) -> Vec<String> {
    plain.iter().map(ToString::to_string).collect()
}

/// A load of one second after half a second, and its only stream.
#[cfg(test)]
fn example() -> (Load, Flow) {
    let flow = Flow {
        guest: 0,
        sender: 1,
        receiver: 2,
        address: Ipv4Addr::new(198, 19, 0, 1),
        source_port: 20_001,
        port: 5201,
    };
    let load = Load {
        flows: vec![flow.clone()],
        seconds: 1.0,
        warmup_seconds: 0.5,
        window: Some(262_144),
        buffer: Some(131_072),
    };
    (load, flow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_found_by_the_names_that_studies_have() {
        for tool in Tool::ALL {
            assert_eq!(Tool::from_name(tool.adapter().name), Some(tool));
        }
        assert_eq!(Tool::from_name("iperf"), None);
    }

    #[test]
    fn a_listener_is_found_in_the_table_of_sockets() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n\
            \x20  0: 00000000:1451 00000000:0000 0A 00000000:00000000\n\
            \x20  1: 0100007F:1452 0100007F:1451 01 00000000:00000000\n";
        assert!(has_listener(table, 5201));
        assert!(!has_listener(table, 5202), "it is connected, and does not listen");
        assert!(!has_listener("", 5201));
    }

    #[test]
    fn the_port_that_steers_is_in_every_command_line() {
        let (load, flow) = example();
        for tool in Tool::ALL.into_iter().filter(|tool| tool.has_source_ports()) {
            let words = (tool.adapter().client)(&load, &flow);
            assert!(words.iter().any(|word| word.contains("20001")), "{tool:?}: {words:?}");
            assert!(words.iter().any(|word| word.contains("198.19.0.1")), "{tool:?}: {words:?}");
        }
    }

    #[test]
    fn of_several_streams_counts_add_up_and_the_worst_time_counts() {
        let mut measured = Measured { bps: vec![], values: BTreeMap::new(), tools: vec![] };
        for (bps, values) in [
            (Some(1.0), vec![("retransmits", 2.0), ("rtt-max-us", 9.0)]),
            (Some(2.0), vec![("retransmits", 3.0), ("rtt-max-us", 7.0)]),
        ] {
            measured.add(&Reading { bps, values });
        }
        assert_eq!(measured.bps, [Some(1.0), Some(2.0)]);
        assert_eq!((measured.values["retransmits"], measured.values["rtt-max-us"]), (5.0, 9.0));
    }
}

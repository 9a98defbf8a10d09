//! The tools that make the load, each behind a small adapter: what others measured with, not a
//! generator of our own.

mod iperf3;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::process::Command;

use crate::child::Child;
use crate::part::{self, Launcher, PartError};
use crate::record::ToolRun;

/// A tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    /// TCP streams by iperf3: a process for each stream and for its server.
    Iperf3,
}

/// A stream that is to be made.
#[derive(Debug, Clone)]
pub struct Flow {
    /// The guest that has it, from 0.
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
    /// Of each flow, in bit/s.
    pub bps: Vec<f64>,
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
    /// From the value of the parameter `tool`.
    pub fn from_name(name: &str) -> Option<Tool> {
        (name == "iperf3").then_some(Tool::Iperf3)
    }

    /// The program.
    pub fn program(self) -> &'static str {
        match self {
            Tool::Iperf3 => "iperf3",
        }
    }

    /// The Debian package that has it.
    pub fn package(self) -> &'static str {
        self.program()
    }

    /// Its version, as it says itself; `None` if it is not installed.
    pub fn version(self) -> Option<String> {
        version(self.program())
    }

    /// Starts it: when this returns, all streams are about to begin.
    ///
    /// # Errors
    /// What stands in the way.
    pub fn start(self, launcher: &Launcher, load: Load) -> Result<Working, PartError> {
        let version = self.version().unwrap_or_else(|| "unknown".to_owned());
        let (senders, receivers) = match self {
            Tool::Iperf3 => iperf3::start(launcher, &load)?,
        };
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
        match self.tool {
            Tool::Iperf3 => iperf3::finish(self),
        }
    }
}

/// The first line of what a program says is its version.
pub(crate) fn version(program: &str) -> Option<String> {
    let output = Command::new(part::find(program)?).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

/// A command line for people.
pub(crate) fn shown(name: &str, words: &[String]) -> String {
    std::iter::once(name).chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join(" ")
}

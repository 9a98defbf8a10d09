//! One end of the streams of a load: all senders, or all receivers. Both ends are usually here, and
//! one of them can be on another machine.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::adapter::{Adapter, Listens, Reading, Sends, Side, whole_seconds};
use super::{Course, Flow, Load, Measured, Tool, ToolRun, begun, listener};
use crate::child::{Child, Ended, PartError};
use crate::launcher::Launcher;

/// How long a tool may take to print its result after the end of a run.
const PATIENCE: Duration = Duration::from_secs(60);

/// An end of the streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The clients.
    Sender,
    /// The servers. They must be started first.
    Receiver,
}

/// Where the programs of an end run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the network namespaces of the processes that the flows name.
    Namespaces,
    /// In the network of this process.
    Here,
}

/// The programs of one end at work. Dropping it ends them.
#[derive(Debug)]
pub struct Half {
    tool: Tool,
    role: Role,
    programs: Vec<(Child, String)>,
    load: Load,
    version: String,
    /// Where clients write their logs, if they do.
    logs: Option<TempDir>,
}

/// What one end reports about a stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct StreamReport {
    /// The result, from the end that prints it.
    pub result: Option<StreamResult>,
    /// How the client was run, from the sender.
    pub run: Option<ToolRun>,
}

/// The result of a stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct StreamResult {
    /// Bit/s, if the tool measures that.
    pub bps: Option<f64>,
    /// Other values by the name of the metric.
    pub values: BTreeMap<String, f64>,
    /// The course of one of these over the run, with the name of the metric.
    pub course: Option<(String, Course)>,
}

impl From<Reading> for StreamResult {
    fn from(reading: Reading) -> StreamResult {
        let values = reading.values.into_iter().map(|(name, value)| (name.to_owned(), value));
        StreamResult {
            bps: reading.bps,
            values: values.collect(),
            course: reading.course.map(|(name, course)| (name.to_owned(), course)),
        }
    }
}

impl Half {
    /// Starts the programs of one end. Receivers listen when this returns. Senders that send as
    /// fast as they can run, if they do within 20 seconds.
    ///
    /// # Errors
    /// If a program does not start, or a server does not listen.
    pub fn start(
        tool: Tool,
        role: Role,
        place: Place,
        launcher: &Launcher,
        load: &Load,
    ) -> Result<Half, PartError> {
        let version = tool.version().unwrap_or_else(|| "unknown".to_owned());
        let logs = match (role, &tool.adapter().log) {
            (Role::Sender, Some(_)) => Some(launcher.dir()?),
            _ => None,
        };
        let network = |flow: &Flow| match place {
            Place::Namespaces => flow.sender,
            Place::Here => std::process::id(),
        };
        let sent_before = begun::before(load.flows.iter().map(network));
        let mut half = Half { tool, role, programs: vec![], load: load.clone(), version, logs };
        for flow in &load.flows {
            let program = half.begin(place, launcher, flow)?;
            half.programs.push(program);
        }
        if role == Role::Receiver && tool.about().listens != Listens::No {
            for ((server, _), flow) in half.programs.iter_mut().zip(&load.flows) {
                listener::wait_for(launcher, server, flow.port)?;
            }
        }
        if role == Role::Sender && tool.about().sends == Sends::Continuously {
            begun::wait_for(launcher, &half.programs, &sent_before)?;
        }
        Ok(half)
    }

    /// Starts the program of a flow.
    fn begin(
        &self,
        place: Place,
        launcher: &Launcher,
        flow: &Flow,
    ) -> Result<(Child, String), PartError> {
        let Adapter { program, server, client, log, .. } = self.tool.adapter();
        let (name, pid, mut words) = match self.role {
            Role::Sender => (program.client, flow.sender, client(&self.load, flow)),
            Role::Receiver => (program.server, flow.receiver, server(&self.load, flow)),
        };
        if let (Some(log), Some(logs)) = (log, &self.logs) {
            words.extend((log.words)(&log_of(logs, flow)));
        }
        let mut command: Command = match place {
            Place::Namespaces => launcher.command_in(pid, name),
            Place::Here => launcher.command(name),
        };
        command.args(&words);
        for variable in program.settings {
            command.env_remove(variable);
        }
        Ok((launcher.start(name, command)?, shown(name, &words)))
    }

    /// Process ids of the programs, in the order of the flows.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.programs.iter().map(|(child, _)| child.pid())
    }

    /// The load that it makes.
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Waits for what this end reports about each stream. A receiver that prints no result is ended
    /// at once: the senders have to be finished before.
    ///
    /// # Errors
    /// If the tool fails, with what it printed.
    pub fn finish(self) -> Result<Vec<StreamReport>, PartError> {
        let Half { tool, role, programs, load, version, logs } = self;
        let streams = programs.into_iter().zip(&load.flows);
        let of_stream = |((child, command), flow): ((Child, String), &Flow)| {
            let mut report = StreamReport::default();
            let prints = tool.about().printed_by;
            if role == Role::Receiver && prints == Side::Client {
                return Ok(report);
            }
            let ended = child.ended(PATIENCE + Duration::from_secs_f64(whole_seconds(&load)))?;
            if role == Role::Sender {
                report.run = Some(ToolRun {
                    name: tool.about().name.to_owned(),
                    version: version.clone(),
                    command,
                    exit_status: ended.status.code().unwrap_or(-1),
                });
            }
            if (role == Role::Sender) == (prints == Side::Client) {
                report.result = Some(result(tool, &load, flow, &ended, logs.as_ref())?);
            }
            Ok(report)
        };
        streams.map(of_stream).collect()
    }
}

impl Measured {
    /// What was measured, from the reports of both ends.
    ///
    /// # Errors
    /// If no end reports the result of a stream.
    pub fn of(senders: Vec<StreamReport>, receivers: Vec<StreamReport>) -> Result<Self, PartError> {
        let mut measured = Measured::default();
        for (sender, receiver) in senders.into_iter().zip(receivers) {
            let result = sender.result.or(receiver.result);
            let result = result
                .ok_or_else(|| PartError::Failed("no end reports what it measured".to_owned()))?;
            measured.add(&result);
            measured.tools.extend(sender.run);
        }
        Ok(measured)
    }

    /// Adds one stream: counts are summed, and of times the longest is kept.
    pub(super) fn add(&mut self, result: &StreamResult) {
        self.bps.push(result.bps);
        for (name, value) in &result.values {
            let all = self.values.entry(name.clone()).or_insert(0.0);
            *all = if name.ends_with("-us") { all.max(*value) } else { *all + value };
        }
        if let Some((name, course)) = &result.course {
            match self.courses.get_mut(name) {
                None => drop(self.courses.insert(name.clone(), course.clone())),
                Some(all) if name.ends_with("-us") => all.longest(course),
                Some(all) => all.sum(course),
            }
        }
    }
}

/// Reads what the program of a stream printed, and its log.
fn result(
    tool: Tool,
    load: &Load,
    flow: &Flow,
    ended: &Ended,
    logs: Option<&TempDir>,
) -> Result<StreamResult, PartError> {
    let Adapter { program, parse, log, .. } = tool.adapter();
    let (name, status) = (program.client, ended.status);
    let mut reading = parse(&ended.output, load).map_err(|fault| {
        PartError::Failed(match ended.output.trim() {
            "" => format!("{name} ended without output ({status})"),
            _ => format!("{name} ({status}): {fault}"),
        })
    })?;
    if let (Some(log), Some(logs)) = (log, logs) {
        let path = log_of(logs, flow);
        let file = File::open(&path)
            .map_err(PartError::at(format!("read {name}'s log {}", path.display())))?;
        let course = (log.parse)(&mut BufReader::new(file), load);
        reading.course =
            Some(course.map_err(|fault| PartError::Failed(format!("{name}: {fault}")))?);
    }
    Ok(reading.into())
}

/// The log of a stream's client.
fn log_of(logs: &TempDir, flow: &Flow) -> PathBuf {
    logs.path().join(flow.port.to_string())
}

/// A command line for people.
fn shown(name: &str, words: &[String]) -> String {
    std::iter::once(name).chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join(" ")
}

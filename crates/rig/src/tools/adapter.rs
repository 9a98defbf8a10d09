//! What differs between tools. A new one is a file beside this one with an [`Adapter`], a line in
//! each list of [`Tool`](super::Tool), and a word of the parameter `tool` in
//! [`PARAMETERS`](crate::value::PARAMETERS).

use std::fmt;
use std::io::BufRead;
use std::path::Path;

use super::course::Course;
use super::{Flow, Load};

/// Seconds for which a client runs on after the measured ones, so that these are observed to their
/// end.
pub(super) const TAIL: f64 = 0.2;

/// A tool: its programs, their arguments, and how their output is read.
pub(super) struct Adapter {
    pub(super) program: Program,
    /// The words of a stream's server.
    pub(super) server: fn(&Load, &Flow) -> Vec<String>,
    /// The words of a stream's client.
    pub(super) client: fn(&Load, &Flow) -> Vec<String>,
    /// Extracts the result for the measured seconds from the output.
    pub(super) parse: fn(&str, &Load) -> Result<Reading, String>,
    /// A file with all samples, if the client writes one.
    pub(super) log: Option<Log>,
}

/// The name of a metric, and the course of its values.
pub(super) type NamedCourse = (&'static str, Course);

/// A file that a client writes at its end.
pub(super) struct Log {
    /// The client's arguments for it.
    pub(super) words: fn(&Path) -> Vec<String>,
    /// Extracts the metric of its samples and their course.
    pub(super) parse: fn(&mut dyn BufRead, &Load) -> Result<NamedCourse, String>,
}

/// The properties of a tool's programs; [`Program::named`] has the usual ones.
pub(super) struct Program {
    /// Its value of the parameter `tool`.
    pub(super) name: &'static str,
    /// The clients' program.
    pub(super) client: &'static str,
    /// The servers' program.
    pub(super) server: &'static str,
    /// The Debian package that contains both.
    pub(super) package: &'static str,
    /// Arguments with which the client prints its version; empty if it cannot.
    pub(super) version_words: &'static [&'static str],
    /// Whether a server listens on a TCP port before its client may start.
    pub(super) listens: Listens,
    /// How its client sends.
    pub(super) sends: Sends,
    /// Offset from the port on which a server listens to that of its stream.
    pub(super) stream_port_offset: u16,
    /// The end whose output is read.
    pub(super) printed_by: Side,
    /// Seconds after its start for which it reports nothing usable.
    pub(super) settling_seconds: f64,
    /// Environment variables that change its behaviour; the user's are removed.
    pub(super) settings: &'static [&'static str],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listens {
    /// For connections from the ports that the caller chooses.
    OnTcp,
    /// For connections whose ports the client chooses.
    ForAnyPort,
    No,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sends {
    /// As fast as the path allows, so that it is seen in counters when a stream runs.
    Continuously,
    /// A message for each reply, or at a rate.
    Messages,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// The result of a tool for one stream.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Reading {
    /// Bit/s, if the tool measures that.
    pub(super) bps: Option<f64>,
    /// Anything else, by name of the metric.
    pub(super) values: Vec<(&'static str, f64)>,
    /// The course of one of these over the run, by name of the metric.
    pub(super) course: Option<NamedCourse>,
}

impl Program {
    /// One program for both ends, in a package with its name, whose client reports on a TCP stream.
    pub(super) const fn named(name: &'static str) -> Program {
        Program {
            name,
            client: name,
            server: name,
            package: name,
            version_words: &["--version"],
            listens: Listens::OnTcp,
            sends: Sends::Continuously,
            stream_port_offset: 0,
            printed_by: Side::Client,
            settling_seconds: 0.0,
            settings: &[],
        }
    }
}

/// Running time of a client, for tools that accept whole seconds only.
pub(super) fn whole_seconds(load: &Load) -> f64 {
    (load.warmup_seconds + load.seconds + TAIL).ceil()
}

/// Converts words and values to strings.
pub(super) fn words(plain: &[&dyn fmt::Display]) -> Vec<String> {
    plain.iter().map(ToString::to_string).collect()
}

/// An option with its value, or nothing to leave the choice to the tool.
pub(super) fn option(name: &str, value: Option<u64>) -> Vec<String> {
    value.map_or_else(Vec::new, |value| words(&[&name, &value]))
}

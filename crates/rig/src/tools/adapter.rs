//! What differs between tools. A new one is a file beside this one with an [`Adapter`], a line in
//! each list of [`Tool`](super::Tool), and a word of the parameter `tool` in
//! [`PARAMETERS`](crate::value::PARAMETERS).

use std::fmt;
use std::io::BufRead;
use std::path::Path;

use super::course::Course;
use super::{Flow, Load};

/// Seconds that a client goes on after those that count, so that it is watched to their end.
const TAIL: f64 = 0.2;

/// A tool: its programs, their arguments, and how their output is read.
pub(super) struct Adapter {
    pub(super) program: Program,
    /// The words of a stream's server.
    pub(super) server: fn(&Load, &Flow) -> Vec<String>,
    /// The words of a stream's client.
    pub(super) client: fn(&Load, &Flow) -> Vec<String>,
    /// What the output says of the seconds that count.
    pub(super) parse: fn(&str, &Load) -> Result<Reading, String>,
    /// A file with all samples, if the client writes one.
    pub(super) log: Option<Log>,
}

/// The name of a metric, and how its values were during the run.
pub(super) type NamedCourse = (&'static str, Course);

/// A file that a client writes at its end.
pub(super) struct Log {
    /// The client's words for it.
    pub(super) words: fn(&Path) -> Vec<String>,
    /// The metric of its samples, and how these were during the run.
    pub(super) parse: fn(&mut dyn BufRead, &Load) -> Result<NamedCourse, String>,
}

/// What is known of a tool's programs; [`Program::named`] is what most are like.
pub(super) struct Program {
    /// As the parameter `tool` has it.
    pub(super) name: &'static str,
    /// The clients' program.
    pub(super) client: &'static str,
    /// The servers' program.
    pub(super) server: &'static str,
    /// The Debian package that has both.
    pub(super) package: &'static str,
    /// Words with which the client tells its version; none if it cannot.
    pub(super) version_words: &'static [&'static str],
    /// Whether a server listens on a TCP port before its client may start.
    pub(super) listens: Listens,
    /// From the port on which a server listens to that of its stream.
    pub(super) stream_port_offset: u16,
    /// Whose output is read.
    pub(super) printed_by: Side,
    /// Seconds from its start on of which it tells nothing that counts.
    pub(super) settling_seconds: f64,
    /// Environment variables that change what it does; those of the user are not meant.
    pub(super) settings: &'static [&'static str],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listens {
    OnTcp,
    No,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// What a tool said of one stream.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Reading {
    /// Bit/s, if it is about that.
    pub(super) bps: Option<f64>,
    /// Anything else, by name of the metric.
    pub(super) values: Vec<(&'static str, f64)>,
    /// How one of these was during the run, by name of the metric.
    pub(super) course: Option<NamedCourse>,
}

impl Program {
    /// One program for both ends, in a package of its name, whose client tells of a TCP stream.
    pub(super) const fn named(name: &'static str) -> Program {
        Program {
            name,
            client: name,
            server: name,
            package: name,
            version_words: &["--version"],
            listens: Listens::OnTcp,
            stream_port_offset: 0,
            printed_by: Side::Client,
            settling_seconds: 0.0,
            settings: &[],
        }
    }
}

/// Seconds that a client is asked to go on, for tools that take whole ones.
pub(super) fn whole_seconds(load: &Load) -> f64 {
    (load.warmup_seconds + load.seconds + TAIL).ceil()
}

/// Words and values that are no strings yet.
pub(super) fn words(plain: &[&dyn fmt::Display]) -> Vec<String> {
    plain.iter().map(ToString::to_string).collect()
}

/// An option with its value, or nothing if the tool is to choose.
pub(super) fn option(name: &str, value: Option<u64>) -> Vec<String> {
    value.map_or_else(Vec::new, |value| words(&[&name, &value]))
}

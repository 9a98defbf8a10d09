//! What to measure, and for how long.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ringway_lab::topology::More;
use serde::{Deserialize, Serialize};

use crate::pages::Pages;

pub(crate) const HELP: &str = "\
Measure ringway and its peers in turns on this machine

Usage: ringway-bench [OPTION]... [SECTION]...
       ringway-bench race [--json] FILE

Sections [default: all]:
    ring             frames per second through a ring
    vhost            frames per second through a vhost-user device
    vhost-cost       the time of that device for a frame that its guest transmits
    virtio-switch    frames per second from one virtio guest to another
    tcp              throughput between two namespaces, beside veth+bridge and what ringway is
                     held against: `tap relay`, a system call per frame, and
                     `chain (3 processes)`, with one copy and merged writes.
                     `ringway (1 CPU)` has its guests' threads and workers on one CPU,
                     `ringway (staging)` keeps its guests' pages mapped
    latency          round trips between two namespaces, beside the same
    isolate          the cost of one process per tenant
    icount           instructions per frame
    idle             the cost of many idle vifs
    restart          how long guests are cut off when the backend is killed: TCP, and a ping each
                     millisecond to another guest and to the host
    lifetimes        how long it takes to start, to kill and resume, and to stop 50, 100 and 200
                     vifs at once, and how long the control socket takes to reply meanwhile

race prints a table of what the scenario race, race-guests or race-driver of tests/xen measured,
or the same as JSON.

Options:
    --quick          2 rounds and short runs
    --rounds N       rounds [default: 5]
    --filter TEXT    only cases whose names contain TEXT
    --json FILE      also write every run to FILE as JSON
    --ringway FILE   the program `ringway` [default: the one beside this program]
    --huge-pages     DPDK's programs use huge pages, which the host must have reserved
    --congestion C   TCP's congestion control: cubic [default] or bbr
    --vifs N         vifs of the idle section [default: 1000]
    --with KEY=VALUE tcp and latency also measure ringway with this setting of its description:
                     poll-us or workers of [host], gro or staging of each vif; may be repeated
    -h, --help       print help

Examples:
    ringway-bench --quick ring
    ringway-bench --rounds 10 --with gro=false --with poll-us=0 --json bench.json tcp latency
";

/// Sections by name, in the order in which they run.
pub(crate) const SECTIONS: [&str; 11] = [
    "ring",
    "vhost",
    "vhost-cost",
    "virtio-switch",
    "tcp",
    "latency",
    "isolate",
    "icount",
    "idle",
    "restart",
    "lifetimes",
];

/// Lengths of one run.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Spans {
    /// Not counted.
    pub(crate) warm_up: Duration,
    /// Counted.
    pub(crate) window: Duration,
}

/// TCP's congestion control, as Linux names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Congestion {
    Cubic,
    Bbr,
}

impl Congestion {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Congestion::Cubic => "cubic",
            Congestion::Bbr => "bbr",
        }
    }

    fn parse(word: &str) -> Result<Congestion> {
        let all = [Congestion::Cubic, Congestion::Bbr];
        let found = all.into_iter().find(|one| one.name() == word);
        found.with_context(|| format!("--congestion {word}: expected cubic or bbr"))
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A setting of ringway that is compared with its default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    /// As it was given.
    pub(crate) name: String,
    pub(crate) more: More,
}

impl Setting {
    fn parse(word: &str) -> Result<Setting> {
        let (key, value) = word.split_once('=').context("--with: expected KEY=VALUE")?;
        let is_value = ["true", "false"].contains(&value) || value.parse::<u32>().is_ok();
        let line = format!("{key} = {value}\n");
        let more = match key {
            "poll-us" | "workers" if is_value => More { host: line, ..More::default() },
            "gro" | "staging" if is_value => More { vifs: line, ..More::default() },
            _ => bail!(
                "--with {word}: expected poll-us, workers, gro or staging, and a number, true or \
                 false"
            ),
        };
        Ok(Setting { name: word.to_owned(), more })
    }
}

/// All options.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) sections: Vec<String>,
    pub(crate) rounds: usize,
    pub(crate) spans: Spans,
    pub(crate) filter: Option<String>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) ringway: Option<PathBuf>,
    pub(crate) pages: Pages,
    pub(crate) congestion: Congestion,
    pub(crate) vifs: usize,
    pub(crate) with: Vec<Setting>,
    pub(crate) help: bool,
}

impl Options {
    /// Reads a command line without the program's name.
    pub(crate) fn parse(words: &[std::ffi::OsString]) -> Result<Options> {
        use lexopt::prelude::{Long, Short, Value, ValueExt};
        let second = Duration::from_secs(1);
        let mut options = Options {
            sections: Vec::new(),
            rounds: 5,
            spans: Spans { warm_up: second, window: 3 * second },
            filter: None,
            json: None,
            ringway: None,
            pages: Pages::Small,
            congestion: Congestion::Cubic,
            vifs: 1000,
            with: Vec::new(),
            help: false,
        };
        let mut rounds = None;
        let mut parser = lexopt::Parser::from_args(words);
        while let Some(word) = parser.next()? {
            match word {
                Long("quick") => {
                    options.rounds = 2;
                    options.spans = Spans { warm_up: second / 2, window: second };
                }
                Long("rounds") => rounds = Some(parser.value()?.parse()?),
                Long("filter") => options.filter = Some(parser.value()?.string()?),
                Long("json") => options.json = Some(parser.value()?.into()),
                Long("ringway") => options.ringway = Some(parser.value()?.into()),
                Long("huge-pages") => options.pages = Pages::Huge,
                Long("congestion") => {
                    options.congestion = Congestion::parse(&parser.value()?.string()?)?;
                }
                Long("with") => options.with.push(Setting::parse(&parser.value()?.string()?)?),
                Long("vifs") => options.vifs = parser.value()?.parse()?,
                Short('h') | Long("help") => options.help = true,
                Value(section) => options.sections.push(section.string()?),
                other => return Err(other.unexpected().into()),
            }
        }
        for section in &options.sections {
            if !SECTIONS.contains(&section.as_str()) {
                bail!("there is no section {section}; the sections are {}", SECTIONS.join(" "));
            }
        }
        // An explicit number takes precedence over --quick, in either order.
        options.rounds = rounds.unwrap_or(options.rounds);
        if options.rounds == 0 {
            bail!("--rounds must be at least 1");
        }
        Ok(options)
    }

    /// Whether a section was selected.
    pub(crate) fn has_section(&self, section: &str) -> bool {
        self.sections.is_empty() || self.sections.iter().any(|wanted| wanted == section)
    }

    /// Whether a case was selected.
    pub(crate) fn wants(&self, case: &str) -> bool {
        self.filter.as_ref().is_none_or(|text| case.contains(text.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options> {
        Options::parse(&words.iter().map(Into::into).collect::<Vec<_>>())
    }

    #[test]
    fn an_explicit_number_of_rounds_wins_over_quick() {
        assert_eq!(parse(&["--rounds", "3", "--quick"]).expect("good").rounds, 3);
        assert_eq!(parse(&["--quick"]).expect("good").rounds, 2);
        assert_eq!(parse(&[]).expect("good").rounds, 5);
    }

    #[test]
    fn what_is_not_there_is_refused() {
        for words in [
            &["rings"][..],
            &["--fast"],
            &["--rounds", "0"],
            &["--rounds"],
            &["--congestion", "vegas"],
            &["--with", "gro"],
            &["--with", "fast=true"],
            &["--with", "gro=true\nname"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn a_setting_is_of_the_host_or_of_its_vifs() {
        let options = parse(&["--with", "poll-us=0", "--with", "gro=false"]).expect("good");
        let lines = |setting: &Setting| (setting.more.host.clone(), setting.more.vifs.clone());
        let lines: Vec<(String, String)> = options.with.iter().map(lines).collect();
        let expected = [("poll-us = 0\n", ""), ("", "gro = false\n")];
        assert_eq!(lines, expected.map(|(host, vifs)| (host.to_owned(), vifs.to_owned())));
    }

    #[test]
    fn no_section_means_all_of_them() {
        assert!(parse(&[]).expect("good").has_section("tcp"));
        let some = parse(&["ring", "icount"]).expect("good");
        assert!(some.has_section("icount") && !some.has_section("tcp"));
    }
}

//! The form of a fixture: a host in one text that people read and review.
//!
//! ```text
//! origin = "written"
//! from = "A guest with a short backlog"
//! -- proc/sys/net/core/netdev_max_backlog --
//! 300
//! -- sample-1/monotonic --
//! 1000.0
//! == expected ==
//! What the doctor says of it.
//! ```
//!
//! It begins with where the host is from, as TOML. Each block has the lines of one file of the
//! host, by its path in a record. A backslash stands before a line of a file that would otherwise
//! end the block, or that begins with a backslash itself; alone on the last line of a block, it
//! says that the file does not end its last line.

use std::fmt::{Display, Formatter, Result as Written};

use super::Pieces;

/// The line before what the doctor is expected to say.
const EXPECTED: &str = "== expected ==\n";
const UNENDED: &str = "\\\n";

/// A host of the tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Fixture {
    /// Where it is from, as TOML.
    pub(crate) about: String,
    pub(crate) pieces: Pieces,
    /// What the doctor says of it; only the test of verdicts writes this.
    pub(crate) expected: String,
}

impl Fixture {
    pub(crate) fn read(text: &str) -> Result<Fixture, String> {
        let mut fixture = Fixture::default();
        let mut into = &mut fixture.about;
        let mut lines = text.split_inclusive('\n');
        while let Some(line) = lines.next() {
            if let Some(path) = line.strip_prefix("-- ") {
                let path = path.strip_suffix(" --\n").ok_or(format!("expected a path: {line}"))?;
                if fixture.pieces.contains_key(path) {
                    return Err(format!("{path} is there twice"));
                }
                into = fixture.pieces.entry(path.to_owned()).or_default();
            } else if line == EXPECTED {
                fixture.expected = lines.collect();
                return Ok(fixture);
            } else if line == UNENDED {
                into.pop();
            } else {
                into.push_str(line.strip_prefix('\\').unwrap_or(line));
            }
        }
        Err(format!("expected a line {}", EXPECTED.trim_end()))
    }
}

impl Display for Fixture {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        f.write_str(&self.about)?;
        for (path, text) in &self.pieces {
            writeln!(f, "-- {path} --")?;
            for line in text.split_inclusive('\n') {
                let is_plain = !["-- ", "== ", "\\"].iter().any(|mark| line.starts_with(mark));
                write!(f, "{}{line}", if is_plain { "" } else { "\\" })?;
            }
            if !text.is_empty() && !text.ends_with('\n') {
                write!(f, "\n{UNENDED}")?;
            }
        }
        write!(f, "{EXPECTED}{}", self.expected)
    }
}

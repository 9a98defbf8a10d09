//! A piece of evidence: text with its origin.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Columns of a quoted line; a row of `/proc/interrupts` may have thousands.
const QUOTE_COLUMNS_MAX: usize = 160;

/// A line of evidence, as a finding quotes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Quote {
    /// The file on the host, or the command line that printed it.
    pub file: String,
    /// From 1; none if the whole of it is meant, or that it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// What it says.
    pub text: String,
}

/// Why a piece of evidence cannot be used. None of these is a diagnosis.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Gap {
    /// The check is about something that this host does not have.
    #[error("{0}")]
    NotHere(String),
    /// It is missing: there is no such file or tool, or it may not be read.
    #[error("{file}: {why}")]
    Missing {
        /// The file or command line.
        file: String,
        /// Such as "permission denied".
        why: String,
    },
    /// It exists but is invalid: truncated, foreign or contradictory.
    #[error("{file}{}: {why}", line.map(|line| format!(":{line}")).unwrap_or_default())]
    Unreadable {
        /// The file or command line.
        file: String,
        /// From 1, if one line is to blame.
        line: Option<usize>,
        /// What was expected.
        why: String,
    },
}

impl Gap {
    /// Whether there is nothing to read: this host lacks the subject or the file, or the record
    /// does not contain it. All others hide something that exists.
    pub fn is_not_there(&self) -> bool {
        match self {
            Gap::NotHere(_) => true,
            Gap::Missing { why, .. } => why == "not there",
            Gap::Unreadable { .. } => false,
        }
    }

    /// Whether the user who collected the evidence may not read it.
    pub fn is_refusal(&self) -> bool {
        let refusals = ["ermission denied", "not permitted"];
        matches!(self, Gap::Missing { why, .. } if refusals.iter().any(|one| why.contains(one)))
    }
}

/// The text of one file or of one command's output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text {
    origin: String,
    body: String,
}

impl Text {
    /// `origin` is shown to people: a path on the host, or a command line.
    pub fn new(origin: impl Into<String>, body: impl Into<String>) -> Text {
        Text { origin: origin.into(), body: body.into() }
    }

    /// Where it is from.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// All of it.
    pub fn body(&self) -> &str {
        &self.body
    }

    /// All of it, without white space at both ends: for files of one value.
    pub fn value(&self) -> &str {
        self.body.trim()
    }

    /// The one number that the file consists of.
    pub fn number(&self) -> Result<u64, Gap> {
        self.value().parse().map_err(|_| self.unreadable(Some(1), "expected a number"))
    }

    /// Its lines with their numbers, from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.body.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Quotes a line, with single spaces between columns and no longer than a terminal's line.
    pub fn quote(&self, line: usize) -> Quote {
        let found = self.lines().find(|(number, _)| *number == line);
        let text = found.map(|(_, text)| squeezed(text)).unwrap_or_default();
        Quote { file: self.origin.clone(), line: Some(line), text }
    }

    /// Quotes the first line that `wanted` accepts.
    pub fn quote_where(&self, wanted: impl Fn(&str) -> bool) -> Option<Quote> {
        self.lines().find(|(_, text)| wanted(text)).map(|(line, _)| self.quote(line))
    }

    /// An error that names this text.
    pub fn unreadable(&self, line: Option<usize>, why: impl Into<String>) -> Gap {
        Gap::Unreadable { file: self.origin.clone(), line, why: why.into() }
    }
}

/// Text in which others may have put their names, such as guests and programs: on one line, and
/// without characters by which they could control a terminal, or the order of what it shows.
pub fn one_line(text: &str) -> String {
    let turns = |letter: char| {
        let marks = ['\u{200e}', '\u{200f}'];
        let ranges = ['\u{202a}'..='\u{202e}', '\u{2066}'..='\u{2069}'];
        marks.contains(&letter) || ranges.iter().any(|range| range.contains(&letter))
    };
    let is_bad = |letter: char| letter.is_control() || turns(letter);
    text.chars().map(|letter| if is_bad(letter) { '?' } else { letter }).collect()
}

/// One such line, with single spaces between words, and no longer than a line.
pub fn squeezed(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = one_line(&words.join(" "));
    if line.chars().count() <= QUOTE_COLUMNS_MAX {
        return line;
    }
    let cut: String = line.chars().take(QUOTE_COLUMNS_MAX).collect();
    cut + " ..."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_is_one_short_line_without_control_characters() {
        let text = Text::new("/proc/x", format!("one\na  \u{1b}[31m b\t{}\n", "9 ".repeat(400)));
        let quote = text.quote(2);
        assert!(quote.text.starts_with("a ?[31m b 9 9"), "{}", quote.text);
        assert!(quote.text.chars().count() <= QUOTE_COLUMNS_MAX + 4);
        assert_eq!(text.quote(7).text, "");
    }
}

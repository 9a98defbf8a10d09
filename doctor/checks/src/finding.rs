//! What a check reports.

mod change;
mod knob;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use change::{Change, Purpose};
pub use knob::{Description, Execution, Form, Knob, Libvirt, Query, Risk, Store, shell_word};

use ringway_evidence::{Gap, Quote, one_line};

/// How serious a finding is, in ascending order.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Checked; no problem found.
    Ok,
    /// Not judged; the cause says why. This is no diagnosis.
    Unknown,
    /// Good to know; nothing is wrong.
    Note,
    /// It costs performance now, or will under load.
    Warning,
    /// It limits this host now, or breaks something.
    Problem,
}

/// How certain a finding is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// One explanation of several; verify it by hand first.
    Low,
    /// The evidence fits, but something else could look the same.
    Medium,
    /// The evidence states it directly.
    High,
}

/// One result about one subject, with its evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Finding {
    /// The id of the check, such as `D18`.
    pub check: String,
    /// How serious it is.
    pub severity: Severity,
    /// What it is about: an interface, a CPU, a sysctl.
    pub subject: String,
    /// What is wrong, in one sentence.
    pub summary: String,
    /// Why this happens, and its effect.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
    /// The lines of evidence that show it.
    pub evidence: Vec<Quote>,
    /// What to do about it, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<Advice>,
    /// The expected gain, with the source of the figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<String>,
    /// The interval of what the first advice gains as a factor of throughput, if the model has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<Forecast>,
    /// How certain the finding is.
    pub confidence: Confidence,
    /// For a note: what is lost, as the verdict says it where nothing is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// The check whose finding is the cause of this one. Reports show this finding below that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<String>,
    /// The other network namespace that it is about, if all were checked; its commands run there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
}

/// By how many times throughput grows: the ends of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Forecast {
    /// The least.
    pub low: f64,
    /// The most.
    pub high: f64,
}

/// Neither end is NaN.
impl Eq for Forecast {}

impl Forecast {
    /// From the ends, with the digits that a report can use.
    pub fn new(ends: [f64; 2]) -> Forecast {
        let short = |end: f64| if end.is_finite() { (end * 100.0).round() / 100.0 } else { 1.0 };
        let [low, high] = ends.map(short);
        Forecast { low, high }
    }
}

/// As in `1 to 4 times`.
impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {} times", self.low, self.high)
    }
}

/// One way to fix it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Advice {
    /// What to do, and what to consider.
    pub text: String,
    /// The exact commands, to run as root.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    /// What the commands do, in typed form. If there are any, the commands derive from them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// Changes that cannot be made where the evidence is from, and why; the text says it.
    #[serde(skip)]
    pub left_out: Vec<(Change, String)>,
}

impl Advice {
    /// An action for an administrator.
    pub fn by_hand(text: impl Into<String>, commands: &[&str]) -> Advice {
        let commands = commands.iter().map(|command| (*command).to_owned()).collect();
        Advice { text: text.into(), commands, changes: Vec::new(), left_out: Vec::new() }
    }

    /// An action for a program; the commands derive from the changes.
    pub fn by_change(text: impl Into<String>, changes: impl IntoIterator<Item = Change>) -> Advice {
        let changes: Vec<Change> = changes.into_iter().collect();
        let commands = changes.iter().map(Change::command).collect();
        Advice { text: text.into(), commands, changes, left_out: Vec::new() }
    }

    /// Removes changes that cannot be made where the evidence is from, and says so. `refused`
    /// returns the reason for each that cannot.
    pub fn leave_out(&mut self, refused: impl Fn(&Knob) -> Option<String>) {
        let changes = std::mem::take(&mut self.changes);
        if changes.is_empty() {
            return;
        }
        self.commands.clear();
        for change in changes {
            match refused(&change.knob) {
                None => {
                    self.commands.push(change.command());
                    self.changes.push(change);
                }
                Some(why) => {
                    let command = change.command();
                    self.text += &format!(
                        " This cannot be done here, because {why}. Where it can: {command}"
                    );
                    self.left_out.push((change, why));
                }
            }
        }
    }
}

impl Finding {
    /// A finding with the required fields only. The caller that runs the check fills in its id.
    pub fn new(severity: Severity, subject: impl Into<String>, summary: impl Into<String>) -> Self {
        let summary: String = summary.into();
        Finding {
            check: String::new(),
            severity,
            subject: subject.into(),
            summary: one_line(&summary),
            cause: String::new(),
            evidence: Vec::new(),
            advice: Vec::new(),
            gain: None,
            forecast: None,
            loss: None,
            confidence: Confidence::High,
            follows: None,
            netns: None,
        }
    }

    /// A part of the evidence that could not be read.
    pub fn gap(subject: impl Into<String>, gap: &Gap) -> Finding {
        Finding::new(Severity::Unknown, subject, format!("could not read {gap}"))
    }

    /// Adds the cause.
    #[must_use]
    pub fn cause(mut self, cause: impl Into<String>) -> Finding {
        self.cause = cause.into();
        self
    }

    /// Adds lines of evidence.
    #[must_use]
    pub fn quote(mut self, quotes: impl IntoIterator<Item = Quote>) -> Finding {
        self.evidence.extend(quotes);
        self
    }

    /// Adds advice.
    #[must_use]
    pub fn advise(mut self, advice: Advice) -> Finding {
        self.advice.push(advice);
        self
    }

    /// Adds the expected gain.
    #[must_use]
    pub fn gain(mut self, gain: impl Into<String>) -> Finding {
        self.gain = Some(gain.into());
        self
    }

    /// Adds a gain by the model, which holds under a condition, before what sources say of it.
    #[must_use]
    pub fn forecast(mut self, ends: [f64; 2], condition: &str) -> Finding {
        let forecast = Forecast::new(ends);
        let said = self.gain.take().map(|said| format!("; {said}")).unwrap_or_default();
        self.gain = Some(format!("throughput {forecast}, {condition}{said}"));
        self.forecast = Some(forecast);
        self
    }

    /// Adds what is lost, such as "100 packets a second die in the rule X".
    #[must_use]
    pub fn loses(mut self, loss: impl Into<String>) -> Finding {
        self.loss = Some(loss.into());
        self
    }

    /// Sets the check that found its cause.
    #[must_use]
    pub fn follows(mut self, check: impl Into<String>) -> Finding {
        self.follows = Some(check.into());
        self
    }

    /// Sets the confidence.
    #[must_use]
    pub fn confidence(mut self, confidence: Confidence) -> Finding {
        self.confidence = confidence;
        self
    }
}

//! What a check says.

mod change;
mod knob;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use change::{Change, Purpose};
pub use knob::{Description, Execution, Form, Knob, Libvirt, Query, Risk, Store, shell_word};

use ringway_evidence::{Gap, Quote};

/// How bad it is. The order is that of badness.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Checked, and in order.
    Ok,
    /// Could not be judged; the cause says why. No diagnosis.
    Unknown,
    /// Good to know; nothing is wrong.
    Note,
    /// Costs something, or will under load.
    Warning,
    /// Limits this host now, or breaks something.
    Problem,
}

/// How sure a finding is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// One reading of several; verify by hand first.
    Low,
    /// The evidence fits, and something else could look like it.
    Medium,
    /// The evidence says it itself.
    High,
}

/// One statement about one subject, with everything it rests on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Finding {
    /// The id of the check, such as `D18`.
    pub check: String,
    /// How bad it is.
    pub severity: Severity,
    /// What it is about: an interface, a CPU, a sysctl.
    pub subject: String,
    /// What is the matter, in one sentence.
    pub summary: String,
    /// Why that is so and what it does.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
    /// The lines that show it.
    pub evidence: Vec<Quote>,
    /// What to do about it, the best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<Advice>,
    /// What to gain by it, with whose figure that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<String>,
    /// How sure that is.
    pub confidence: Confidence,
    /// The check whose finding is the cause of this one: it stands below that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<String>,
    /// In which other network namespace it is, if all were checked; its commands go there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
}

/// One way to fix it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Advice {
    /// What to do and what to mind.
    pub text: String,
    /// The exact commands, to be run as root.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    /// The same for a program: commands come from these where there are any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
}

impl Advice {
    /// Something to be done by hand.
    pub fn by_hand(text: impl Into<String>, commands: &[&str]) -> Advice {
        let commands = commands.iter().map(|command| (*command).to_owned()).collect();
        Advice { text: text.into(), commands, changes: Vec::new() }
    }

    /// Something that a program can do; the commands follow from the changes.
    pub fn by_change(text: impl Into<String>, changes: impl IntoIterator<Item = Change>) -> Advice {
        let changes: Vec<Change> = changes.into_iter().collect();
        let commands = changes.iter().map(Change::command).collect();
        Advice { text: text.into(), commands, changes }
    }

    /// Leaves out changes that cannot be made where the evidence is from, and says so. `refused`
    /// has why not, if it cannot.
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
                    self.text += &format!(" Not from here, because {why}. Where it can: {command}");
                }
            }
        }
    }
}

impl Finding {
    /// With nothing but what every finding has. The check's id is filled in by who runs it.
    pub fn new(severity: Severity, subject: impl Into<String>, summary: impl Into<String>) -> Self {
        Finding {
            check: String::new(),
            severity,
            subject: subject.into(),
            summary: summary.into(),
            cause: String::new(),
            evidence: Vec::new(),
            advice: Vec::new(),
            gain: None,
            confidence: Confidence::High,
            follows: None,
            netns: None,
        }
    }

    /// A part of the evidence that says nothing.
    pub fn gap(subject: impl Into<String>, gap: &Gap) -> Finding {
        Finding::new(Severity::Unknown, subject, format!("could not read {gap}"))
    }

    /// Adds why it is so.
    #[must_use]
    pub fn cause(mut self, cause: impl Into<String>) -> Finding {
        self.cause = cause.into();
        self
    }

    /// Adds lines that show it.
    #[must_use]
    pub fn quote(mut self, quotes: impl IntoIterator<Item = Quote>) -> Finding {
        self.evidence.extend(quotes);
        self
    }

    /// Adds something to do.
    #[must_use]
    pub fn advise(mut self, advice: Advice) -> Finding {
        self.advice.push(advice);
        self
    }

    /// Adds what to expect of it.
    #[must_use]
    pub fn gain(mut self, gain: impl Into<String>) -> Finding {
        self.gain = Some(gain.into());
        self
    }

    /// Says which check has its cause.
    #[must_use]
    pub fn follows(mut self, check: impl Into<String>) -> Finding {
        self.follows = Some(check.into());
        self
    }

    /// Says how sure it is.
    #[must_use]
    pub fn confidence(mut self, confidence: Confidence) -> Finding {
        self.confidence = confidence;
        self
    }
}

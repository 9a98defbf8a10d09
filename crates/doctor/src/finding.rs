//! What a check says.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::evidence::{Gap, Quote};

/// How bad it is. The order is that of badness.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Looked at, and in order.
    Ok,
    /// Could not be told; the cause says why. No diagnosis.
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
}

/// One way to mend it.
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

/// A setting, what it is and what it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Change {
    /// What is set.
    pub knob: Knob,
    /// Its value when the evidence was collected; none if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// Its value after the change.
    pub proposed: String,
}

/// A setting that a change can be made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Knob {
    /// A sysctl by its dotted name.
    Sysctl {
        /// Such as `net.core.netdev_budget`.
        name: String,
    },
    /// The CPUs that may serve an interrupt: a list such as `0-3`.
    IrqAffinity {
        /// Its number.
        irq: u32,
    },
    /// The CPUs that take frames over from a queue in software: a hexadecimal mask.
    Rps {
        /// The interface.
        nic: String,
        /// Its receive queue.
        queue: u32,
    },
    /// The CPUs that send by a queue: a hexadecimal mask.
    Xps {
        /// The interface.
        nic: String,
        /// Its transmit queue.
        queue: u32,
    },
    /// An offload: `on` or `off`.
    Offload {
        /// The interface.
        nic: String,
        /// The name that `ethtool -K` takes.
        feature: String,
    },
    /// The number of queues.
    Channels {
        /// The interface.
        nic: String,
        /// `combined`, `rx` or `tx`.
        which: String,
    },
    /// The entries of a ring.
    Ring {
        /// The interface.
        nic: String,
        /// `rx` or `tx`.
        which: String,
    },
    /// Packets that may wait before an interface.
    TxQueueLen {
        /// The interface.
        nic: String,
    },
    /// The longest packet, in bytes.
    Mtu {
        /// The interface.
        nic: String,
    },
    /// The queueing discipline at the root of an interface, as `tc` writes it: `fq_codel`, or
    /// `tbf rate 100Mbit burst 32Kb latency 50ms`.
    Qdisc {
        /// The interface.
        nic: String,
    },
    /// The queues that a guest of ringway may ask for.
    MaxQueues {
        /// The vif.
        vif: String,
    },
}

impl Knob {
    /// What it belongs to, for people.
    pub fn subject(&self) -> String {
        match self {
            Knob::Sysctl { name } => name.clone(),
            Knob::IrqAffinity { irq } => format!("irq {irq}"),
            other => other.nic().unwrap_or_default().to_owned(),
        }
    }

    /// The interface that it is a setting of.
    pub fn nic(&self) -> Option<&str> {
        match self {
            Knob::Sysctl { .. } | Knob::IrqAffinity { .. } => None,
            Knob::Rps { nic, .. }
            | Knob::Xps { nic, .. }
            | Knob::Offload { nic, .. }
            | Knob::Channels { nic, .. }
            | Knob::Ring { nic, .. }
            | Knob::TxQueueLen { nic }
            | Knob::Qdisc { nic }
            | Knob::Mtu { nic } => Some(nic),
            Knob::MaxQueues { vif } => Some(vif),
        }
    }

    /// What is set, for people.
    pub fn name(&self) -> String {
        match self {
            Knob::Sysctl { name } => name.clone(),
            Knob::IrqAffinity { irq } => format!("CPUs of interrupt {irq}"),
            Knob::Rps { nic, queue } => format!("RPS of {nic} rx-{queue}"),
            Knob::Xps { nic, queue } => format!("XPS of {nic} tx-{queue}"),
            Knob::Offload { nic, feature } => format!("{feature} of {nic}"),
            Knob::Channels { nic, which } => format!("{which} channels of {nic}"),
            Knob::Ring { nic, which } => format!("{which} ring of {nic}"),
            Knob::TxQueueLen { nic } => format!("txqueuelen of {nic}"),
            Knob::Mtu { nic } => format!("MTU of {nic}"),
            Knob::Qdisc { nic } => format!("qdisc of {nic}"),
            Knob::MaxQueues { vif } => format!("max-queues of {vif}"),
        }
    }

    /// Whether setting it can interrupt traffic: a driver may take its link down and up for it.
    pub fn is_disruptive(&self) -> bool {
        matches!(
            self,
            Knob::Channels { .. } | Knob::Ring { .. } | Knob::Mtu { .. } | Knob::MaxQueues { .. }
        )
    }

    /// The command that sets it.
    pub fn command(&self, value: &str) -> String {
        match self {
            Knob::Sysctl { name } if value.contains(' ') => format!("sysctl -w {name}='{value}'"),
            Knob::Sysctl { name } => format!("sysctl -w {name}={value}"),
            Knob::IrqAffinity { irq } => {
                format!("echo {value} > /proc/irq/{irq}/smp_affinity_list")
            }
            Knob::Rps { nic, queue } => {
                format!("echo {value} > /sys/class/net/{nic}/queues/rx-{queue}/rps_cpus")
            }
            Knob::Xps { nic, queue } => {
                format!("echo {value} > /sys/class/net/{nic}/queues/tx-{queue}/xps_cpus")
            }
            Knob::Offload { nic, feature } => format!("ethtool -K {nic} {feature} {value}"),
            Knob::Channels { nic, which } => format!("ethtool -L {nic} {which} {value}"),
            Knob::Ring { nic, which } => format!("ethtool -G {nic} {which} {value}"),
            Knob::TxQueueLen { nic } => format!("ip link set dev {nic} txqueuelen {value}"),
            Knob::Mtu { nic } => format!("ip link set dev {nic} mtu {value}"),
            Knob::Qdisc { nic } => format!("tc qdisc replace dev {nic} root {value}"),
            Knob::MaxQueues { vif } => {
                format!("ringway vif set --reconnect {vif} max-queues {value}")
            }
        }
    }
}

impl Change {
    /// From `current`, if it is known, to `proposed`.
    pub fn new(knob: Knob, current: Option<String>, proposed: impl fmt::Display) -> Change {
        Change { knob, current, proposed: proposed.to_string() }
    }

    /// The command that makes it.
    pub fn command(&self) -> String {
        self.knob.command(&self.proposed)
    }
}

impl Advice {
    /// Something to be done by hand.
    pub fn by_hand(text: impl Into<String>, commands: &[&str]) -> Advice {
        let commands = commands.iter().map(|command| (*command).to_owned()).collect();
        Advice { text: text.into(), commands, changes: Vec::new() }
    }

    /// Something that a program can do; the commands follow from the changes.
    pub fn by_change(text: impl Into<String>, changes: Vec<Change>) -> Advice {
        let commands = changes.iter().map(Change::command).collect();
        Advice { text: text.into(), commands, changes }
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

    /// Says how sure it is.
    #[must_use]
    pub fn confidence(mut self, confidence: Confidence) -> Finding {
        self.confidence = confidence;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_the_command_that_makes_it() {
        let sysctl = |name: &str| Knob::Sysctl { name: name.to_owned() };
        let budget = Change::new(sysctl("net.core.netdev_budget"), Some("300".into()), 600);
        assert_eq!(budget.command(), "sysctl -w net.core.netdev_budget=600");
        let rmem = Change::new(sysctl("net.ipv4.tcp_rmem"), None, "4096 131072 6291456");
        assert_eq!(rmem.command(), "sysctl -w net.ipv4.tcp_rmem='4096 131072 6291456'");
        let irq = Change::new(Knob::IrqAffinity { irq: 41 }, None, "2");
        assert_eq!(irq.command(), "echo 2 > /proc/irq/41/smp_affinity_list");
        assert!(!irq.knob.is_disruptive());
    }
}

//! A setting, what it is and what it should be.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Knob;

/// A setting with its current and its proposed value. Created by [`raise`](Change::raise),
/// [`lower`](Change::lower) or [`replace`](Change::replace), so that a check that raises a setting
/// can never lower it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Change {
    /// The setting.
    pub knob: Knob,
    /// Its value when the evidence was collected; none if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// Its value after the change.
    pub proposed: String,
    /// The direction of the change.
    pub purpose: Purpose,
}

/// The direction of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Raises it, or turns it on: no number of the setting gets smaller.
    Raise,
    /// Lowers it, or turns it off: no number of the setting gets larger.
    Lower,
    /// Another value of a setting whose values have no order, such as a name or a set of CPUs.
    Replace,
}

impl Change {
    /// Raises a setting: a number, numbers such as those of `tcp_rmem`, or `off` to `on`. None if
    /// the new value is not higher, or the kernel does not accept it.
    pub fn raise(
        knob: Knob,
        current: impl fmt::Display,
        proposed: impl fmt::Display,
    ) -> Option<Change> {
        let (current, proposed) = (current.to_string(), proposed.to_string());
        let is_more = is_raised(&current, &proposed) && is_taken(&knob, &proposed);
        let purpose = Purpose::Raise;
        is_more.then_some(Change { knob, current: Some(current), proposed, purpose })
    }

    /// Lowers a setting that is too high. None if the new value is not lower, or the kernel does
    /// not accept it.
    pub fn lower(
        knob: Knob,
        current: impl fmt::Display,
        proposed: impl fmt::Display,
    ) -> Option<Change> {
        let (current, proposed) = (current.to_string(), proposed.to_string());
        let is_less = is_raised(&proposed, &current) && is_taken(&knob, &proposed);
        let purpose = Purpose::Lower;
        is_less.then_some(Change { knob, current: Some(current), proposed, purpose })
    }

    /// Replaces a value by another, if neither is higher. None if the setting has that value
    /// already.
    pub fn replace(
        knob: Knob,
        current: Option<String>,
        proposed: impl fmt::Display,
    ) -> Option<Change> {
        let proposed = proposed.to_string();
        let is_other = current.as_ref() != Some(&proposed);
        is_other.then_some(Change { knob, current, proposed, purpose: Purpose::Replace })
    }

    /// The command that makes the change.
    pub fn command(&self) -> String {
        self.knob.command(&self.proposed)
    }
}

/// Whether no number gets smaller and one gets larger.
fn is_raised(from: &str, to: &str) -> bool {
    let (Some(from), Some(to)) = (numbers(from), numbers(to)) else { return false };
    from.len() == to.len() && from != to && from.iter().zip(&to).all(|(from, to)| from <= to)
}

/// Whether the setting may have each number, and three numbers are in order: a minimum, a default
/// and a maximum.
fn is_taken(knob: &Knob, value: &str) -> bool {
    numbers(value).is_some_and(|numbers| {
        let is_ordered = numbers.len() < 3 || numbers.is_sorted();
        is_ordered && numbers.iter().all(|number| *number <= knob.describe().number_max)
    })
}

/// The numbers of a setting; a switch is 0 or 1.
fn numbers(value: &str) -> Option<Vec<u64>> {
    let number = |word: &str| match word {
        "off" => Some(0),
        "on" => Some(1),
        word => word.parse().ok(),
    };
    value.split_whitespace().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sysctl(name: &str) -> Knob {
        Knob::Sysctl { name: name.to_owned() }
    }

    #[test]
    fn a_change_is_the_command_that_makes_it() {
        let budget = Change::raise(sysctl("net.core.netdev_budget"), 300, 600).expect("more");
        assert_eq!(budget.command(), "sysctl -w net.core.netdev_budget=600");
        let rmem = sysctl("net.ipv4.tcp_rmem");
        let rmem = Change::raise(rmem, "4096 131072 131072", "4096 131072 6291456").expect("more");
        assert_eq!(rmem.command(), "sysctl -w net.ipv4.tcp_rmem='4096 131072 6291456'");
        let irq = Change::replace(Knob::IrqAffinity { irq: 41 }, None, "2").expect("another");
        assert_eq!(irq.command(), "echo 2 > /proc/irq/41/smp_affinity_list");
        assert!(!irq.knob.is_disruptive());
    }

    #[test]
    fn what_is_raised_gets_no_smaller_in_any_part() {
        let raise = |from: &str, to: &str| Change::raise(sysctl("x"), from, to);
        assert_eq!(raise("4096 131072 6291456", "4096 131072 16384"), None);
        assert_eq!(raise("4096 131072 6291456", "4096 87380 134217728"), None);
        assert_eq!(raise("600", "300"), None);
        assert_eq!(raise("600", "600"), None);
        assert_eq!(raise("600", "3000000000"), None, "more than an int holds");
        assert_eq!(raise("1 9 3", "1 9 4"), None, "the default stays above the maximum");
        assert_eq!(raise("fq", "1"), None);
        assert!(raise("off", "on").is_some());
        assert_eq!(Change::lower(sysctl("x"), 300, 600), None);
        assert!(Change::lower(sysctl("x"), 600, 300).is_some());
    }
}

//! A profile of tuned: settings that its plugins support, the rest as comments.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::one_line;
use crate::journal::Entry;
use ringway_checks::finding::{Knob, Store};

/// `tuned.conf` of a profile that extends the active one.
pub(super) fn profile(entries: &[Entry]) -> String {
    let mut text =
        "# /etc/tuned/ringway-doctor/tuned.conf: add it to the profile that is in use,\n\
                    # as in: tuned-adm profile throughput-performance ringway-doctor\n\
                    [main]\nsummary=What ringway doctor found for this host\n"
            .to_owned();
    let mut sysctls = Vec::new();
    let mut nics: BTreeMap<&str, Vec<(&str, String)>> = BTreeMap::new();
    let mut governor = None;
    let mut others = Vec::new();
    for entry in entries {
        let about = entry.knob.describe();
        let new = entry.new.as_str();
        if let Store::Sysctl(name) = about.store {
            sysctls.push(format!("{name}={new}"));
            continue;
        }
        if let Knob::Governor { .. } = entry.knob {
            governor = Some(new);
            continue;
        }
        match (about.nic.filter(|nic| is_plain(nic)), word(&entry.knob)) {
            (Some(nic), Some((key, before))) => {
                nics.entry(nic).or_default().push((key, format!("{before}{new}")));
            }
            _ => others.push(entry),
        }
    }
    if !sysctls.is_empty() {
        let _ = writeln!(text, "\n[sysctl]\n{}", sysctls.join("\n"));
    }
    if let Some(governor) = governor {
        let _ = writeln!(text, "\n[cpu]\ngovernor={governor}");
    }
    for (nic, words) in nics {
        let _ = writeln!(text, "\n[net_{nic}]\ntype=net\ndevices={nic}");
        let mut by_key: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        words.into_iter().for_each(|(key, value)| by_key.entry(key).or_default().push(value));
        for (key, values) in by_key {
            let _ = writeln!(text, "{key}={}", values.join(" "));
        }
    }
    for entry in others {
        let command = one_line(&entry.knob.command(&entry.new));
        let _ = writeln!(text, "\n# tuned cannot set {}: {command}", entry.check);
    }
    text
}

/// The key in tuned's plugin for interfaces, and the prefix of the value.
fn word(knob: &Knob) -> Option<(&'static str, String)> {
    match knob {
        Knob::Offload { feature, .. } => Some(("features", format!("{feature} "))),
        Knob::Channels { which, .. } => Some(("channels", format!("{which} "))),
        Knob::Ring { which, .. } => Some(("ring", format!("{which} "))),
        Knob::TxQueueLen { .. } => Some(("txqueuelen", String::new())),
        Knob::Mtu { .. } => Some(("mtu", String::new())),
        _ => None,
    }
}

/// Whether a name is valid in the header of a section.
fn is_plain(nic: &str) -> bool {
    nic.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

//! Settings that differ between two hosts, or on one host between two times.

use std::collections::BTreeSet;

use crate::Source;

/// A setting that two records say differently.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Changed {
    /// The file, and the name in it if it holds several.
    pub name: String,
    /// In the first; none if it is not there.
    pub before: Option<String>,
    /// In the second.
    pub after: Option<String>,
}

/// Directories of settings. Counters, which change by themselves, are in samples and not here.
const SETTINGS: [&str; 7] = [
    "proc/sys/",
    "proc/irq/",
    "proc/cmdline",
    "sys/class/net/",
    "sys/devices/system/cpu/",
    "sys/module/",
    "netlink/",
];
/// Files in them that describe a momentary state.
const STATES: [&str; 4] = ["scaling_cur_freq", "uevent", ".link", ".names"];
/// Changes that are shown.
const CHANGES_MAX: usize = 1000;

/// The settings with different values in two records, by name.
pub fn changed(before: &Source, after: &Source) -> Vec<Changed> {
    let is_setting = |path: &String| {
        SETTINGS.iter().any(|start| path.starts_with(start))
            && !STATES.iter().any(|end| path.ends_with(end))
    };
    let paths: BTreeSet<String> =
        before.paths().into_iter().chain(after.paths()).filter(is_setting).collect();
    let mut all = Vec::new();
    for path in paths {
        let text = |source: &Source| source.file(&path).ok().map(|text| text.body().to_owned());
        let (first, second) = (text(before), text(after));
        if first != second {
            of_file(&path, first.as_deref(), second.as_deref(), &mut all);
        }
        if all.len() >= CHANGES_MAX {
            break;
        }
    }
    all.truncate(CHANGES_MAX);
    all
}

/// Adds the differences of a file: its value if it has only one, or each `name: value` that
/// differs.
fn of_file(path: &str, before: Option<&str>, after: Option<&str>, all: &mut Vec<Changed>) {
    let own = |text: Option<&str>| text.map(|text| text.trim().to_owned());
    let has_names = path.starts_with("netlink/");
    let (Some(first), Some(second)) = (before, after) else {
        // An interface that appeared or disappeared is listed once, by the file of its MTU.
        if !has_names {
            let (before, after) = (own(before), own(after));
            all.push(Changed { name: format!("/{path}"), before, after });
        }
        return;
    };
    if !has_names {
        let name = format!("/{path}");
        all.push(Changed { name, before: own(Some(first)), after: own(Some(second)) });
        return;
    }
    let values = |text: &str| -> Vec<(String, String)> {
        let pairs = text.lines().skip(1).filter_map(|line| line.split_once(": "));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    let (first, second) = (values(first), values(second));
    let names: BTreeSet<&String> = first.iter().chain(&second).map(|(name, _)| name).collect();
    for name in names {
        let value = |all: &[(String, String)]| {
            all.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        };
        let (before, after) = (value(&first), value(&second));
        if before != after {
            let path = path.trim_start_matches("netlink/");
            all.push(Changed { name: format!("{path}: {name}"), before, after });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_differ_are_reported_and_counters_are_not() {
        let source = |pieces: &[(&str, &str)]| {
            let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
            Source::Memory(pieces.iter().map(own).collect())
        };
        let before = source(&[
            ("proc/sys/net/ipv4/tcp_sack", "1\n"),
            ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
            ("netlink/eth0/features", "features of eth0: 2\nrx-gro: on\ntx-x: off\n"),
            ("sample-1/proc/stat", "cpu 1\n"),
        ]);
        let after = source(&[
            ("proc/sys/net/ipv4/tcp_sack", "0\n"),
            ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
            ("netlink/eth0/features", "features of eth0: 2\nrx-gro: off\ntx-x: off\n"),
            ("sample-1/proc/stat", "cpu 2\n"),
            ("sys/class/net/eth1/mtu", "1500\n"),
        ]);
        let said: Vec<(String, Option<String>, Option<String>)> = changed(&before, &after)
            .into_iter()
            .map(|one| (one.name, one.before, one.after))
            .collect();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            said,
            [
                ("eth0/features: rx-gro".to_owned(), some("on"), some("off")),
                ("/proc/sys/net/ipv4/tcp_sack".to_owned(), some("1"), some("0")),
                ("/sys/class/net/eth1/mtu".to_owned(), None, some("1500")),
            ]
        );
    }
}

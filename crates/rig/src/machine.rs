//! The machine that measures, described for the records.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::tools::Tool;

/// The build of ringway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build {
    /// Its version.
    pub version: String,
    /// The commit that it was built from, or `unknown`.
    pub commit: String,
}

/// The description of a machine, without which a figure is meaningless.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Host {
    /// The CPU's model.
    pub cpu_model: String,
    /// CPUs that may be used.
    pub cpus: u32,
    /// Memory in KiB.
    pub memory_kib: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The distribution.
    pub os: String,
    /// The hypervisor under it, or `none`.
    pub hypervisor: String,
    /// ringway's version.
    pub ringway_version: String,
    /// The commit that ringway was built from.
    pub git_commit: String,
    /// Versions of tools by name.
    pub tools: BTreeMap<String, String>,
    /// The kernel's clock source.
    pub clock_source: String,
    /// The kernel's mitigations of CPU vulnerabilities.
    pub mitigations: Vec<String>,
    /// When this was written: RFC 3339, UTC.
    pub date: String,
}

impl Host {
    /// What differs in `other`, such as `kernel: 6.1 → 6.12`.
    pub fn differences(&self, other: &Host) -> Vec<String> {
        let fields = |host: &Host| {
            [
                ("CPU", format!("{} × {}", host.cpus, host.cpu_model)),
                ("kernel", host.kernel.clone()),
                ("system", host.os.clone()),
                ("hypervisor", host.hypervisor.clone()),
                ("ringway", format!("{} {}", host.ringway_version, host.git_commit)),
                ("tools", versions(&host.tools)),
                ("mitigations", host.mitigations.join(", ")),
            ]
        };
        let pairs = fields(self).into_iter().zip(fields(other));
        let differing = pairs.filter(|(a, b)| a != b);
        differing.map(|((name, a), (_, b))| format!("{name}: {a} → {b}")).collect()
    }

    /// The machine in a few words.
    pub fn name(&self) -> String {
        format!("{}, {} CPUs, Linux {}", self.cpu_model, self.cpus, self.kernel)
    }

    /// Whether figures of both can be compared with each other.
    pub fn is_same_machine(&self, other: &Host) -> bool {
        let what = |host: &Host| (host.cpu_model.clone(), host.cpus, host.kernel.clone());
        what(self) == what(other)
    }
}

/// Describes the machine, with the versions of tools and of the running ringway. Anything that
/// cannot be determined is called unknown.
pub fn describe(build: &Build, tools: &BTreeSet<Tool>) -> Host {
    let unknown = || "unknown".to_owned();
    let read = |file: &str| fs::read_to_string(file).ok().map(|text| text.trim().to_owned());
    let memory = field("/proc/meminfo", "MemTotal", ':');
    let memory = memory.and_then(|text| text.split_whitespace().next()?.parse().ok());
    let with_version = |tool: &Tool| Some((tool.program().to_owned(), tool.version()?));
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    Host {
        cpu_model: field("/proc/cpuinfo", "model name", ':').unwrap_or_else(unknown),
        cpus: u32::try_from(cpus).unwrap_or(u32::MAX),
        memory_kib: memory.unwrap_or(0),
        kernel: read("/proc/sys/kernel/osrelease").unwrap_or_else(unknown),
        os: field("/etc/os-release", "PRETTY_NAME", '=').unwrap_or_else(unknown),
        hypervisor: hypervisor().unwrap_or_else(unknown),
        ringway_version: build.version.clone(),
        git_commit: build.commit.clone(),
        tools: tools.iter().filter_map(with_version).collect::<BTreeMap<_, _>>(),
        clock_source: read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
            .unwrap_or_else(unknown),
        mitigations: mitigations(),
        date: now(),
    }
}

/// The present time: RFC 3339, UTC, to the second.
pub fn now() -> String {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default().to_string()
}

fn versions(tools: &BTreeMap<String, String>) -> String {
    tools.iter().map(|(name, version)| format!("{name} {version}")).collect::<Vec<_>>().join(", ")
}

fn field(file: &str, key: &str, separator: char) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(separator)?.1.trim().trim_matches('"').to_owned())
}

/// `none` on bare metal; otherwise the kind that the firmware or the CPU's flags report.
fn hypervisor() -> Option<String> {
    let flags = field("/proc/cpuinfo", "flags", ':')?;
    if !flags.split_whitespace().any(|flag| flag == "hypervisor") {
        return Some("none".to_owned());
    }
    let vendor = fs::read_to_string("/sys/class/dmi/id/sys_vendor").ok();
    let xen = fs::read_to_string("/sys/hypervisor/type").ok();
    let name = xen.or(vendor).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    Some(name.map_or_else(|| "of unknown kind".to_owned(), |name| format!("yes ({name})")))
}

fn mitigations() -> Vec<String> {
    let entries = fs::read_dir("/sys/devices/system/cpu/vulnerabilities").into_iter().flatten();
    let mut found: Vec<String> = entries
        .flatten()
        .filter_map(|entry| {
            let text = fs::read_to_string(entry.path()).ok()?;
            let name = entry.file_name().to_string_lossy().into_owned();
            (text.trim() != "Not affected").then(|| format!("{name}: {}", text.trim()))
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_described_and_time_is_utc() {
        let build = Build { version: "1.2.3".to_owned(), commit: "0123456789ab".to_owned() };
        let host = describe(&build, &BTreeSet::new());
        assert!(host.cpus > 0 && host.memory_kib > 0 && !host.kernel.is_empty());
        assert_eq!((host.git_commit.as_str(), host.tools.len()), ("0123456789ab", 0));
        assert!(host.date.ends_with('Z') && host.date.len() == 20, "{}", host.date);
    }
}

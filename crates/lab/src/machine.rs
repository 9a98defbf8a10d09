//! The machine that measures, described for the records.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use jiff::Timestamp;

use crate::record::Host;
use crate::tools;

/// The machine, with the versions of some tools. What cannot be found out is called unknown.
pub fn describe(program: &Path, version: &str, names: &[&str]) -> Host {
    let unknown = || "unknown".to_owned();
    let read = |file: &str| fs::read_to_string(file).ok().map(|text| text.trim().to_owned());
    let memory = field("/proc/meminfo", "MemTotal", ':');
    let memory = memory.and_then(|text| text.split_whitespace().next()?.parse().ok());
    let with_version = |name: &&str| Some(((*name).to_owned(), tools::version(name)?));
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    Host {
        cpu_model: field("/proc/cpuinfo", "model name", ':').unwrap_or_else(unknown),
        cpus: u32::try_from(cpus).unwrap_or(u32::MAX),
        memory_kib: memory.unwrap_or(0),
        kernel: read("/proc/sys/kernel/osrelease").unwrap_or_else(unknown),
        os: field("/etc/os-release", "PRETTY_NAME", '=').unwrap_or_else(unknown),
        hypervisor: hypervisor().unwrap_or_else(unknown),
        ringway_version: version.to_owned(),
        git_commit: commit(program).unwrap_or_else(unknown),
        tools: names.iter().filter_map(with_version).collect::<BTreeMap<_, _>>(),
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

fn field(file: &str, key: &str, separator: char) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(separator)?.1.trim().trim_matches('"').to_owned())
}

/// `none` on a machine of its own; the kind is what the firmware or the CPU's flags tell.
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

/// The commit of the tree in which a program was built, if it still lies in one.
fn commit(program: &Path) -> Option<String> {
    let dir = program.parent()?;
    let git = |words: &[&str]| {
        let output = Command::new("git").arg("-C").arg(dir).args(words).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let is_clean = git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if is_clean { commit } else { format!("{commit} with changes") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_described_and_time_is_utc() {
        let host = describe(Path::new("/nonexistent/program"), "1.2.3", &["no such tool"]);
        assert!(host.cpus > 0 && host.memory_kib > 0 && !host.kernel.is_empty());
        assert_eq!((host.git_commit.as_str(), host.tools.len()), ("unknown", 0));
        assert!(host.date.ends_with('Z') && host.date.len() == 20, "{}", host.date);
    }
}

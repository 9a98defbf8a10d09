//! The command that is shown for a knob is the command that runs, over all knobs.
//!
//! Tools are scripts that record their arguments. What a shell does with the shown command is
//! compared with what [`Settings`] does: the same arguments, or the same bytes in the same file.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use ringway_changes::settings::Settings;
use ringway_checks::finding::{Execution, Knob};

/// The file in which tools record their arguments; set for the test when it runs as its own child.
const NOTES: &str = "RINGWAY_TEST_NOTES";
const TOOLS: [&str; 5] = ["sysctl", "ip", "tc", "ethtool", "ringway"];

/// One knob of each kind, and a value. One name contains characters that are special to a shell.
fn knobs() -> Vec<(Knob, &'static str)> {
    let nic = || "a'b$c".to_owned();
    let which = || "rx".to_owned();
    let first = Knob::Sysctl { name: "net.ipv4.tcp_rmem".to_owned() };
    let next = |knob: &Knob| match knob {
        Knob::Sysctl { .. } => Some((Knob::IrqAffinity { irq: 41 }, "0,2-3")),
        Knob::IrqAffinity { .. } => Some((Knob::Rps { nic: nic(), queue: 0 }, "ff,ffffffff")),
        Knob::Rps { .. } => Some((Knob::Xps { nic: nic(), queue: 1 }, "3")),
        Knob::Xps { .. } => Some((Knob::Offload { nic: nic(), feature: "gro".to_owned() }, "on")),
        Knob::Offload { .. } => Some((Knob::Channels { nic: nic(), which: which() }, "4")),
        Knob::Channels { .. } => Some((Knob::Ring { nic: nic(), which: which() }, "1024")),
        Knob::Ring { .. } => Some((Knob::TxQueueLen { nic: nic() }, "1000")),
        Knob::TxQueueLen { .. } => Some((Knob::Mtu { nic: nic() }, "9000")),
        Knob::Mtu { .. } => Some((Knob::Qdisc { nic: nic() }, "tbf rate 100Mbit burst 32Kb")),
        Knob::Qdisc { .. } => Some((Knob::MaxQueues { vif: nic() }, "4")),
        Knob::MaxQueues { .. } => {
            let (module, name) = ("xen_netback".to_owned(), "max_queues".to_owned());
            Some((Knob::Parameter { module, name }, "8"))
        }
        Knob::Parameter { .. } => Some((Knob::VirtualFunctions { nic: nic() }, "4")),
        Knob::VirtualFunctions { .. } => Some((Knob::Governor { cpu: 3 }, "performance")),
        Knob::Governor { .. } => None,
    };
    let from = (first, "4096 131072 6291456");
    std::iter::successors(Some(from), |(knob, _)| next(knob)).collect()
}

#[test]
fn a_shell_runs_the_words_that_are_run_and_writes_what_is_written() {
    for (knob, value) in knobs() {
        let place = tempfile::tempdir().expect("a directory");
        let notes = tools(place.path());
        match knob.describe().execution(value) {
            Execution::Run(words) => {
                shell(place.path(), &notes, &knob.command(value));
                assert_eq!(noted(&notes), [words], "{}", knob.command(value));
            }
            Execution::Write { path, .. } => {
                let file = place.path().join(&path);
                fs::create_dir_all(file.parent().expect("a parent")).expect("made");
                let root = format!("{}/", place.path().display());
                let command = knob.command(value);
                let (echo, _) = command.split_once(" > ").expect("a redirection");
                fs::write(&file, "").expect("made");
                let quoted = path.replace('\'', r"'\''");
                assert!(command.contains(&format!("/{quoted}")), "{command} and not {path}");
                let below = command.replacen(" > '/", &format!(" > '{root}"), 1);
                let below = below.replacen(" > /", &format!(" > {root}"), 1);
                shell(place.path(), &notes, &below);
                let by_shell = fs::read(&file).expect("written");
                assert!(!by_shell.is_empty(), "{echo} wrote nothing to {path}");
                fs::write(&file, "").expect("made");
                Settings::below(place.path()).set(&knob, value).expect("set");
                assert_eq!(fs::read(&file).expect("written"), by_shell, "{command}");
            }
        }
    }
}

#[test]
fn the_running_host_is_set_by_the_command_that_is_shown() {
    if std::env::var_os(NOTES).is_some() {
        return set_all();
    }
    let place = tempfile::tempdir().expect("a directory");
    let notes = tools(place.path());
    let ourselves = std::env::current_exe().expect("a path");
    let name = "the_running_host_is_set_by_the_command_that_is_shown";
    let mut child = Command::new(ourselves);
    child.args(["--exact", name]).env("PATH", place.path()).env(NOTES, &notes);
    let output = child.output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let run = noted(&notes);
    fs::remove_file(&notes).expect("there");
    for (knob, value) in tools_of_others() {
        shell(place.path(), &notes, &knob.command(value));
    }
    assert_eq!(run, noted(&notes));
    assert!(run.len() > 5);
}

/// Knobs that a tool sets, except those of our own program, which would be this test.
fn tools_of_others() -> impl Iterator<Item = (Knob, &'static str)> {
    knobs().into_iter().filter(|(knob, value)| match knob.describe().execution(value) {
        Execution::Run(words) => words[0] != "ringway",
        Execution::Write { .. } => false,
    })
}

fn set_all() {
    for (knob, value) in tools_of_others() {
        Settings::live().set(&knob, value).expect("its tool is there");
    }
}

/// Creates tools that record their arguments, one per line, followed by an empty line.
fn tools(place: &Path) -> std::path::PathBuf {
    let notes = place.join("notes");
    let script = format!("#!/bin/sh\nprintf '%s\\n' \"${{0##*/}}\" \"$@\" '' >> \"${NOTES}\"\n");
    for tool in TOOLS {
        let path = place.join(tool);
        fs::write(&path, &script).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its own");
    }
    notes
}

fn shell(place: &Path, notes: &Path, command: &str) {
    let mut shell = Command::new("/bin/sh");
    let status = shell.args(["-c", command]).env("PATH", place).env(NOTES, notes).status();
    assert!(status.expect("a shell").success(), "{command}");
}

/// The arguments of each tool that ran.
fn noted(notes: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(notes).expect("a tool ran");
    let runs = text.split("\n\n").filter(|run| !run.is_empty());
    runs.map(|run| run.lines().map(str::to_owned).collect()).collect()
}

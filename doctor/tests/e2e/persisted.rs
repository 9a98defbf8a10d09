//! Changes confirmed in a network namespace are never written into files of the machine, regardless
//! of how the namespace was entered.

use std::fs;
use std::path::Path;
use std::process::Command;

use ringway_e2e::pair::{Pair, TOOLS, ok, text};
use ringway_e2e::shared_turn;

use crate::knobs::skipped;

/// With an `/etc` of its own, which is listed afterwards: files written there do no harm.
const WATCHED: &str = "mount -t tmpfs none /etc || exit 99; \"$@\"; code=$?; \
                       find /etc -type f -exec echo WRITTEN {} \\;; exit $code";

/// The output of a verb of the doctor in the pair's first namespace, entered with `unshare` and
/// these options; `None` if that is not possible.
fn doctor_output(pair: &Pair, options: &[&str], line: &str) -> Option<(i32, String)> {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &pair.host, "unshare", "--mount"]).args(options);
    command.args(["sh", "-c", WATCHED, "sh", env!("CARGO_BIN_EXE_ringway-doctor")]);
    command.args(line.split_whitespace());
    let output = command.output().expect("it starts");
    let code = output.status.code().filter(|code| *code != 99)?;
    Some((code, text(&output.stdout) + &text(&output.stderr)))
}

#[test]
fn settings_of_a_namespace_are_not_persisted_in_files_of_the_machine() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
    let Some(pair) = Pair::new("persist") else { return };
    ok(&mut pair.on_host("sysctl -qw net.ipv4.tcp_sack=0"));
    ok(&mut pair.fix(&pair.host, "apply D19 --interval 1 --confirm-within 0"));
    let journal = pair.journal.path().display();
    // As after `ip netns exec`, and also with a process 1 inside the namespace.
    for options in [&["--fork"][..], &["--pid", "--fork", "--mount-proc"]] {
        let Some((code, printed)) =
            doctor_output(&pair, options, &format!("persist --journal {journal}"))
        else {
            skipped(&format!("unshare --mount {options:?}: no /etc of its own can be made"));
            continue;
        };
        assert_eq!(code, 1, "{options:?}: {printed}");
        assert!(printed.contains("this is a network namespace"), "{options:?}: {printed}");
        assert!(!printed.contains("WRITTEN"), "{options:?}: {printed}");
    }
    ok(&mut pair.on_host("sysctl -qw net.ipv4.tcp_sack=0"));
    for (tool, code) in [("sysctl.d", 1), ("udev", 1), ("networkd", 1), ("shell", 0)] {
        let line = format!("apply D19 --interval 1 --journal {journal} --emit {tool}");
        let mut emit = pair.doctor(&pair.host, &line);
        let output = emit.output().expect("it starts");
        let printed = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{tool}: {printed}");
    }
    assert!(!written(Path::new("/etc/sysctl.d")), "one of our files is in /etc");
}

/// Whether a file exists that this test may have made.
fn written(folder: &Path) -> bool {
    let ours = fs::read_dir(folder).into_iter().flatten().flatten();
    ours.filter_map(|entry| entry.file_name().into_string().ok())
        .any(|name| name.starts_with("90-ringway-doctor-"))
}

#[test]
fn settings_of_the_machine_have_no_command_in_a_namespace() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
    let Some(pair) = Pair::new("seen") else { return };
    ok(&mut pair.on_host("sysctl -qw net.ipv4.tcp_sack=0"));
    let look = pair.doctor(&pair.host, "--interval 1 --json").output().expect("it starts");
    let report: serde_json::Value = serde_json::from_slice(&look.stdout).expect("JSON");
    let remarks = report["remarks"].to_string();
    assert!(remarks.contains("network namespace"), "{report:#}");
    let scope = &report["scope"];
    let checks = scope["checks"].as_array().map_or(0, Vec::len);
    let all = ringway_doctor::check::CATALOGUE.len();
    assert_eq!(checks, all, "each check says how it ended: {scope:#}");
    // The command shown for a sysctl is run there; the first is known to exist.
    let findings = report["findings"].as_array().expect("a list");
    let advice = findings.iter().flat_map(|one| one["advice"].as_array().cloned().into_iter());
    let commands: Vec<String> = advice
        .flatten()
        .flat_map(|one| one["commands"].as_array().cloned().unwrap_or_default())
        .filter_map(|command| command.as_str().map(str::to_owned))
        .filter(|command| command.starts_with("sysctl "))
        .collect();
    assert!(commands.contains(&"sysctl -w net.ipv4.tcp_sack=1".to_owned()), "{commands:?}");
    for command in commands {
        ok(&mut pair.on_host(&command));
    }
}

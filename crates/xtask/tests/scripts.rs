//! Checks the scripts of `tests`, most of which no test runs: they parse, and scenarios have a
//! header.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Everything below `tests` that begins like a bash script or has its extension.
fn scripts() -> Vec<PathBuf> {
    let rig = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
    let mut folders = vec![rig];
    let mut scripts = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder was listed") {
            let path = entry.expect("it is there").path();
            if path.is_dir() {
                folders.push(path);
            } else if is_script(&path) {
                scripts.push(path);
            }
        }
    }
    scripts.sort();
    scripts
}

fn is_script(path: &Path) -> bool {
    let text = fs::read_to_string(path).unwrap_or_default();
    path.extension().is_some_and(|extension| extension == "sh") || text.starts_with("#!/bin/")
}

#[test]
fn every_script_parses() {
    let scripts = scripts();
    assert!(scripts.len() > 30, "only {} scripts were found", scripts.len());
    for script in scripts {
        let status = Command::new("bash").arg("-n").arg(&script).status().expect("bash");
        assert!(status.success(), "{}", script.display());
    }
}

#[test]
fn shellcheck_has_no_warning() {
    let has_shellcheck = Command::new("shellcheck").arg("--version").output().is_ok();
    if !has_shellcheck {
        println!("SKIPPED: scripts of tests: shellcheck is not installed");
        return;
    }
    let mut command = Command::new("shellcheck");
    // Scenarios use what lib.sh defines, which runs them.
    command.args(["--shell=bash", "--severity=warning", "--exclude=SC2154,SC2034"]);
    let output = command.args(scripts()).output().expect("it has a version");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn every_scenario_has_a_head() {
    for script in scripts().iter().filter(|script| script.to_string_lossy().contains("/scenarios/"))
    {
        let text = fs::read_to_string(script).expect("it was read before");
        let head: Vec<&str> = text.lines().take_while(|line| line.starts_with("# ")).collect();
        let has = |key: &str| head.iter().filter_map(|line| line.strip_prefix(key)).next();
        let shown = script.display();
        assert!(head.first().is_some_and(|line| line.ends_with('.')), "{shown}: what is true");
        let sets = has("# sets: ").unwrap_or_default();
        let known = ["smoke", "full", "admin", "race", "upgrade"];
        assert!(!sets.is_empty() && sets.split(' ').all(|set| known.contains(&set)), "{shown}");
        let limit = has("# limit: ").and_then(|limit| limit.parse::<u32>().ok());
        assert!(limit.is_some(), "{shown}: `# limit: SECONDS`");
    }
}

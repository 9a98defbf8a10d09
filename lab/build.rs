//! Tells the lab which commit it is built from, for its records.

use std::process::Command;

fn main() {
    // The commit and what differs from it: both change with the sources alone.
    println!("cargo::rerun-if-changed=../crates");
    println!("cargo::rerun-if-changed=.");
    println!("cargo::rerun-if-changed=../Cargo.lock");
    for part in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--path-format=absolute", "--git-path", part]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    println!("cargo::rustc-env=RINGWAY_COMMIT={}", commit().unwrap_or("unknown".to_owned()));
}

/// The commit, if this is a checkout, and whether the sources are its own.
fn commit() -> Option<String> {
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no", "--", "../crates", "."])?;
    Some(if changes.is_empty() { commit } else { format!("{commit} with changes") })
}

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

//! Compares the public interfaces of the crates for other projects with an earlier revision, by
//! `cargo semver-checks`.
//!
//! A breaking change is a failure, unless `data/semver.toml` lists it as intended; an addition is
//! not. A listed break that the tool does not find is a failure as well, so that the list stays
//! correct.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use crate::libraries::CRATES;
use crate::run;

const LIST: &str = "crates/xtask/data/semver.toml";
const TOOL: &str = "semver-checks";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    /// A revision of git.
    baseline: String,
    #[serde(default, rename = "break")]
    breaks: Vec<Break>,
}

/// A breaking change.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Break {
    /// The crate, without `ringway-`.
    #[serde(rename = "crate")]
    name: String,
    /// As the tool prints it, such as `variant Notify::Peer`.
    item: String,
    /// Why it is intended.
    why: String,
}

/// Compares with `baseline`, a revision of git, or with that in the list.
pub(crate) fn check(root: &Path, baseline: Option<&str>) -> Result<()> {
    if run::is_missing(root, TOOL) {
        bail!(
            "cargo {TOOL} is not installed: cargo install cargo-semver-checks --locked \
             (takes some minutes)"
        );
    }
    let text = fs::read_to_string(root.join(LIST)).with_context(|| format!("reading {LIST}"))?;
    let list: List = toml::from_str(&text).with_context(|| LIST.to_owned())?;
    let revision = baseline.unwrap_or(&list.baseline);
    let mut findings = Vec::new();
    for name in CRATES {
        let found = breaks(root, name, revision)?;
        let intended = list.breaks.iter().filter(|one| one.name == name);
        let intended: Vec<&str> = intended.map(|one| one.item.as_str()).collect();
        findings.extend(judged(name, &found, &intended));
    }
    if baseline.is_some() {
        // The list applies to its own baseline: relative to another, a listed break may not exist.
        findings.retain(|finding| finding.starts_with(BROKEN));
    }
    for finding in &findings {
        println!("semver: {finding}");
    }
    ensure!(findings.is_empty(), "semver: {} findings, compared with {revision}", findings.len());
    println!("semver: compared with {revision}, {} intended breaks", list.breaks.len());
    Ok(())
}

const BROKEN: &str = "this breaks users: ";

/// What is wrong with the breaks of a crate, one line each.
fn judged(name: &str, found: &[String], intended: &[&str]) -> Vec<String> {
    let unintended = found.iter().filter(|item| !intended.contains(&item.as_str()));
    let unintended = unintended.map(|item| {
        format!("{BROKEN}ringway-{name}: {item}; undo it, or list it with the reason in {LIST}")
    });
    let stale = intended.iter().filter(|item| !found.iter().any(|one| one == *item));
    let stale = stale
        .map(|item| format!("ringway-{name}: {item} is no break any more: remove it from {LIST}"));
    unintended.chain(stale).collect()
}

/// The breaks of a crate, as the tool names them.
fn breaks(root: &Path, name: &str, revision: &str) -> Result<Vec<String>> {
    let package = format!("ringway-{name}");
    let arguments = [TOOL, "--color", "never", "--baseline-rev", revision, "--package", &package];
    println!("cargo {}", arguments.join(" "));
    let mut command = Command::new(run::this_cargo());
    command.current_dir(root).args(arguments).stderr(Stdio::inherit());
    let output = command.output().context("cargo semver-checks")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    print!("{printed}");
    let items = items(&printed);
    if !output.status.success() && items.is_empty() {
        bail!("cargo {TOOL} failed for {package}: see above");
    }
    Ok(items)
}

/// The items below each `Failed in:`, without their locations.
fn items(printed: &str) -> Vec<String> {
    let mut items = Vec::new();
    let mut is_list = false;
    for line in printed.lines() {
        match line.strip_prefix("  ") {
            Some(item) if is_list => {
                let item = item.split_once(", previously in file").map_or(item, |(item, _)| item);
                let item = item.split_once(" in file /").map_or(item, |(item, _)| item);
                let item = item.rsplit_once(" in /").map_or(item, |(item, _)| item);
                items.push(item.trim().to_owned());
            }
            _ => is_list = line == "Failed in:",
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "
--- failure enum_variant_added: enum variant added on exhaustive enum ---

Description:
A publicly-visible enum without #[non_exhaustive] has a new variant.
        ref: https://doc.rust-lang.org/cargo/reference/semver.html#enum-variant-new

Failed in:
  variant Notify:NoOne in /src/crates/ring/src/lib.rs:123

--- failure enum_variant_missing: pub enum variant removed or renamed ---

Failed in:
  variant Notify::Silent, previously in file /src/target/crates/ring/src/lib.rs:123

--- failure pub_module_level_const_missing: pub module-level const is missing ---

Failed in:
  SLOTS in file /src/target/crates/ring/src/lib.rs:123
";

    #[test]
    fn breaks_are_found_in_the_output_of_the_tool() {
        let found = ["variant Notify:NoOne", "variant Notify::Silent", "SLOTS"];
        assert_eq!(items(PRINTED), found);
        assert!(items("     Summary no semver update required\n").is_empty());
    }

    #[test]
    fn every_break_is_listed_and_every_entry_is_a_break() {
        let found = items(PRINTED);
        let all = ["SLOTS", "variant Notify::Silent", "variant Notify:NoOne"];
        assert!(judged("ring", &found, &all).is_empty());
        let [broken] = &judged("ring", &found, &all[..2])[..] else { panic!("one finding") };
        assert!(broken.starts_with(BROKEN) && broken.contains("Notify:NoOne"), "{broken}");
        let [stale] = &judged("ring", &found[..2], &all)[..] else { panic!("one finding") };
        assert!(stale.contains("no break any more"), "{stale}");
    }

    #[test]
    fn the_list_is_read_and_names_crates_for_others() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = fs::read_to_string(root.join(LIST)).expect("the list");
        let list: List = toml::from_str(&text).expect("its form");
        assert!(list.breaks.iter().all(|one| CRATES.contains(&one.name.as_str())));
        assert!(list.breaks.iter().all(|one| !one.why.is_empty()));
    }
}

//! The crates from which others build guests and unikernels: checks what those users rely on.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::{report, run};

/// Crates for other projects.
pub(crate) const CRATES: [&str; 5] = ["wire", "ring", "steering", "xenbus", "netfront"];
/// Those that need no operating system.
pub(crate) const BARE: [&str; 4] = ["wire", "ring", "steering", "xenbus"];
/// Machines without an operating system: a standard library does not exist for them.
const TARGETS: [&str; 2] = ["x86_64-unknown-none", "aarch64-unknown-none"];

/// What CI does.
pub(crate) fn ci(root: &Path) -> Result<()> {
    for target in TARGETS {
        bare_metal(root, target)?;
    }
    documents(root)
}

/// Builds the crates that need no operating system for a target without one.
fn bare_metal(root: &Path, target: &str) -> Result<()> {
    if !run::has_library_for(root, target)? {
        let why = format!("no library for {target} (rustup target add {target})");
        return report::skip("libraries without an operating system", &why);
    }
    let mut arguments = vec!["build", "--quiet", "--target", target];
    let names = packages(&BARE);
    arguments.extend(names.iter().flat_map(|name| ["--package", name]));
    run::run(root, &arguments)
}

/// Builds their documentation, in which every link must resolve.
fn documents(root: &Path) -> Result<()> {
    let mut arguments = vec!["doc", "--quiet", "--no-deps"];
    let names = packages(&CRATES);
    arguments.extend(names.iter().flat_map(|name| ["--package", name]));
    println!("RUSTDOCFLAGS='-D warnings' cargo {}", arguments.join(" "));
    let mut command = Command::new(run::this_cargo());
    command.current_dir(root).args(&arguments).env("RUSTDOCFLAGS", "-D warnings");
    ensure!(command.status().context("cargo doc")?.success(), "cargo doc failed");
    Ok(())
}

fn packages(crates: &[&str]) -> Vec<String> {
    crates.iter().map(|name| format!("ringway-{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_crate_that_a_copy_of_the_example_needs() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let file = |path: &str| std::fs::read_to_string(root.join(path)).expect("it is there");
        let manifest: toml::Table = file("crates/unikernel/Cargo.toml").parse().expect("TOML");
        let needed = manifest["dependencies"].as_table().expect("a section").keys();
        let needed: Vec<&String> = needed.filter(|name| name.starts_with("ringway-")).collect();
        assert!(!needed.is_empty());
        let page = file("docs/libraries.md");
        let missing: Vec<_> =
            needed.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}

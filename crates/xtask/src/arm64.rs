//! Arm64 from another machine: builds the program, runs tests under user-mode emulation, and does
//! both for CI.
//!
//! Debian's cross compiler links. The standard library comes from rustup if it is installed, else
//! from Debian's package; `scripts/install-packages arm64` installs either. Builds use a separate
//! directory, so that builds for two architectures do not wait for each other.
//!
//! The emulator runs a weakly ordered program with the memory ordering of the host: its tests cover
//! layouts, numbers and arithmetic, but not memory ordering (docs/memory-order.md).

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{report, reproducible, run};

/// The target triple.
pub(crate) const TARGET: &str = "aarch64-unknown-linux-gnu";
const COMPILER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// The directory of the C library in Debian's cross packages.
const SYSROOT: &str = "/usr/aarch64-linux-gnu";
/// Time limit of tests once they are built: five times what they take on two CPUs.
const TESTS_MINUTES_MAX: u32 = 10;
/// The emulated tests, as arguments of `cargo test`: the wire, the rings, both ends of a vif, the
/// handshake, the engine, and the numbers of system calls. Left out are loom tests and tests that
/// take minutes, which do not depend on the architecture, and tests that start programs.
const TESTS: [&[&str]; 4] = [
    &["-p", "ringway-wire", "-p", "ringway-netback", "-p", "ringway-netfront"],
    &["-p", "ringway-ring", "--", "--skip", "every_interleaving"],
    &["-p", "ringway-xenbus", "--lib", "--test", "handshake", "--", "--skip", "at_any_moment"],
    &[
        "-p",
        "ringway-engine",
        "-p",
        "ringway-confine",
        "-p",
        "ringway-sys",
        "-p",
        "ringway-datapath",
        "-p",
        "ringway-loopback",
        "--lib",
    ],
];

/// `arm64 build|test`, or `check`, which does both with a development build, as CI does.
pub(crate) fn dispatch(root: &Path, verb: &str) -> Result<()> {
    if let Some(why) = why_not_built(root)? {
        bail!("{why}");
    }
    match verb {
        "build" => build(root),
        "test" => test(root),
        _ => check(root),
    }
}

/// Does what CI does, or prints a line with the reason why it cannot.
pub(crate) fn ci(root: &Path) -> Result<()> {
    match why_not_built(root)? {
        Some(why) => report::skip("Arm64", &why),
        None => check(root),
    }
}

/// Builds the release program, and what the scenarios of `tests/xen` run beside it.
pub(crate) fn build(root: &Path) -> Result<()> {
    let what = ["build", "--release", "-p", "ringway-xen", "--bins", "--example", "conformance"];
    cargo(root, &[&what[..], &run::BUILT[..]].concat())?;
    println!("arm64: {}", programs(root).display());
    Ok(())
}

/// The directory of the programs that `build` makes.
pub(crate) fn programs(root: &Path) -> PathBuf {
    directory(root).join(TARGET).join("release")
}

/// The directory of everything that is built for Arm64.
pub(crate) fn directory(root: &Path) -> PathBuf {
    run::target_dir(root).join("arm64")
}

/// Makes the Debian package of what `build` has built, and returns its path.
pub(crate) fn package(root: &Path, program: &str) -> Result<PathBuf> {
    println!("for {TARGET}:");
    run::package(root, program, |cargo| {
        cargo.args(["--target", TARGET]).env("CARGO_TARGET_DIR", directory(root));
        cargo.envs(environment());
    })
}

/// A command that runs a program for Arm64 here.
pub(crate) fn emulated(program: &Path) -> Command {
    let mut command = Command::new(EMULATOR);
    command.args(["-L", SYSROOT]).arg(program);
    command
}

/// Why programs for Arm64 cannot be run here, if they cannot.
pub(crate) fn why_not_run() -> Option<String> {
    if !run::has_program(EMULATOR) {
        return Some(format!("{EMULATOR} is missing (scripts/install-packages arm64)"));
    }
    None
}

/// Why nothing can be built for Arm64 here, if it cannot.
pub(crate) fn why_not_built(root: &Path) -> Result<Option<String>> {
    if cfg!(target_arch = "aarch64") {
        return Ok(Some(String::from(
            "this machine is an Arm64 one: use `make build` and `make test`",
        )));
    }
    if !run::has_program(COMPILER) {
        return Ok(Some(format!("{COMPILER} is missing (scripts/install-packages arm64)")));
    }
    if !run::has_library_for(root, TARGET)? {
        return Ok(Some(format!(
            "no standard library for {TARGET} (scripts/install-packages arm64, or rustup target \
             add {TARGET})"
        )));
    }
    Ok(None)
}

fn check(root: &Path) -> Result<()> {
    cargo(root, &["build", "-p", "ringway"])?;
    if let Some(why) = why_not_run() {
        return report::skip("tests on emulated Arm64", &why);
    }
    let program = directory(root).join(TARGET).join("debug/ringway");
    run::shown(emulated(&program).arg("--version"))?;
    test(root)
}

fn test(root: &Path) -> Result<()> {
    if let Some(why) = why_not_run() {
        bail!("{why}");
    }
    for arguments in TESTS {
        let built: Vec<&str> =
            arguments.iter().take_while(|word| **word != "--").copied().collect();
        cargo(root, &[&["test", "--no-run"], &built[..]].concat())?;
    }
    for arguments in TESTS {
        let arguments = [&["test", "--quiet"], arguments].concat();
        let mut command = Command::new("timeout");
        command.arg(format!("{TESTS_MINUTES_MAX}m")).arg(run::this_cargo());
        prepare(root, &mut command, &arguments);
        run::shown(&mut command).context("tests on emulated Arm64")?;
    }
    Ok(())
}

/// Runs cargo for Arm64, with its output left as it is.
fn cargo(root: &Path, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(run::this_cargo());
    prepare(root, &mut command, arguments);
    run::shown(&mut command)
}

/// Arguments and environment of a cargo that builds and runs for Arm64. Variables that the caller's
/// environment sets are kept.
fn prepare(root: &Path, command: &mut Command, arguments: &[&str]) {
    let split = arguments.iter().position(|word| *word == "--").unwrap_or(arguments.len());
    let (ours, theirs) = arguments.split_at(split);
    command.current_dir(root).args(ours).args(["--target", TARGET, "--target-dir"]);
    command.arg(directory(root)).args(theirs);
    for (name, value) in environment() {
        if env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    if arguments.contains(&"--release") {
        reproducible::prepare(command, root);
    }
}

/// Variables with which cargo links and runs for Arm64.
pub(crate) fn environment() -> [(&'static str, OsString); 4] {
    let runner = format!("{EMULATOR} -L {SYSROOT}");
    [
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", COMPILER.into()),
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner.clone().into()),
        // The test of layouts compiles C, for the same machine, and runs it.
        ("CC", COMPILER.into()),
        ("CC_RUNNER", runner.into()),
    ]
}

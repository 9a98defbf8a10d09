//! Runs tools, with their output unchanged.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context as _, Result, ensure};

use crate::layers::Metadata;
use crate::part::Part;
use crate::report::skip;
use crate::reproducible;

/// The crates of the programs that users run, each with a Debian package.
pub(crate) const PROGRAMS: [&str; 3] = ["ringway", "ringway-doctor", "ringway-lab"];
/// What is built for them: `ringway-hostile` comes with the lab.
pub(crate) const BUILT: [&str; 8] = [
    "--package",
    "ringway",
    "--package",
    "ringway-doctor",
    "--package",
    "ringway-lab",
    "--package",
    "ringway-hostile",
];
/// Worlds of `ringway-sim` before each push, behind the 1,500 of its own tests: five seconds on two
/// CPUs.
pub(crate) const SEEDS_OF_CHECK: &str = "1500..2500";
/// Worlds in CI: a minute and a half on two CPUs.
pub(crate) const SEEDS_OF_TEST: &str = "0..10000";
/// Worlds of a night: ten minutes.
pub(crate) const SEEDS_OF_NIGHTLY: &str = "0..100000";
/// Crates that can use loom's atomics, with a feature of that name.
const INTERLEAVED: [&str; 2] = ["ringway-datapath", "ringway-engine"];
/// The exit status of what starts systems or makes hosts, on a machine that cannot.
const CANNOT_BOOT: i32 = 77;
/// How its lines begin that say what it has left out.
const LEFT_OUT: &str = "SKIPPED: ";

/// The metadata of the workspace.
pub(crate) fn metadata(root: &Path) -> Result<Metadata> {
    let arguments = ["metadata", "--no-deps", "--format-version", "1"];
    let output = cargo(root, &arguments).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "cargo metadata failed");
    serde_json::from_slice(&output.stdout).context("reading the output of cargo metadata")
}

/// The arguments of cargo that select the crates of a part.
pub(crate) fn selected(root: &Path, part: Part) -> Result<Vec<String>> {
    if part == Part::All {
        return Ok(vec!["--workspace".to_owned()]);
    }
    let ours = metadata(root)?.packages.into_iter();
    let ours = ours.filter(|package| Part::of(root, &package.manifest_path) == part);
    Ok(ours.flat_map(|package| ["--package".to_owned(), package.name]).collect())
}

/// What to do with unformatted code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Formatting {
    /// Format it.
    Write,
    /// Fail.
    Check,
}

/// Formats code, or checks that it is formatted.
pub(crate) fn formatting(root: &Path, how: Formatting) -> Result<()> {
    if is_missing(root, "fmt") {
        return skip("formatting", "cargo fmt is not installed (rustup component add rustfmt)");
    }
    let flag = (how == Formatting::Check).then_some("--check");
    for what in [&["fmt", "--all"][..], &["fmt", "--manifest-path", "fuzz/Cargo.toml"]] {
        run(root, &what.iter().copied().chain(flag).collect::<Vec<_>>())?;
    }
    Ok(())
}

pub(crate) fn lints(root: &Path, part: Part) -> Result<()> {
    if is_missing(root, "clippy") {
        return skip("lints", "cargo clippy is not installed (rustup component add clippy)");
    }
    let selected = selected(root, part)?;
    let mut words = vec!["clippy", "--quiet", "--all-targets"];
    words.extend(selected.iter().map(String::as_str));
    words.extend(["--", "-D", "warnings"]);
    run(root, &words)
}

/// Builds the release programs: always this set, as cargo builds nearly everything again for
/// another one, whose libraries have other features.
pub(crate) fn build(root: &Path) -> Result<()> {
    run(root, &[&["build", "--release", "--bins"], &BUILT[..]].concat())
}

/// Whether Debian packages can be made here.
pub(crate) fn has_cargo_deb(root: &Path) -> bool {
    !is_missing(root, "deb")
}

/// Makes the Debian package of a program after its build, by a cargo with what `add` adds, and
/// returns its path.
pub(crate) fn package(
    root: &Path,
    program: &str,
    add: impl FnOnce(&mut Command),
) -> Result<PathBuf> {
    let arguments = ["deb", "--quiet", "--no-build", "--strip", "--package", program];
    let mut command = cargo(root, &arguments);
    add(&mut command);
    println!("{}", line(&command));
    let output = command.stderr(Stdio::inherit()).output().context("cargo deb")?;
    ensure!(output.status.success(), "cargo deb failed");
    let printed = String::from_utf8(output.stdout).context("reading the output of cargo deb")?;
    let path = printed.lines().next_back().context("cargo deb names no package")?;
    Ok(root.join(path))
}

/// The service of docs/virtio.md on whole Debians, with the package that was made before.
pub(crate) fn service_page(root: &Path) -> Result<()> {
    if !has_cargo_deb(root) {
        return skip("docs/virtio.md executed", "there is no package without cargo deb");
    }
    for suite in ["bookworm", "trixie"] {
        rig(root, "tests/virtio/service", &[suite], "docs/virtio.md executed")?;
    }
    Ok(())
}

/// The driver and the agent for OpenStack, in a real Neutron, on the release build.
pub(crate) fn openstack(root: &Path) -> Result<()> {
    rig(root, "tests/openstack/run", &[], "packaging/openstack in Neutron")
}

/// What all checks begin with, by the Rust, the lints and the packages of an empty Debian.
pub(crate) fn empty_debian(root: &Path) -> Result<()> {
    let arguments = ["trixie", "make", "check"];
    rig(root, "scripts/empty-debian", &arguments, "make check on an empty Debian")
}

/// All scenarios on real Xen, with release builds.
pub(crate) fn real_xen(root: &Path) -> Result<()> {
    build(root)?;
    run(root, &["build", "--release", "--package", "ringway-xen", "--example", "conformance"])?;
    rig(root, "tests/xen/run", &["--set", "full"], "real Xen")
}

/// Guests on hosts that OVN connects, and docs/ovn.md, with the release build. What was measured is
/// in `ovn.json`, where cargo builds.
pub(crate) fn guests_on_ovn(root: &Path) -> Result<()> {
    let results = target_dir(root).join("ovn.json").display().to_string();
    rig(root, "tests/ovn/run", &["--json", &results], "guests on OVN")
}

/// Runs a script or program that starts systems, and passes on what it prints. Reports `what` as
/// skipped if this machine cannot run it, and else each line that says what was left out.
fn rig(root: &Path, program: &str, arguments: &[&str], what: &str) -> Result<()> {
    let line = format!("{program} {}", arguments.join(" "));
    println!("{line}");
    let mut command = Command::new(root.join(program));
    command.current_dir(root).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context(line.clone())?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (out, err) = (out.context("a pipe")?, err.context("a pipe")?);
    let (out, err) = thread::scope(|scope| {
        let err = scope.spawn(|| passed_on(err, |line| eprintln!("{line}")));
        let out = passed_on(out, |line| println!("{line}"));
        (out, err.join().expect("reading does not panic"))
    });
    let status = child.wait().context(line.clone())?;
    if status.code() == Some(CANNOT_BOOT) {
        let reason = err.last().map_or("no reason given", String::as_str);
        return skip(what, reason.trim_start_matches(LEFT_OUT));
    }
    for reason in out.iter().chain(&err).filter_map(|line| line.strip_prefix(LEFT_OUT)) {
        skip(what, reason)?;
    }
    ensure!(status.success(), "{line} failed");
    Ok(())
}

/// The lines of an output, each of which was printed as it came.
fn passed_on(output: impl Read, print: impl Fn(&str)) -> Vec<String> {
    let lines = BufReader::new(output).lines().map_while(Result::ok);
    lines.inspect(|line| print(line)).collect()
}

/// Every attack beside honest guests, with the bounds on what these may lose; and every lie of a
/// backend to ringway's own frontend.
pub(crate) fn hostile(root: &Path) -> Result<()> {
    build(root)?;
    for verb in ["run", "backend"] {
        rig(root, "target/release/ringway-hostile", &[verb, "all"], "hostile guests")?;
    }
    Ok(())
}

/// Whole hosts under these seeds, with debug assertions. A failure prints its seed.
///
/// The program was built with the tests. Cargo would build most of it again to run it, as its
/// libraries have fewer features if no other crate asks for them.
pub(crate) fn worlds(root: &Path, seeds: &str) -> Result<()> {
    let program = target_dir(root).join("debug/ringway-sim");
    shown(Command::new(program).args(["--seeds", seeds]))
}

/// The directory of what cargo builds.
pub(crate) fn target_dir(root: &Path) -> PathBuf {
    root.join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Explores every interleaving of the types that threads share.
pub(crate) fn interleavings(root: &Path) -> Result<()> {
    for package in INTERLEAVED {
        run(root, &["test", "--quiet", "--package", package, "--features", "loom", "--lib"])?;
    }
    Ok(())
}

/// Also those of the rings with more preemptions, which takes fifteen times as long.
pub(crate) fn more_interleavings(root: &Path) -> Result<()> {
    interleavings(root)?;
    let rings = ["--package", "ringway-ring", "--test", "rings", "every_interleaving"];
    let mut command = cargo(root, &[&["test", "--quiet"], &rings[..]].concat());
    shown(command.env("LOOM_MAX_PREEMPTIONS", "3")).context("the rings with three preemptions")
}

/// Runs cargo, with its output left as it is.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Result<()> {
    shown(&mut cargo(root, arguments))
}

/// Runs a command, with its output left as it is, after a line that shows it.
pub(crate) fn shown(command: &mut Command) -> Result<()> {
    let line = line(command);
    println!("{line}");
    let status = command.status().with_context(|| line.clone())?;
    ensure!(status.success(), "{line}: {status}");
    Ok(())
}

fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name();
    let words = program.into_iter().chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Whether cargo lacks a command.
pub(crate) fn is_missing(root: &Path, tool: &str) -> bool {
    let mut command = cargo(root, &[tool, "--version"]);
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    !status.is_ok_and(|status| status.success())
}

/// Whether a program starts here.
pub(crate) fn has_program(name: &str) -> bool {
    let mut command = Command::new(name);
    let status = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Does something for each, in this order and as many at once as there are CPUs. After a failure no
/// further one begins.
pub(crate) fn on_all_cpus<T: Sync, R: Send>(
    all: &[T],
    each: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let queue = Mutex::new(all.iter());
    let next = || queue.lock().ok().and_then(|mut all| all.next());
    thread::scope(|scope| {
        let worker = || {
            let mut done = Vec::new();
            while let Some(one) = next() {
                match each(one) {
                    Ok(result) => done.push(result),
                    Err(error) => {
                        while next().is_some() {}
                        return Err(error);
                    }
                }
            }
            Ok(done)
        };
        let workers: Vec<_> = (0..cpus).map(|_| scope.spawn(worker)).collect();
        let ends = workers.into_iter().map(|worker| worker.join().expect("no worker panics"));
        Ok(ends.collect::<Result<Vec<Vec<R>>>>()?.into_iter().flatten().collect())
    })
}

/// Whether the compiler has a standard library for a target.
pub(crate) fn has_library_for(root: &Path, target: &str) -> Result<bool> {
    let mut command = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.current_dir(root).args(["--print", "target-libdir", "--target", target]);
    let output = command.output().context("rustc --print target-libdir")?;
    ensure!(output.status.success(), "rustc knows no {target}");
    let printed = String::from_utf8(output.stdout).context("reading the output of rustc")?;
    let Ok(entries) = Path::new(printed.trim()).read_dir() else { return Ok(false) };
    let mut names = entries.flatten().map(|entry| entry.file_name());
    Ok(names.any(|name| name.to_string_lossy().starts_with("libcore-")))
}

fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(this_cargo());
    command.current_dir(root).args(arguments);
    if arguments.iter().any(|word| ["--release", "deb"].contains(word)) {
        reproducible::prepare(&mut command, root);
    }
    command
}

/// The cargo that runs this program, or the one in the path.
pub(crate) fn this_cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn each_is_done_once_and_a_failure_is_reported() {
        let all: Vec<u32> = (0..20).collect();
        let mut done = on_all_cpus(&all, |one| Ok(*one)).expect("none fails");
        done.sort_unstable();
        assert_eq!(done, all);
        let failed = on_all_cpus(&all, |one| if *one == 7 { bail!("seven") } else { Ok(()) });
        assert_eq!(failed.expect_err("one fails").to_string(), "seven");
    }
}

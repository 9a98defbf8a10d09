//! The fuzz targets in `fuzz/`: built together, then run as many at once as there are CPUs. See
//! docs/fuzzing.md.
//!
//! Nothing is built with a sanitizer, because there is no unsafe code outside of `sys`: a stable
//! toolchain suffices.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use tempfile::TempDir;

use crate::report::skip;
use crate::run::{self, has_program, is_missing, this_cargo};

/// The workspace of the targets.
const FOLDER: &str = "fuzz";
/// Seconds for each target, unless the caller says otherwise.
pub(crate) const SECONDS_DEFAULT: u32 = 60;
/// Seconds that one input may take on a busy machine; a longer run counts as a hang.
const INPUT_SECONDS_MAX: u32 = 120;
/// Memory of one target, in MiB; a larger use counts as unbounded growth.
const MEMORY_MIB_MAX: u32 = 2048;
/// Lines of a failed target that are shown.
const LINES_SHOWN: usize = 60;

/// The part of the manifest that matters here.
#[derive(Deserialize)]
struct Manifest {
    bin: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// Builds all targets, and runs the named ones, or all, each for `seconds`.
pub(crate) fn run(root: &Path, seconds: u32, wanted: &[String]) -> Result<()> {
    let targets = targets(root)?;
    for name in wanted {
        ensure!(targets.contains(name), "no target `{name}`: there are {}", targets.join(", "));
    }
    if is_missing(root, "fuzz") {
        return skip("fuzz", "cargo fuzz is not installed (cargo install cargo-fuzz --locked)");
    }
    if !has_program("c++") {
        return skip("fuzz", "libFuzzer needs a C++ compiler (apt-get install g++)");
    }
    run::shown(&mut cargo_fuzz(root, "build"))?;
    let chosen: Vec<String> =
        targets.into_iter().filter(|name| wanted.is_empty() || wanted.contains(name)).collect();
    run::on_all_cpus(&chosen, |target| run_one(root, target, seconds)).map(drop)
}

/// Checks that the targets still compile: they are a workspace of their own, which no other build
/// includes.
pub(crate) fn check(root: &Path) -> Result<()> {
    if !has_program("c++") {
        return skip("fuzz", "libFuzzer needs a C++ compiler (apt-get install g++)");
    }
    run::run(root, &["check", "--quiet", "--manifest-path", "fuzz/Cargo.toml", "--bins"])
}

fn targets(root: &Path) -> Result<Vec<String>> {
    let path = root.join(FOLDER).join("Cargo.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let manifest: Manifest = toml::from_str(&text).context("reading the fuzz targets")?;
    Ok(manifest.bin.into_iter().map(|target| target.name).collect())
}

/// Where the corpus of a target is packed.
fn corpus(root: &Path, target: &str) -> PathBuf {
    root.join(FOLDER).join("corpus").join(format!("{target}.tar"))
}

/// Runs a target over its corpus first, then over mutations of it. New inputs go to a folder that
/// is not committed.
fn run_one(root: &Path, target: &str, seconds: u32) -> Result<()> {
    let found = root.join(FOLDER).join("target/corpus").join(target);
    fs::create_dir_all(&found).with_context(|| found.display().to_string())?;
    let known = unpack(&corpus(root, target))?;
    let mut command = cargo_fuzz(root, "run");
    command.arg(target).arg(&found).arg(known.path()).args([
        "--".to_owned(),
        format!("-max_total_time={seconds}"),
        format!("-timeout={INPUT_SECONDS_MAX}"),
        format!("-rss_limit_mb={MEMORY_MIB_MAX}"),
        "-print_final_stats=1".to_owned(),
    ]);
    let output = command.stdout(Stdio::inherit()).output().context("cargo fuzz")?;
    let log = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        println!("fuzz: {target}: {} inputs in {seconds} s", inputs(&log).unwrap_or("no"));
        return Ok(());
    }
    let lines: Vec<&str> = log.lines().collect();
    let shown = &lines[lines.len().saturating_sub(LINES_SHOWN)..];
    bail!("fuzz target `{target}` failed:\n{}", shown.join("\n"));
}

/// The files of a packed corpus, in a directory that goes when it is dropped.
fn unpack(corpus: &Path) -> Result<TempDir> {
    let dir = tempfile::tempdir().context("a directory for a corpus")?;
    let unpacked = Command::new("tar").arg("-xf").arg(corpus).arg("-C").arg(dir.path()).status();
    let unpacked = unpacked.context("tar")?;
    ensure!(unpacked.success(), "tar cannot unpack {}", corpus.display());
    Ok(dir)
}

/// The number of inputs tried, from libFuzzer's log.
fn inputs(log: &str) -> Option<&str> {
    log.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:")).map(str::trim)
}

fn cargo_fuzz(root: &Path, verb: &str) -> Command {
    let mut command = Command::new(this_cargo());
    command.current_dir(root).args(["fuzz", verb, "--sanitizer", "none"]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_inputs_is_found_in_the_log() {
        let log = "#4\tDONE\nstat::number_of_executed_units: 1234\nstat::average_exec_per_sec: 5\n";
        assert_eq!(inputs(log), Some("1234"));
        assert_eq!(inputs(""), None);
    }

    #[test]
    fn each_target_has_a_file_and_a_corpus() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the root");
        for target in targets(root).expect("a manifest") {
            let file = root.join(FOLDER).join("fuzz_targets").join(format!("{target}.rs"));
            assert!(file.exists(), "{}", file.display());
            let corpus = unpack(&corpus(root, &target)).expect(&target);
            let files = corpus.path().read_dir().expect("it was made");
            assert!(files.count() > 0, "{target}");
        }
    }
}

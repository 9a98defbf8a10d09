//! Builds the tests of the workspace once, and runs them: several programs at a time, each test
//! with its time.
//!
//! `cargo test` runs one program after the other, though most tests wait most of the time, and
//! reports no times. The programs, their options and their results are the standard harness's.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::part::Part;
use crate::report::Ran;
use crate::run;

/// Set for all tests of `make nightly`: bounds on time hold, and tests that take minutes run.
pub(crate) const NIGHTLY: &str = "RINGWAY_NIGHTLY";
/// Crates whose tests start processes, enter namespaces or move traffic for seconds. `check` runs
/// only their unit tests.
pub(crate) const SLOW: [&str; 7] =
    ["ringway", "bench", "hostile", "lab", "backend", "frontend", "changes"];
/// What the programs are called that take the longest, so they are started first. Some of their
/// tests use the whole machine, so these programs run one after the other. In nightly they have
/// bounds on time, and run when all others have ended.
const LONGEST: &str = "e2e";
/// Tests of such a program that run at the same time: most wait most of the time.
const LONGEST_THREADS: &str = "4";
/// A test program that runs longer hangs. Five times what the longest takes on two CPUs.
const MINUTES_MAX: u32 = 40;
/// The exit status of `timeout` after a timeout.
const TIMED_OUT: i32 = 124;

/// Which tests run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// Unit tests of all crates, and all tests of those that are not [`SLOW`].
    Fast,
    /// All that no bound on time, and no run of minutes, keeps for nightly.
    All,
    /// Every test, with its bounds on time.
    Nightly,
}

/// One test program.
#[derive(Debug)]
struct Program {
    /// The crate without `ringway-`, and the file in `tests` unless it has the unit tests.
    name: String,
    package: String,
    /// How to select it: `--lib`, or `--test NAME`.
    target: String,
    path: PathBuf,
    folder: PathBuf,
}

/// A line of `cargo test --message-format=json`.
#[derive(Deserialize)]
struct Message {
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds every test of a part, and the program that serves vifs, which they start.
pub(crate) fn build(root: &Path, part: Part) -> Result<()> {
    let selected = run::selected(root, part)?;
    let selected: Vec<&str> = selected.iter().map(String::as_str).collect();
    run::run(root, &[&["test", "--no-run"], &selected[..]].concat())?;
    // Tests of a package build its own programs only.
    if part.serves_vifs() { Ok(()) } else { run::run(root, &["build", "--package", "ringway"]) }
}

/// Runs tests that are built. What fails is in the result.
pub(crate) fn run(root: &Path, part: Part, which: Which) -> Result<Ran> {
    let mut programs = programs(root, part)?;
    if which == Which::Fast {
        programs.retain(is_fast);
    }
    let (longest, others): (Vec<_>, Vec<_>) =
        programs.into_iter().partition(|program| program.name.ends_with(LONGEST));
    let mut groups: Vec<&[Program]> = others.chunks(1).collect();
    if which != Which::Nightly {
        // First, so that no CPU is idle at the end.
        groups.insert(0, &longest);
    }
    let of_groups = run::on_all_cpus(&groups, |group| run_one_by_one(group, which))?;
    let mut ran = Ran::default();
    of_groups.into_iter().for_each(|of_group| ran.add(of_group));
    if which == Which::Nightly {
        ran.add(run_one_by_one(&longest, which)?);
    }
    Ok(ran)
}

fn run_one_by_one(programs: &[Program], which: Which) -> Result<Ran> {
    let mut ran = Ran::default();
    for program in programs {
        ran.add(run_program(program, which)?);
    }
    Ok(ran)
}

/// Runs the examples in documents, which `cargo test` alone compiles.
pub(crate) fn documents(root: &Path, part: Part) -> Result<()> {
    let selected = run::selected(root, part)?;
    let selected: Vec<&str> = selected.iter().map(String::as_str).collect();
    run::run(root, &[&["test", "--quiet", "--doc"], &selected[..]].concat())
}

fn is_fast(program: &Program) -> bool {
    let short = program.name.split(' ').next().unwrap_or_default();
    let is_slow = SLOW.contains(&short) || program.name.ends_with(LONGEST);
    !is_slow || !program.target.starts_with("--test ")
}

/// Asks cargo, which builds what is not built yet, for the test programs.
fn programs(root: &Path, part: Part) -> Result<Vec<Program>> {
    let mut command = Command::new(run::this_cargo());
    command.current_dir(root).args(["test", "--no-run", "--quiet"]);
    command.args(run::selected(root, part)?);
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let output = command.output().context("cargo")?;
    ensure!(output.status.success(), "the tests cannot be built");
    let text = String::from_utf8(output.stdout).context("reading what cargo has built")?;
    let names: HashMap<PathBuf, String> = run::metadata(root)?
        .packages
        .into_iter()
        .map(|package| (package.manifest_path, package.name))
        .collect();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
    Ok(lines.filter_map(|message| program(message, &names)).collect())
}

fn program(message: Message, names: &HashMap<PathBuf, String>) -> Option<Program> {
    let manifest = message.manifest_path?;
    let package = names.get(&manifest)?.clone();
    let path = message.executable.filter(|_| message.profile.is_some_and(|it| it.test))?;
    let Target { kind, name: file } = message.target?;
    let short = package.strip_prefix("ringway-").unwrap_or(&package);
    let (name, target) = match kind.first()?.as_str() {
        "test" => (format!("{short} {file}"), format!("--test {file}")),
        "bin" => (format!("{short} {file}"), format!("--bin {file}")),
        _ => (short.to_owned(), "--lib".to_owned()),
    };
    let folder = manifest.parent()?.to_owned();
    Some(Program { name, package, target, path, folder })
}

/// What the harness prints for each event, with `--format json`.
#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    event: String,
    name: Option<String>,
    exec_time: Option<f64>,
    stdout: Option<String>,
}

/// Runs the tests of one program, and prints a line with the result, and what failed.
fn run_program(program: &Program, which: Which) -> Result<Ran> {
    let mut command = Command::new("timeout");
    command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
    // In the foreground, so that Ctrl-C ends the tests, too.
    command.args(["--foreground", &format!("{MINUTES_MAX}m")]).arg(&program.path);
    // Times of tests are an unstable option of the harness. Its other results do not depend on it.
    command.args(["-Zunstable-options", "--format", "json", "--report-time"]);
    command.env("RUSTC_BOOTSTRAP", "1");
    // Tests that pass may have left something out, which they print.
    command.arg("--show-output");
    if program.name.ends_with(LONGEST) {
        command.args(["--test-threads", LONGEST_THREADS]);
    }
    match which {
        Which::Nightly => command.env(NIGHTLY, "1"),
        Which::Fast | Which::All => command.env_remove(NIGHTLY),
    };
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| program.path.display().to_string())?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (out, err) = (out.context("a pipe")?, err.context("a pipe")?);
    let mut ran = Ran::default();
    let lines = thread::scope(|scope| {
        let errors = scope.spawn(|| read_lines(err));
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            match serde_json::from_str::<Event>(&line) {
                Ok(event) => record(program, event, &mut ran),
                Err(_) => {
                    println!("{}: {line}", program.name);
                    note_left_out(program, &line, &mut ran);
                }
            }
        }
        errors.join().expect("reading does not panic")
    });
    // A program without the standard harness has only its exit status.
    let status = child.wait().with_context(|| program.path.display().to_string())?;
    for line in lines {
        if !note_left_out(program, &line, &mut ran) && !status.success() {
            println!("{line}");
        }
    }
    if status.code() == Some(TIMED_OUT) {
        ran.failed.push(format!("{}: not over after {MINUTES_MAX} minutes", program.name));
    } else if !status.success() && ran.failed.is_empty() {
        ran.failed.push(format!("{}: {status}", program.name));
    }
    let sum: Duration = ran.times.iter().map(|(time, _)| *time).sum();
    let (name, failed) = (&program.name, ran.failed.len());
    println!(
        "  {name}: {} passed, {failed} failed, {:.1} s of tests",
        ran.passed,
        sum.as_secs_f64()
    );
    Ok(ran)
}

fn read_lines(from: impl std::io::Read) -> Vec<String> {
    BufReader::new(from).lines().map_while(Result::ok).collect()
}

/// Notes what a line says was left out, here or until nightly; false if it says nothing of it.
fn note_left_out(program: &Program, line: &str, ran: &mut Ran) -> bool {
    let noted = |text: &str| format!("{}: {}", program.name, text.trim_start_matches([':', ' ']));
    match (line.strip_prefix("SKIPPED"), line.strip_prefix("NIGHTLY:")) {
        (Some(text), _) => ran.skipped.push(noted(text)),
        (_, Some(text)) => ran.left.push(noted(text)),
        _ => return false,
    }
    true
}

fn record(program: &Program, event: Event, ran: &mut Ran) {
    let (Some(test), "test") = (event.name, event.kind.as_str()) else { return };
    for line in event.stdout.iter().flat_map(|said| said.lines()) {
        note_left_out(program, line, ran);
    }
    let time = Duration::try_from_secs_f64(event.exec_time.unwrap_or(0.0)).unwrap_or_default();
    let name = format!("{}: {test}", program.name);
    match event.event.as_str() {
        "ok" => ran.passed += 1,
        "failed" => {
            println!("FAILED: {name}\n{}", event.stdout.unwrap_or_default());
            let again =
                format!("cargo test --package {} {} {test}", program.package, program.target);
            ran.failed.push(format!("{name} ({again})"));
        }
        "timeout" => println!("  {name} has been running for over a minute"),
        // Those that are ignored are processes of other tests, or for a person who asks for them.
        _ => return,
    }
    if matches!(event.event.as_str(), "ok" | "failed") {
        ran.times.push((time, name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(kind: &str, name: &str, is_test: bool) -> Message {
        Message {
            manifest_path: Some("/tree/crates/ring/Cargo.toml".into()),
            target: Some(Target { kind: vec![kind.to_owned()], name: name.to_owned() }),
            profile: Some(Profile { test: is_test }),
            executable: Some("/tree/target/debug/deps/it".into()),
        }
    }

    fn names() -> HashMap<PathBuf, String> {
        HashMap::from([("/tree/crates/ring/Cargo.toml".into(), "ringway-ring".to_owned())])
    }

    #[test]
    fn test_programs_differ_from_what_else_cargo_builds() {
        let of = |kind, name, is_test| {
            program(built(kind, name, is_test), &names()).map(|it| (it.name, it.target))
        };
        let some = |name: &str, target: &str| Some((name.to_owned(), target.to_owned()));
        assert_eq!(of("lib", "ringway_ring", true), some("ring", "--lib"));
        assert_eq!(of("test", "rings", true), some("ring rings", "--test rings"));
        assert_eq!(of("bin", "tool", false), None);
        assert_eq!(program(built("lib", "it", true), &HashMap::new()).map(|it| it.name), None);
    }

    #[test]
    fn only_unit_tests_of_slow_crates_are_fast() {
        let program = |name: &str, target: &str| Program {
            name: name.to_owned(),
            package: String::new(),
            target: target.to_owned(),
            path: PathBuf::new(),
            folder: PathBuf::new(),
        };
        assert!(
            is_fast(&program("lab", "--lib")) && is_fast(&program("ring rings", "--test rings"))
        );
        assert!(!is_fast(&program("ringway e2e", "--test e2e")));
    }

    fn rings() -> Program {
        program(built("test", "rings", true), &names()).expect("a test program")
    }

    /// The harness keeps what tests that pass print, unless they print it to standard error itself.
    #[test]
    fn what_a_test_that_passes_has_left_out_is_noted_however_it_says_so() {
        let mut ran = Ran::default();
        let event = r#"{ "type": "test", "name": "a", "event": "ok", "exec_time": 1.5,
            "stdout": "a line\nSKIPPED: no ring\n" }"#;
        record(&rings(), serde_json::from_str(event).expect("the harness's"), &mut ran);
        assert!(note_left_out(&rings(), "SKIPPED everything: no rights", &mut ran));
        assert!(note_left_out(&rings(), "NIGHTLY: b: it takes minutes", &mut ran));
        assert!(!note_left_out(&rings(), "it was SKIPPED", &mut ran));
        assert_eq!(ran.skipped, ["ring rings: no ring", "ring rings: everything: no rights"]);
        assert_eq!((ran.left, ran.passed), (vec!["ring rings: b: it takes minutes".to_owned()], 1));
    }

    #[test]
    fn a_failed_test_is_named_with_the_command_that_runs_it() {
        let program = rings();
        let mut ran = Ran::default();
        let lines = [
            r#"{ "type": "suite", "event": "started", "test_count": 3 }"#,
            r#"{ "type": "test", "event": "started", "name": "a" }"#,
            r#"{ "type": "test", "name": "a", "event": "ok", "exec_time": 1.5 }"#,
            r#"{ "type": "test", "name": "b", "event": "failed", "exec_time": 1, "stdout": "x" }"#,
            r#"{ "type": "test", "name": "c", "event": "ignored" }"#,
        ];
        for line in lines {
            record(&program, serde_json::from_str(line).expect("the harness's"), &mut ran);
        }
        // Nightly does not run what is ignored either.
        assert_eq!((ran.passed, ran.times.len(), ran.left.len()), (1, 2, 0));
        assert_eq!(
            ran.failed,
            ["ring rings: b (cargo test --package ringway-ring --test rings b)"]
        );
    }
}

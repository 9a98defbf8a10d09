//! What `check`, `test` and `nightly` report: their steps with times, the slowest tests, and what
//! this machine could not run, with the command that would.

use std::cmp::Reverse;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Tests that are named because they take the most time.
const SLOWEST_SHOWN: usize = 10;
/// Tests left to `make nightly` whose names are shown; the rest is counted.
const LEFT_SHOWN: usize = 40;

/// What was skipped so far, in all steps. It is global because any step, however deep, may find
/// that the machine lacks something.
static SKIPPED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Reports that something was skipped, now and again at the end. `why` says what to do about it.
pub(crate) fn skip(what: &str, why: &str) -> Result<()> {
    println!("SKIPPED: {what}: {why}");
    SKIPPED.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{what}: {why}"));
    Ok(())
}

/// Whether the steps after a failed one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterFailure {
    /// The next steps take longer, and the first failure is what a person wants to see.
    Stop,
    /// Someone who comes back hours later wants all of them.
    GoOn,
}

/// The steps of one target.
pub(crate) struct Steps {
    target: &'static str,
    after: AfterFailure,
    done: Vec<Step>,
    /// Those that an earlier failure has kept from running.
    not_begun: Vec<&'static str>,
    ran: Ran,
    start: Instant,
}

struct Step {
    name: &'static str,
    took: Duration,
    error: Option<anyhow::Error>,
}

/// What the tests of a step report.
#[derive(Debug, Default)]
pub(crate) struct Ran {
    /// Tests that passed.
    pub(crate) passed: usize,
    /// Names of tests that failed.
    pub(crate) failed: Vec<String>,
    /// Each test with its time.
    pub(crate) times: Vec<(Duration, String)>,
    /// Lines of tests that this machine could not run, or not completely: each has its reason.
    pub(crate) skipped: Vec<String>,
    /// Tests that only `make nightly` runs.
    pub(crate) left: Vec<String>,
}

impl Ran {
    /// Adds what other tests report.
    pub(crate) fn add(&mut self, other: Ran) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.times.extend(other.times);
        self.skipped.extend(other.skipped);
        self.left.extend(other.left);
    }
}

impl Steps {
    /// No step yet. `target` is its name in the Makefile.
    pub(crate) fn new(target: &'static str, after: AfterFailure) -> Steps {
        let (done, not_begun, ran) = (Vec::new(), Vec::new(), Ran::default());
        Steps { target, after, done, not_begun, ran, start: Instant::now() }
    }

    /// Runs a step, unless an earlier one has failed and ended the target.
    pub(crate) fn run(&mut self, name: &'static str, step: impl FnOnce() -> Result<()>) {
        self.run_tests(name, || step().map(|()| Ran::default()));
    }

    /// Runs a step that reports single tests.
    pub(crate) fn run_tests(&mut self, name: &'static str, step: impl FnOnce() -> Result<Ran>) {
        if self.after == AfterFailure::Stop && self.done.iter().any(|step| step.error.is_some()) {
            self.not_begun.push(name);
            return;
        }
        println!("{}: {name}", self.target);
        let start = Instant::now();
        let result = step().and_then(|ran| {
            let failed = ran.failed.len();
            self.ran.add(ran);
            if failed > 0 { bail!("{failed} tests failed") } else { Ok(()) }
        });
        let (took, error) = (start.elapsed(), result.err());
        let how = if error.is_some() { "FAILED" } else { "passed" };
        println!("{}: {name}: {how} in {}", self.target, seconds(took));
        self.done.push(Step { name, took, error });
    }

    /// Prints the report; fails if a step did.
    pub(crate) fn end(self) -> Result<()> {
        println!("\n{self}");
        let failed: Vec<_> =
            self.done.iter().filter(|step| step.error.is_some()).map(|step| step.name).collect();
        if failed.is_empty() {
            println!("{}: passed in {}", self.target, seconds(self.start.elapsed()));
            return Ok(());
        }
        bail!("{} failed: {}", self.target, failed.join(", "))
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: time of each step", self.target)?;
        for step in &self.done {
            let how = step.error.as_ref().map_or_else(String::new, |error| format!("  {error:#}"));
            writeln!(f, "{:>9}  {}{how}", seconds(step.took), step.name)?;
        }
        for name in &self.not_begun {
            writeln!(f, "{:>9}  {name}: not run, as a step before it failed", "-")?;
        }
        let mut times: Vec<_> = self.ran.times.iter().collect();
        times.sort_by_key(|(took, _)| Reverse(*took));
        if !times.is_empty() {
            writeln!(f, "\nthe slowest tests")?;
        }
        for (took, name) in times.into_iter().take(SLOWEST_SHOWN) {
            writeln!(f, "{:>9}  {name}", seconds(*took))?;
        }
        let steps = SKIPPED.lock().unwrap_or_else(PoisonError::into_inner);
        let skipped: Vec<_> = steps.iter().chain(&self.ran.skipped).collect();
        if !skipped.is_empty() {
            writeln!(
                f,
                "\nnot run on this machine (`make {}` installs what is missing)",
                self.target
            )?;
        }
        for line in &skipped {
            writeln!(f, "  {line}")?;
        }
        let left = &self.ran.left;
        if !left.is_empty() {
            writeln!(f, "\n{} tests, or parts of them, that only `make nightly` runs", left.len())?;
        }
        for name in left.iter().take(LEFT_SHOWN) {
            writeln!(f, "  {name}")?;
        }
        for name in &self.ran.failed {
            writeln!(f, "\nFAILED: {name}")?;
        }
        if self.ran.passed + self.ran.failed.len() > 0 {
            let (passed, failed) = (self.ran.passed, self.ran.failed.len());
            writeln!(f, "\n{passed} passed, {failed} failed, {} skipped", skipped.len())?;
        }
        Ok(())
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing() -> Result<Ran> {
        Ok(Ran { passed: 2, failed: vec!["a b".to_owned()], ..Ran::default() })
    }

    #[test]
    fn a_failed_step_fails_the_target_and_ends_it_or_not() {
        for (after, ran_steps) in [(AfterFailure::Stop, 1), (AfterFailure::GoOn, 2)] {
            let mut steps = Steps::new("test", after);
            steps.run_tests("one", failing);
            steps.run("two", || Ok(()));
            assert_eq!(steps.done.len(), ran_steps);
            let text = steps.to_string();
            assert!(text.contains("FAILED: a b") && text.contains("2 passed, 1 failed"), "{text}");
            assert_eq!(text.contains("two: not run"), after == AfterFailure::Stop, "{text}");
            assert_eq!(
                steps.end().map_err(|error| error.to_string()),
                Err("test failed: one".into())
            );
        }
    }

    #[test]
    fn the_report_has_the_slowest_tests_first_and_what_was_not_run() {
        let mut steps = Steps::new("test", AfterFailure::Stop);
        let times = (0..20).map(|number| (Duration::from_secs(number), format!("test-{number}")));
        let ran = Ran {
            times: times.collect(),
            skipped: vec!["dpdk is missing".to_owned()],
            left: vec!["the long one".to_owned()],
            ..Ran::default()
        };
        steps.run_tests("tests", || Ok(ran));
        let text = steps.to_string();
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what} in {text}"));
        assert!(at("test-19") < at("test-10") && !text.contains("test-9"), "{text}");
        assert!(at("dpdk is missing") < at("the long one"), "{text}");
    }
}

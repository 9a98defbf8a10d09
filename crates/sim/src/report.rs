//! Runs of worlds, and their reports.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::canary::Canary;
use crate::choices::Choices;
use crate::flaw::{Checked, Flaw, Rule};
use crate::journal::{Detail, Journal};
use crate::marks::Marks;
use crate::world::World;

/// A world that ran to its end.
#[derive(Debug, Clone)]
pub struct Run {
    /// The number of steps, of any kind.
    pub steps: u64,
    /// How often each mark was hit.
    pub marks: Marks,
}

/// A world that a checker stopped.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The broken rule.
    pub flaw: Flaw,
    /// Steps before the failure.
    pub steps: u64,
    /// The last steps, in words.
    pub last: Vec<String>,
}

/// The result of a world.
pub type Outcome = Result<Run, Box<Failure>>;

/// Runs the world of a seed. If it fails, runs it again for the words.
///
/// # Errors
/// The finding of a checker.
pub fn run_seed(seed: u64, canary: Option<Canary>) -> Outcome {
    let again = |detail| run(Choices::from_seed(seed), detail, canary);
    again(Detail::Counted).or_else(|failure| explain(*failure, || again(Detail::Kept)))
}

/// Runs the world that a fuzzer's bytes encode.
///
/// # Panics
/// With the finding of a checker.
pub fn run_bytes(bytes: &[u8]) {
    let again = |detail| run(Choices::from_bytes(bytes), detail, None);
    let outcome =
        again(Detail::Counted).or_else(|failure| explain(*failure, || again(Detail::Kept)));
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// Runs a failed seed again for its last steps: the failure with these, or unchanged if it does not
/// occur again.
fn explain(failure: Failure, again: impl FnOnce() -> Outcome) -> Outcome {
    match again() {
        Err(explained) if explained.flaw == failure.flaw => Err(explained),
        Err(other) => {
            let flaw = Flaw {
                rule: failure.flaw.rule,
                found: format!("{}; and when run again, {}", failure.flaw.found, other.flaw),
            };
            Err(Box::new(Failure { flaw, ..*other }))
        }
        Ok(_) => {
            let found = format!("{}; but not when run again", failure.flaw.found);
            let flaw = Flaw { rule: failure.flaw.rule, found };
            Err(Box::new(Failure { flaw, ..failure }))
        }
    }
}

/// Runs a world.
///
/// # Errors
/// The finding of a checker.
pub fn run(choices: Choices, detail: Detail, canary: Option<Canary>) -> Outcome {
    let journal = Journal::new(detail);
    let noted = journal.clone();
    let world = AssertUnwindSafe(move || -> Checked<Marks> {
        let mut world = World::new(choices, noted, canary)?;
        world.run()?;
        Ok(world.plane.marks)
    });
    let done = catch_unwind(world).unwrap_or_else(|panic| Err(Flaw::of_panic(panic.as_ref())));
    let steps = journal.steps();
    match done {
        Ok(marks) => Ok(Run { steps, marks }),
        Err(flaw) => Err(Box::new(Failure { flaw, steps, last: journal.last() })),
    }
}

impl Flaw {
    fn of_panic(panic: &(dyn Any + Send)) -> Flaw {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Flaw::new(Rule::NoPanic, text.unwrap_or("a panic without a message"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.last {
            writeln!(f, "{line}")?;
        }
        write!(f, "after {} steps: {}", self.steps, self.flaw)
    }
}

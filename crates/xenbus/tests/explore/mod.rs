//! Explores every order of steps.

use std::collections::HashSet;
use std::fmt::{Debug, Display};
use std::hash::{DefaultHasher, Hash, Hasher};

/// More states than any of these worlds should have.
const STATES_MAX: usize = 400_000;

/// A world that makes steps, and is disturbed.
pub(crate) trait Explored: Clone + Debug {
    type Step: Copy;
    type Disturbance: Copy + Debug;

    /// All possible next steps.
    fn steps(&self) -> Vec<Self::Step>;
    fn step(&mut self, step: Self::Step);
    fn disturb(&mut self, disturbance: Self::Disturbance);
}

/// Visits every state that any order of steps can reach, with the disturbances at any moment in
/// their order, and checks all states in which no end has anything left to do.
///
/// A finite number of states also proves that no order of steps continues forever.
pub(crate) fn explore<W: Explored, E: Display>(
    start: W,
    disturbances: &[W::Disturbance],
    check: impl Fn(&W) -> Result<(), E>,
) {
    if let Some(problem) = problem(start, disturbances, check) {
        panic!("{problem}");
    }
}

/// The first state that does not pass, in words, for worlds that may fail.
pub(crate) fn problem<W: Explored, E: Display>(
    start: W,
    disturbances: &[W::Disturbance],
    check: impl Fn(&W) -> Result<(), E>,
) -> Option<String> {
    let mut seen = HashSet::new();
    let mut pending = vec![(start, disturbances)];
    let mut settled = 0;
    while let Some((world, coming)) = pending.pop() {
        let mut hasher = DefaultHasher::new();
        format!("{world:?} {}", coming.len()).hash(&mut hasher);
        if !seen.insert(hasher.finish()) {
            continue;
        }
        assert!(seen.len() < STATES_MAX, "it may never end: {world:#?}");
        let steps = world.steps();
        for step in &steps {
            let mut next = world.clone();
            next.step(*step);
            pending.push((next, coming));
        }
        if let Some((first, rest)) = coming.split_first() {
            let mut next = world.clone();
            next.disturb(*first);
            pending.push((next, rest));
        } else if steps.is_empty() {
            settled += 1;
            if let Err(problem) = check(&world) {
                return Some(format!("{problem} after {disturbances:?}: {world:#?}"));
            }
        }
    }
    assert!(settled > 0);
    None
}

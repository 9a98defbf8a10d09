//! A host with many quiet vifs, which all begin, lose their backend, and end at once. A world has
//! no clock, so what is counted is what the control plane asks of XenStore.

use crate::choices::Choices;
use crate::flaw::Checked;
use crate::journal::{Detail, Journal};
use crate::process::Requests;
use crate::scenario::Scenario;
use crate::world::World;

/// What the control plane has done so far in a stage of a crowd's life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stage {
    /// Requests that it made of XenStore.
    pub requests: u64,
    /// How often it waited for replies: requests that are made together have one wait.
    pub waits: u64,
    /// The most that it made in one turn, for each vif that it took over in it. It handles calls
    /// between two turns.
    pub most_in_a_turn: u64,
}

/// Connects so many guests, kills the backend, which takes them over, and removes all vifs. Returns
/// what each of the two processes had done when all guests were connected, and what the second had
/// done in the end.
///
/// # Errors
/// The finding of a checker.
pub fn run_crowd(guests: usize) -> Checked<[Stage; 3]> {
    let journal = Journal::new(Detail::Counted);
    let mut world = World::of(Scenario::of_crowd(guests), Choices::from_seed(0), journal)?;
    world.rest()?;
    let begun = stage(&world);
    world.plane.kill_backend();
    world.after_step()?;
    world.rest()?;
    let resumed = stage(&world);
    world.finish()?;
    Ok([begun, resumed, stage(&world)])
}

fn stage(world: &World) -> Stage {
    let requests = world.backend.as_ref().map(|backend| &*backend.requests);
    requests.map_or_else(Stage::default, |it: &Requests| Stage {
        requests: it.made(),
        waits: it.waits(),
        most_in_a_turn: it.most_in_a_turn(),
    })
}

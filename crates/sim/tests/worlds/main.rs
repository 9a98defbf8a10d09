//! Worlds by their seeds, and the intended defects that the same seeds find.

mod replaced;

use ringway_sim::{Canary, Rule, run_bytes, run_crowd, run_seed, run_seeds};

/// Seeds whose worlds run here, enough to hit the rarest mark twice. CI runs more of
/// them, with an optimised build.
const SEEDS: u64 = 1500;

#[test]
fn worlds_have_no_flaw_and_reach_every_mark() {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let summary = run_seeds(0..SEEDS, jobs, None, || {});
    if let Some((seed, failure)) = summary.failure {
        panic!("{failure}\nseed {seed}");
    }
    assert_eq!(summary.worlds, SEEDS);
    let never: Vec<&str> = summary
        .marks
        .iter()
        .filter(|(_, count)| *count == 0)
        .map(|(mark, _)| mark.name())
        .collect();
    assert!(never.is_empty(), "never hit: {never:?}");
}

#[test]
fn each_intended_defect_is_found() {
    let found = |canary| (0..SEEDS).any(|seed| run_seed(seed, Some(canary)).is_err());
    let unseen: Vec<Canary> = Canary::ALL.into_iter().filter(|canary| !found(*canary)).collect();
    assert!(unseen.is_empty(), "not found: {unseen:?}");
}

/// The defect is in the ring crate, where the check is. A release build has no such switch.
#[cfg(debug_assertions)]
#[test]
fn a_missing_check_of_a_producer_is_found() {
    let run = |seed| ringway_ring::canary::without_producer_checks(|| run_seed(seed, None));
    let found = (0..SEEDS).find_map(|seed| run(seed).err());
    let found = found.expect("a hostile guest lets a producer jump");
    println!("{}", found.flaw);
}

/// The defect is in the host's control plane, where the guard is.
#[cfg(debug_assertions)]
#[test]
fn an_attachment_that_fails_and_is_not_undone_is_found() {
    let run = |seed| ringway_host::canary::without_undo(|| run_seed(seed, None));
    let found = (0..SEEDS).find_map(|seed| run(seed).err());
    let found = found.expect("a vif's queues are refused when some are attached");
    assert_eq!(found.flaw.rule, Rule::Release, "{found}");
}

#[test]
fn a_seed_reproduces_its_world() {
    let run = || run_seed(7, None).map(|run| (run.steps, run.marks.iter().collect::<Vec<_>>()));
    let [first, second] = [run(), run()].map(|outcome| outcome.expect("it has no flaw"));
    assert_eq!(first, second);
}

#[test]
fn arbitrary_bytes_define_a_world_and_may_end_anywhere() {
    let mut random = fastrand::Rng::with_seed(1);
    for len in [0, 1, 50, 500, 5000] {
        let bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
        run_bytes(&bytes);
    }
}

/// Nightly has a thousand vifs.
#[test]
fn the_work_of_the_control_plane_grows_with_the_number_of_vifs_and_no_faster() {
    let is_nightly = std::env::var_os("RINGWAY_NIGHTLY").is_some();
    let (sizes, factor) = if is_nightly { ([100, 1000], 10) } else { ([50, 400], 8) };
    let stages = sizes.map(|guests| run_crowd(guests).expect("it has no flaw"));
    for (few, many) in stages[0].iter().zip(&stages[1]) {
        println!("{sizes:?} vifs: {few:?}, {many:?}");
        // From some 650 vifs on, the events that watches begin with overflow their queue once, and
        // what was taken over by then is read again: 13,000 requests, however many vifs there are.
        assert!(many.requests <= few.requests * factor * 12 / 10, "{few:?}, {many:?}");
        assert!(many.most_in_a_turn <= 2 * few.most_in_a_turn, "{few:?}, {many:?}");
    }
    // What the second process has done when it has taken over all.
    for (guests, [_, resumed, _]) in sizes.into_iter().zip(stages) {
        let waits = usize::try_from(resumed.waits).expect("few");
        assert!(waits <= 8 * guests, "{guests} vifs took {waits} waits for XenStore");
    }
}

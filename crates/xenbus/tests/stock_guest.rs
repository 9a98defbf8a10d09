//! Our backend and models of other systems' frontends, in any order of steps. Those frontends do
//! not return when a backend closes the vif by itself, so a backend does that for faults only: a
//! guest that had a network and broke no rule is connected again when the world is at rest.

mod explore;
mod guests;
mod store;

use explore::{Explored, explore, problem};
use guests::{Disturbance, Handover, Kind, Offered, Policy, World, joint, refs, split};
use ringway_xenbus::backend::Reconnect;

const LIMITS: [u16; 3] = [1, 2, 4];
const OFFERS: [Offered; 4] = [split(1), split(2), split(4), joint(2)];
const KINDS: [Kind; 3] = [Kind::Linux, Kind::MiniOs, Kind::Windows];

/// All orders of steps, with the disturbances at any moment, end connected.
fn stay_connected(start: &World, disturbances: &[Disturbance]) {
    explore(start.clone(), disturbances, World::check_connected);
}

fn settled(mut world: World) -> World {
    world.settle();
    world.check_connected().expect("they connect");
    world
}

fn connected(kind: Kind, offered: Offered, wanted: u16) -> World {
    settled(World::new(kind, offered, wanted))
}

/// All disturbances of a guest that breaks no rule.
fn disturbances() -> Vec<Disturbance> {
    let restarts = OFFERS.map(Disturbance::RestartBackend);
    let limits = LIMITS.map(|limit| Disturbance::SetLimit(limit, Reconnect::Later));
    let rebinds = LIMITS.map(Disturbance::Rebind);
    let now = Disturbance::SetLimit(1, Reconnect::Now);
    restarts.into_iter().chain(limits).chain(rebinds).chain([now, Disturbance::Crash]).collect()
}

#[test]
fn both_ends_connect_in_every_order_of_steps() {
    for kind in KINDS {
        for offered in OFFERS {
            for wanted in LIMITS {
                stay_connected(&World::new(kind, offered, wanted), &[]);
            }
        }
    }
}

#[test]
fn a_disturbance_while_connecting_ends_connected() {
    for kind in KINDS {
        for disturbance in disturbances() {
            stay_connected(&World::new(kind, split(2), 4), &[disturbance]);
            stay_connected(&World::new(kind, joint(2), 4), &[disturbance]);
        }
    }
}

#[test]
fn two_restarts_while_connecting_end_connected() {
    for kind in KINDS {
        for first in OFFERS {
            for second in OFFERS {
                let both = [first, second].map(Disturbance::RestartBackend);
                stay_connected(&World::new(kind, split(2), 4), &both);
            }
        }
    }
}

#[test]
fn any_two_disturbances_leave_a_connected_guest_connected() {
    for kind in KINDS {
        for first in disturbances() {
            for second in disturbances() {
                stay_connected(&connected(kind, split(2), 2), &[first, second]);
            }
        }
    }
}

#[test]
fn neither_a_changed_offer_nor_a_restart_disconnects_a_guest() {
    for kind in KINDS {
        let limits = LIMITS.into_iter().flat_map(|limit| {
            [Reconnect::Later, Reconnect::Now].map(|when| Disturbance::SetLimit(limit, when))
        });
        let restarts = OFFERS.map(Disturbance::RestartBackend);
        for disturbance in limits.chain(restarts) {
            let world = connected(kind, split(4), 4);
            explore(world.clone(), &[disturbance], |after| {
                after.check_connected()?;
                match refs(after) == refs(&world) && after.cut_off_count == 0 {
                    true => Ok(()),
                    false => Err("it was cut off".to_owned()),
                }
            });
        }
    }
}

#[test]
fn a_restarted_driver_connects_with_the_new_limit() {
    for kind in [Kind::Linux, Kind::Windows] {
        for (before, after, expected) in [(4, 1, 1), (4, 2, 2), (1, 4, 4), (2, 4, 4)] {
            for disturbance in [
                Disturbance::SetLimit(after, Reconnect::Later),
                Disturbance::RestartBackend(split(after)),
            ] {
                let mut world = connected(kind, split(before), 4);
                world.disturb(disturbance);
                world.settle();
                world.disturb(Disturbance::Rebind(4));
                let world = settled(world);
                assert_eq!(world.queue_count(), expected, "{kind:?}: {before} to {after}");
            }
        }
    }
}

#[test]
fn leftover_keys_of_earlier_connections_are_ignored() {
    for kind in KINDS {
        let mut world = connected(kind, split(4), 1);
        for (offered, wanted) in [
            (split(4), 2),
            (split(4), 1),
            (joint(4), 1),
            (split(4), 1),
            (joint(4), 4),
            (joint(4), 1),
            (split(2), 4),
        ] {
            world.disturb(Disturbance::RestartBackend(offered));
            world = settled(world);
            world.disturb(Disturbance::Rebind(wanted));
            // A backend with another offer takes over the connection unchanged.
            world = settled(world);
            world.disturb(Disturbance::RestartBackend(joint(1)));
            world = settled(world);
            world.disturb(Disturbance::RestartBackend(split(1)));
            world = settled(world);
        }
    }
}

#[test]
fn linux_connects_whether_or_not_its_boot_loader_closed_the_vif() {
    for offered in OFFERS {
        stay_connected(&World::new(Kind::Ipxe, offered, 4), &[]);
        for handover in [Handover::Closed, Handover::Connected] {
            for wanted in LIMITS {
                let boot = Disturbance::Boot(handover);
                let mut world = connected(Kind::Ipxe, offered, wanted);
                assert_eq!(world.queue_count(), 1);
                stay_connected(&world, &[boot]);
                world.disturb(boot);
                let world = settled(world);
                assert_eq!(world.queue_count(), usize::from(offered.limit.min(wanted)));
                for other in disturbances() {
                    stay_connected(&world, &[other]);
                }
            }
        }
    }
}

#[test]
fn a_boot_loader_survives_a_restart_of_the_backend() {
    // A backend that no longer offers two event channels uses the one that the loader has left
    // rather than the two that Linux has just written: no backend can tell the difference.
    for restart in LIMITS.map(|limit| Disturbance::RestartBackend(split(limit))) {
        for offered in OFFERS {
            stay_connected(&World::new(Kind::Ipxe, offered, 4), &[restart]);
            for handover in [Handover::Closed, Handover::Connected] {
                let world = connected(Kind::Ipxe, offered, 4);
                stay_connected(&world, &[Disturbance::Boot(handover), restart]);
            }
        }
    }
}

/// No program takes a frame to be behind headroom that it does not have, whenever it is loaded and
/// removed, and whichever process serves its guest meanwhile.
#[test]
fn programs_of_xdp_find_the_headroom_that_they_need_at_any_moment() {
    //= netif.h:xdp-headroom
    let [load, remove] = [true, false].map(Disturbance::Program);
    let restart = Disturbance::RestartBackend;
    let rebind = Disturbance::Rebind(1);
    let (same, other) = (restart(split(2)), restart(joint(2)));
    for history in [
        &[load][..],
        &[load, remove],
        &[load, load],
        &[load, remove, load],
        &[load, remove, load, remove],
        &[load, same],
        &[load, other],
        &[load, same, remove],
        &[load, remove, same, load],
        &[load, other, remove, same],
        &[load, rebind, load],
        &[load, other, rebind, load],
        &[load, Disturbance::Crash, load],
        &[load, Disturbance::SetLimit(1, Reconnect::Now), remove],
    ] {
        stay_connected(&connected(Kind::Linux, split(2), 2), history);
    }
    // While it connects, and where no headroom is offered.
    for offered in [split(2), joint(2)] {
        for history in [&[load][..], &[load, restart(offered)], &[restart(offered), load, remove]] {
            stay_connected(&World::new(Kind::Linux, offered, 2), history);
        }
    }
}

#[test]
fn a_vif_is_removed_at_any_moment_whatever_else_happens() {
    for kind in KINDS {
        for start in [World::new(kind, split(2), 2), connected(kind, split(2), 2)] {
            explore(start.clone(), &[Disturbance::Remove], World::check_removed);
            let load = Disturbance::Program(true);
            for other in [Disturbance::Rebind(1), Disturbance::Crash, Disturbance::Fault, load] {
                explore(start.clone(), &[other, Disturbance::Remove], World::check_removed);
                explore(start.clone(), &[Disturbance::Remove, other], World::check_removed);
            }
        }
    }
}

#[test]
fn a_guest_that_breaks_the_protocol_is_closed_until_its_driver_is_bound_again() {
    let start = connected(Kind::Linux, split(2), 2);
    explore(start.clone(), &[Disturbance::Fault], World::check_closed);
    let history = [Disturbance::Fault, Disturbance::RestartBackend(split(2))];
    explore(start.clone(), &history, |world| {
        world.check_closed().or_else(|_| world.check_connected())
    });
    let mut world = start;
    world.disturb(Disturbance::Fault);
    world.settle();
    stay_connected(&world, &[Disturbance::Rebind(1)]);
}

/// Whether these models find the faults of earlier versions.
#[test]
fn the_models_find_known_faults() {
    let found = |policy, kind, wanted, history: &[Disturbance]| {
        let start = settled(World::under(policy, kind, split(4), wanted));
        problem(start, history, World::check_connected).is_some()
    };
    let lower = [Disturbance::SetLimit(1, Reconnect::Later), Disturbance::RestartBackend(split(1))];
    let more = [Disturbance::Rebind(2)];
    for kind in [Kind::Linux, Kind::Windows] {
        for disturbance in lower {
            assert!(found(Policy::ClosesAboveLimit, kind, 4, &[disturbance]), "{disturbance:?}");
            assert!(!found(Policy::Present, kind, 4, &[disturbance]), "{disturbance:?}");
        }
        assert!(found(Policy::RefusesStaleKeys, kind, 1, &more), "{kind:?}");
        assert!(!found(Policy::Present, kind, 1, &more), "{kind:?}");
    }
    let load = [Disturbance::Program(true)];
    assert!(found(Policy::BelievesKey, Kind::Linux, 2, &load));
    assert!(!found(Policy::Present, Kind::Linux, 2, &load));
    let while_connecting = |policy, kind, then| {
        let start = World::under(policy, kind, split(1), 1);
        problem(start, &[Disturbance::RestartBackend(then)], World::check_connected).is_some()
    };
    assert!(while_connecting(Policy::RefusesEarlyKeys, Kind::MiniOs, split(1)));
    assert!(while_connecting(Policy::RefusesOlderForm, Kind::Linux, joint(1)));
    assert!(!while_connecting(Policy::Present, Kind::MiniOs, split(1)));
    assert!(!while_connecting(Policy::Present, Kind::Linux, joint(1)));
}

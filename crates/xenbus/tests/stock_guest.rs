//! Our backend and a model of Linux's frontend, in any order of steps. That frontend does not come
//! back when a backend closes the vif by itself, so a backend does that for faults only.

mod explore;
mod linux_guest;
mod store;

use explore::{Explored, explore};
use linux_guest::{Disturbance, World, refs};
use ringway_xenbus::backend::Reconnect;

const LIMITS: [u16; 3] = [1, 2, 4];

/// All orders of steps, with the disturbances at any moment, end connected.
fn stay_connected(start: &World, disturbances: &[Disturbance]) {
    explore(start.clone(), disturbances, World::check_connected);
}

fn connected(limit: u16, wanted: u16) -> World {
    let mut world = World::new(limit, wanted);
    world.settle();
    world.check_connected().expect("they connect");
    world
}

#[test]
fn they_connect_whatever_the_order_of_their_steps() {
    for limit in LIMITS {
        for wanted in LIMITS {
            stay_connected(&World::new(limit, wanted), &[]);
        }
    }
}

#[test]
fn a_backend_that_is_restarted_at_any_moment_with_any_limit_serves_the_guest() {
    for limit in LIMITS {
        let restart = Disturbance::RestartBackend(limit);
        stay_connected(&World::new(2, 4), &[restart]);
        stay_connected(&World::new(2, 4), &[restart, Disturbance::RestartBackend(1)]);
        stay_connected(&World::new(2, 4), &[restart, Disturbance::RestartBackend(4)]);
    }
}

#[test]
fn another_limit_at_any_moment_leaves_the_guest_connected() {
    for limit in LIMITS {
        for reconnect in [Reconnect::Later, Reconnect::Now] {
            let set = Disturbance::SetLimit(limit, reconnect);
            stay_connected(&World::new(2, 4), &[set]);
            for then in LIMITS {
                stay_connected(&World::new(2, 4), &[set, Disturbance::RestartBackend(then)]);
                stay_connected(&World::new(2, 4), &[Disturbance::RestartBackend(then), set]);
            }
        }
    }
}

#[test]
fn neither_another_limit_nor_a_restart_cuts_a_guest_off() {
    for limit in LIMITS {
        for disturbance in [
            Disturbance::SetLimit(limit, Reconnect::Later),
            Disturbance::SetLimit(limit, Reconnect::Now),
            Disturbance::RestartBackend(limit),
        ] {
            let world = connected(4, 4);
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
fn a_driver_that_is_bound_again_connects_with_the_new_limit() {
    for (before, after, expected) in [(4, 1, 1), (4, 2, 2), (1, 4, 4), (2, 4, 4)] {
        for disturbance in
            [Disturbance::SetLimit(after, Reconnect::Later), Disturbance::RestartBackend(after)]
        {
            let mut world = connected(before, 4);
            world.disturb(disturbance);
            world.settle();
            world.disturb(Disturbance::Rebind(4));
            world.settle();
            world.check_connected().expect("it connects again");
            assert_eq!(world.queue_count(), expected, "{before} to {after}");
        }
    }
}

#[test]
fn a_driver_may_be_bound_again_at_any_moment_whatever_else_happens() {
    for wanted in LIMITS {
        let rebind = Disturbance::Rebind(wanted);
        stay_connected(&World::new(4, 2), &[rebind]);
        stay_connected(&connected(4, 1), &[rebind, Disturbance::Rebind(4)]);
        for limit in LIMITS {
            for other in [
                Disturbance::RestartBackend(limit),
                Disturbance::SetLimit(limit, Reconnect::Later),
                Disturbance::SetLimit(limit, Reconnect::Now),
            ] {
                stay_connected(&connected(2, 2), &[rebind, other]);
                stay_connected(&connected(2, 2), &[other, rebind]);
            }
        }
    }
}

#[test]
fn keys_of_one_queue_that_stay_beside_those_of_several_count_for_nothing() {
    let mut world = connected(4, 1);
    for wanted in [2, 1, 4, 2] {
        world.disturb(Disturbance::Rebind(wanted));
        world.settle();
        world.check_connected().expect("it connects again");
        assert_eq!(world.queue_count(), usize::from(wanted));
    }
}

#[test]
fn a_guest_that_breaks_the_protocol_is_closed_until_its_driver_is_bound_again() {
    explore(connected(2, 2), &[Disturbance::Fault], World::check_closed);
    let history = [Disturbance::Fault, Disturbance::RestartBackend(2)];
    explore(connected(2, 2), &history, |world| {
        world.check_closed().or_else(|_| world.check_connected())
    });
    let mut world = connected(2, 2);
    world.disturb(Disturbance::Fault);
    world.settle();
    stay_connected(&world, &[Disturbance::Rebind(1)]);
}

//! Our frontend and a model of Linux's backend, in any order of steps: they connect, nothing is
//! released that is still mapped, and a toolstack can remove the vif.

mod explore;
mod linux;
mod store;

use explore::{Explored, explore};
use linux::{Disturbance, Goal, Hotplug, Stock};
use ringway_xenbus::XenbusState;

/// All orders of steps, with the disturbances at any moment, lead to the expected end.
fn lead_to(start: Stock, disturbances: &[Disturbance], goal: Goal) {
    explore(start, disturbances, |world| world.check(goal));
}

const HOTPLUG: [Hotplug; 2] = [Hotplug::None, Hotplug::Waits];

#[test]
fn both_ends_connect_in_every_order_of_steps() {
    for hotplug in HOTPLUG {
        lead_to(Stock::new(hotplug), &[], Goal::Connected);
    }
}

#[test]
fn a_frontend_that_is_killed_restarted_or_reconnected_connects_again() {
    use Disturbance::{KillFrontend, Reconnect, RestartFrontend};
    let all = [KillFrontend, RestartFrontend, Reconnect];
    for hotplug in HOTPLUG {
        for first in all {
            lead_to(Stock::new(hotplug), &[first], Goal::Connected);
            for second in all {
                lead_to(Stock::new(hotplug), &[first, second], Goal::Connected);
                for third in all {
                    lead_to(Stock::new(hotplug), &[first, second, third], Goal::Connected);
                }
            }
        }
    }
}

#[test]
fn headroom_changes_at_any_moment_whatever_else_happens() {
    //= netif.h:xdp-headroom
    use Disturbance::{Detach, Headroom, KillFrontend, Reconnect, RestartFrontend};
    for hotplug in HOTPLUG {
        for history in [
            &[Headroom(256)][..],
            &[Headroom(256), Headroom(0)],
            &[Headroom(256), Headroom(64), Headroom(256)],
            &[Headroom(256), KillFrontend, Headroom(64)],
            &[Headroom(256), Reconnect],
            &[Headroom(256), RestartFrontend],
        ] {
            lead_to(Stock::new(hotplug), history, Goal::Connected);
        }
        lead_to(Stock::new(hotplug), &[Headroom(256), Detach], Goal::Gone);
        lead_to(Stock::new(hotplug), &[Detach, Headroom(256)], Goal::Gone);
    }
}

#[test]
fn a_failed_frontend_closes_in_order_and_connects_on_request() {
    use Disturbance::{Fail, Reconnect};
    for hotplug in HOTPLUG {
        lead_to(Stock::new(hotplug), &[Fail], Goal::Closed);
        lead_to(Stock::new(hotplug), &[Reconnect, Fail], Goal::Closed);
        lead_to(Stock::new(hotplug), &[Fail, Reconnect], Goal::Connected);
    }
}

#[test]
fn a_vif_detached_at_any_moment_leaves_nothing_behind() {
    use Disturbance::{Detach, KillFrontend, Reconnect};
    for hotplug in HOTPLUG {
        for history in [&[Detach][..], &[KillFrontend, Detach], &[Detach, KillFrontend]] {
            lead_to(Stock::new(hotplug), history, Goal::Gone);
        }
        lead_to(Stock::new(hotplug), &[Reconnect, Detach], Goal::Gone);
        lead_to(Stock::new(hotplug), &[Detach, Reconnect], Goal::Gone);
    }
}

#[test]
fn the_keys_are_those_of_a_stock_guest_plus_one_of_ours() {
    let mut world = Stock::new(Hotplug::None);
    world.settle();
    assert_eq!(world.check(Goal::Connected), Ok(()));
    let expected = [
        ("event-channel-rx", "12"),
        ("event-channel-tx", "11"),
        ("feature-gso-tcpv4", "1"),
        ("feature-gso-tcpv6", "1"),
        ("feature-ipv6-csum-offload", "1"),
        ("feature-rx-notify", "1"),
        ("feature-sg", "1"),
        ("multi-queue-num-queues", "1"),
        ("request-rx-copy", "1"),
        ("ringway-reconnect", "1"),
        ("rx-ring-ref", "10"),
        ("tx-ring-ref", "9"),
    ];
    assert_eq!(world.frontend_keys(), expected);
}

#[test]
fn a_single_queue_backend_gets_no_queue_count() {
    let mut world = Stock::new(Hotplug::None);
    world.forget_offer("multi-queue-max-queues");
    world.settle();
    assert_eq!(world.check(Goal::Connected), Ok(()));
    assert!(world.frontend_keys().iter().all(|(key, _)| *key != "multi-queue-num-queues"));
}

#[test]
fn the_link_is_up_only_while_the_backend_is_connected() {
    let mut world = Stock::new(Hotplug::Waits);
    while world.mapped_count() == 0 {
        let step = world.steps()[0];
        world.step(step);
    }
    // It serves the rings, and does not publish that until its script has run.
    assert_eq!(world.backend(), XenbusState::InitWait);
    assert!(!world.is_up());
    world.settle();
    assert!(world.is_up());
}

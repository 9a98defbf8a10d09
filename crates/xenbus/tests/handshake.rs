//! Both ends together: in any order of their steps and with any disturbance, they connect.

mod explore;
mod store;
mod world;

use explore::{Explored, explore};
use fastrand::Rng;
use ringway_datapath::OffloadCaps;
use ringway_xenbus::frontend::{self, QueueCount};
use ringway_xenbus::{
    Hotplug, KeyChange, Keys, Offer, Offered, Reconnects, Vif, XenbusState, backend,
};
use store::VIF;
use world::{Disturbance, ENDS, End, Script, World};

fn connected(queues_max: u16, wanted: u16) -> World {
    let mut world = World::new(queues_max, QueueCount::AtMost(wanted));
    world.settle();
    world.check_connected().expect("they connect");
    world
}

#[test]
fn every_order_of_steps_ends_connected() {
    for queues in [1, 2, 4, 8] {
        explore(World::new(8, QueueCount::AtMost(queues)), &[], World::check_connected);
        explore(World::new(queues, QueueCount::AtMost(8)), &[], World::check_connected);
    }
}

#[test]
fn one_disturbance_at_any_moment_is_survived() {
    for disturbance in [
        Disturbance::KillBackend,
        Disturbance::KillFrontend,
        Disturbance::OfferChanged(1),
        Disturbance::OfferChanged(4),
        Disturbance::Reconnect(1),
        Disturbance::Reconnect(2),
        Disturbance::RunShort,
    ] {
        let start = World::new(2, QueueCount::AtMost(4));
        explore(start.clone(), &[disturbance], World::check_connected);
        explore(start.with_late_reader(), &[disturbance], World::check_connected);
    }
}

#[test]
fn headroom_changes_at_any_moment_whatever_else_happens() {
    //= netif.h:xdp-headroom
    let ask = Disturbance::Headroom(256);
    for history in [
        &[ask][..],
        &[ask, Disturbance::Headroom(0)],
        &[ask, Disturbance::Headroom(64), Disturbance::Headroom(256)],
        &[Disturbance::KillBackend, ask, Disturbance::KillBackend],
        &[ask, Disturbance::KillFrontend, ask],
        &[ask, Disturbance::Reconnect(1)],
        &[ask, Disturbance::OfferChanged(1), Disturbance::Headroom(0)],
        &[ask, Disturbance::RunShort, Disturbance::KillBackend],
    ] {
        let start = World::new(2, QueueCount::AtMost(2));
        explore(start.clone(), history, World::check_connected);
        explore(start.with_late_reader(), history, World::check_connected);
        explore(connected(2, 2), history, World::check_connected);
        let with_script = World::with_script(2, QueueCount::AtMost(2), Script::Connects);
        explore(with_script, history, World::check_connected);
    }
    for history in [[ask, Disturbance::Remove], [Disturbance::Remove, ask]] {
        explore(connected(2, 2), &history, World::check_removed);
    }
}

#[test]
fn a_change_of_headroom_keeps_the_rings() {
    let mut world = connected(2, 2);
    for bytes in [256, 64, 0] {
        world.disturb(Disturbance::Headroom(bytes));
        world.settle();
        world.check_connected().expect("they are still connected");
    }
    assert_eq!((world.detached_count, world.reattached_count), (0, 0));
    let key = format!("{}/xdp-headroom", VIF.frontend_dir());
    assert_eq!(world.get(&key), None, "a frontend that wants none leaves no key");
}

#[test]
fn a_resource_shortage_around_a_disturbance_is_survived() {
    for disturbance in
        [Disturbance::KillBackend, Disturbance::KillFrontend, Disturbance::OfferChanged(1)]
    {
        for pair in [[Disturbance::RunShort, disturbance], [disturbance, Disturbance::RunShort]] {
            let start = World::new(2, QueueCount::AtMost(2)).with_late_reader();
            explore(start, &pair, World::check_connected);
        }
    }
}

#[test]
fn a_script_that_finishes_at_any_moment_leads_to_a_connection() {
    let start = || World::with_script(2, QueueCount::AtMost(2), Script::Connects);
    explore(start(), &[], World::check_connected);
    for first in [
        Disturbance::KillBackend,
        Disturbance::KillFrontend,
        Disturbance::OfferChanged(1),
        Disturbance::Reconnect(1),
    ] {
        explore(start(), &[first], World::check_connected);
        for second in [Disturbance::KillBackend, Disturbance::KillFrontend, Disturbance::RunShort] {
            explore(start(), &[first, second], World::check_connected);
        }
    }
}

#[test]
fn a_script_that_fails_at_any_moment_closes_the_vif() {
    let start = || World::with_script(2, QueueCount::AtMost(2), Script::Fails);
    for disturbances in [
        &[][..],
        &[Disturbance::KillBackend],
        &[Disturbance::KillFrontend],
        &[Disturbance::DestroyGuest],
        &[Disturbance::OfferChanged(1)],
    ] {
        explore(start(), disturbances, |world| {
            let error = world.error().ok_or("no reason")?;
            assert!(error.contains("hotplug script"), "{error}");
            world.check_closed()
        });
    }
}

#[test]
fn a_removal_at_any_moment_ends_closed_whatever_else_happens() {
    for script in [Script::Absent, Script::Connects, Script::Fails] {
        let start = || World::with_script(2, QueueCount::AtMost(2), script);
        explore(start(), &[Disturbance::Remove], World::check_removed);
        for other in
            [Disturbance::KillBackend, Disturbance::KillFrontend, Disturbance::DestroyGuest]
        {
            explore(start(), &[Disturbance::Remove, other], World::check_removed);
            explore(start(), &[other, Disturbance::Remove], World::check_removed);
        }
    }
}

#[test]
fn a_close_request_at_any_moment_ends_closed_or_reconnected() {
    for script in [Script::Absent, Script::Connects] {
        let start = World::with_script(2, QueueCount::AtMost(2), script);
        explore(start, &[Disturbance::AskToClose], |world| {
            // A frontend that has not started does not follow; the backend holds nothing of it.
            let is_closing = world.state(End::Backend) == XenbusState::Closing;
            match is_closing && !world.is_attached() {
                true => Ok(()),
                false => world.check_closed().or_else(|_| world.check_connected()),
            }
        });
    }
}

#[test]
fn a_guest_is_attached_at_once_and_connected_when_the_script_is_done() {
    let mut world = World::with_script(2, QueueCount::AtMost(2), Script::Connects);
    for _ in 0..100 {
        for end in [End::Backend, End::Reader, End::Frontend] {
            if !world.is_idle(end) {
                world.step(end);
            }
        }
    }
    assert!(world.is_attached() && world.has_awaited_script);
    assert_eq!(world.state(End::Backend), XenbusState::InitWait);
    world.settle();
    world.check_connected().expect("the script is done");

    // The script does not run for a guest that reconnects, even if its status was removed.
    world.set_hotplug_status(None);
    world.reconnect(QueueCount::AtMost(1));
    world.settle();
    world.check_connected().expect("it reconnects");
}

#[test]
fn a_failed_script_may_be_run_again_by_hand() {
    let mut world = World::with_script(2, QueueCount::AtMost(2), Script::Fails);
    world.settle();
    world.check_closed().expect("it failed");
    world.disturb(Disturbance::KillFrontend);
    world.settle();
    world.check_closed().expect("a guest that tries again is not served");
    world.set_hotplug_status(Some("connected"));
    world.settle();
    world.check_connected().expect("the device is in its place now");
}

/// Its reply crosses that of the script, and the frontend may never close its end.
#[test]
fn a_backend_does_not_wait_for_a_guest_that_replies_after_the_script_failed() {
    let mut machine = backend(Hotplug::Pending);
    let _ = machine.handle(backend::Input::Start {
        own: XenbusState::Initialising,
        peer: XenbusState::Initialising,
        offered: Offered::default(),
        reconnects: Reconnects::Never,
    });
    assert_eq!(machine.state(), XenbusState::InitWait);
    let failed = Hotplug::Failed("no bridge".to_owned());
    let closed = [XenbusState::Closing, XenbusState::Closed].map(written);
    let reported = backend::Action::ReportError("no bridge".to_owned());
    let actions = machine.handle(backend::Input::Hotplug(failed));
    assert_eq!(actions, [&[reported], closed.as_slice()].concat());
    assert_eq!(machine.handle(backend::Input::FrontendState(XenbusState::Connected)), []);
    assert_eq!(machine.state(), XenbusState::Closed);
}

#[test]
fn a_vif_that_cannot_be_served_is_closed_with_its_reason_until_it_is_removed() {
    let mut machine = backend(Hotplug::Pending);
    let closed = [XenbusState::Closing, XenbusState::Closed].map(written);
    let actions = machine.handle(backend::Input::Refused("the name is taken".to_owned()));
    let reported = backend::Action::ReportError("the name is taken".to_owned());
    assert_eq!(actions, [&[reported], closed.as_slice()].concat());
    for state in [XenbusState::Initialising, XenbusState::Connected, XenbusState::Closing] {
        assert_eq!(machine.handle(backend::Input::FrontendState(state)), []);
    }
    assert_eq!(machine.handle(backend::Input::Hotplug(Hotplug::Connected)), []);
    let actions = machine.handle(backend::Input::Offline);
    let stale = vec![KeyChange::Remove("hotplug-status".to_owned())];
    let closed = backend::Action::Write(stale, Some(XenbusState::Closed));
    assert_eq!(actions, [closed, backend::Action::Finished]);
}

#[test]
fn three_disturbances_at_any_moment_are_survived() {
    let all = [
        Disturbance::KillBackend,
        Disturbance::KillFrontend,
        Disturbance::OfferChanged(1),
        Disturbance::Reconnect(2),
    ];
    for first in all {
        for second in all {
            for third in all {
                explore(
                    World::new(2, QueueCount::AtMost(4)),
                    &[first, second, third],
                    World::check_connected,
                );
            }
        }
    }
}

#[test]
fn a_long_random_history_always_ends_connected() {
    for seed in 1..=1000 {
        let mut random = Rng::with_seed(0x5eed_0500 + seed);
        let mut world = World::new(8, QueueCount::AtMost(8)).with_late_reader();
        for _ in 0..400 {
            let end = [End::Backend, End::Reader, End::Frontend][random.usize(..3)];
            let queues = [1, 2, 4, 8][random.usize(..4)];
            match random.u8(..60) {
                0 => world.disturb(Disturbance::KillBackend),
                1 => world.disturb(Disturbance::KillFrontend),
                2 => world.disturb(Disturbance::OfferChanged(queues)),
                3 => world.disturb(Disturbance::Reconnect(queues)),
                4 => world.disturb(Disturbance::RunShort),
                _ if !world.is_idle(end) => world.step(end),
                _ => {}
            }
        }
        world.settle();
        if let Err(problem) = world.check_connected() {
            panic!("seed {seed}: {problem}: {world:#?}");
        }
    }
}

#[test]
fn an_invalid_queue_count_is_refused_with_a_reason_and_a_valid_one_accepted_later() {
    for (illegal, text) in [(9, "asks for 9 queues, expected 1 to 8"), (0, "asks for 0 queues")] {
        let mut world = World::new(8, QueueCount::Exactly(illegal));
        world.settle();
        assert_eq!(world.state(End::Backend), XenbusState::Closed);
        assert_eq!(world.state(End::Frontend), XenbusState::Closed);
        assert!(!world.is_attached());
        let error = world.error().expect("the reason is written").to_owned();
        assert!(error.contains(text), "{error}");
        assert!(error.starts_with(&VIF.frontend_dir()), "{error}");
        let [stock, _] = VIF.backend_errors();
        assert_eq!(world.get(&stock), Some(error.as_str()));

        world.reconnect(QueueCount::AtMost(8));
        world.settle();
        world.check_connected().expect("they connect");
        assert_eq!(world.queue_count(), 8);
    }
}

/// Takes steps of both ends, neither of which leaves its state.
fn stay_connected(world: &mut World) {
    for _ in 0..100 {
        for end in ENDS {
            if !world.is_idle(end) {
                world.step(end);
            }
            assert_eq!(world.state(end), XenbusState::Connected);
        }
    }
    world.check_connected().expect("they are still connected");
}

#[test]
fn a_restarted_backend_attaches_the_rings_without_a_state_change() {
    let mut world = connected(4, 4);
    world.disturb(Disturbance::KillBackend);
    stay_connected(&mut world);
    assert_eq!((world.reattached_count, world.detached_count), (1, 0));
}

#[test]
fn a_restarted_backend_short_of_resources_retries_and_closes_nothing() {
    let mut world = connected(4, 4);
    world.disturb(Disturbance::RunShort);
    world.disturb(Disturbance::KillBackend);
    stay_connected(&mut world);
    assert_eq!((world.retried_count, world.detached_count), (1, 0));
    assert_eq!(VIF.backend_errors().map(|path| world.get(&path).is_some()), [false; 2]);
}

#[test]
fn a_frontend_waits_for_a_backend_short_of_resources() {
    for wanted in [1, 4] {
        let mut world = World::new(4, QueueCount::AtMost(wanted));
        world.disturb(Disturbance::RunShort);
        world.settle();
        world.check_connected().expect("they connect");
        assert_eq!((world.retried_count, world.detached_count), (1, 0));
    }
}

#[test]
fn a_restarted_backend_with_a_smaller_offer_keeps_queues_until_the_frontend_reconnects() {
    let mut world = connected(8, 8);
    // The end comes before the notification of the change, which is known at the next start.
    world.disturb(Disturbance::OfferChanged(2));
    world.disturb(Disturbance::KillBackend);
    world.settle();
    world.check_connected().expect("they are still connected");
    assert_eq!((world.queue_count(), world.detached_count), (8, 0));
    world.reconnect(QueueCount::AtMost(8));
    world.settle();
    world.check_connected().expect("they connect again");
    assert_eq!(world.queue_count(), 2);
}

#[test]
fn a_changed_offer_reconnects_with_the_new_queue_count() {
    let mut world = connected(1, 8);
    for queues in [4u16, 8, 2, 1] {
        world.disturb(Disturbance::OfferChanged(queues));
        world.settle();
        world.check_connected().expect("they connect again");
        assert_eq!(world.queue_count(), usize::from(queues));
    }
    let dir = VIF.frontend_dir();
    assert_eq!(world.get(&format!("{dir}/queue-1/tx-ring-ref")), None, "old keys are removed");
    assert!(world.get(&format!("{dir}/tx-ring-ref")).is_some());
}

#[test]
fn a_fault_closes_the_vif_with_its_reason_until_the_frontend_starts_over() {
    let mut world = connected(2, 2);
    world.send_to_backend(backend::Input::PeerFault("tx ring: producer ran away".into()));
    world.settle();
    assert_eq!(world.state(End::Backend), XenbusState::Closed);
    assert_eq!(world.error(), Some("tx ring: producer ran away"));
    assert!(!world.is_attached());
    world.reconnect(QueueCount::AtMost(2));
    world.settle();
    world.check_connected().expect("they connect, and the error is gone");
}

#[test]
fn a_toolstack_removes_a_vif_even_if_the_frontend_does_nothing() {
    let mut world = connected(2, 2);
    world.send_to_backend(backend::Input::Offline);
    while !world.is_idle(End::Backend) {
        world.step(End::Backend);
    }
    assert_eq!(world.state(End::Backend), XenbusState::Closed);
    assert!(!world.is_attached() && world.is_finished(End::Backend));
    world.settle();
    assert_eq!((world.state(End::Frontend), world.queue_count()), (XenbusState::Closed, 0));
}

#[test]
fn a_stopping_frontend_waits_until_its_pages_are_unmapped() {
    let mut world = connected(2, 2);
    world.send_to_frontend(frontend::Input::Stop);
    world.settle();
    assert!(world.is_finished(End::Frontend) && !world.is_attached());
    assert_eq!(world.state(End::Frontend), XenbusState::Closed);
    assert_eq!(world.state(End::Backend), XenbusState::Closed);
    // Another frontend replaces it.
    world.disturb(Disturbance::KillFrontend);
    world.settle();
    world.check_connected().expect("they connect");
}

#[test]
fn a_vanished_frontend_leaves_nothing_attached_and_may_return() {
    let mut world = connected(2, 2);
    world.remove(&VIF.frontend_dir());
    while !world.is_idle(End::Backend) {
        world.step(End::Backend);
    }
    assert!(!world.is_attached());
    assert_eq!(world.state(End::Backend), XenbusState::Closed);
    world.disturb(Disturbance::KillFrontend);
    world.settle();
    world.check_connected().expect("they connect");
}

#[test]
fn a_backend_whose_directory_was_removed_writes_nothing() {
    let mut world = connected(2, 2);
    world.remove(&VIF.backend_dir());
    world.send_to_backend(backend::Input::Gone);
    world.settle();
    assert!(!world.is_attached() && world.is_finished(End::Backend));
    assert_eq!(world.get(&VIF.backend_state()), None);
    assert_eq!(Vif::from_backend_path(&VIF.backend_state()), Some(VIF));
}

/// The backend alone, with a frontend that goes through `Initialised`.
#[test]
fn a_frontend_may_be_initialised_before_it_is_connected() {
    let mut machine = backend(Hotplug::Absent);
    let (own, reconnects) = (XenbusState::Initialising, Reconnects::Never);
    let start = backend::Input::Start { own, peer: own, offered: Offered::default(), reconnects };
    let [backend::Action::Write(_, Some(XenbusState::InitWait))] = machine.handle(start)[..] else {
        panic!("it offers")
    };
    let state = backend::Input::FrontendState;
    assert_eq!(machine.handle(state(XenbusState::Initialising)), []);
    let actions = machine.handle(state(XenbusState::Initialised));
    assert_eq!(actions, [backend::Action::ReadFrontend { queues_max: 2 }]);
    let keys = frontend_keys(&[("state", "3")]);
    let [backend::Action::Attach(_, backend::Attachment::Fresh)] =
        machine.handle(backend::Input::FrontendKeys(keys))[..]
    else {
        panic!("it attaches")
    };
    let actions = machine.handle(backend::Input::Attached(Ok(())));
    let connected = written(XenbusState::Connected);
    assert_eq!(actions, [backend::Action::ClearError, connected]);
    assert_eq!(machine.handle(state(XenbusState::Connected)), []);
    assert!(machine.config().is_some());
    // It closes without an earlier `Closing`, and reconnects.
    let actions = machine.handle(state(XenbusState::Closed));
    let closed = written(XenbusState::Closed);
    assert_eq!(actions, [backend::Action::Detach, closed]);
    let actions = machine.handle(state(XenbusState::Initialising));
    let [backend::Action::Write(_, Some(XenbusState::InitWait))] = actions[..] else {
        panic!("it offers again")
    };
}

/// A frontend may have a request in its directory that was meant for another backend.
#[test]
fn a_request_of_multicast_control_counts_only_if_the_frontend_was_offered_it() {
    for was_offered in [false, true] {
        let mut machine = backend(Hotplug::Absent);
        let _ = machine.handle(backend::Input::Start {
            own: XenbusState::Connected,
            peer: XenbusState::Connected,
            offered: Offered {
                queues_max: Some(2),
                multicast_control: was_offered,
                ..Offered::default()
            },
            reconnects: Reconnects::Never,
        });
        let keys = frontend_keys(&[("state", "4"), ("request-multicast-control", "1")]);
        let actions = machine.handle(backend::Input::FrontendKeys(keys));
        let [backend::Action::Attach(config, backend::Attachment::Reattach)] = &actions[..] else {
            panic!("{actions:?}")
        };
        //= netif.h:multicast-request
        assert_eq!(config.multicast_control, was_offered);
        let _ = machine.handle(backend::Input::Attached(Ok(())));
        assert_eq!(machine.may_request_multicast_control(), was_offered);
    }
}

#[test]
fn a_backend_that_finds_its_vif_offline_closes_it() {
    let mut machine = backend(Hotplug::Absent);
    let actions = machine.handle(backend::Input::Offline);
    let states = [XenbusState::Closing, XenbusState::Closed].map(written);
    assert_eq!(actions, [states.as_slice(), &[backend::Action::Finished]].concat());
}

/// The backend alone, for two queues.
fn backend(hotplug: Hotplug) -> backend::Handshake {
    backend::Handshake::new(Offer::all(2, OffloadCaps::ALL.into()), hotplug)
}

/// What a frontend with one queue has written.
fn frontend_keys(further: &[(&str, &str)]) -> Keys {
    let values = [
        ("tx-ring-ref", "520"),
        ("rx-ring-ref", "521"),
        ("event-channel", "9"),
        ("request-rx-copy", "1"),
    ];
    let values = values.iter().chain(further);
    let values = values.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Keys::new(&VIF.frontend_dir(), values)
}

/// The backend writes this state and nothing else.
fn written(state: XenbusState) -> backend::Action {
    backend::Action::Write(Vec::new(), Some(state))
}

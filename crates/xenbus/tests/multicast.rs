//! A frontend that is to choose its multicast frames, and the frontend alone.

use ringway_datapath::OffloadCaps;
use ringway_wire::{EvtchnPort, GrantRef};
use ringway_xenbus::XenbusState::{InitWait, Initialising};
use ringway_xenbus::frontend::{Action, Allocated, Handshake, Input, Preferences, QueueCount};
use ringway_xenbus::{EventPorts, Features, KeyChange, Keys, QueueConfig};

const REQUEST: &str = "request-multicast-control";

/// What a frontend that wants to choose its frames says about it to a backend with these keys
/// besides.
fn request(offered: &[(&str, &str)]) -> Vec<KeyChange> {
    let features = Features::from(OffloadCaps::ALL);
    let mut machine = Handshake::new(Preferences { queues: QueueCount::AtMost(1), features });
    let _ = machine.handle(Input::Start { own: Initialising, peer: Initialising });
    assert_eq!(machine.handle(Input::BackendState(InitWait)), [Action::ReadBackend]);
    let values = [("state", InitWait.value()), ("feature-rx-copy", "1")];
    let values = values.into_iter().chain(offered.iter().copied());
    let own = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let keys = Keys::new("/local/domain/0/backend/vif/7/0", values.map(own));
    assert!(matches!(machine.handle(Input::BackendKeys(keys))[..], [Action::Allocate(_)]));
    let events = EventPorts::Single(EvtchnPort(5));
    let queue = QueueConfig { tx_ring_ref: GrantRef(8), rx_ring_ref: GrantRef(9), events };
    let allocated = Allocated { queues: vec![queue], control: None, multicast_control: true };
    let actions = machine.handle(Input::Allocated(Ok(allocated)));
    let [Action::Write(changes, Some(_))] = &actions[..] else { panic!("{actions:?}") };
    let is_request = |change: &&KeyChange| match change {
        KeyChange::Set(key, _) | KeyChange::Remove(key) => key == REQUEST,
    };
    changes.iter().filter(is_request).cloned().collect()
}

#[test]
fn frames_are_chosen_only_if_the_backend_offers_that() {
    //= netif.h:multicast-request
    let set = KeyChange::Set(REQUEST.to_owned(), "1".to_owned());
    assert_eq!(request(&[("feature-multicast-control", "1")]), [set]);
    let removed = [KeyChange::Remove(REQUEST.to_owned())];
    assert_eq!(request(&[]), removed);
    assert_eq!(request(&[("feature-multicast-control", "0")]), removed);
}

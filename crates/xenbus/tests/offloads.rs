//! A backend that is to offer other offloads, at any moment.

use ringway_datapath::OffloadCaps;
use ringway_xenbus::XenbusState::{Connected, InitWait, Initialising};
use ringway_xenbus::backend::{Action, Handshake, Input};
use ringway_xenbus::{Features, Hotplug, KeyChange, Keys, Offer, Offered, Reconnects};

/// The value of a key that the last of these actions sets.
fn gso(actions: &[Action]) -> Option<&str> {
    let Some(Action::Write(changes, _)) = actions.last() else { return None };
    changes.iter().find_map(|change| match change {
        KeyChange::Set(key, value) if key == "feature-gso-tcpv4" => Some(value.as_str()),
        _ => None,
    })
}

#[test]
fn offloads_are_offered_anew_until_a_frontend_connects_and_again_when_it_returns() {
    let (all, none) = (OffloadCaps::ALL.into(), Features::from(OffloadCaps::NONE));
    let offer = Offer {
        queues_max: 1,
        split_event_channels: false,
        control_ring: false,
        multicast_control: false,
        xdp_headroom: false,
        features: all,
    };
    let mut machine = Handshake::new(offer, Hotplug::Absent);
    let (own, offered) = (Initialising, Offered::default());
    let reconnects = Reconnects::Never;
    let actions = machine.handle(Input::Start { own, peer: own, offered, reconnects });
    assert_eq!(gso(&actions), Some("1"));
    let actions = machine.handle(Input::FeaturesChanged(none));
    assert_eq!(gso(&actions), Some("0"));
    assert!(matches!(&actions[..], [Action::Write(_, None)]), "its state is as before");

    let values = [
        ("state", Connected.value()),
        ("tx-ring-ref", "8"),
        ("rx-ring-ref", "9"),
        ("event-channel", "5"),
        ("request-rx-copy", "1"),
    ];
    let own = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let keys = Keys::new("/local/domain/7/device/vif/0", values.map(own));
    let _ = machine.handle(Input::FrontendState(Connected));
    let _ = machine.handle(Input::FrontendKeys(keys));
    let _ = machine.handle(Input::Attached(Ok(())));
    assert_eq!(machine.state(), Connected);
    assert_eq!(machine.handle(Input::FeaturesChanged(all)), [], "it stays connected");
    let actions = machine.handle(Input::FrontendState(Initialising));
    assert_eq!((gso(&actions), machine.state()), (Some("1"), InitWait));
}

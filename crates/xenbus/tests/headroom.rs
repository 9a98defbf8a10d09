//! A frontend that asks for headroom while it is served, and the backend alone.

use ringway_datapath::OffloadCaps;
use ringway_xenbus::XenbusState::{
    self, Closing, Connected, InitWait, Initialising, Reconfigured, Reconfiguring,
};
use ringway_xenbus::backend::{Action, Handshake, Input};
use ringway_xenbus::{Features, FrontendConfig, Hotplug, Keys, Offer, Offered, Reconnects};

const DIR: &str = "/local/domain/7/device/vif/0";

fn handshake(hotplug: Hotplug) -> Handshake {
    let offer = Offer {
        queues_max: 1,
        split_event_channels: false,
        control_ring: false,
        multicast_control: false,
        xdp_headroom: true,
        features: Features::from(OffloadCaps::ALL),
    };
    Handshake::new(offer, hotplug)
}

/// The keys of a frontend in this state.
fn keys(state: XenbusState, headroom: Option<&str>) -> Keys {
    let values = [
        ("state", state.value()),
        ("tx-ring-ref", "8"),
        ("rx-ring-ref", "9"),
        ("event-channel", "5"),
        ("request-rx-copy", "1"),
    ];
    let headroom = headroom.map(|bytes| ("xdp-headroom", bytes));
    let values = values.into_iter().chain(headroom);
    Keys::new(DIR, values.map(|(key, value)| (key.to_owned(), value.to_owned())))
}

fn read(state: XenbusState, headroom: &str) -> Input {
    Input::Headroom(keys(state, Some(headroom)))
}

fn written(state: XenbusState) -> Action {
    Action::Write(Vec::new(), Some(state))
}

fn attached(actions: &[Action]) -> &FrontendConfig {
    match actions {
        [Action::Attach(config, _)] => config,
        other => panic!("{other:?}"),
    }
}

/// A backend that serves a frontend whose keys are these.
fn serving(hotplug: Hotplug, headroom: Option<&str>) -> (Handshake, Vec<Action>) {
    let mut machine = handshake(hotplug);
    let (own, offered) = (Initialising, Offered::default());
    let reconnects = Reconnects::Never;
    let _ = machine.handle(Input::Start { own, peer: own, offered, reconnects });
    let _ = machine.handle(Input::FrontendState(Connected));
    let actions = machine.handle(Input::FrontendKeys(keys(Connected, headroom)));
    let _ = attached(&actions);
    let actions = machine.handle(Input::Attached(Ok(())));
    (machine, actions)
}

#[test]
fn a_change_is_accepted_when_frames_have_the_headroom_that_it_needs() {
    //= netif.h:xdp-headroom
    let (mut machine, actions) = serving(Hotplug::Absent, Some("0"));
    assert_eq!(actions, [Action::ClearError, written(Connected)]);
    let reads = [Action::ReadHeadroom];
    assert_eq!(machine.handle(Input::FrontendState(Reconfiguring)), reads);
    // Linux' frontend has yet to write its key.
    let actions = machine.handle(read(Reconfiguring, "0"));
    assert_eq!(actions, [Action::SetHeadroom(256), written(Reconfigured)]);
    assert_eq!(machine.config().map(|config| config.headroom), Some(256));
    assert_eq!(machine.handle(Input::FrontendState(Connected)), reads);
    // It is read again behind the state: the frontend may not have waited.
    assert_eq!(machine.handle(read(Connected, "256")), [written(Connected), reads[0].clone()]);
    assert_eq!(machine.handle(read(Connected, "256")), []);
    // It removes its program.
    assert_eq!(machine.handle(Input::FrontendState(Reconfiguring)), reads);
    assert_eq!(machine.handle(read(Reconfiguring, "0")), [written(Reconfigured)]);
    assert_eq!(machine.handle(Input::FrontendState(Connected)), reads);
    assert_eq!(machine.handle(read(Connected, "0")), [written(Connected), reads[0].clone()]);
    assert_eq!(machine.handle(read(Connected, "0")), [Action::SetHeadroom(0)]);
}

#[test]
fn headroom_that_cannot_be_given_is_reported_once_and_the_vif_is_served() {
    let reason =
        format!("{DIR}/xdp-headroom is \"65535\", expected a number of bytes from 0 to 2048");
    let reported = Action::ReportError(reason);
    let (mut machine, actions) = serving(Hotplug::Absent, Some("65535"));
    assert_eq!(actions, [Action::ClearError, reported.clone(), written(Connected)]);
    assert_eq!(machine.config().map(|config| config.headroom), Some(0));
    let _ = machine.handle(Input::FrontendState(Reconfiguring));
    // It has written it again, and waits for the state.
    let actions = machine.handle(read(Reconfiguring, "65535"));
    assert_eq!(actions, [Action::SetHeadroom(256), written(Reconfigured)]);
    let _ = machine.handle(Input::FrontendState(Connected));
    let _ = machine.handle(read(Connected, "65535"));
    assert_eq!(machine.handle(read(Connected, "65535")), [Action::SetHeadroom(0)]);
    let actions = machine.handle(read(Connected, "64"));
    assert_eq!(actions, [Action::ClearError, Action::SetHeadroom(64)]);
    assert_eq!(machine.handle(read(Connected, "65535")), [reported, Action::SetHeadroom(0)]);
}

#[test]
fn what_is_read_late_counts_only_while_the_frontend_is_served() {
    let (mut machine, _) = serving(Hotplug::Absent, Some("0"));
    let _ = machine.handle(Input::FrontendState(Reconfiguring));
    // Its state has changed since.
    assert_eq!(machine.handle(read(Closing, "256")), []);
    let actions = machine.handle(Input::FrontendState(Closing));
    assert_eq!(actions, [Action::Detach, written(Closing)]);
    assert_eq!(machine.handle(read(Reconfiguring, "256")), []);
}

#[test]
fn a_frontend_need_not_wait_for_the_script_of_its_toolstack() {
    let (mut machine, actions) = serving(Hotplug::Pending, Some("0"));
    assert_eq!(actions, [Action::ClearError, Action::AwaitHotplug]);
    assert_eq!(machine.state(), InitWait);
    let _ = machine.handle(Input::FrontendState(Reconfiguring));
    let actions = machine.handle(read(Reconfiguring, "256"));
    assert_eq!(actions, [Action::SetHeadroom(256), written(Reconfigured)]);
    // The script is done while the frontend waits: it would miss what it waits for.
    let actions = machine.handle(Input::Hotplug(Hotplug::Connected));
    assert_eq!(actions, [Action::ReadHeadroom]);
    assert_eq!(machine.handle(read(Reconfiguring, "256")), []);
    let _ = machine.handle(Input::FrontendState(Connected));
    let actions = machine.handle(read(Connected, "256"));
    assert_eq!(actions, [written(Connected), Action::ReadHeadroom]);
}

#[test]
fn a_backend_that_starts_again_finds_a_change_where_it_is() {
    let offered = Offered { queues_max: Some(1), xdp_headroom: true, ..Offered::default() };
    let unoffered = Offered { xdp_headroom: false, ..offered };
    let all = [
        // It had accepted a change, whose end it has not seen.
        ((Reconfigured, Connected), offered, "0", 256),
        ((Reconfigured, Reconfiguring), offered, "0", 256),
        ((Connected, Reconfiguring), offered, "0", 256),
        ((Connected, Reconfiguring), offered, "512", 512),
        ((Connected, Connected), offered, "64", 64),
        ((Connected, Connected), offered, "0", 0),
        // It was connected by a backend that did not offer headroom: the key is that of another.
        ((Connected, Connected), unoffered, "256", 0),
    ];
    for ((own, peer), offered, headroom, expected) in all {
        let mut machine = handshake(Hotplug::Absent);
        let reconnects = Reconnects::Never;
        let actions = machine.handle(Input::Start { own, peer, offered, reconnects });
        assert_eq!(actions, [Action::ReadFrontend { queues_max: 1 }], "{own} and {peer}");
        let actions = machine.handle(Input::FrontendKeys(keys(peer, Some(headroom))));
        assert_eq!(attached(&actions).headroom, expected, "{own} and {peer}");
        let actions = machine.handle(Input::Attached(Ok(())));
        let follows = match (own, peer) {
            (_, Reconfiguring) => vec![Action::ReadHeadroom],
            (Reconfigured, _) => vec![written(Connected), Action::ReadHeadroom],
            _ => Vec::new(),
        };
        assert_eq!(actions, [vec![Action::ClearError], follows].concat(), "{own} and {peer}");
    }
}

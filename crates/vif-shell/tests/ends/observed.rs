//! What a third party sees of both ends while they change keys and states.

use std::time::Instant;

use ringway_datapath::OffloadCaps;
use ringway_vif_shell::{BackendEnd, FrontendEnd};
use ringway_xenbus::backend::Input;
use ringway_xenbus::frontend::{Preferences, QueueCount};
use ringway_xenbus::{Features, Hotplug, XenbusState};
use ringway_xenstore::{
    Client, DomId, Events, LocalStore, LocalTransport, Lost, Reply, Request, Transport,
};

use crate::{GUEST, HOST, Process, VIF, found, offer, with_vif};

/// What another session finds in some nodes after each request of a client, as often as it changes.
struct Observed {
    transport: LocalTransport,
    observer: Client<LocalTransport>,
    nodes: Vec<String>,
    found: Vec<Vec<Option<String>>>,
}

impl Observed {
    fn client(store: &LocalStore, domain: DomId, nodes: Vec<String>) -> Client<Observed> {
        let transport = LocalTransport::open(store, domain).expect("few sessions");
        let observer = store.connect(HOST).expect("few sessions");
        Client::with_transport(Observed { transport, observer, nodes, found: Vec::new() })
    }
}

impl Transport for Observed {
    fn request(&mut self, request: Request<'_>, events: &mut Events) -> Result<Reply, Lost> {
        let reply = self.transport.request(request, events);
        let Observed { observer, nodes, found, .. } = self;
        let values = nodes.iter().map(|node| observer.read(node).expect("domain 0 may"));
        let values: Vec<Option<String>> = values.collect();
        if found.last() != Some(&values) {
            found.push(values);
        }
        reply
    }

    fn take_events(&mut self, events: &mut Events) -> Result<(), Lost> {
        self.transport.take_events(events)
    }
}

#[test]
fn keys_are_never_seen_without_the_state_that_they_belong_to() {
    let store = with_vif();
    let dir = VIF.backend_dir();
    let mut toolstack = store.connect(HOST).expect("few sessions");
    toolstack.write(&format!("{dir}/hotplug-status"), "connected").expect("domain 0 may");
    let own = found(&mut toolstack);
    let keys = ["state", "multi-queue-max-queues", "hotplug-status"];
    let mut host = Observed::client(&store, HOST, keys.map(|key| format!("{dir}/{key}")).into());
    let (mut process, now) = (Process::default(), Instant::now());
    let mut end = BackendEnd::new(VIF, offer(), Hotplug::Connected, now);
    end.start(&mut host, &mut process, &own, now).expect("the store is there");

    let dir = VIF.frontend_dir();
    let keys = ["state", "multi-queue-num-queues"];
    let mut guest = Observed::client(&store, GUEST, keys.map(|key| format!("{dir}/{key}")).into());
    let (mut process_of_guest, features) = (Process::default(), Features::from(OffloadCaps::ALL));
    let mut other = FrontendEnd::new(VIF, Preferences { queues: QueueCount::AtMost(3), features });
    let start = XenbusState::Initialising;
    other.start(&mut guest, &mut process_of_guest, start).expect("the store is there");
    let seen = |values: &[&[&str]]| -> Vec<Vec<Option<String>>> {
        let value = |text: &&str| (*text != "-").then(|| (*text).to_owned());
        values.iter().map(|values| values.iter().map(value).collect()).collect()
    };
    assert_eq!(guest.transport().found, seen(&[&["1", "-"], &["4", "3"]]));

    end.feed(&mut host, &mut process, Input::Offline, now).expect("the store is there");
    let offered = ["2", "4", "connected"];
    let closing = ["5", "4", "connected"];
    let expected = seen(&[&["1", "-", "connected"], &offered, &closing, &["6", "4", "-"]]);
    assert_eq!(host.transport().found, expected);
}

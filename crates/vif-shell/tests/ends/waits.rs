//! What an end waits for, and what it was refused, as people are shown.

use std::time::{Duration, Instant};

use ringway_vif_shell::{BackendEnd, EndWait};
use ringway_wire::xenstore::Op;
use ringway_xenbus::backend::Input;
use ringway_xenbus::{Hotplug, XenbusState};
use ringway_xenstore::{Client, Errno, Events, LocalTransport, Lost, Reply, Request, Transport};

use crate::{
    Backend, FRONTEND_KEYS, GUEST, HOST, Process, VIF, connecting, found, offer, with_vif, write,
};

/// A store that has no space for what a host writes.
struct Full {
    transport: LocalTransport,
    is_full: bool,
}

impl Transport for Full {
    fn request(&mut self, request: Request<'_>, events: &mut Events) -> Result<Reply, Lost> {
        match self.is_full && request.op == Op::Write {
            true => Ok(Err(Errno::Nospc)),
            false => self.transport.request(request, events),
        }
    }

    fn take_events(&mut self, events: &mut Events) -> Result<(), Lost> {
        self.transport.take_events(events)
    }
}

fn waits(backend: &Backend) -> Vec<(EndWait, Instant)> {
    backend.end.waits(backend.now).collect()
}

#[test]
fn a_guest_that_changes_its_keys_too_often_is_known_until_it_may_have_a_burst() {
    let store = with_vif();
    let mut backend = Backend::start(&store);
    let mut guest = store.connect(GUEST).expect("few sessions");
    write(&mut guest, &FRONTEND_KEYS);
    let reconnect = |guest: &mut Client<LocalTransport>, backend: &mut Backend| {
        for state in ["1", "4"] {
            write(guest, &[("state", state)]);
            backend.turn();
        }
    };
    for _ in 0..10 {
        reconnect(&mut guest, &mut backend);
        assert_eq!(waits(&backend), []);
    }
    reconnect(&mut guest, &mut backend);
    let began = backend.now;
    for _ in 0..20 {
        reconnect(&mut guest, &mut backend);
        assert_eq!(waits(&backend), [(EndWait::Keys, began)]);
        backend.now = backend.end.due().expect("it is put off");
        backend.turn();
        assert!(backend.process.attached.is_some());
    }
    backend.now += Duration::from_secs(3);
    assert_eq!(waits(&backend), []);
}

#[test]
fn a_lack_of_resources_begins_once_and_ends_with_the_connection() {
    let store = with_vif();
    let mut backend = Backend::start(&store);
    backend.process.shortage = Some("no memory".to_owned());
    let mut guest = connecting(&store);
    backend.turn();
    let began = backend.now;
    for _ in 0..3 {
        assert_eq!(waits(&backend), [(EndWait::Resources, began)]);
        backend.now = backend.end.due().expect("it is tried again");
        backend.turn();
    }
    backend.process.shortage = None;
    backend.now = backend.end.due().expect("it is tried again");
    backend.turn();
    assert_eq!(backend.end.state(), XenbusState::Connected);
    assert_eq!(waits(&backend), []);

    // Nor is it waited for when the guest has left.
    write(&mut guest, &[("state", "1")]);
    backend.turn();
    backend.process.shortage = Some("no memory".to_owned());
    write(&mut guest, &[("state", "4")]);
    backend.turn();
    write(&mut guest, &[("state", "6")]);
    backend.turn();
    backend.now += Duration::from_secs(3);
    backend.turn();
    assert_eq!(waits(&backend), []);
}

#[test]
fn a_script_is_waited_for_until_it_is_done_or_the_guest_has_left() {
    for end in ["script", "guest"] {
        let store = with_vif();
        let mut host = store.connect(HOST).expect("few sessions");
        let mut guest = connecting(&store);
        let (mut process, now) = (Process::default(), Instant::now());
        let mut backend = BackendEnd::new(VIF, offer(), Hotplug::Pending, now);
        let (own, lost) = (found(&mut host), "the store is there");
        backend.start(&mut host, &mut process, &own, now).expect(lost);
        backend.resume(&mut host, &mut process, now).expect(lost);
        assert!(process.attached.is_some());
        let later = now + Duration::from_secs(9);
        assert_eq!(backend.waits(later).collect::<Vec<_>>(), [(EndWait::Script, now)]);
        match end {
            "script" => {
                let done = Input::Hotplug(Hotplug::Connected);
                backend.feed(&mut host, &mut process, done, later).expect(lost);
                assert_eq!(backend.state(), XenbusState::Connected);
            }
            _ => {
                write(&mut guest, &[("state", "5")]);
                backend.frontend_changed(&mut host, &mut process, later).expect(lost);
            }
        }
        assert_eq!(backend.waits(later).count(), 0, "{end}");
    }
}

#[test]
fn what_the_store_refuses_is_counted_with_the_last_and_its_time() {
    let store = with_vif();
    let transport = LocalTransport::open(&store, HOST).expect("few sessions");
    let mut host = Client::with_transport(Full { transport, is_full: false });
    let (mut process, now) = (Process::default(), Instant::now());
    let mut end = BackendEnd::new(VIF, offer(), Hotplug::Absent, now);
    let (own, lost) = (found(&mut store.connect(HOST).expect("few sessions")), "it is there");
    end.start(&mut host, &mut process, &own, now).expect(lost);
    let _guest = connecting(&store);
    end.frontend_changed(&mut host, &mut process, now).expect(lost);
    assert_eq!((process.attached_count, end.refusals()), (1, None));
    host.transport_mut().is_full = true;
    let later = now + Duration::from_secs(1);
    let fault = Input::PeerFault("a fault".to_owned());
    end.feed(&mut host, &mut process, fault, later).expect(lost);
    let refusals = end.refusals().expect("there are some");
    assert_eq!((refusals.count > 0, refusals.at), (true, later));
    assert!(refusals.last.is(Errno::Nospc), "{}", refusals.last);
}

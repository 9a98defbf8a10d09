//! The process that serves all vifs.

use std::io::Write as _;
use std::os::unix::net::UnixStream;

use ringway_control::{
    BackendRequest, Link, OpenerEvent, OpenerOrder, PluggerEvent, PluggerRequest, ProcessReport,
};
use ringway_sys::hangup::Hangup;
use ringway_trunk::Trunks;
use ringway_xenbus::Vif;
use ringway_xenstore::DomId;
use serde_json::json;

use crate::running::{Running, link, next, report, supervisor, vifs};

const VIF: Vif = Vif { backend: DomId(0), frontend: DomId(1), handle: 0 };

/// The process, and those that it speaks with.
struct Backend {
    running: Running,
    supervisor: Link,
    opener: Link,
    plugger: Link,
    /// What is written here is a signal to read the description again.
    hangup: UnixStream,
}

impl Backend {
    /// One that serves the described vifs.
    fn start(described: &[&str]) -> Backend {
        let (supervisor, reports_to) = supervisor();
        let ((opener, its_opener), (plugger, its_plugger)) = (link(), link());
        for name in described {
            opener.send(&added(name, false), &[]).expect("there is room");
        }
        opener.send(&OpenerEvent::Ready, &[]).expect("there is room");
        let (hangup, signals) = UnixStream::pair().expect("descriptors");
        let running = Running::start(reports_to, move |begun| {
            let (_terminal, stop) = UnixStream::pair()?;
            let hangup = Some(Hangup::new(signals, stop));
            let sockets = begun.sockets.with_opener(its_opener).with_plugger(Some(its_plugger));
            let sockets = sockets.with_hangup(hangup);
            ringway_backend::run(Trunks, begun.store, begun.config, sockets, begun.stop)
        });
        let backend = Backend { running, supervisor, opener, plugger, hangup };
        for name in described {
            assert_eq!(backend.order(), done(name, None));
        }
        assert_eq!(report(&backend.supervisor), vifs(described.len()));
        assert_eq!(report(&backend.supervisor), ProcessReport::Ready);
        backend
    }

    /// The next order to the opener.
    fn order(&self) -> OpenerOrder {
        next(&self.opener)
    }

    fn of_opener(&self, event: &OpenerEvent) {
        self.opener.send(event, &[]).expect("there is room");
    }

    fn of_plugger(&self, event: &PluggerEvent) {
        self.plugger.send(event, &[]).expect("there is room");
    }

    /// The number of the next order to the plugger, whose vif is to have no port.
    fn port_order(&self, vif: &str) -> u64 {
        match next(&self.plugger) {
            PluggerRequest::Order(order) if order.vif == vif && order.wanted.is_none() => {
                order.number
            }
            other => panic!("{other:?}"),
        }
    }

    /// The names of its vifs.
    fn names(&self) -> Vec<String> {
        self.running.status().vifs.into_iter().map(|vif| vif.name).collect()
    }

    /// It ends as it is asked to, and with it its opener.
    fn end(self) {
        let Backend { running, opener, .. } = self;
        let thread = running.stop();
        while next::<OpenerOrder>(&opener) != OpenerOrder::Leave {}
        drop(opener);
        thread.join().expect("it does not panic").expect("it was asked to");
    }
}

fn added(name: &str, at_run_time: bool) -> OpenerEvent {
    OpenerEvent::Added { name: name.to_owned(), vhost: json!(name), at_run_time }
}

fn described(name: &str) -> OpenerEvent {
    OpenerEvent::Described { vhost: json!(name) }
}

fn removed(name: &str) -> OpenerEvent {
    OpenerEvent::Removed { name: name.to_owned() }
}

fn done(name: &str, error: Option<&str>) -> OpenerOrder {
    OpenerOrder::Done { name: name.to_owned(), error: error.map(str::to_owned) }
}

#[test]
fn vifs_of_both_kinds_are_served_and_shown_as_they_come_and_go() {
    let mut backend = Backend::start(&["vm1"]);
    backend.running.make(VIF);
    assert_eq!(report(&backend.supervisor), vifs(2));
    let status = backend.running.status();
    let names: Vec<&str> = status.vifs.iter().map(|vif| vif.name.as_str()).collect();
    assert_eq!(names, ["vif1.0", "vm1"]);
    assert_eq!((status.pid, status.policy.as_str()), (std::process::id(), "static"));
    let workers: Vec<_> = status.workers.iter().map(|it| (it.index, it.queues)).collect();
    assert_eq!(workers, [(0, 0)]);
    backend.running.remove(VIF);
    assert_eq!(report(&backend.supervisor), vifs(1));
    assert_eq!(backend.names(), ["vm1"]);
    backend.end();
}

#[test]
fn a_call_is_carried_out_or_refused_with_the_reason() {
    let backend = Backend::start(&["vm1"]);
    let call = |request: &BackendRequest| backend.running.call::<()>(request);
    let (vif, limit, value) = ("vm1".to_owned(), "weight".to_owned(), "3".to_owned());
    let weight = BackendRequest::SetLimit { vif, limit, value };
    assert_eq!(call(&weight), Ok(()));
    assert_eq!(backend.running.status().vifs[0].limits.weight, 3);
    let capture = BackendRequest::Capture { vif: "vm1".to_owned(), snap_len: 96 };
    let refused = "vm1 is not connected, so it has no frames".to_owned();
    assert_eq!(call(&capture), Err(refused));
    let panic = BackendRequest::Panic { vif: "vm1".to_owned() };
    assert_eq!(call(&panic), Err("this process is not under test".to_owned()));
    backend.end();
}

#[test]
fn the_opener_learns_what_was_done_about_each_vif() {
    let backend = Backend::start(&[]);
    for error in [None, Some("a vif vm2 exists already")] {
        backend.of_opener(&added("vm2", true));
        assert_eq!(backend.order(), done("vm2", error));
    }
    let (name, vhost) = ("vm3".to_owned(), json!({}));
    backend.of_opener(&OpenerEvent::Added { name, vhost, at_run_time: true });
    assert_eq!(backend.order(), done("vm3", Some("it has no name")));
    let (name, reason) = ("vm2".to_owned(), "its machine is off".to_owned());
    let waiting = OpenerEvent::Waiting { name, reason, is_failure: false, is_absence: true };
    backend.of_opener(&waiting);
    backend.of_opener(&removed("vm9"));
    assert_eq!(backend.order(), done("vm9", None));
    let shown = backend.running.status().vifs.remove(0);
    assert_eq!(shown.error.as_deref(), Some("its machine is off"));
    assert_eq!(shown.error_kind.as_deref(), Some("no_guest"));
    backend.of_opener(&removed("vm2"));
    assert_eq!(backend.order(), done("vm2", None));
    assert_eq!(backend.names(), [""; 0]);
    backend.end();
}

#[test]
fn a_description_that_is_read_again_is_in_force_or_changes_nothing() {
    let mut backend = Backend::start(&["vm1", "vm2"]);
    backend.running.make(VIF);
    assert_eq!(report(&backend.supervisor), vifs(3));
    backend.hangup.write_all(&[1]).expect("it is read");
    assert_eq!(backend.order(), OpenerOrder::Reload);
    ["vm1", "vm3"].iter().for_each(|name| backend.of_opener(&described(name)));
    let reload = |common| OpenerEvent::Reload { common, changed: Vec::new() };
    backend.of_opener(&reload(json!(7)));
    let (added, removed) = (vec!["vm3".to_owned()], vec!["vm2".to_owned()]);
    assert_eq!(backend.order(), OpenerOrder::Reloaded { added, removed, error: None });
    assert_eq!(report(&backend.supervisor), ProcessReport::Ready, "it was asked to by a signal");
    assert_eq!(report(&backend.supervisor), vifs(2));
    let queues = |backend: &Backend| backend.running.status().vifs[0].max_queues;
    assert_eq!(queues(&backend), 7);
    assert_eq!(backend.names(), ["vif1.0", "vm1"]);

    // What is wrong with it is said, and nothing of it is left for the next one.
    backend.of_opener(&described("vm4"));
    backend.of_opener(&reload(json!({})));
    let error = Some("there are no queues".to_owned());
    let (added, removed) = (Vec::new(), Vec::new());
    assert_eq!(backend.order(), OpenerOrder::Reloaded { added, removed, error });
    backend.of_opener(&described("vm1"));
    backend.of_opener(&reload(json!(7)));
    let (added, removed) = (Vec::new(), Vec::new());
    assert_eq!(backend.order(), OpenerOrder::Reloaded { added, removed, error: None });
    assert_eq!(report(&backend.supervisor), vifs(2), "no one has asked by a signal");

    backend.hangup.write_all(&[1]).expect("it is read");
    assert_eq!(backend.order(), OpenerOrder::Reload);
    backend.of_opener(&OpenerEvent::Refused);
    assert_eq!(report(&backend.supervisor), ProcessReport::Ready);
    backend.end();
}

#[test]
fn orders_to_the_plugger_are_numbered_and_follow_each_other() {
    let backend = Backend::start(&[]);
    let found = |vif: &str| PluggerEvent::Found { vifs: vec![vif.to_owned()] };
    backend.of_plugger(&found("virtio/gone"));
    assert_eq!(backend.port_order("virtio/gone"), 1);
    // Its successor knows nothing of that one.
    backend.of_plugger(&PluggerEvent::Begun);
    assert_eq!(backend.port_order("virtio/gone"), 2);
    backend.of_plugger(&found("virtio/other"));
    backend.of_plugger(&PluggerEvent::Done { number: 2, outcome: Ok(Default::default()) });
    assert_eq!(backend.port_order("virtio/other"), 3);
    backend.end();
}

#[test]
fn the_process_ends_with_those_that_it_cannot_do_without() {
    let Backend { running, opener, plugger: _plugger, .. } = Backend::start(&[]);
    drop(opener);
    let error = running.wait().expect_err("it opens no sockets");
    assert_eq!(error.to_string(), "the process that opens sockets has ended");
    let Backend { running, opener: _opener, plugger, .. } = Backend::start(&[]);
    drop(plugger);
    let error = running.wait().expect_err("it asks no ovs-vsctl");
    assert_eq!(error.to_string(), "the process that asks ovs-vsctl has ended");
}

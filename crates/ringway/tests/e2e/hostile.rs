//! A guest that violates the protocol loses its vif and finds the reason in XenStore; no one else
//! is affected.
//!
//! The attacks are in the crate `hostile`, whose own test runs all of them. These tests check what
//! people and tools see of them.

use ringway_datapath::MacAddr;
use ringway_e2e::host::{Host, SOON, describe, wait_for};
use ringway_e2e::shared_turn;
use ringway_e2e::traffic::{Iperf, UNTIL_STOPPED};
use ringway_hostile::guest::{Guest, Key};
use ringway_hostile::queue::Prepared;
use ringway_hostile::{Queue, Toolstack};
use ringway_wire::netif::{NETTXF_MORE_DATA, TX_RING_SLOTS};
use ringway_xenbus::Vif;

/// Pages for what a frontend sends at once.
pub(crate) const BUFFERS: usize = 64;

/// A frontend with one queue, controlled by a test.
pub(crate) struct Hostile<'a> {
    host: &'a Host,
    guest: Guest,
}

impl<'a> Hostile<'a> {
    /// Creates a domain with a vif, as a toolstack does, and becomes its guest.
    pub(crate) fn new(host: &'a Host) -> Hostile<'a> {
        Hostile::with_keys(host, &[])
    }

    /// Creates a domain with a vif that has other or more keys in the backend's directory, and
    /// becomes its guest.
    pub(crate) fn with_keys(host: &'a Host, keys: &[(&str, &str)]) -> Hostile<'a> {
        let mut toolstack = Toolstack::join(&host.dir()).expect("the host runs");
        let vif = toolstack.make_guest(None, keys).expect("domain 0 may");
        let guest = Guest::emulated(&host.dir(), vif.frontend).expect("it is free");
        Hostile { host, guest }
    }

    /// Becomes connected, after changing some of its keys.
    pub(crate) fn publish(&mut self, changes: &[(&str, &str)]) {
        let vif = self.guest.vif;
        self.host.wait("the backend's offer", SOON, |host| {
            host.node(&vif.backend_state()).filter(|state| state == "2")
        });
        if self.guest.queues.is_empty() {
            self.guest.make_queues(1, BUFFERS).expect("there is memory");
        }
        let changes: Vec<Key<'_>> =
            changes.iter().map(|(key, value)| (*key, Some(*value))).collect();
        self.guest.say(&changes).expect("written");
    }

    pub(crate) fn vif(&self) -> Vif {
        self.guest.vif
    }

    pub(crate) fn name(&self) -> String {
        format!("vif{}.{}", self.guest.vif.frontend, self.guest.vif.handle)
    }

    /// Writes its own state.
    pub(crate) fn set_state(&mut self, state: &str) {
        self.guest.set_state(state).expect("written");
    }

    pub(crate) fn connect(&mut self) {
        self.publish(&[]);
        let vif = self.guest.vif;
        self.host.wait("the backend to connect", SOON, |host| {
            host.node(&vif.backend_state()).filter(|state| state == "4")
        });
    }

    /// The address assigned by the toolstack.
    pub(crate) fn mac(&self) -> MacAddr {
        self.guest.mac
    }

    /// Sends a frame, and waits until the backend has read it.
    pub(crate) fn send(&mut self, frame: &[u8]) {
        self.send_together(&[frame.to_vec()]);
    }

    /// Sends some frames at once, at most [`BUFFERS`], and waits until the backend has read them.
    pub(crate) fn send_together(&mut self, frames: &[Vec<u8>]) {
        let queue = self.queue();
        for (buffer, frame) in frames.iter().enumerate() {
            Prepared::new(queue, buffer, frame, 0, None).push(queue);
        }
        queue.publish_tx();
        wait_for("responses", SOON, || (queue.tx_room() == TX_RING_SLOTS).then_some(()));
    }

    /// Closes, and is ready to connect again with new rings.
    pub(crate) fn disconnect(&mut self) {
        self.guest.start_over().expect("the backend offers again");
    }

    fn queue(&mut self) -> &mut Queue {
        self.guest.queues.first_mut().expect("it is connected")
    }

    /// Waits until its vif is closed for a reason with these parts, which was logged once.
    pub(crate) fn expect_closed(&self, parts: &[&str]) {
        let name = self.name();
        let [for_tools, beside_keys] = self.guest.vif.backend_errors();
        let mut reason = String::new();
        for node in [for_tools, beside_keys] {
            reason = self.host.wait(&format!("{parts:?} in {node}"), SOON, |host| host.node(&node));
            for part in parts {
                assert!(reason.contains(part), "{part:?} is not in {reason:?}");
            }
        }
        self.host.wait("the vif to close", SOON, |host| {
            let state = host.node(&self.guest.vif.backend_state())?;
            matches!(state.as_str(), "5" | "6").then_some(())
        });
        let vif = self.host.vif(&name).expect("it is listed");
        assert_eq!((vif.queues.len(), vif.error), (0, Some(reason.clone())));
        let log = self.host.log();
        let lines = log.lines().filter(|line| line.contains(&name) && line.contains(&reason));
        assert_eq!(lines.count(), 1, "{reason}\n{log}");
    }
}

#[test]
fn a_guest_that_breaks_the_protocol_loses_only_its_own_vif() {
    let Some(_turn) = shared_turn(&["iperf3", "xenstore-read"]) else { return };
    let vif = "queues = 2";
    let host = Host::start(&describe("max-queues = 2", &[("a", "", vif), ("b", "", vif)]));
    let backend = host.pid_of("backend");
    let transfer = Iperf::start(&host, "a", ("b", "10.77.0.2"), UNTIL_STOPPED);

    type Fault = fn(&mut Queue);
    let faults: [(Fault, &[&str]); 4] = [
        (|queue| queue.tx_produced = 1000, &["tx ring", "1000", "256"]),
        (|queue| queue.rx_produced = 1000, &["rx ring", "1000", "256"]),
        (
            |queue| queue.push_tx(queue.request(0, 4000, 200, 0)),
            &["crosses its page", "4000", "200"],
        ),
        (
            |queue| queue.push_tx(queue.request(0, 0, 60, NETTXF_MORE_DATA)),
            &["tx ring", "is incomplete"],
        ),
    ];
    for (fault, parts) in faults {
        let mut guest = Hostile::new(&host);
        guest.connect();
        fault(guest.queue());
        guest.queue().publish_tx();
        guest.queue().publish_rx();
        guest.expect_closed(parts);
        transfer.expect_progress(&host);
    }
    for (key, value, parts) in [
        ("tx-ring-ref", "4000000", ["ring page", "4000000"]),
        ("event-channel", "99", ["event channel", "99"]),
        ("rx-ring-ref", "banana", ["rx-ring-ref", "banana"]),
        ("request-rx-copy", "0", ["request-rx-copy", "expected"]),
        ("multi-queue-num-queues", "3", ["3 queues", "1 to 2"]),
    ] {
        let mut guest = Hostile::new(&host);
        guest.publish(&[(key, value)]);
        guest.expect_closed(&parts);
    }

    transfer.expect_progress(&host);
    transfer.stop();
    assert_eq!(host.pid_of("backend"), backend);
    assert_eq!(host.event("backend-restarted"), None);
}

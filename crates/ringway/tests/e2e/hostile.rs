//! A guest that breaks the protocol. It loses its vif; nobody else notices.

use std::sync::atomic::Ordering;

use ringway_datapath::{MacAddr, PortRules};
use ringway_emu::{EmuEvent, EmuGrants, EmuHypervisor, NewDomain, OwnPages, Role};
use ringway_hypervisor::{Access, EventChannel, Hypervisor};
use ringway_ring::{FrontRing, Rx, Tx};
use ringway_wire::netif::{NETTXF_MORE_DATA, TxRequest, TxResponse};
use ringway_wire::ring::REQ_PROD;
use ringway_wire::{DomId, PAGE_SIZE};
use ringway_xenbus::{Device, KeyChange, Vif};
use ringway_xenstore::Client;

use crate::host::{Host, SOON, describe, wait_for};
use crate::traffic::Iperf;
use crate::turn;

const HOST: DomId = DomId(0);
/// Segments sent again beside a hostile guest that still count as none.
const RETRANSMITS_MAX: u64 = 50;

/// A frontend of one queue that does as it is told.
pub(crate) struct Hostile<'a> {
    host: &'a Host,
    vif: Vif,
    store: Client,
    _grants: EmuGrants,
    event: EmuEvent,
    pages: OwnPages,
    tx: FrontRing<Tx>,
    rings: [u32; 2],
    data: u32,
    _hypervisor: EmuHypervisor,
}

impl<'a> Hostile<'a> {
    /// Makes a domain with a vif, as a toolstack does, and becomes it.
    pub(crate) fn new(host: &'a Host, toolstack: &EmuHypervisor) -> Hostile<'a> {
        Hostile::with_keys(host, toolstack, &[])
    }

    /// With other or more keys in the backend's directory.
    pub(crate) fn with_keys(
        host: &'a Host,
        toolstack: &EmuHypervisor,
        keys: &[(&str, &str)],
    ) -> Hostile<'a> {
        let new = NewDomain { domid: None, memory_bytes: 4 << 20, role: Role::Guest };
        let domid = toolstack.create_domain(new).expect("domain 0 may");
        let vif = Vif { backend: HOST, frontend: domid, handle: 0 };
        let mac = mac_of(vif);
        let device = Device {
            vif,
            mac,
            mtu: 1500,
            bridge: None,
            max_queues: None,
            completion: None,
            rules: PortRules::default(),
        };
        let mut store = host.store();
        let write = |store: &mut Client, dir: &str, changes: Vec<KeyChange>| {
            store.transaction(|tx| {
                changes.iter().try_for_each(|change| match change {
                    KeyChange::Set(key, value) => tx.write(&format!("{dir}/{key}"), value),
                    KeyChange::Remove(key) => tx.remove(&format!("{dir}/{key}")),
                })
            })
        };
        write(&mut store, &vif.frontend_dir(), device.frontend_changes()).expect("written");
        let mut backend_keys = device.backend_changes();
        let set = |(key, value): &(&str, &str)| KeyChange::Set((*key).into(), (*value).into());
        backend_keys.extend(keys.iter().map(set));
        write(&mut store, &vif.backend_dir(), backend_keys).expect("written");
        let hypervisor = EmuHypervisor::connect(&host.dir(), domid).expect("it is free");
        let mut grants = hypervisor.grants().expect("a guest has a table");
        let pages = grants.alloc_pages(3).expect("there is memory");
        let mut grant = |page: u32| {
            let frame = pages.first_frame + page;
            grants.grant(HOST, frame, Access::ReadWrite).expect("the table has room").0
        };
        let (rings, data) = ([grant(0), grant(1)], grant(2));
        let page = |index: usize| pages.pages.slice(index * PAGE_SIZE..(index + 1) * PAGE_SIZE);
        let tx = FrontRing::new(page(0));
        let _rx = FrontRing::<Rx>::new(page(1));
        let event = hypervisor.alloc_unbound(HOST).expect("there are ports");
        let _hypervisor = hypervisor;
        Hostile { host, vif, store, _grants: grants, event, pages, tx, rings, data, _hypervisor }
    }

    /// Says that it is connected, after changing some of the keys that say how.
    pub(crate) fn publish(&mut self, changes: &[(&str, &str)]) {
        let (vif, host) = (self.vif, self.host);
        host.wait("the backend's offer", SOON, |host| {
            host.node(&vif.backend_state()).filter(|state| state == "2")
        });
        let mut keys = vec![
            ("tx-ring-ref", self.rings[0].to_string()),
            ("rx-ring-ref", self.rings[1].to_string()),
            ("event-channel", self.event.port().to_string()),
            ("request-rx-copy", "1".to_owned()),
        ];
        for (key, value) in changes {
            keys.retain(|(known, _)| known != key);
            keys.push((key, (*value).to_owned()));
        }
        keys.push(("state", "4".to_owned()));
        for (key, value) in keys {
            let path = format!("{}/{key}", vif.frontend_dir());
            self.store.write(&path, value).expect("written");
        }
    }

    pub(crate) fn vif(&self) -> Vif {
        self.vif
    }

    pub(crate) fn name(&self) -> String {
        format!("vif{}.{}", self.vif.frontend, self.vif.handle)
    }

    /// Writes its own state.
    pub(crate) fn set_state(&mut self, state: &str) {
        self.store.write(&self.vif.frontend_state(), state).expect("written");
    }

    pub(crate) fn connect(&mut self) {
        self.publish(&[]);
        let vif = self.vif;
        self.host.wait("the backend to connect", SOON, |host| {
            host.node(&vif.backend_state()).filter(|state| state == "4")
        });
    }

    /// The address that the toolstack gave it.
    pub(crate) fn mac(&self) -> MacAddr {
        mac_of(self.vif)
    }

    /// Sends a frame, and waits until the backend has taken it.
    pub(crate) fn send(&mut self, frame: &[u8]) {
        self.pages.pages.slice(2 * PAGE_SIZE..3 * PAGE_SIZE).copy_from(0, frame);
        let size = u16::try_from(frame.len()).expect("it fits a page");
        self.push(TxRequest { gref: self.data, size, ..TxRequest::default() });
        let mut responses = [TxResponse::default(); 1];
        wait_for("a response", SOON, || {
            let count =
                self.tx.peek_responses(&mut responses).expect("the backend keeps the rules");
            (count > 0).then_some(())
        });
        self.tx.consume(1);
    }

    fn push(&mut self, request: TxRequest) {
        self.tx.push_request(request);
        let _ = self.tx.publish_requests();
        self.event.notify().expect("the backend is there");
    }

    /// Transmits so many frames of one slot each, from its own address.
    pub(crate) fn send_frames(&mut self, count: usize, len: u16, to: [u8; 6]) {
        let [high, low] = self.vif.frontend.0.to_be_bytes();
        let own = [0x00, 0x16, 0x3e, 0x66, high, low];
        // The local experimental type, so that no kernel takes it for anything.
        let head = [to.as_slice(), &own, &[0x88, 0xb5]].concat();
        self.pages.pages.copy_from(2 * PAGE_SIZE, &head);
        self.take_responses();
        for _ in 0..count.min(self.tx.free()) {
            let request = TxRequest { gref: self.data, size: len, ..TxRequest::default() };
            self.tx.push_request(request);
        }
        let _ = self.tx.publish_requests();
        self.event.notify().expect("the backend is there");
    }

    fn take_responses(&mut self) {
        let mut responses = [TxResponse::default(); 256];
        let count = self.tx.peek_responses(&mut responses).expect("the backend is honest");
        self.tx.consume(count);
    }

    /// Closes, and is ready to connect again with rings that are new.
    pub(crate) fn disconnect(&mut self) {
        self.set_state("5");
        let state = self.vif.backend_state();
        self.host.wait("the backend to close", SOON, |host| {
            host.node(&state).filter(|state| matches!(state.as_str(), "5" | "6"))
        });
        self.set_state("6");
        self.set_state("1");
        let page =
            |index: usize| self.pages.pages.slice(index * PAGE_SIZE..(index + 1) * PAGE_SIZE);
        self.tx = FrontRing::new(page(0));
        let _rx = FrontRing::<Rx>::new(page(1));
    }

    fn overrun(&mut self, ring_page: usize, ahead: u32) {
        self.pages.pages.store(ring_page * PAGE_SIZE + REQ_PROD, ahead, Ordering::Release);
        self.event.notify().expect("the backend is there");
    }

    /// Waits until its vif is closed for a reason with these parts, and said so once.
    pub(crate) fn expect_closed(&self, parts: &[&str]) {
        let name = self.name();
        let [for_tools, beside_keys] = self.vif.backend_errors();
        let mut reason = String::new();
        for node in [for_tools, beside_keys] {
            reason = self.host.wait(&format!("{parts:?} in {node}"), SOON, |host| host.node(&node));
            for part in parts {
                assert!(reason.contains(part), "{part:?} is not in {reason:?}");
            }
        }
        self.host.wait("the vif to close", SOON, |host| {
            let state = host.node(&self.vif.backend_state())?;
            matches!(state.as_str(), "5" | "6").then_some(())
        });
        let vif = self.host.vif(&name).expect("it is listed");
        assert_eq!((vif.queues.len(), vif.error), (0, Some(reason.clone())));
        let log = self.host.log();
        let lines = log.lines().filter(|line| line.contains(&name) && line.contains(&reason));
        assert_eq!(lines.count(), 1, "{reason}\n{log}");
    }
}

fn mac_of(vif: Vif) -> MacAddr {
    let [high, low] = vif.frontend.0.to_be_bytes();
    MacAddr([0x00, 0x16, 0x3e, 0x66, high, low])
}

#[test]
fn a_guest_that_breaks_the_protocol_loses_its_vif_and_nobody_else_notices() {
    let Some(_turn) = turn(&["iperf3", "xenstore-read"]) else { return };
    let vif = "queues = 2";
    let host = Host::start(&describe("max-queues = 2", &[("a", "", vif), ("b", "", vif)]));
    let backend = host.pid_of("backend");
    let toolstack = EmuHypervisor::connect(&host.dir(), HOST).expect("anybody may be domain 0");
    let transfer = Iperf::start(&host, "a", ("b", "10.77.0.2"), 4);
    host.wait("traffic", SOON, |host| (host.rx_bytes("vif1.0") > 1 << 20).then_some(()));

    let mut guest = Hostile::new(&host, &toolstack);
    guest.connect();
    guest.overrun(0, 1000);
    guest.expect_closed(&["tx ring", "1000", "256"]);

    let mut guest = Hostile::new(&host, &toolstack);
    guest.connect();
    guest.overrun(1, 1000);
    guest.expect_closed(&["rx ring", "1000", "256"]);

    let mut guest = Hostile::new(&host, &toolstack);
    guest.connect();
    guest.push(TxRequest { gref: guest.data, offset: 4000, size: 200, ..TxRequest::default() });
    guest.expect_closed(&["crosses its page", "4000", "200"]);

    let mut guest = Hostile::new(&host, &toolstack);
    guest.connect();
    let flags = NETTXF_MORE_DATA;
    guest.push(TxRequest { gref: guest.data, flags, size: 60, ..TxRequest::default() });
    guest.expect_closed(&["tx ring", "cut off"]);

    for (key, value, parts) in [
        ("tx-ring-ref", "4000000", ["ring page", "4000000"]),
        ("event-channel", "99", ["event channel", "99"]),
        ("rx-ring-ref", "banana", ["rx-ring-ref", "banana"]),
        ("request-rx-copy", "0", ["request-rx-copy", "expected"]),
        ("multi-queue-num-queues", "3", ["3 queues", "1 to 2"]),
    ] {
        let mut guest = Hostile::new(&host, &toolstack);
        guest.publish(&[(key, value)]);
        guest.expect_closed(&parts);
    }

    let transfer = transfer.finish();
    println!("retransmits {}, gap at most {:.1} s", transfer.retransmits(), transfer.longest_gap());
    assert!(transfer.retransmits() <= RETRANSMITS_MAX, "{}", transfer.retransmits());
    assert!(transfer.longest_gap() < 1.0, "{}", transfer.longest_gap());
    assert_eq!(host.pid_of("backend"), backend);
    assert_eq!(host.event("backend-restarted"), None);
}

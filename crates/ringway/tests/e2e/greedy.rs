//! Guests that use XenStore as hard as they can, and a toolstack that uses it carelessly. They
//! lose no more than their own vif, and no other guest notices.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use ringway_control::RunDir;
use ringway_datapath::{MacAddr, PortRules};
use ringway_emu::{EmuHypervisor, NewDomain, Role};
use ringway_vif_shell::device;
use ringway_wire::DomId;
use ringway_wire::xenstore::{Op, SOCKMSG_LEN};
use ringway_xenbus::{Device, Vif};
use ringway_xenstore::{Client, Permissions, Rights};

use crate::host::{Host, SOON, describe, pair};
use crate::turn;

const HOST: DomId = DomId(0);

/// A domain that has a vif, and nothing but its connection to XenStore.
struct Guest {
    vif: Vif,
    stream: UnixStream,
    _hypervisor: EmuHypervisor,
}

impl Guest {
    /// Makes a domain and a vif as a toolstack does, and waits for the backend's offer.
    fn new(host: &Host, toolstack: &EmuHypervisor) -> Guest {
        let guest = Guest::without_vif(host, toolstack);
        let made = guest.device();
        host.store().transaction(|tx| device::make(tx, &made)).expect("domain 0 may");
        guest.wait_for_offer(host);
        guest
    }

    fn without_vif(host: &Host, toolstack: &EmuHypervisor) -> Guest {
        let new = NewDomain { domid: None, memory_bytes: 1 << 20, role: Role::Guest };
        let domid = toolstack.create_domain(new).expect("domain 0 may");
        let hypervisor = EmuHypervisor::connect(&host.dir(), domid).expect("it is free");
        let socket = RunDir::new(host.dir()).xenstore_of(domid.0);
        let connect = |_: &Host| UnixStream::connect(&socket).ok();
        let stream = host.wait("the guest's XenStore", SOON, connect);
        let vif = Vif { backend: HOST, frontend: domid, handle: 0 };
        Guest { vif, stream, _hypervisor: hypervisor }
    }

    fn device(&self) -> Device {
        let vif = self.vif;
        let [high, low] = vif.frontend.0.to_be_bytes();
        let mac = MacAddr([0x00, 0x16, 0x3e, 0x67, high, low]);
        Device {
            vif,
            mac,
            mtu: 1500,
            bridge: None,
            max_queues: None,
            completion: None,
            rules: PortRules::default(),
        }
    }

    fn wait_for_offer(&self, host: &Host) {
        let node = self.vif.backend_state();
        host.wait("the backend's offer", SOON, |host| host.node(&node).filter(|it| it == "2"));
    }

    fn client(&self) -> Client {
        Client::from_stream(self.stream.try_clone().expect("a descriptor"))
    }

    /// Sends requests without waiting for replies, and takes all replies.
    fn pipeline(&mut self, requests: impl Iterator<Item = (Op, Vec<u8>)> + Send) {
        let mut writer = self.stream.try_clone().expect("a descriptor");
        let count = std::thread::scope(|scope| {
            let (sent, replies) = std::sync::mpsc::channel();
            let stream = &mut self.stream;
            let reading = scope.spawn(move || {
                let mut count = 0_u32;
                for () in replies {
                    let mut header = [0; SOCKMSG_LEN];
                    stream.read_exact(&mut header).expect("each is replied to");
                    let len = header[12..].try_into().map(u32::from_ne_bytes).expect("4 bytes");
                    let mut body = vec![0; usize::try_from(len).expect("it fits")];
                    stream.read_exact(&mut body).expect("each is replied to");
                    count += 1;
                }
                count
            });
            for (op, payload) in requests {
                let len = u32::try_from(payload.len()).expect("it is short");
                let fields = [op.number(), 1, 0, len].map(u32::to_ne_bytes).concat();
                writer.write_all(&[fields, payload].concat()).expect("the server is there");
                sent.send(()).expect("there is a reader");
            }
            drop(sent);
            reading.join().expect("no panic")
        });
        assert!(count > 0);
    }

    /// Writes keys that a backend refuses, and waits until it has.
    fn be_refused(&mut self, host: &Host) {
        let mut store = self.client();
        store.write("device/vif/0/state", "4").expect("it is the guest's");
        let [_, error] = self.vif.backend_errors();
        let reason = host.wait("a refusal", 3 * SOON, |host| host.node(&error));
        assert!(reason.contains("request-rx-copy"), "{reason}");
    }
}

/// That no other guest noticed.
fn check_others(host: &Host, backend: u32) {
    assert_eq!(host.pid_of("backend"), backend, "{}", host.log());
    assert_eq!(host.event("backend-restarted"), None);
    host.ping("a", "10.77.0.2");
}

#[test]
fn a_guest_that_writes_names_below_its_state_does_not_end_the_backend() {
    let Some(_turn) = turn(&["xenstore-read", "ping"]) else { return };
    let host = Host::start(&pair());
    let backend = host.pid_of("backend");
    let toolstack = EmuHypervisor::connect(&host.dir(), HOST).expect("anybody may be domain 0");
    let mut guest = Guest::new(&host, &toolstack);
    // Twice what the backend kept at most when it ended.
    guest.pipeline((0..140_000).flat_map(|n| {
        let path = format!("device/vif/0/state/x{n}\0").into_bytes();
        [(Op::Write, path.clone()), (Op::Rm, path)]
    }));
    // The backend comes to this after all that.
    guest.be_refused(&host);
    check_others(&host, backend);
}

/// Guests with as many nodes as their quota allows, whose keys change all the time.
struct Disturbers {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Disturbers {
    fn start(guests: &[Guest]) -> Disturbers {
        let is_over = Arc::new(AtomicBool::new(false));
        let disturb = |guest: &Guest| {
            let (mut store, is_over) = (guest.client(), Arc::clone(&is_over));
            for n in 0..900 {
                let path = format!("device/vif/0/queue-{}/k{n}", n % 30);
                store.write(&path, "").expect("it is the guest's");
            }
            std::thread::spawn(move || {
                let states = ["1", "4"].into_iter().cycle();
                for state in states.take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    store.write("device/vif/0/state", state).expect("it is the guest's");
                    for _ in 0..20 {
                        let node = "device/vif/0/queue-0/k0";
                        store.write(node, state).expect("it is the guest's");
                        store.write("device/vif/0/feature-sg", state).expect("it is the guest's");
                    }
                }
            })
        };
        let threads = guests.iter().map(disturb).collect();
        Disturbers { is_over, threads }
    }
}

impl Drop for Disturbers {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[test]
fn guests_that_keep_the_backend_busy_do_not_keep_it_from_others() {
    let Some(_turn) = turn(&["xenstore-read", "ping"]) else { return };
    let host = Host::start(&pair());
    let backend = host.pid_of("backend");
    let toolstack = EmuHypervisor::connect(&host.dir(), HOST).expect("anybody may be domain 0");
    let guests: Vec<Guest> = (0..6).map(|_| Guest::new(&host, &toolstack)).collect();
    let disturbers = Disturbers::start(&guests);
    for _ in 0..3 {
        // It is found, offered, read and refused, and the command line is served.
        Guest::new(&host, &toolstack).be_refused(&host);
        assert!(host.vifs().len() >= 8, "the backend responds");
    }
    drop(disturbers);
    check_others(&host, backend);
}

#[test]
fn a_commit_of_long_paths_and_a_name_that_is_not_text_harm_nobody() {
    let Some(_turn) = turn(&["xenstore-read", "ping"]) else { return };
    let host = Host::start(&describe("", &[("a", "", ""), ("b", "", "")]));
    let backend = host.pid_of("backend");
    let toolstack = EmuHypervisor::connect(&host.dir(), HOST).expect("anybody may be domain 0");
    let guest = Guest::new(&host, &toolstack);
    let deep = format!("device/vif/0{}", "/d".repeat(900));
    let refused = guest.client().write(&deep, "").expect_err("it is too deep");
    assert!(refused.to_string().ends_with("EINVAL"), "{refused}");

    let name = format!("/local/domain/{}/name", guest.vif.frontend);
    host.store().write(&name, [0xff, b'x', 0xfe]).expect("domain 0 may");
    let vif = host.vif(&format!("vif{}.0", guest.vif.frontend)).expect("the backend responds");
    assert_eq!(vif.guest, None);
    check_others(&host, backend);
}

#[test]
fn a_vif_that_is_written_key_by_key_in_any_order_is_served() {
    let Some(_turn) = turn(&["xenstore-read", "ping"]) else { return };
    let host = Host::start(&describe("", &[("a", "", ""), ("b", "", "")]));
    let backend = host.pid_of("backend");
    let toolstack = EmuHypervisor::connect(&host.dir(), HOST).expect("anybody may be domain 0");
    for rotation in 0..7 {
        let mut guest = Guest::without_vif(&host, &toolstack);
        let (vif, made) = (guest.vif, guest.device());
        let mut backend = made.backend_changes();
        // Each key is the last one once. Before each, the backend has seen the others.
        backend.rotate_left(rotation);
        let mut store = host.store();
        for (dir, owner, changes) in [
            (vif.frontend_dir(), vif.frontend, made.frontend_changes()),
            (vif.backend_dir(), HOST, backend),
        ] {
            store.mkdir(&dir).expect("domain 0 may");
            let permissions = Permissions::new(owner, Rights::Read);
            store.set_permissions(&dir, &permissions).expect("domain 0 may");
            for change in changes {
                device::change(&mut store, &dir, &[change]).expect("domain 0 may");
                assert!(host.backend().is_some(), "the backend responds");
            }
        }
        guest.wait_for_offer(&host);
        guest.be_refused(&host);
        let name = format!("vif{}.0", guest.vif.frontend);
        host.wait("its address", SOON, |host| host.vif(&name)?.mac);
    }
    // A toolstack that starts a vif afresh, over an offer that is made already.
    let mut guest = Guest::new(&host, &toolstack);
    host.store().write(&guest.vif.backend_state(), "1").expect("domain 0 may");
    guest.wait_for_offer(&host);
    guest.be_refused(&host);
    check_others(&host, backend);
}

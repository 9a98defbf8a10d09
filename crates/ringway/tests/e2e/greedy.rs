//! Guests that use XenStore as heavily as they can. They lose at most their own vif, and no other
//! guest is affected.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use ringway_e2e::host::{Host, SOON, describe, pair};
use ringway_e2e::shared_turn;
use ringway_hostile::{Guest, Toolstack};
use ringway_wire::xenstore::Op;
use ringway_xenbus::Vif;

fn toolstack(host: &Host) -> Toolstack {
    Toolstack::join(&host.dir()).expect("the host runs")
}

/// A guest with a vif that the backend has offered.
fn offered(host: &Host) -> Guest {
    let vif = toolstack(host).make_guest(None, &[]).expect("domain 0 may");
    wait_for_offer(host, vif);
    Guest::emulated(&host.dir(), vif.frontend).expect("it is free")
}

fn wait_for_offer(host: &Host, vif: Vif) {
    let node = vif.backend_state();
    host.wait("the backend's offer", SOON, |host| host.node(&node).filter(|it| it == "2"));
}

/// Writes keys that a backend refuses, and waits for the refusal.
fn be_refused(guest: &mut Guest, host: &Host) {
    guest.set_state("4").expect("it is the guest's");
    let [_, error] = guest.vif.backend_errors();
    let reason = host.wait("a refusal", 3 * SOON, |host| host.node(&error));
    assert!(reason.contains("request-rx-copy"), "{reason}");
}

/// Asserts that no other guest was affected.
fn check_others(host: &Host, backend: u32) {
    assert_eq!(host.pid_of("backend"), backend, "{}", host.log());
    assert_eq!(host.event("backend-restarted"), None);
    host.ping("a", "10.77.0.2");
}

/// Guests that write at the same time: XenStore serves each at a limited rate.
const WRITERS: usize = 6;
/// Names that each of them writes and removes. With two events each, these are more than the
/// 140,000 at which an earlier backend ended.
const NAMES: usize = 15_000;

#[test]
fn guests_that_write_names_below_their_state_do_not_end_the_backend() {
    let Some(_turn) = shared_turn(&["xenstore-read", "ping"]) else { return };
    let host = Host::start(&pair());
    let backend = host.pid_of("backend");
    let mut guests: Vec<Guest> = (0..WRITERS).map(|_| offered(&host)).collect();
    std::thread::scope(|scope| {
        for guest in &guests {
            let store = guest.store_access.pipeline().expect("connected");
            let mut store = store.expect("it is a socket");
            scope.spawn(move || {
                for n in 0..NAMES {
                    let path = format!("device/vif/0/state/x{n}\0").into_bytes();
                    store.send(Op::Write, &path).expect("the server is there");
                    store.send(Op::Rm, &path).expect("the server is there");
                }
                store.finish().expect("each is replied to");
            });
        }
    });
    // The backend handles this after all the others.
    guests.iter_mut().for_each(|guest| be_refused(guest, &host));
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
            let mut store = guest.store_access.client().expect("connected");
            let is_over = Arc::clone(&is_over);
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
fn guests_that_keep_the_backend_busy_do_not_starve_others() {
    let Some(_turn) = shared_turn(&["xenstore-read", "ping"]) else { return };
    let host = Host::start(&pair());
    let backend = host.pid_of("backend");
    let guests: Vec<Guest> = (0..6).map(|_| offered(&host)).collect();
    let disturbers = Disturbers::start(&guests);
    for _ in 0..3 {
        // It is found, offered, read and refused, and the command line is served.
        be_refused(&mut offered(&host), &host);
        assert!(host.vifs().len() >= 8, "the backend responds");
    }
    drop(disturbers);
    check_others(&host, backend);
}

#[test]
fn a_commit_of_long_paths_and_an_invalid_name_harm_no_other_guest() {
    let Some(_turn) = shared_turn(&["xenstore-read", "ping"]) else { return };
    let host = Host::start(&describe("", &[("a", "", ""), ("b", "", "")]));
    let backend = host.pid_of("backend");
    let mut guest = offered(&host);
    let deep = format!("device/vif/0{}", "/d".repeat(900));
    let refused = guest.store.write(&deep, "").expect_err("it is too deep");
    assert!(refused.to_string().ends_with("EINVAL"), "{refused}");

    let name = format!("/local/domain/{}/name", guest.vif.frontend);
    host.store().write(&name, [0xff, b'x', 0xfe]).expect("domain 0 may");
    let vif = host.vif(&format!("vif{}.0", guest.vif.frontend)).expect("the backend responds");
    assert_eq!(vif.guest, None);
    check_others(&host, backend);
}

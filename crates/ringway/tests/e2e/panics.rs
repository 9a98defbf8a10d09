//! A worker panics. The process ends at once, and the next one takes over all vifs.

use std::ffi::OsStr;
use std::io::ErrorKind;

use ringway_control::{BackendRequest, RunDir};
use ringway_e2e::host::{Host, SOON, pair};
use ringway_e2e::shared_turn;

fn start() -> Host {
    let place = tempfile::tempdir().expect("a directory can be made");
    Host::start_with(place, &pair(), &[("RINGWAY_TEST_PANICS", OsStr::new("1"))])
}

/// Makes the worker of a vif panic, and waits until a number of backends have been restarted.
pub(crate) fn panic_over(host: &Host, vif: &str, restarts: u64) {
    host.wait("the vif", SOON, |host| host.vif(vif).filter(|vif| vif.state == "Connected"));
    disturb(host, &BackendRequest::Panic { vif: vif.to_owned() });
    host.wait("the next backend", SOON, |host| {
        host.event("backend-restarted").filter(|event| event["restarts"] == restarts)
    });
}

/// Has a process panic or stall. One that is just replaced, or busy, may not get the order, and one
/// that gets it may end before it has replied.
pub(crate) fn disturb(host: &Host, order: &BackendRequest) {
    let socket = RunDir::new(host.dir()).backend();
    host.wait("a process to get the order", SOON, |_| {
        let Err(error) = ringway_control::send_request::<_, ()>(&socket, order) else {
            return Some(());
        };
        let is_lost = matches!(
            error.kind(),
            ErrorKind::NotFound
                | ErrorKind::ConnectionRefused
                | ErrorKind::WouldBlock
                | ErrorKind::Other
        );
        (!is_lost).then_some(())
    });
}

#[test]
fn a_panic_ends_the_process_and_all_vifs_are_served_again() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let host = start();
    panic_over(&host, "vif1.0", 1);
    host.wait("both vifs", SOON, |host| {
        let vifs = host.vifs();
        (vifs.len() == 2 && vifs.iter().all(|vif| vif.state == "Connected")).then_some(())
    });
    host.ping("a", "10.77.0.2");
    let log = host.log();
    let line = log.lines().find(|line| line.contains("a worker has panicked"));
    let line = line.unwrap_or_else(|| panic!("it says nothing: {log}"));
    assert!(line.contains("vif1.0") && line.contains("queue"), "{line}");
    assert!(log.contains("a test asked for it"), "{log}");
}

#[test]
fn a_process_outside_tests_refuses_to_panic_on_request() {
    let Some(_turn) = shared_turn(&[]) else { return };
    let host = Host::start(&pair());
    let request = BackendRequest::Panic { vif: "vif1.0".to_owned() };
    let socket = RunDir::new(host.dir()).backend();
    let refusal = ringway_control::send_request::<_, ()>(&socket, &request).expect_err("refused");
    assert!(refusal.to_string().contains("not under test"), "{refusal}");
}

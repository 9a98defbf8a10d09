//! The backend has given up all privileges that serving does not need.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use ringway_e2e::host::{Host, SOON, pair, send};
use ringway_e2e::shared_turn;
use ringway_emu::{EmuHypervisor, NewDomain, Role};
use ringway_wire::DomId;
use rustix::process::Signal;

/// `CAP_NET_ADMIN` alone, as the kernel prints a set.
const NET_ADMIN: &str = "0000000000001000";

#[test]
fn no_thread_of_the_backend_has_unneeded_privileges() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let host = Host::start(&pair());
    host.ping("a", "10.77.0.2");
    let statuses = statuses_of(host.pid_of("backend"));
    assert!(statuses.len() > 1, "no worker: {statuses:?}");
    for status in statuses {
        for (field, expected) in [
            ("CapInh", "0000000000000000"),
            ("CapPrm", NET_ADMIN),
            ("CapEff", NET_ADMIN),
            ("CapBnd", NET_ADMIN),
            ("CapAmb", "0000000000000000"),
            ("NoNewPrivs", "1"),
            ("Seccomp", "2"),
            ("Seccomp_filters", "2"),
        ] {
            assert_eq!(field_of(&status, field), Some(expected), "{field} in\n{status}");
        }
    }
}

#[test]
fn the_broker_and_the_guests_have_no_unneeded_privileges() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let host = Host::start(&pair());
    host.ping("a", "10.77.0.2");
    let none = "0000000000000000";
    for (process, capabilities) in
        [("broker", none), ("guest a", NET_ADMIN), ("guest b", NET_ADMIN)]
    {
        let statuses = statuses_of(host.pid_of(process));
        assert!(statuses.len() > 1, "no thread of its own: {statuses:?}");
        for status in statuses {
            for (field, expected) in [
                ("CapInh", none),
                ("CapPrm", capabilities),
                ("CapEff", capabilities),
                ("CapBnd", capabilities),
                ("CapAmb", none),
                ("NoNewPrivs", "1"),
                ("Seccomp", "2"),
                ("Seccomp_filters", "2"),
            ] {
                assert_eq!(
                    field_of(&status, field),
                    Some(expected),
                    "{process}: {field}\n{status}"
                );
            }
        }
    }
    // Only its user may use its sockets.
    for name in ["dom-0.sock", "dom-1.sock", "xenstored.sock", "xenstored-1.sock"] {
        let metadata = fs::metadata(host.dir().join(name)).expect(name);
        assert!(metadata.file_type().is_socket(), "{name}");
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{name}");
    }
    // A guest that starts later gets its sockets from a confined broker.
    let toolstack = EmuHypervisor::connect(&host.dir(), DomId(0)).expect("any user may");
    let new = NewDomain { domid: None, memory_bytes: 1 << 20, role: Role::Guest };
    let domid = toolstack.create_domain(new).expect("domain 0 may");
    EmuHypervisor::connect(&host.dir(), domid).expect("it is there");
}

#[test]
fn the_opener_can_only_open_sockets() {
    let Some(_turn) = shared_turn(&[]) else { return };
    let host = Host::start(&pair());
    let backend = host.pid_of("backend");
    let children = fs::read_to_string(format!("/proc/{backend}/task/{backend}/children"));
    let children = children.expect("the kernel lists children");
    let opener = children.split_whitespace().next().expect("it has one").parse().expect("a number");
    let command = fs::read(format!("/proc/{opener}/cmdline")).expect("it runs");
    assert!(String::from_utf8_lossy(&command).contains("opener"));
    let statuses = statuses_of(opener);
    assert!(!statuses.is_empty());
    for status in &statuses {
        assert_eq!(field_of(status, "Seccomp"), Some("2"), "{status}");
        let capabilities = field_of(status, "CapEff").expect("there is such a line");
        let capabilities = u64::from_str_radix(capabilities, 16).expect("a number");
        // CAP_DAC_OVERRIDE, if it had that.
        assert_eq!(capabilities & !2, 0, "{status}");
    }
    send(opener, Signal::KILL);
    host.wait("another backend, as this one has no opener", SOON, |host| {
        host.event("backend-restarted")
    });
}

#[test]
fn a_restarted_backend_is_confined_as_well() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let host = Host::start(&pair());
    send(host.pid_of("backend"), Signal::KILL);
    host.wait("the restart", SOON, |host| host.event("backend-restarted"));
    host.wait("a confined backend", SOON, |host| {
        let statuses = statuses_of(host.pid_of("backend"));
        let is_confined = |status: &String| field_of(status, "CapEff") == Some(NET_ADMIN);
        (!statuses.is_empty() && statuses.iter().all(is_confined)).then_some(())
    });
    host.wait("both vifs", SOON, |host| {
        let vifs = host.vifs();
        (vifs.len() == 2 && vifs.iter().all(|vif| vif.state == "Connected")).then_some(())
    });
    host.ping("a", "10.77.0.2");
}

#[test]
fn confinement_can_be_turned_off_with_a_warning() {
    let Some(_turn) = shared_turn(&[]) else { return };
    let place = tempfile::tempdir().expect("a directory can be made");
    let host = Host::start_with(place, &pair(), &[("RINGWAY_CONFINE", OsStr::new("off"))]);
    let statuses = statuses_of(host.pid_of("backend"));
    assert!(statuses.iter().all(|status| field_of(status, "Seccomp") == Some("0")), "{statuses:?}");
    // The broker, the backend, the opener, and two guests.
    assert_eq!(host.log_count("RINGWAY_CONFINE=off"), 5, "{}", host.log());
}

/// The kernel's status of each thread of a process.
fn statuses_of(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("task"));
    let paths = tasks.into_iter().flatten().flatten().map(|task| task.path().join("status"));
    paths.filter_map(|path| fs::read_to_string(path).ok()).collect()
}

fn field_of<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| *key == name).map(|(_, value)| value.trim())
}

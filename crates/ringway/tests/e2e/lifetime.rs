//! A host ends: in order, or because everything or its supervisor is killed.

use std::fs;
use std::path::{Path, PathBuf};

use ringway_e2e::host::{
    Host, Member, SOON, describe, links, names_in, pair, send, start_time, stop_threads, wait_for,
};
use ringway_e2e::shared_turn;
use rustix::process::Signal;

/// Everything of a host that could be left behind.
struct Traces {
    members: Vec<Member>,
    namespaces: Vec<PathBuf>,
}

impl Traces {
    fn of(host: &Host) -> Traces {
        let members = host.members();
        assert_eq!(members.len(), 5, "{members:?}");
        // The backend is confined, so only root can read its namespaces, which are the
        // supervisor's.
        let shown: Vec<u32> =
            members.iter().filter(|it| it.name != "backend").map(|it| it.pid).collect();
        let namespaces: Vec<PathBuf> =
            shown.iter().map(|pid| namespace_of(*pid).expect("it runs")).collect();
        let inside = processes_in(&namespaces, now());
        assert!(shown.iter().all(|pid| inside.contains(pid)), "{inside:?}");
        Traces { members, namespaces }
    }

    fn wait_until_gone(&self) {
        // Later, other tests may get namespaces of these numbers.
        let ended = now();
        wait_for("all processes to end", SOON, || {
            self.members.iter().all(|member| !member.is_alive()).then_some(())
        });
        wait_for("all namespaces to go", SOON, || {
            processes_in(&self.namespaces, ended).is_empty().then_some(())
        });
        let ours = ["vif1.0", "vif2.0", "ringway-e2e"];
        let left: Vec<String> =
            links().into_iter().filter(|link| ours.contains(&link.as_str())).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// The processes in these network namespaces that had started at a time.
fn processes_in(namespaces: &[PathBuf], time: u64) -> Vec<u32> {
    let is_in = |pid: &u32| {
        namespace_of(*pid).is_ok_and(|it| namespaces.contains(&it))
            && start_time(*pid).is_some_and(|start| start <= time)
    };
    let pids = names_in(Path::new("/proc")).into_iter().filter_map(|name| name.parse().ok());
    pids.filter(is_in).collect()
}

/// The network namespace of a process.
fn namespace_of(pid: u32) -> std::io::Result<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/net"))
}

/// The time since boot, in the unit of start times: hundredths of a second.
fn now() -> u64 {
    let uptime = fs::read_to_string("/proc/uptime").expect("procfs");
    let seconds = uptime.split(' ').next().unwrap_or_default();
    seconds.replace('.', "").parse().expect("proc_uptime(5)")
}

/// Whether a process reads from a Unix socket in which there is nothing.
fn waits_for_a_reply(pid: u32) -> bool {
    let place = fs::read_to_string(format!("/proc/{pid}/wchan")).expect("it runs");
    place.starts_with("unix_stream")
}

fn with_uplink() -> String {
    pair() + "[uplink]\nname = \"ringway-e2e\"\naddresses = [\"10.77.0.254/24\"]\n"
}

#[test]
fn an_interrupted_host_ends_in_order_and_empties_its_directory() {
    let Some(_turn) = shared_turn(&[]) else { return };
    for signal in [Signal::INT, Signal::TERM] {
        let host = Host::start(&with_uplink());
        let (traces, dir) = (Traces::of(&host), host.dir());
        host.signal(signal);
        let (status, place, log) = host.ended();
        assert!(status.success(), "{status}\n{log}");
        assert!(!log.contains("did not stop on request"), "{log}");
        assert!(!dir.exists(), "{:?}", names_in(&dir));
        traces.wait_until_gone();
        drop(place);
    }
}

#[test]
fn a_host_ends_in_order_although_its_broker_was_asked_to_end_and_ended_first() {
    let Some(_turn) = shared_turn(&[]) else { return };
    let host = Host::start(&with_uplink());
    let (traces, dir) = (Traces::of(&host), host.dir());
    let (broker, supervisor) = (host.pid_of("broker"), host.pid_of("ringway run"));
    stop_threads(broker);
    send(host.pid_of("guest a"), Signal::KILL);
    // Whatever it does next begins with a request to the broker, beside which it takes no signal.
    wait_for("the supervisor to wait for the broker", SOON, || {
        waits_for_a_reply(supervisor).then_some(())
    });
    host.signal(Signal::TERM);
    send(broker, Signal::TERM);
    send(broker, Signal::CONT);
    let (status, place, log) = host.ended();
    assert!(status.success(), "{status}\n{log}");
    assert!(!dir.exists(), "{:?}", names_in(&dir));
    traces.wait_until_gone();
    drop(place);
}

#[test]
fn a_killed_supervisor_takes_everything_with_it_and_the_next_one_cleans_up() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let host = Host::start(&with_uplink());
    let (traces, dir) = (Traces::of(&host), host.dir());
    host.signal(Signal::KILL);
    let (status, place, _) = host.ended();
    assert!(!status.success());
    traces.wait_until_gone();
    assert!(names_in(&dir).iter().any(|name| name.ends_with(".sock")), "nothing to clean up");
    let host = Host::start_in(place, &with_uplink());
    host.ping("a", "10.77.0.2");
}

#[test]
fn after_everything_is_killed_the_next_host_starts() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let host = Host::start(&with_uplink());
    let traces = Traces::of(&host);
    for member in &traces.members {
        // Some have ended because the first did.
        if member.is_alive() {
            send(member.pid, Signal::KILL);
        }
    }
    let (_, place, _) = host.ended();
    traces.wait_until_gone();
    let host = Host::start_in(place, &with_uplink());
    host.ping("a", "10.77.0.2");
}

#[test]
fn a_host_whose_backend_was_just_killed_is_not_missing() {
    let Some(_turn) = shared_turn(&[]) else { return };
    let host = Host::start(&describe("", &[]));
    let backend = host.pid_of("backend");
    let name = fs::read_to_string(format!("/proc/{backend}/comm")).expect("it runs");
    assert_eq!(name, "ringway\n", "ps shows it by this name");
    send(backend, Signal::KILL);
    host.text(&["vif", "list"]);
}

#[test]
fn an_order_right_after_the_end_of_the_backend_is_carried_out() {
    let Some(_turn) = shared_turn(&[]) else { return };
    let host = Host::start(&describe("", &[]));
    let socket = host.file("vm1.sock");
    let socket = socket.to_str().expect("text");
    let add = ["vif", "add", "vm1", "--vhost", socket, "--mode", "server"];
    let orders = [&add[..], &["vif", "set", "vm1", "weight", "2"], &["vif", "remove", "vm1"]];
    for order in orders {
        let backend = host.wait("the backend", SOON, Host::backend).pid;
        send(backend, Signal::KILL);
        host.text(order);
    }
    assert!(host.vif("vm1").is_none());
}

#[test]
fn a_host_without_guests_is_ready_at_once() {
    let Some(_turn) = shared_turn(&[]) else { return };
    let host = Host::start(&describe("", &[]));
    assert!(host.vifs().is_empty());
}

//! A host ends: in order, or because everything or its supervisor is killed.

use rustix::process::Signal;

use crate::host::{
    Host, Member, SOON, describe, links, names_in, namespace_of, namespaces, pair, send, wait_for,
};
use crate::{shared_turn, turn};

/// Everything of a host that could be left behind.
struct Traces {
    members: Vec<Member>,
    namespaces: Vec<String>,
}

impl Traces {
    fn of(host: &Host) -> Traces {
        let members = host.members();
        assert_eq!(members.len(), 5, "{members:?}");
        // The backend is confined, so only root can read its namespaces, which are the
        // supervisor's.
        let shown = members.iter().filter(|member| member.name != "backend");
        let namespaces: Vec<String> = shown.map(|member| namespace_of(member.pid)).collect();
        let known = crate::host::namespaces();
        assert!(namespaces.iter().all(|namespace| known.contains(namespace)), "{namespaces:?}");
        Traces { members, namespaces }
    }

    fn wait_until_gone(&self) {
        wait_for("all processes to end", SOON, || {
            self.members.iter().all(|member| !member.is_alive()).then_some(())
        });
        wait_for("all namespaces to go", SOON, || {
            let now = namespaces();
            self.namespaces.iter().all(|namespace| !now.contains(namespace)).then_some(())
        });
        let ours = ["vif1.0", "vif2.0", "ringway-e2e"];
        let left: Vec<String> =
            links().into_iter().filter(|link| ours.contains(&link.as_str())).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn with_uplink() -> String {
    pair() + "[uplink]\nname = \"ringway-e2e\"\naddresses = [\"10.77.0.254/24\"]\n"
}

#[test]
fn an_interrupted_host_ends_in_order_and_empties_its_directory() {
    let Some(_turn) = turn(&["lsns"]) else { return };
    for signal in [Signal::INT, Signal::TERM] {
        let host = Host::start(&with_uplink());
        let (traces, dir) = (Traces::of(&host), host.dir());
        host.signal(signal);
        let (status, place, log) = host.ended();
        assert!(status.success(), "{status}\n{log}");
        assert!(!log.contains("is killed"), "{log}");
        assert!(!dir.exists(), "{:?}", names_in(&dir));
        traces.wait_until_gone();
        drop(place);
    }
}

#[test]
fn a_killed_supervisor_takes_everything_with_it_and_the_next_one_cleans_up() {
    let Some(_turn) = turn(&["lsns", "ping"]) else { return };
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
    let Some(_turn) = turn(&["lsns", "ping"]) else { return };
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
fn a_host_without_guests_is_ready_at_once() {
    let Some(_turn) = shared_turn(&[]) else { return };
    let host = Host::start(&describe("", &[]));
    assert!(host.vifs().is_empty());
}

//! A description that is read again by SIGHUP while its host serves guests.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use ringway_control::{Link, OpenerEvent, OpenerOrder, Received, VifStatus};
use ringway_description::{Origin, Usage};
use ringway_e2e::host::{Host, Running, SOON, describe, pair, ringway, send, wait_for};
use ringway_e2e::machine::ADDRESS;
use ringway_e2e::shared_turn;
use ringway_e2e::stream::{self, Stream};
use ringway_e2e::virtio_guest::{
    Maker, description, guest_of, guest_with, kill_backend, wait_for_queues,
};
use ringway_sys::poll::wait_readable;
use rustix::process::Signal;

const TAKEN_OVER: &str = "the description was read again: ";
const REFUSED: &str = "the description was read again, and nothing has changed";

/// Has a host read another description, and waits for its decision.
pub(crate) fn reload(host: &Host, text: &str) -> String {
    let decisions = |host: &Host| host.log_count(TAKEN_OVER) + host.log_count(REFUSED);
    let before = decisions(host);
    fs::write(host.file("host.toml"), text).expect("written");
    host.signal(Signal::HUP);
    host.wait("a decision", SOON, |host| (decisions(host) > before).then_some(()));
    let log = host.log();
    let mut lines = log.lines().rev();
    let decision = lines.find(|line| line.contains(TAKEN_OVER) || line.contains(REFUSED));
    decision.expect("it is in the log").to_owned()
}

fn vhost(dir: &Path, name: &str, more: &str) -> String {
    let socket = dir.join(name);
    let head = format!("[[vhost]]\nname = \"{name}\"\nsocket = \"{}\"\n", socket.display());
    head + "mode = \"server\"\n" + more
}

/// What a connection has counted: frames, which only grow while it lasts, and drops.
fn counted(host: &Host, vif: &str) -> (u64, BTreeMap<String, u64>) {
    let VifStatus { queues, .. } = host.vif(vif).expect("it is listed");
    let frames = queues.iter().map(|queue| queue.tx_packets + queue.rx_packets).sum();
    let mut dropped = BTreeMap::new();
    for (reason, count) in queues.into_iter().flat_map(|queue| queue.dropped) {
        *dropped.entry(reason).or_default() += count;
    }
    (frames, dropped)
}

/// The weight of a vif, if there is such a vif.
fn weight(host: &Host, vif: &str) -> Option<u16> {
    host.vif(vif).map(|vif| vif.limits.weight)
}

#[test]
fn a_hundred_reloads_lose_no_frame_of_an_unchanged_vif() {
    let tools = [&["unshare", "ping"][..], &stream::TOOLS].concat();
    let Some(_turn) = shared_turn(&tools) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let unchanged = description(dir, &[("vm1", "server")]);
    let host = Host::start(&(unchanged.clone() + &vhost(dir, "vm2", "weight = 1\n")));
    let received = dir.join("received");
    let _guest = guest_with(dir, "vm1", Maker::Backend, &stream::sink(&received));
    wait_for_queues(&host, 4);
    let backend = host.pid_of("backend");
    let stream = Stream::start(&host, "a");
    stream.expect_progress(&host, "it is served");
    let mut before = ["vm1", "vif1.0"].map(|vif| counted(&host, vif));
    for round in 1..=100_u16 {
        let of_second = format!("weight = {round}\nprivate = {}\n", round % 2 == 0);
        let third = if round % 4 < 2 { vhost(dir, "vm3", "") } else { String::new() };
        let all = unchanged.clone() + &vhost(dir, "vm2", &of_second) + &third;
        match round % 10 {
            0 => {
                let was = (weight(&host, "vm2"), host.vif("vm3").is_some());
                let wrong = reload(&host, &(all + "wieght = 1\n"));
                assert!(wrong.contains(REFUSED), "{wrong}");
                let now = (weight(&host, "vm2"), host.vif("vm3").is_some());
                assert_eq!(now, was, "round {round}");
            }
            _ => {
                let done = reload(&host, &all);
                assert!(done.contains(TAKEN_OVER) && !done.contains("vm1"), "{done}");
                assert_eq!(weight(&host, "vm2"), Some(round));
                host.wait("vm3", SOON, |host| {
                    (host.vif("vm3").is_some() != third.is_empty()).then_some(())
                });
            }
        }
        let now = ["vm1", "vif1.0"].map(|vif| counted(&host, vif));
        for ((frames, dropped), (frames_before, dropped_before)) in now.iter().zip(&before) {
            assert!(frames >= frames_before, "round {round}: another connection");
            assert_eq!(dropped, dropped_before, "round {round}");
        }
        before = now;
        if round % 10 == 0 {
            stream.expect_progress(&host, &format!("after {round} reloads"));
        }
    }
    stream.expect_all_received(&host, &received);
    assert_eq!(host.pid_of("backend"), backend);
    assert_eq!(
        host.log_count("wieght"),
        20,
        "each fault with its line, and the line: {}",
        host.log()
    );

    // What was accepted last is in force in the next process, too.
    assert!(fs::metadata(dir.join("vm3")).is_err(), "its socket is gone");
    kill_backend(&host);
    host.wait("vm2", SOON, |host| (weight(host, "vm2") == Some(99)).then_some(()));
    host.ping("a", ADDRESS);
}

#[test]
fn what_cannot_change_is_named_and_a_kept_description_follows_the_accepted_one() {
    let Some(_turn) = shared_turn(&["socat", "unshare"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let guests = |host: &str| describe(host, &[("a", "", "")]);
    let first = guests("") + &vhost(dir, "vm1", "queues = 1\n");
    let host = Host::start(&first);
    let accepted = || fs::read_to_string(host.dir().with_extension("accepted")).expect("kept");
    // A user's setting, and one of the description, which has another key.
    host.text(&["vif", "set", "vm1", "weight", "7"]);
    let second = guests("workers = 3") + &vhost(dir, "vm1", "queues = 2\nvlan = 5\n");
    let done = reload(&host, &second);
    assert!(done.ends_with("changed vlan of vm1"), "{done}");
    assert_eq!(
        (weight(&host, "vm1"), host.vif("vm1").and_then(|vif| vif.vlan)),
        (Some(7), Some(5))
    );
    host.wait("what is kept", SOON, |host| {
        let named = ["kept as it was: queues of vm1 cannot", "kept as it was: host.workers cannot"];
        named.iter().all(|text| host.log_count(text) == 1).then_some(())
    });
    host.wait("it to be kept", SOON, |_| accepted().ends_with(&second).then_some(()));

    // A name that is taken, beside a change that could be: neither, and nothing is kept.
    let socket = dir.join("vm2").display().to_string();
    host.text(&["vif", "add", "vm2", "--vhost", &socket, "--mode", "server"]);
    let taken = guests("") + &vhost(dir, "vm2", "") + &vhost(dir, "vm1", "weight = 9\n");
    let refused = reload(&host, &taken);
    assert!(
        refused.contains(REFUSED) && host.log_count("vm2 has the name or the socket of vm2") == 1
    );
    assert_eq!(weight(&host, "vm1"), Some(7));
    assert!(accepted().ends_with(&second));
    // What applies to all vifs, and to the uplink.
    let common = "[uplink]\nmtu = 1400\nvlan = 5\n[switch]\nflood-rate = 7\nageing-seconds = 9\n";
    let with = |common: &str| guests("workers = 3") + common + &vhost(dir, "vm1", "vlan = 5\n");
    let done = reload(&host, &with(common));
    assert!(done.ends_with("changed switch.flood-rate"), "{done}");
    let flood = |host: &Host| host.vif("vm1").and_then(|vif| vif.limits.flood_frames_per_second);
    assert_eq!(flood(&host), Some(7));
    let named = "kept as it was: host.workers, switch.ageing-seconds, uplink cannot";
    host.wait("what is kept", SOON, |host| (host.log_count(named) == 1).then_some(()));
    reload(&host, &with(""));
    assert_eq!(flood(&host), Some(ringway_description::FLOOD_RATE));
    // The description wins for a key that it changes.
    reload(&host, &(guests("") + &vhost(dir, "vm1", "weight = 9\n")));
    assert_eq!((weight(&host, "vm1"), host.vif("vm1").and_then(|vif| vif.vlan)), (Some(9), None));
    let virtio = host.vif("vm2").and_then(|vif| vif.virtio).expect("it is served still");
    assert!(virtio.at_run_time);
    // A new vif may be described before what it refers to.
    let mirror = vhost(dir, "vm3", "mirror = ['vm4']\n") + &vhost(dir, "vm4", "");
    reload(&host, &(guests("") + &vhost(dir, "vm1", "") + &mirror));
    host.wait("both", SOON, |host| host.vif("vm3").and(host.vif("vm4")).map(drop));
    let refused = host.verb(&["vif", "remove", "vm1"]);
    let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(reason.contains("have the host read it again"), "{reason}");
}

#[test]
fn a_new_vif_may_be_on_a_new_bridge() {
    let Some(_turn) = shared_turn(&["socat", "unshare"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let before = describe("", &[("a", "", "")]);
    let host = Host::start(&before);
    let bridge = "[[bridge]]\nname = 'br9'\n";
    let done = reload(&host, &(before + bridge + &vhost(dir, "vm1", "bridge = 'br9'\n")));
    assert!(done.ends_with("added vm1; changed bridge br9"), "{done}");
    let _guest = guest_with(dir, "vm1", Maker::Backend, "");
    wait_for_queues(&host, 1);
}

#[test]
fn a_guest_stays_as_it_was_and_the_log_has_another_way_for_its_vif() {
    let Some(_turn) = shared_turn(&[]) else { return };
    let guest = |vif: &str| describe("", &[("a", "", vif)]);
    let host = Host::start(&guest(""));
    reload(&host, &guest("rate = '5Mb/s'"));
    let named = "guest a cannot change while the host runs: restart it, or use `ringway vif set`";
    host.wait("what is kept", SOON, |host| (host.log_count(named) == 1).then_some(()));
}

#[test]
fn a_corrected_description_replaces_the_last_accepted_one_without_a_restart() {
    let Some(_turn) = shared_turn(&[]) else { return };
    let text = describe("", &[("a", "", "")]);
    let host = Host::start(&text);
    host.signal(Signal::TERM);
    let (_, place, _) = host.ended();
    let host = Host::start_in(place, &(text.clone() + "[hots]\n"));
    let notice = "serving the last accepted description";
    assert!(host.text(&["vif", "list"]).contains(notice));
    reload(&host, &text);
    host.wait("no notice", SOON, |host| {
        (!host.text(&["vif", "list"]).contains(notice)).then_some(())
    });
}

#[test]
fn a_signal_to_all_processes_is_one_to_the_first() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let host = Host::start(&pair());
    let processes = |host: &Host| -> Vec<(String, u32)> {
        host.members().into_iter().map(|it| (it.name, it.pid)).collect()
    };
    let before = processes(&host);
    before.iter().for_each(|(_, pid)| send(*pid, Signal::HUP));
    host.wait("a decision", SOON, |host| (host.log_count(TAKEN_OVER) > 0).then_some(()));
    host.ping("a", "10.77.0.2");
    assert_eq!(processes(&host), before);
    host.signal(Signal::TERM);
    let (status, _, log) = host.ended();
    assert!(status.success() && !log.contains("which ends every domain"), "{log}");
}

#[test]
#[expect(clippy::too_many_lines, reason = "one host, and what is done to it step by step")]
fn each_tenants_process_takes_over_its_own_vifs() {
    let Some(_turn) = shared_turn(&["socat", "unshare", "ping"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let all = |vhosts: &[(&str, &str)]| {
        let vhosts = vhosts.iter().map(|(name, more)| vhost(dir, name, &format!("{more}\n")));
        let guests = describe("isolate = true", &[("a", "", "tenant = 'red'")]);
        guests + &vhosts.collect::<String>()
    };
    let host = Host::start(&all(&[("vm1", "tenant = 'blue'"), ("vm4", "")]));
    let ended = "the description was read again, and ";
    let reload = |text: &str| {
        let before = host.log_count(ended);
        fs::write(host.file("host.toml"), text).expect("written");
        host.signal(Signal::HUP);
        host.wait("its end", SOON, |host| (host.log_count(ended) > before).then_some(()));
        host.log().lines().rfind(|line| line.contains(ended)).expect("it is there").to_owned()
    };
    let guest = |name: &str, address: &str| {
        let guest = guest_of(1, address, dir, name, Maker::Backend, "");
        host.wait(name, SOON, |host| host.vif(name).filter(|vif| vif.state == "Connected"));
        host.ping("a", address);
        guest
    };
    let _first = guest("vm1", "10.77.0.10");
    let blue = host.pid_of("tenant blue");

    // A tenant whose vif changes, one with its first virtio vif, a new one, and one that ends.
    let second =
        all(&[("vm1", "tenant = 'blue'\nweight = 2"), ("vm2", "tenant = 'red'"), ("vm3", "")]);
    let done = reload(&second);
    assert!(done.contains("all tenants have taken it over"), "{done}");
    assert_eq!(weight(&host, "vm1"), Some(2));
    let _others = [guest("vm2", "10.77.0.11"), guest("vm3", "10.77.0.12")];
    let tenant = |name: &str| host.vif(name).and_then(|vif| vif.tenant);
    assert_eq!(tenant("vm2").as_deref(), Some("red"));
    assert_eq!(tenant("vm3").as_deref(), Some("vhost-vm3"));
    assert_eq!(host.pid_of("tenant blue"), blue);
    host.wait("the end of a tenant", SOON, |host| {
        let is_there = host.members().iter().any(|member| member.name == "tenant vhost-vm4");
        (!is_there && !dir.join("vm4").exists()).then_some(())
    });
    host.ping("a", "10.77.0.10");

    // A wrong description changes nothing.
    let done = reload(&(second.clone() + "wieght = 1\n"));
    assert!(done.contains(REFUSED) && host.vif("vm3").is_some(), "{done}");

    // What only its process knows is a reason for a tenant to refuse; others take over their parts.
    let mac = "mac = '00:16:3e:00:00:05'";
    let socket = dir.join("vm5").display().to_string();
    let add = ["vif", "add", "vm5", "--vhost", &socket, "--mode", "server"];
    host.text(&[&add[..], &["--set", "tenant = 'blue'", "--set", mac]].concat());
    let of_sixth = format!("tenant = 'blue'\n{mac}");
    let third = all(&[
        ("vm1", "tenant = 'blue'\nweight = 3"),
        ("vm2", "tenant = 'red'\nweight = 3"),
        ("vm3", ""),
        ("vm6", &of_sixth),
    ]);
    let done = reload(&third);
    assert!(done.contains("all tenants but those named above"), "{done}");
    assert_eq!(host.log_count("tenant blue stays as it was: mac 00:16:3e:00:00:05 is that"), 1);
    let weights = |host: &Host| ["vm1", "vm2"].map(|name| weight(host, name));
    assert_eq!(weights(&host), [Some(2), Some(3)]);
    let kept = fs::read_to_string(host.dir().with_extension("accepted")).expect("kept");
    assert!(kept.ends_with(&second), "{kept}");
    // So do the next processes.
    for name in ["tenant blue", "tenant red"] {
        let killed = host.pid_of(name);
        send(killed, Signal::KILL);
        host.wait(name, SOON, |host| {
            host.members().into_iter().find(|it| it.name == name && it.pid != killed)
        });
    }
    host.wait("both", SOON, |host| (weights(host) == [Some(2), Some(3)]).then_some(()));
    assert!(host.vif("vm6").is_none() && host.vif("vm5").is_some());
    ["10.77.0.10", "10.77.0.11"].iter().for_each(|address| host.ping("a", address));
}

/// A message of an opener.
fn next_event(link: &Link) -> OpenerEvent {
    assert!(wait_readable(link, Some(SOON)).expect("a descriptor"), "no message has come");
    match link.receive().expect("a message") {
        Received::Message(event, _) => event,
        other => panic!("{other:?}"),
    }
}

/// On real Xen no process but the opener may read the description again: it is confined, too.
#[test]
fn an_opener_without_a_supervisor_reads_the_description_and_keeps_the_accepted_one() {
    let Some(_turn) = shared_turn(&[]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dirs = ["run", "state", "etc", "linked"].map(|name| place.path().join(name));
    dirs.iter().for_each(|dir| fs::create_dir(dir).expect("ours"));
    let [run, state, etc, linked] = dirs;
    let file = etc.join("ringway.toml");
    fs::write(linked.join("host.toml"), "").expect("written");
    symlink(linked.join("host.toml"), &file).expect("a link");
    let usage = Usage { has_toolstack: true, ..Usage::default() };
    let mut host = ringway_description::Host::empty(usage).expect("good");
    host.origin = Some(Origin { file: file.clone(), usage });
    fs::write(run.join("host.json"), serde_json::to_vec(&host).expect("JSON")).expect("written");
    let (link, theirs) = Link::pair().expect("descriptors");
    let mut command = ringway();
    command.args(["opener", "--dir"]).arg(&run).env("STATE_DIRECTORY", &state);
    let log = fs::File::create(place.path().join("log")).expect("ours");
    let mut opener = Running::start(command.stdin(theirs).stderr(log));
    drop(command);
    assert!(matches!(next_event(&link), OpenerEvent::Ready));
    let order = |order: &OpenerOrder| link.send(order, &[]).expect("there is room");
    let reloaded = |added: &[&str], removed: &[&str], error: Option<&str>| {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let (added, removed) = (names(added), names(removed));
        OpenerOrder::Reloaded { added, removed, error: error.map(str::to_owned) }
    };

    fs::write(&file, "[[guest]]\nname = 'a'\n").expect("written");
    order(&OpenerOrder::Reload);
    assert!(matches!(next_event(&link), OpenerEvent::Refused));
    let first = vhost(place.path(), "vm1", "");
    fs::write(&file, &first).expect("written");
    for error in [Some("it cannot be"), None] {
        order(&OpenerOrder::Reload);
        match next_event(&link) {
            OpenerEvent::Described { vhost } => assert_eq!(vhost["name"], "vm1"),
            other => panic!("{other:?}"),
        }
        assert!(matches!(next_event(&link), OpenerEvent::Reload { .. }));
        order(&reloaded(&["vm1"], &[], error));
    }
    match next_event(&link) {
        OpenerEvent::Added { name, at_run_time: false, .. } => assert_eq!(name, "vm1"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(next_event(&link), OpenerEvent::Waiting { is_failure: false, .. }));
    let accepted = || fs::read_to_string(state.join("ringway.toml.accepted")).unwrap_or_default();
    wait_for("it to be kept", SOON, || accepted().ends_with(&first).then_some(()));
    assert!(place.path().join("vm1").exists());

    // An editor puts another file in its place.
    fs::write(etc.join("new"), "").expect("written");
    fs::rename(etc.join("new"), &file).expect("ours");
    order(&OpenerOrder::Reload);
    assert!(matches!(next_event(&link), OpenerEvent::Reload { .. }));
    order(&reloaded(&[], &["vm1"], None));
    wait_for("it to be gone", SOON, || (!place.path().join("vm1").exists()).then_some(()));
    wait_for("it to be kept", SOON, || (accepted().lines().count() == 1).then_some(()));
    drop(link);
    assert!(opener.wait("its end", SOON).success());
    let log = fs::read_to_string(place.path().join("log")).expect("ours");
    assert!(log.contains("a section [[guest]]") && log.contains("it cannot be"), "{log}");
    assert_eq!(log.matches(REFUSED).count(), 2, "{log}");
}

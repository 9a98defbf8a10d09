//! The backend is killed, or its vifs are changed, while traffic flows.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use ringway_datapath::MacAddr;
use ringway_datapath::headers::Transport;
use ringway_e2e::host::{Host, SOON, describe, names_in, pair, send};
use ringway_e2e::traffic::{Iperf, UNTIL_STOPPED, longest_silence};
use ringway_e2e::{measured_turn, nightly_turn, shared_turn};
use ringway_hostile::frame::{Route, udp};
use ringway_steering::{FlowKey, FlowTuple, queue_of};
use ringway_xenstore::Watched;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

use crate::hostile::{BUFFERS, Hostile};

/// A node that the test writes behind all others.
const LAST: &str = "/e2e-last";
/// All nodes that contain a state.
const STATES: [&str; 4] = [
    "/local/domain/0/backend/vif/1/0/state",
    "/local/domain/0/backend/vif/2/0/state",
    "/local/domain/1/device/vif/0/state",
    "/local/domain/2/device/vif/0/state",
];

#[test]
fn a_connection_survives_a_killed_backend_with_a_pause_of_less_than_a_second() {
    let Some(turn) = measured_turn(&["iperf3"]) else { return };
    let host = Host::start(&pair());
    let mut store = host.store();
    let transfer = Iperf::start(&host, "a", ("b", "10.77.0.2"), UNTIL_STOPPED);
    transfer.expect_progress(&host);
    for path in STATES.into_iter().chain([LAST]) {
        store.watch(path, path).expect("watched");
    }
    // Each watch fires once when it is set.
    for _ in STATES.into_iter().chain([LAST]) {
        host.wait("the first event", SOON, |_| store.next_watch().expect("the store lives"));
    }
    let before = host.pid_of("backend");
    if turn.is_quiet {
        wait_until_settled(&host);
        send(before, Signal::KILL);
        let silence = longest_silence(&host, "a", Duration::from_millis(1500));
        println!("silence {silence:.3?}");
        // waits: such a pause is promised, and the machine is quiet.
        assert!(silence < Duration::from_secs(1), "{silence:?}");
    } else {
        send(before, Signal::KILL);
    }
    let restarted =
        host.wait("the backend's restart", SOON, |host| host.event("backend-restarted"));
    assert_ne!(restarted["pid"].as_u64(), Some(before.into()));
    transfer.expect_progress(&host);
    println!("{:.2e} bit/s", transfer.stop().rate());
    // No state has changed meanwhile: the guests noticed nothing. The store sends events in order.
    host.store().write(LAST, "").expect("domain 0 may");
    let mut next = || host.wait("an event", SOON, |_| store.next_watch().expect("the store lives"));
    let events = std::iter::repeat_with(|| match next() {
        Watched::Node(event) => event.path,
        other => panic!("{other:?}"),
    });
    for path in events.take_while(|path| path != LAST) {
        assert_eq!(host.node(&path).as_deref(), Some("4"), "{path}");
    }
    for path in STATES {
        assert_eq!(host.node(path).as_deref(), Some("4"), "{path}");
    }
    assert_eq!(host.vif("vif1.0").expect("it is there").queues.len(), 4);
}

/// Waits until a killed backend is restarted at once: one that ends in its first second counts as
/// not working.
fn wait_until_settled(host: &Host) {
    let age = Duration::from_millis(1200);
    host.wait("the backend to be settled", SOON, |host| {
        let started = std::fs::metadata(host.dir().join("backend.sock")).ok()?.modified().ok()?;
        started.elapsed().ok().filter(|elapsed| *elapsed > age)
    });
}

/// Guests, and vifs of each.
const CROWD: (usize, usize) = (4, 25);
/// Twice what docs/xen.md states for so many vifs.
const TAKEN_OVER: Duration = Duration::from_secs(1);

#[test]
fn a_hundred_vifs_are_taken_over_in_the_time_that_the_page_for_administrators_states() {
    if nightly_turn("it starts a hundred vifs", &[]).is_none() {
        return;
    }
    let Some(turn) = measured_turn(&[]) else { return };
    let (guests, vifs) = CROWD;
    let guest = |number: usize| {
        let vifs = "[[guest.vif]]\nqueues = 1\n".repeat(vifs);
        format!("[[guest]]\nname = \"guest{number}\"\nmemory-mib = 96\n{vifs}")
    };
    let guests_of_host: String = (0..guests).map(guest).collect();
    let host = Host::start(&format!("[host]\nnetwork = \"private\"\n{guests_of_host}"));
    wait_until_settled(&host);
    let killed = Instant::now();
    send(host.pid_of("backend"), Signal::KILL);
    let took = host.wait("all vifs to be served again", SOON, |host| {
        let all = host.backend()?.vifs;
        let served = all.iter().filter(|vif| vif.restarts == 1 && vif.state == "Connected");
        (served.count() == guests * vifs).then(|| killed.elapsed())
    });
    println!("{} vifs are served again after {took:.3?}", guests * vifs);
    // waits: the page states this time, for an idle host.
    assert!(took <= TAKEN_OVER || !turn.is_quiet, "{took:?}");
}

#[test]
fn a_backend_without_descriptors_reports_it_and_serves_its_guest_once_it_has_some() {
    let Some(_turn) = shared_turn(&["ping", "xenstore-read"]) else { return };
    let guests = [("a", "", "queues = 1"), ("b", "", "queues = 1")];
    // Confined, it would be another user's process, whose limits not every root may lower.
    let unconfined = [("RINGWAY_CONFINE", "off".as_ref())];
    let place = tempfile::tempdir().expect("a directory");
    let host = Host::start_with(place, &describe("max-queues = 4", &guests), &unconfined);
    let pid = host.pid_of("backend");
    let open = names_in(format!("/proc/{pid}/fd").as_ref());
    let lowest_free = (0_u64..).find(|number| !open.contains(&number.to_string()));
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let limit_to = |current| {
        let maximum = getrlimit(Resource::Nofile).maximum;
        let set = prlimit(pid, Resource::Nofile, Rlimit { current, maximum });
        set.expect("the backend is ours")
    };
    let before = limit_to(lowest_free);
    host.text(&["guest", "set", "a", "queues", "4"]);
    let error = "/local/domain/0/backend/vif/1/0/error";
    host.wait("the reason", SOON, |host| {
        host.node(error).filter(|text| text.contains("no more descriptors"))
    });
    // It waits, and neither vif is closed.
    assert_eq!([STATES[0], STATES[1]].map(|node| host.node(node).expect("there")), ["2", "4"]);
    limit_to(before.current);
    host.wait("the guest to be served", SOON, |host| {
        let vif = host.vif("vif1.0")?;
        (vif.state == "Connected" && vif.queues.len() == 4 && vif.error.is_none()).then_some(())
    });
    assert_eq!(host.node(error), None);
    assert_eq!(host.log_count("no more descriptors"), 1, "{}", host.log());
    host.wait("the guest to be connected", SOON, |host| {
        host.guest("a")?.vifs.pop().filter(|vif| vif.state == "Connected")
    });
    host.ping("a", "10.77.0.2");
}

#[test]
fn a_number_of_queues_that_is_not_offered_is_refused_and_changes_nothing() {
    let Some(_turn) = shared_turn(&["ping", "xenstore-read"]) else { return };
    let host = Host::start(&pair());
    let node = STATES[2];
    let mut store = host.store();
    store.watch(node, node).expect("watched");
    host.wait("the first event", SOON, |_| store.next_watch().expect("the store lives"));
    for wanted in ["0", "5", "65"] {
        let refused = host.verb(&["guest", "set", "a", "queues", wanted]);
        let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success(), "{complaint}");
        assert!(complaint.contains("expected 1 to 4"), "{complaint}");
    }
    host.ping("a", "10.77.0.2");
    // The guest never left its state: an order that is met does so, and is the first event.
    host.text(&["guest", "set", "a", "queues", "2"]);
    let wait_for_queues = |count| {
        host.wait("its queues", SOON, |host| {
            host.vif("vif1.0").filter(|vif| vif.state == "Connected" && vif.queues.len() == count)
        });
    };
    wait_for_queues(2);
    let mut changes = 0;
    while store.next_watch().expect("the store lives").is_some() {
        changes += 1;
    }
    // Closing, Closed, Initialising, Initialised, Connected, once each at most.
    assert!((1..=5).contains(&changes), "{changes} changes of the guest's state");
    assert_eq!(host.vif("vif1.0").expect("listed").error, None);
    host.text(&["vif", "set", "vif1.0", "max-queues", "1", "--reconnect"]);
    wait_for_queues(1);
}

#[test]
fn a_guests_flows_go_to_the_queue_of_its_choice_also_after_the_backend_was_killed() {
    const CHOSEN: usize = 2;
    let Some(_turn) = shared_turn(&["iperf3"]) else { return };
    let host = Host::start(&pair());
    let refused = host.verb(&["guest", "set", "a", "hash", "6d5a", "--mapping", "0,4"]);
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && complaint.contains("less than 4"), "{complaint}");
    host.text(&["guest", "set", "a", "hash", "6d:5a:56:da", "--mapping", "2,2"]);
    let chosen = |host: &Host| {
        let hash = host.vif("vif1.0").filter(|vif| vif.state == "Connected")?.hash?;
        // The types are the last that a guest says, and known from before if it says all again.
        (hash.mapping == [2, 2] && !hash.types.is_empty()).then_some(hash)
    };
    let set = host.wait("the hash", SOON, chosen);
    assert_eq!((set.key.as_str(), set.types.len()), ("6d5a56da", 4));
    assert_eq!(host.guest("a").and_then(|it| it.vifs[0].hash.clone()), Some(set.clone()));
    assert!(host.text(&["vif", "show", "vif1.0"]).contains("key 6d5a56da, mapping 2,2"));
    let received = || -> Vec<u64> {
        let guest = host.guest("a").expect("it runs");
        guest.vifs[0].queues.iter().map(|queue| queue.rx_packets).collect()
    };
    for restarts in 1..=2_u64 {
        let before = received();
        let streams = ["-P", "8"];
        let transfer = Iperf::start_with(&host, "a", ("b", "10.77.0.2"), UNTIL_STOPPED, &streams);
        transfer.expect_progress(&host);
        drop(transfer);
        let after = received();
        assert_eq!((after[1], after[3]), (0, 0), "{after:?}");
        assert!(after[CHOSEN] > before[CHOSEN], "{after:?}");
        send(host.pid_of("backend"), Signal::KILL);
        host.wait("the restart", SOON, |host| {
            host.event("backend-restarted").filter(|event| event["restarts"] == restarts)
        });
        assert_eq!(host.wait("the hash", SOON, chosen), set);
    }
    let without_hash = |host: &Host| {
        host.guest("a")?.vifs.pop().filter(|vif| vif.state == "Connected" && vif.hash.is_none())
    };
    host.text(&["guest", "set", "a", "queues", "2"]);
    let vif = host.wait("no queue 2, and no hash", SOON, without_hash);
    assert_eq!((vif.queues.len(), host.log_count("its mapping has queue 2")), (2, 1));
    host.text(&["guest", "set", "a", "queues", "3"]);
    assert_eq!(host.wait("the hash", SOON, chosen), set, "it is not forgotten");
    host.text(&["guest", "set", "a", "hash", "none"]);
    host.wait("no control ring", SOON, without_hash);
}

/// A key of flows that no host has by chance.
const KEY: FlowKey = FlowKey::new([0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210]);
/// The queue that flows are aimed at.
const AIM: usize = 2;
const QUEUES: u16 = 4;
/// The frames' receiver.
const TO: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// The senders of flows that meet one queue by [`KEY`].
fn aimed(flows: usize) -> Vec<(Ipv4Addr, u16)> {
    let senders = (0..=u8::MAX).flat_map(|host| {
        (1024..=u16::MAX).map(move |port| (Ipv4Addr::new(198, 18, 0, host), port))
    });
    let meets = |(address, port): &(Ipv4Addr, u16)| {
        let (src, dst) = (SocketAddr::from((*address, *port)), SocketAddr::from((TO, 9)));
        let flow = FlowTuple { src, dst, transport: Transport::Udp };
        usize::from(queue_of(Some(flow.hash(KEY)), QUEUES).0) == AIM
    };
    senders.filter(meets).take(flows).collect()
}

/// Sends a frame of each flow to guest `a`, and returns what each of its queues got. No other
/// guest sends.
fn send_flows(host: &Host, attacker: &mut Hostile, flows: &[(Ipv4Addr, u16)]) -> Vec<u64> {
    let received = || -> Vec<u64> {
        let guest = host.guest("a").expect("it runs");
        guest.vifs[0].queues.iter().map(|queue| queue.rx_packets).collect()
    };
    let mac = host.vif("vif1.0").and_then(|vif| MacAddr::parse(&vif.mac?)).expect("an address");
    let before = received();
    let since = || -> Vec<u64> {
        received().iter().zip(&before).map(|(now, before)| now - before).collect()
    };
    let mut sent = 0;
    for flows in flows.chunks(BUFFERS) {
        let frame = |(address, port): &(Ipv4Addr, u16)| {
            let route = Route { from: (attacker.mac(), *address), to: (mac, TO) };
            udp(route, [*port, 9], 18)
        };
        let frames: Vec<Vec<u8>> = flows.iter().map(frame).collect();
        attacker.send_together(&frames);
        sent += u64::try_from(frames.len()).expect("few");
        // More than the queues hold would be dropped.
        host.wait("the frames", SOON, |_| (since().iter().sum::<u64>() >= sent).then_some(()));
    }
    since()
}

#[test]
fn flows_that_are_aimed_at_a_queue_are_spread_and_meet_the_same_ones_after_a_kill() {
    const FLOWS: usize = 10_000;
    // Its announcement would be among the frames that are counted.
    const UNANNOUNCED: [(&str, &str); 1] = [("ringway-announce", "0")];
    let Some(_turn) = shared_turn(&["xenstore-read"]) else { return };
    let receiver = [("a", "", "queues = 4")];
    let host = Host::start(&describe("max-queues = 4", &receiver));
    let mut attacker = Hostile::with_keys(&host, &UNANNOUNCED);
    attacker.connect();
    let flows = aimed(FLOWS);
    let spread = send_flows(&host, &mut attacker, &flows);
    // A quarter each, with eleven standard deviations of random placement.
    assert!(spread.iter().all(|frames| (2000..3000).contains(frames)), "{spread:?}");
    send(host.pid_of("backend"), Signal::KILL);
    host.wait("the restart", SOON, |host| host.event("backend-restarted"));
    for name in ["vif1.0".to_owned(), attacker.name()] {
        host.wait("the next backend to serve it", SOON, |host| {
            host.vif(&name).filter(|vif| vif.state == "Connected")
        });
    }
    assert_eq!(send_flows(&host, &mut attacker, &flows), spread);

    let host = Host::start(&describe(&format!("max-queues = 4\nflow-key = \"{KEY}\""), &receiver));
    let mut attacker = Hostile::with_keys(&host, &UNANNOUNCED);
    attacker.connect();
    let met = send_flows(&host, &mut attacker, &flows[..200]);
    assert_eq!(met, [0, 0, 200, 0], "with a key that it knows, its aim is good");
}

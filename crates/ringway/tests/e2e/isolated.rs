//! A backend whose tenants have processes of their own: what crosses the trunks, and what happens
//! when a tenant's process or the switch process ends.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use ringway_control::{BackendRequest, BackendStatus, TenantStatus, VifStatus};
use ringway_datapath::MacAddr;
use ringway_e2e::host::{Host, SOON, describe, names_in, send, wait_for};
use ringway_e2e::traffic::{Iperf, UNTIL_STOPPED, random_file, send_file};
use ringway_e2e::{nightly_turn, shared_turn};
use rustix::process::Signal;

use crate::devices::{tool, tool_ok};
use crate::hostile::Hostile;
use crate::panics::disturb;
use crate::rules::{arp_question, neighbor};

/// Guests `a` and `c` of one tenant, `b` of another, and `d` of none; and the uplink to the host.
fn tenants() -> String {
    let guest = |name, vif| (name, "", vif);
    describe(
        "isolate = true\nmax-queues = 2",
        &[
            guest("a", "queues = 2\ntenant = \"red\""),
            guest("b", "queues = 2\ntenant = \"blue\""),
            guest("c", "queues = 2\ntenant = \"red\""),
            guest("d", "queues = 2"),
        ],
    ) + "[uplink]\naddresses = [\"10.77.0.254/24\", \"fd77::fe/64\"]\n"
}

fn tenant(host: &Host, name: &str) -> Option<TenantStatus> {
    host.backend()?.tenants.into_iter().find(|tenant| tenant.name == name)
}

/// What all processes say, once each has replied in time, as on a busy machine it may not.
fn status_of_all(host: &Host) -> BackendStatus {
    host.wait("a reply of each process", SOON, |host| {
        let status = host.backend()?;
        let has_replied = |tenant: &TenantStatus| tenant.state == "serving";
        // The switch process has one for each.
        let is_whole = status.trunks.len() == status.tenants.len();
        (is_whole && status.tenants.iter().all(has_replied)).then_some(status)
    })
}

/// Waits until a new process serves a tenant.
fn wait_for_successor(host: &Host, name: &str, before: u32) -> u32 {
    host.wait("the tenant's next process", SOON, |host| {
        let tenant = tenant(host, name)?;
        tenant.pid.filter(|pid| *pid != before && tenant.state == "serving")
    })
}

fn is_alive(pid: u32) -> bool {
    ringway_e2e::host::start_time(pid).is_some()
}

#[test]
fn frames_cross_within_a_tenant_between_tenants_and_to_the_uplink() {
    let Some(_turn) = shared_turn(&["ping", "socat"]) else { return };
    let host = Host::start(&tenants());
    let file = host.file("random");
    random_file(&file, 8);
    for (from, to, address) in [
        ("a", "c", "10.77.0.3"),
        ("a", "b", "10.77.0.2"),
        ("b", "a", "fd77::1"),
        ("b", "d", "10.77.0.4"),
        ("d", "c", "fd77::3"),
    ] {
        assert!(send_file(&host, from, to, address, &file), "{from} to {to}");
    }
    for guest in ["a", "b", "d"] {
        host.ping(guest, "10.77.0.254");
    }
    let names: Vec<String> = host
        .members()
        .into_iter()
        .map(|member| member.name)
        .filter(|it| !it.starts_with("guest"))
        .collect();
    let expected =
        ["ringway run", "broker", "switch", "tenant blue", "tenant domain-4", "tenant red"];
    assert_eq!(names, expected);
    let status = status_of_all(&host);
    let vifs = status.vifs;
    let whose: Vec<(String, Option<String>)> =
        vifs.iter().map(|vif| (vif.name.clone(), vif.tenant.clone())).collect();
    let of = |vif: &str, tenant: &str| (vif.to_owned(), Some(tenant.to_owned()));
    let expected =
        [of("vif1.0", "red"), of("vif2.0", "blue"), of("vif3.0", "red"), of("vif4.0", "domain-4")];
    assert_eq!(whose, expected);
    assert_eq!(status.trunks.len(), 3);
    assert!(status.uplink.is_some_and(|uplink| uplink.queues[0].tx_packets > 0));
    // Traffic within a tenant does not cross its trunk: 8 MiB went from a to c. Of the rest, each
    // frame was counted on both sides, also when TCP sent it again.
    let received = |vif: &VifStatus| vif.queues.iter().map(|queue| queue.rx_bytes).sum::<u64>();
    let is_red = |it: &&VifStatus| it.tenant.as_deref() == Some("red");
    let trunk = received(status.trunks.iter().find(is_red).expect("one"));
    let guests = vifs.iter().filter(is_red).map(received).sum::<u64>();
    assert!(trunk >= 16 << 20, "b and d have sent twice 8 MiB: {trunk}");
    assert!(guests >= trunk + (4 << 20), "{guests} arrived, {trunk} over the trunk");
}

/// A guest's own tag does not take it into a VLAN, whatever its tenant's trunk carries. Returns a
/// guest with a trunk.
fn check_tags(host: &Host) -> Hostile<'_> {
    let knows = |guest: &str, last: u8, mac: &str| {
        neighbor(host, guest, &format!("10.77.0.{last}")).contains(mac)
    };
    let vlan = [("ringway-vlan", "20")];
    for (number, keys, (peer, last)) in [(71, &[][..], ("n", 6)), (72, &vlan, ("d", 4))] {
        let mut guest = Hostile::with_keys(host, keys);
        guest.connect();
        let (own, mac) = (guest.mac(), guest.mac().to_string());
        host.wait("its guest to be known", SOON, |_| {
            guest.send(&arp_question(own, number, 1, Some(10)));
            guest.send(&arp_question(own, number, 2, Some(10)));
            // What arrives of this came behind the others.
            guest.send(&arp_question(own, number, last, None));
            knows(peer, number, &mac).then_some(())
        });
    }
    let mut trunk = Hostile::with_keys(host, &[("ringway-trunk", "10,20")]);
    trunk.connect();
    let own = trunk.mac();
    for (guest, whom, vid) in [("a", 1, 10), ("b", 2, 10), ("d", 4, 20)] {
        let from = 80 + whom;
        host.wait("a reply", SOON, |_| {
            // The switch process may learn of a new tenant's trunk after its guest has connected.
            trunk.send(&arp_question(own, from, whom, Some(vid)));
            knows(guest, from, &own.to_string()).then_some(())
        });
    }
    for number in [71, 72] {
        assert!(!knows("a", number, ":") && !knows("b", number, ":"), "{number}");
    }
    trunk
}

#[test]
fn vlans_and_private_ports_hold_between_tenants() {
    let Some(_turn) = shared_turn(&["ping", "ip", "xenstore-write"]) else { return };
    let uplink = "[uplink]\naddresses = [\"10.77.0.254/24\"]\nvlan = 10\ntrunk = [20]\n";
    let guests = [
        ("a", "", "vlan = 10\ntenant = \"red\""),
        ("b", "", "vlan = 10"),
        ("c", "", "vlan = 20\ntenant = \"red\""),
        ("d", "", "vlan = 20"),
        ("p", "", "vlan = 10\nprivate = true"),
        ("n", "", ""),
        ("e", "", "vlan = 20"),
        ("m", "", ""),
    ];
    let host = Host::start(&(describe("isolate = true", &guests) + uplink));
    for (from, to) in [("a", "10.77.0.2"), ("b", "fd77::1"), ("c", "10.77.0.4")] {
        host.ping(from, to);
    }
    host.ping("a", "10.77.0.254");
    host.ping("p", "10.77.0.254");
    // Each with a guest that it reaches.
    let [a, b, c] = [("a", 1, "10.77.0.2"), ("b", 2, "10.77.0.1"), ("c", 3, "10.77.0.7")];
    let [p, n] = [("p", 5, "10.77.0.254"), ("n", 6, "10.77.0.8")];
    for (one, other) in [(a, c), (a, ("d", 4, "10.77.0.7")), (b, c), (p, a), (b, p), (n, a)] {
        assert_apart(&host, one, other);
    }

    let _trunk = check_tags(&host);
    let fdb = status_of_all(&host).fdb;
    let vlan_of = |port: &str| fdb.iter().find(|entry| entry.port == port).map(|entry| entry.vlan);
    assert_eq!(vlan_of("trunk-domain-2"), Some(Some(10)), "{fdb:?}");

    // A connected guest changes its VLAN, and another leaves all VLANs.
    let node = |domid: u16| format!("/local/domain/0/backend/vif/{domid}/0/ringway-vlan");
    host.tool_text("xenstore-write", &[&node(4), "10"]);
    host.wait("d in VLAN 10", SOON, |host| finds(host, "d", "10.77.0.1").then_some(()));
    assert_apart(&host, c, ("d", 4, "10.77.0.1"));
    host.tool_text("xenstore-rm", &[&node(4)]);
    host.wait("d in no VLAN", SOON, |host| finds(host, "d", "10.77.0.6").then_some(()));
    assert_apart(&host, ("d", 4, "10.77.0.6"), a);
}

/// Whether an address replies in a moment.
fn has_reply(host: &Host, guest: &str, address: &str) -> bool {
    // waits: where none must come, what follows shows that none has; elsewhere, it is repeated.
    let ping = ["ping", "-n", "-c", "1", "-W", "0.2", address];
    host.in_guest(guest, &ping).output().expect("it can be started").status.success()
}

/// Whether a guest learns who has an address, however late the reply is.
fn finds(host: &Host, guest: &str, address: &str) -> bool {
    has_reply(host, guest, address) || neighbor(host, guest, address).contains("lladdr")
}

/// A guest, the last byte of its address, and an address that it reaches.
type Place<'a> = (&'a str, u8, &'a str);

/// Asserts that two guests do not reach each other.
fn assert_apart(host: &Host, one: Place<'_>, other: Place<'_>) {
    let address = |(_, last, _): Place<'_>| format!("10.77.0.{last}");
    for (guest, ..) in [one, other] {
        host.guest_text(guest, &["ip", "neigh", "flush", "dev", "eth0"]);
    }
    for (from, to) in [(one, other), (other, one)] {
        // waits: what each sends afterwards shows below that none was late.
        assert!(!has_reply(host, from.0, &address(to)), "{from:?} reaches {to:?}");
    }
    // What each sends to the other and gets from it is ahead of these.
    for (guest, _, friend) in [one, other, one] {
        host.ping(guest, friend);
    }
    for (from, to) in [(one, other), (other, one)] {
        let entry = neighbor(host, from.0, &address(to));
        assert!(!entry.contains("lladdr"), "{from:?} knows {to:?}: {entry}");
    }
}

#[test]
fn an_address_of_another_tenant_is_shown_and_one_that_both_share_moves() {
    let Some(_turn) = shared_turn(&["xenstore-read"]) else { return };
    let host = Host::start(&tenants());
    let mac = host.wait("its address", SOON, |host| host.vif("vif2.0")?.mac);
    let mut guest = Hostile::with_keys(&host, &[("mac", &mac)]);
    guest.connect();
    let error = host.wait("the error", SOON, |host| host.vif(&guest.name())?.error);
    assert!(error.contains(&mac) && error.contains("that of vif2.0 of tenant blue"), "{error}");
    assert_eq!(host.vif("vif2.0").and_then(|vif| vif.error), None);

    let router = MacAddr([0x00, 0x00, 0x5e, 0x00, 0x01, 0x07]);
    let keys = [("ringway-shared-macs", "00:00:5e:00:01:07")];
    let mut guests = [0, 1].map(|_| Hostile::with_keys(&host, &keys));
    guests.iter_mut().for_each(Hostile::connect);
    for _ in 0..3 {
        for guest in &mut guests {
            guest.send(&arp_question(router, 66, 1, None));
            let trunk = format!("trunk-domain-{}", guest.vif().frontend);
            host.wait("the address to move", SOON, |host| {
                let fdb = host.backend()?.fdb;
                let entry = fdb.into_iter().find(|entry| entry.mac == router.to_string())?;
                (entry.port == trunk).then_some(())
            });
        }
    }
}

#[test]
fn the_command_line_shows_and_changes_vifs_of_all_tenants() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let host = Host::start(&tenants());
    // Of a process that is late, it says that.
    let shows = |command: &[&str], texts: &[&str]| {
        host.wait(&format!("{texts:?}"), SOON, |host| {
            let shown = host.text(command);
            texts.iter().all(|text| shown.contains(text)).then_some(())
        });
    };
    let of_list =
        ["vif1.0", "vif2.0", "vif4.0", "ringway0", "red", "blue", "domain-4", "trunk-red"];
    shows(&["vif", "list"], &of_list);
    host.text(&["vif", "set", "vif2.0", "max-queues", "1", "--reconnect"]);
    host.wait("one queue", SOON, |host| {
        let vif = host.vif("vif2.0")?;
        (vif.state == "Connected" && vif.queues.len() == 1).then_some(())
    });
    assert!(host.text(&["vif", "show", "vif2.0"]).contains("tenant            blue"));
    // Another VLAN takes another process; its vif is not missing meanwhile.
    for vlan in ["7", "8", "9", "none"] {
        host.text(&["vif", "set", "vif4.0", "vlan", vlan]);
        host.text(&["vif", "set", "vif4.0", "weight", "2"]);
        assert!(host.text(&["vif", "show", "vif4.0"]).contains("tenant            domain-4"));
    }
    shows(&["top", "--once"], &["vif3.0"]);
    let missing = host.verb(&["vif", "show", "vif9.0"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("there is no vif \"vif9.0\""));
    let capture = host.file("capture");
    let capture = capture.to_str().expect("text");
    let mut running = ringway_e2e::host::ringway();
    running.env("RINGWAY_DIR", host.dir()).args(["capture", "vif2.0", "-w", capture]);
    let mut running = ringway_e2e::host::Running::start(&mut running);
    host.wait("a captured frame", SOON, |host| {
        host.ping("a", "10.77.0.2");
        fs::metadata(host.file("capture")).ok().filter(|file| file.len() > 300)
    });
    send(running.0.id(), Signal::INT);
    assert!(running.wait("the capture to end", SOON).success());
}

#[test]
fn a_killed_tenant_process_costs_no_connection_and_does_not_pause_other_tenants() {
    let Some(_turn) = shared_turn(&["iperf3"]) else { return };
    let host = Host::start(&tenants());
    // One connection outside the killed process, and two that it serves.
    let others = Iperf::start(&host, "b", ("d", "10.77.0.4"), UNTIL_STOPPED);
    let its_own = Iperf::start(&host, "a", ("c", "10.77.0.3"), UNTIL_STOPPED);
    let both = Iperf::start_with(&host, "c", ("b", "10.77.0.2"), UNTIL_STOPPED, &["-b", "50M"]);
    [&others, &its_own, &both].into_iter().for_each(|it| it.expect_progress(&host));
    let before = host.pid_of("tenant red");
    let kept = ["switch", "tenant blue", "tenant domain-4"].map(|name| host.pid_of(name));
    // While the supervisor is stopped, there is no other process in its place.
    host.signal(Signal::STOP);
    send(before, Signal::KILL);
    others.expect_progress(&host);
    host.signal(Signal::CONT);
    wait_for_successor(&host, "red", before);
    [&others, &its_own, &both].into_iter().for_each(|it| it.expect_progress(&host));
    for transfer in [others, its_own, both] {
        transfer.stop();
    }
    assert!(kept.into_iter().all(is_alive));
    let restarted = host.event("process-restarted").expect("the host says so");
    assert_eq!(restarted["process"], "red");
}

#[test]
fn a_tenant_process_that_stays_stopped_is_replaced_and_the_log_says_why() {
    let Some(_turn) = nightly_turn("a process may be silent for a minute", &[]) else { return };
    let host = Host::start(&tenants());
    let before = host.pid_of("tenant red");
    send(before, Signal::STOP);
    let reason = "it is stopped, by a signal or a debugger";
    host.wait("the end of the process", 6 * SOON, |host| {
        (host.log_count(reason) > 0).then_some(())
    });
    wait_for_successor(&host, "red", before);
}

#[test]
fn a_hung_tenant_process_is_replaced_and_delays_no_reply() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let place = tempfile::tempdir().expect("a directory can be made");
    let host = Host::start_with(place, &tenants(), &[("RINGWAY_TEST_PANICS", OsStr::new("1"))]);
    let before = host.pid_of("tenant red");
    send(before, Signal::STOP);
    // The reply comes while it is stopped. On a busy machine the others may be late, too.
    let status = host.wait("a reply of the others", SOON, |host| {
        let status = host.backend()?;
        let states = status.tenants.iter().map(|tenant| tenant.state.as_str());
        states.eq(["serving", "serving", "silent"]).then_some(status)
    });
    assert_eq!(status.vifs.len(), 2);
    let mut show = ringway_e2e::host::ringway();
    show.env("RINGWAY_DIR", host.dir()).args(["vif", "show", "vif1.0"]).stdout(Stdio::piped());
    let show = show.stderr(Stdio::piped()).spawn().expect("the program can be started");
    host.ping("b", "10.77.0.4");
    // By the end of this, the other has asked, too, unless the machine is busy.
    let _ = host.backend();
    // A stopped process is not stuck, and continues.
    send(before, Signal::CONT);
    let shown = show.wait_with_output().expect("our child");
    let [shown, complaint] =
        [shown.stdout, shown.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    // On a busy machine it may give up. Then it says why, and not that there is no such vif.
    let is_late = complaint.contains("the process of tenant red, which serves vif1.0, is silent");
    assert!(shown.contains("tenant            red") || is_late, "{shown}{complaint}");
    host.wait("the tenant", SOON, |host| {
        let tenant = tenant(host, "red")?;
        (tenant.pid == Some(before) && tenant.state == "serving").then_some(())
    });
    // Ten seconds, which use no CPU time.
    let request = BackendRequest::Stall { vif: "vif1.0".to_owned(), asleep: true };
    disturb(&host, &request);
    host.wait("the tenant's next process", 6 * SOON, |host| {
        let tenant = tenant(host, "red")?;
        (tenant.pid != Some(before) && tenant.state == "serving").then_some(())
    });
    host.ping("a", "10.77.0.2");
}

#[test]
fn after_the_switch_process_ends_all_processes_are_replaced() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let host = Host::start(&tenants());
    let names = ["switch", "tenant red", "tenant blue", "tenant domain-4"];
    let before = names.map(|name| host.pid_of(name));
    send(before[0], Signal::KILL);
    host.wait("all to be replaced", SOON, |host| {
        let tenants = host.backend()?.tenants;
        let is_new = |tenant: &TenantStatus| {
            tenant.state == "serving" && tenant.pid.is_some_and(|pid| !before.contains(&pid))
        };
        (tenants.len() == 3 && tenants.iter().all(is_new)).then_some(())
    });
    assert!(!before.into_iter().any(is_alive));
    host.ping("a", "10.77.0.2");
    host.ping("b", "10.77.0.254");
}

#[test]
fn nothing_is_left_of_an_isolated_host() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    for signal in [Signal::INT, Signal::TERM] {
        let host = Host::start(&tenants());
        let members = host.members();
        let dir = host.dir();
        host.signal(signal);
        let (status, _place, log) = host.ended();
        assert!(status.success(), "{status}\n{log}");
        assert!(!log.contains("did not stop on request"), "{log}");
        // The openers of tenants, which are not members, end with these.
        wait_for("the host's processes and files to go", SOON, || {
            let has_ended = members.iter().all(|member| !member.is_alive());
            (has_ended && names_in(&dir).is_empty()).then_some(())
        });
    }
}

#[test]
fn a_guest_that_ends_takes_the_process_of_its_domain_with_it() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let host = Host::start(&tenants());
    let before = host.pid_of("tenant domain-4");
    send(host.pid_of("guest d"), Signal::KILL);
    host.wait("the tenant to go", SOON, |host| {
        let tenants = host.backend()?.tenants;
        (tenants.len() == 2 && !is_alive(before)).then_some(())
    });
    host.wait("its directory to go", SOON, |host| {
        (!names_in(&host.dir()).iter().any(|name| name == "tenant-domain-4")).then_some(())
    });
    assert_eq!(host.log_count("the supervisor has ended"), 0, "{}", host.log());
    host.ping("a", "10.77.0.2");
}

/// Writes into the memory of a tenant's process, where its trunk is; `None` if that is not
/// permitted.
struct Intruder {
    memory: File,
    trunk: Range<u64>,
}

impl Intruder {
    fn in_process(pid: u32) -> Option<Intruder> {
        let memory = OpenOptions::new().write(true).open(format!("/proc/{pid}/mem")).ok()?;
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        let line = maps.lines().find(|line| line.contains("/memfd:trunk")).expect("it has one");
        let (range, _) = line.split_once(' ').expect("proc_pid_maps(5)");
        let (start, end) = range.split_once('-').expect("proc_pid_maps(5)");
        let address = |text| u64::from_str_radix(text, 16).expect("a number");
        Some(Intruder { memory, trunk: address(start)..address(end) })
    }

    /// Garbage in the rings of all queues, including their indices.
    fn write(&self, random: &mut fastrand::Rng) {
        let garbage: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(8192).collect();
        let queue = ringway_trunk::queue_pages(1).start * 4096;
        for rings in (self.trunk.start..self.trunk.end).step_by(queue) {
            self.memory.write_all_at(&garbage, rings).expect("the process is there");
        }
    }
}

#[test]
fn a_tenant_process_that_writes_garbage_into_its_trunk_is_cut_off_alone() {
    let Some(_turn) = shared_turn(&["iperf3", "ping"]) else { return };
    let host = Host::start(&tenants());
    let before = host.pid_of("tenant red");
    let Some(intruder) = Intruder::in_process(before) else {
        let _ = writeln!(std::io::stderr(), "SKIPPED: no right to write into another process");
        return;
    };
    let kept = ["switch", "tenant blue", "tenant domain-4"].map(|name| host.pid_of(name));
    let others = Iperf::start(&host, "b", ("d", "10.77.0.4"), UNTIL_STOPPED);
    // Stopped, so that it does not find the fault first: it does not trust the switch process
    // either.
    send(before, Signal::STOP);
    intruder.write(&mut fastrand::Rng::with_seed(11));
    host.wait("the tenant to be cut off", SOON, |host| {
        // A broadcast makes the switch process read every trunk.
        has_reply(host, "b", "10.77.0.99");
        (host.log_count("cut off") > 0).then_some(())
    });
    others.expect_progress(&host);
    wait_for_successor(&host, "red", before);
    others.expect_progress(&host);
    others.stop();
    assert!(kept.into_iter().all(is_alive));
    host.ping("a", "10.77.0.2");
    assert!(host.log().contains("it was cut off"));
}

#[test]
fn a_killed_tenant_process_leaves_its_devices_as_they_are() {
    let Some(_turn) = shared_turn(&["iperf3", "nsenter", "ip", "bridge"]) else { return };
    // More queues than a message has room for.
    let guests = [
        ("a", "", "bridge = 'br7'\nqueues = 2\nmax-queues = 40"),
        ("b", "", "bridge = 'br7'\nqueues = 2\nmax-queues = 3"),
    ];
    let host = Host::start(&(describe("isolate = true", &guests) + "[[bridge]]\nname = 'br7'\n"));
    let pid = host.pid_of("ringway run");
    let names = ["vif1.0", "vif2.0"];
    for name in names {
        tool_ok(pid, &format!("bridge link set dev {name} learning off"));
    }
    let shown = || names.map(|name| tool_ok(pid, &format!("bridge -d link show dev {name}")));
    let before = shown();
    let transfer = Iperf::start(&host, "a", ("b", "10.77.0.2"), UNTIL_STOPPED);
    transfer.expect_progress(&host);
    for name in ["domain-1", "domain-2", "domain-1"] {
        let killed = host.pid_of(&format!("tenant {name}"));
        send(killed, Signal::KILL);
        wait_for_successor(&host, name, killed);
        transfer.expect_progress(&host);
        assert_eq!(shown(), before, "they had their queues all the time");
    }
    // With another number of queues.
    host.text(&["guest", "set", "b", "queues", "1"]);
    host.wait("one queue", SOON, |host| {
        host.vif("vif2.0").filter(|vif| vif.queues.len() == 1 && vif.state == "Connected")
    });
    transfer.expect_progress(&host);
    transfer.stop();
    // The device of a vif that is gone goes with it, although its process has its queues.
    let stopped = host.pid_of("tenant domain-2");
    send(stopped, Signal::STOP);
    host.store().remove("/local/domain/0/backend/vif/2").expect("removed");
    host.wait("the device to go", SOON, |_| {
        tool(pid, "ip link show vif2.0").is_none().then_some(())
    });
    send(stopped, Signal::CONT);
}

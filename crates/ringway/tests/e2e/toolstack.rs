//! The life of a vif under a stock toolstack: its hotplug script, its limits, its removal. The test
//! acts as the toolstack and its script.

use std::time::Instant;

use ringway_e2e::host::{Host, Member, SOON, describe, pair, send, start_time};
use ringway_e2e::traffic::{Carried, Iperf, UNTIL_STOPPED};
use ringway_e2e::{measured_turn, shared_turn};
use ringway_xenbus::Vif;
use ringway_xenstore::DomId;
use rustix::process::Signal;

use crate::devices::tool;
use crate::hostile::Hostile;

/// One process for all vifs, and one for each tenant.
const EACH: [&str; 2] = ["max-queues = 2", "max-queues = 2\nisolate = true"];
const SCRIPT: (&str, &str) = ("script", "/etc/xen/scripts/vif-bridge");
const BRIDGE: (&str, &str) = ("bridge", "xenbr0");
const VIF_A: Vif = Vif { backend: DomId(0), frontend: DomId(1), handle: 0 };

/// `ip` in the namespace of the host.
pub(crate) fn ip(host: &Host, arguments: &str) -> Option<String> {
    tool(host.pid_of("ringway run"), &format!("ip {arguments}"))
}

pub(crate) fn ip_ok(host: &Host, arguments: &str) -> String {
    ip(host, arguments).unwrap_or_else(|| panic!("ip {arguments}\n{}", host.log()))
}

pub(crate) fn wait_state(host: &Host, vif: Vif, state: &str) {
    host.wait(&format!("state {state} of {vif:?}"), SOON, |host| {
        host.node(&vif.backend_state()).filter(|found| found == state)
    });
}

fn write(host: &Host, vif: Vif, key: &str, value: &str) {
    host.store().write(&format!("{}/{key}", vif.backend_dir()), value).expect("written");
}

/// What libxl writes to remove a vif; then it waits until the vif is closed.
fn remove(host: &Host, vif: Vif) {
    let dir = vif.backend_dir();
    host.store()
        .transaction(|tx| {
            tx.write(&format!("{dir}/online"), "0")?;
            match tx.read(&format!("{dir}/state"))?.as_deref() {
                Some("6") => Ok(()),
                _ => tx.write(&format!("{dir}/state"), "5"),
            }
        })
        .expect("written");
    wait_state(host, vif, "6");
    host.store().remove(&dir).expect("removed");
}

#[test]
fn a_guest_is_connected_after_its_script_has_placed_the_device() {
    let Some(_turn) = shared_turn(&["nsenter", "ip", "xenstore-read"]) else { return };
    for settings in EACH {
        let host = Host::start(&describe(settings, &[]));
        let keys = [SCRIPT, BRIDGE, ("vifname", "guest-tap"), ("mtu", "1400")];
        let mut guest = Hostile::with_keys(&host, &keys);
        let vif = guest.vif();
        wait_state(&host, vif, "2");
        // What a script that renames the device finds.
        let name = guest.name();
        let link = ip_ok(&host, &format!("-d link show {name}"));
        assert!(ip(&host, "link show guest-tap").is_none());
        ip_ok(&host, &format!("link set {name} name guest-tap"));
        for part in ["mtu 1400", "fe:ff:ff:ff:ff:ff", "tun type tap", "multi_queue", "persist on"] {
            assert!(link.contains(part), "{part}: {link}");
        }
        assert!(link.contains("state DOWN") && !link.contains("master"), "{link}");

        guest.publish(&[]);
        host.wait("the guest to be served", SOON, |host| {
            host.log().contains("waiting for the hotplug script").then_some(())
        });
        assert_eq!(host.node(&vif.backend_state()).as_deref(), Some("2"));
        let status = host.vif(&guest.name()).expect("it is listed");
        // The script has not put it on the bridge.
        assert_eq!((status.queues.len(), status.attached_to.as_str()), (1, "guest-tap"));
        write(&host, vif, "hotplug-status", "connected");
        wait_state(&host, vif, "4");

        // The guest closes its interface and opens it again: no script runs for that.
        for (guests, ours) in [("5", "5"), ("6", "6"), ("1", "2")] {
            guest.set_state(guests);
            wait_state(&host, vif, ours);
        }
        ip_ok(&host, "link show guest-tap");
        guest.publish(&[]);
        wait_state(&host, vif, "4");
        assert_eq!(host.log_count("waiting for the hotplug script"), 1);

        // A domain that may write the backend's state asks it to close, while the vif stays.
        write(&host, vif, "state", "5");
        host.wait("nothing to be attached", SOON, |host| {
            host.vif(&guest.name()).filter(|vif| vif.queues.is_empty())
        });
        guest.set_state("6");
        wait_state(&host, vif, "6");

        remove(&host, vif);
        host.wait("the device to go", SOON, |host| {
            ip(host, "link show guest-tap").is_none().then_some(())
        });
        assert_eq!(host.vif(&guest.name()).map(|vif| vif.name), None);
    }
}

/// As `vif-bridge` does for `vifname=`: the device appears as `vifD.H`, and is renamed.
#[test]
fn a_device_that_a_script_has_renamed_is_found_by_its_note() {
    let Some(_turn) = shared_turn(&["nsenter", "ip", "ping", "xenstore-read"]) else { return };
    let host = Host::start(&pair());
    ip_ok(&host, "link add xenbr0 type bridge");
    ip_ok(&host, "link set xenbr0 up");
    write(&host, VIF_A, "vifname", "web0");
    hand_to_script_with(&host, VIF_A, |host| {
        ip_ok(host, "link set vif1.0 name web0");
        "web0".to_owned()
    });
    let vif_b = Vif { frontend: DomId(2), ..VIF_A };
    // An administrator renames this one, without a change in XenStore.
    hand_to_script_with(&host, vif_b, |host| {
        ip_ok(host, "link set vif2.0 name other0");
        "other0".to_owned()
    });
    let index = |name: &str| {
        let link = ip_ok(&host, &format!("-o link show {name}"));
        link.split(':').next().map(str::to_owned)
    };
    let before = [index("web0"), index("other0")];
    let ping = || {
        host.wait("both to be connected", SOON, |host| {
            let vifs = host.vifs();
            (vifs.len() == 2 && vifs.iter().all(|vif| vif.state == "Connected")).then_some(())
        });
        host.ping("a", "10.77.0.2");
    };
    ping();
    for signal in [Signal::KILL, Signal::TERM] {
        end_backend(&host, signal, || {});
        ping();
        assert_eq!([index("web0"), index("other0")], before);
        assert!(ip(&host, "link show vif1.0").is_none(), "a second device");
        assert!(ip(&host, "link show vif2.0").is_none(), "a second device");
    }
    // An interface without a note belongs to no vif, whatever its name is.
    ip_ok(&host, "link set web0 alias mine");
    end_backend(&host, Signal::KILL, || {});
    host.wait("another device", SOON, |host| ip(host, "link show vif1.0"));
    let log = host.log();
    assert!(log.contains("no hotplug script runs for it") && log.contains("ifalias"), "{log}");
    assert_eq!([index("web0"), index("other0")], before);

    for (vif, name) in [(VIF_A, "vif1.0"), (vif_b, "other0")] {
        write(&host, vif, "online", "0");
        write(&host, vif, "state", "5");
        wait_state(&host, vif, "6");
        let is_gone = |host: &Host| ip(host, &format!("link show {name}")).is_none();
        host.wait("the device to go", SOON, |host| is_gone(host).then_some(()));
    }
    assert!(ip(&host, "link show web0").is_some(), "it is not ours any more");
}

#[test]
fn a_destroyed_guest_and_a_failed_script_end_closed() {
    let Some(_turn) = shared_turn(&["nsenter", "ip", "xenstore-read"]) else { return };
    for settings in EACH {
        let host = Host::start(&describe(settings, &[]));
        let mut guest = Hostile::with_keys(&host, &[SCRIPT]);
        let vif = guest.vif();
        guest.publish(&[]);
        write(&host, vif, "hotplug-status", "connected");
        wait_state(&host, vif, "4");
        // `xl destroy`: the guest's directory is removed first.
        host.store().remove(&vif.frontend_dir()).expect("removed");
        wait_state(&host, vif, "6");
        assert_eq!(host.vif(&guest.name()).expect("listed").queues.len(), 0);
        remove(&host, vif);
        let name = guest.name();
        host.wait("the device to go", SOON, |host| {
            ip(host, &format!("link show {name}")).is_none().then_some(())
        });

        let mut guest = Hostile::with_keys(&host, &[SCRIPT]);
        guest.publish(&[]);
        let (vif, reason) = (guest.vif(), "bridge xenbr7 does not exist");
        write(&host, vif, "hotplug-error", reason);
        write(&host, vif, "hotplug-status", "error");
        guest.expect_closed(&["hotplug script", reason]);
        // Whichever it saw first, the guest's state or the script's: this guest never closes its
        // end.
        wait_state(&host, vif, "6");
        remove(&host, vif);
    }
}

/// Keys of a vif, and parts of the reason why it cannot be served.
type Refused = (&'static [(&'static str, &'static str)], [&'static str; 2]);

#[test]
fn a_vif_that_cannot_be_served_is_closed_with_its_reason_before_it_is_offered() {
    let Some(_turn) = shared_turn(&["nsenter", "ip", "xenstore-read"]) else { return };
    let without_device: &[Refused] = &[
        (&[SCRIPT, ("vifname", "others")], ["others", "taken"]),
        (&[SCRIPT, ("vifname", "othertap")], ["othertap", "taken"]),
        (&[SCRIPT, ("vifname", "../../etc")], ["vifname", "../../etc"]),
        (&[SCRIPT, ("vifname", "tap%d")], ["vifname", "tap%d"]),
        (&[SCRIPT, ("vifname", "sixteen-bytes-xx")], ["vifname", "sixteen"]),
        (&[SCRIPT, ("mtu", "60")], ["mtu", "60"]),
        (&[BRIDGE], ["xenbr0", "interface"]),
    ];
    let with_bad_mac: &[Refused] = &[
        (&[SCRIPT, ("mac", "fe:ff:ff:ff:ff:ff")], ["mac", "fe:ff"]),
        (&[SCRIPT, ("mac", "banana")], ["mac", "banana"]),
    ];
    // The device of a tenant's vif is made by another process, the rest is not.
    for (settings, cases) in
        [(EACH[0], [without_device, with_bad_mac].concat()), (EACH[1], without_device.to_vec())]
    {
        let host = Host::start(&describe(settings, &[]));
        ip_ok(&host, "link add others type bridge");
        ip_ok(&host, "tuntap add othertap mode tap multi_queue vnet_hdr");
        for (keys, parts) in cases {
            let guest = Hostile::with_keys(&host, keys);
            guest.expect_closed(&parts);
            wait_state(&host, guest.vif(), "6");
            remove(&host, guest.vif());
            host.wait("the vif to be forgotten", SOON, |host| {
                host.vif(&guest.name()).is_none().then_some(())
            });
        }
        assert!(ip_ok(&host, "link show others").contains("others"));
        assert!(ip_ok(&host, "link show othertap").contains("othertap"));
    }
}

/// Gives the guest's vif a script, as a starting backend finds it, and acts as the script.
fn hand_to_script(host: &Host, vif: Vif) {
    hand_to_script_with(host, vif, |_| format!("vif{}.{}", vif.frontend, vif.handle));
}

/// Gives the guest's vif a script that first does something else with the device, and then
/// continues under another name.
fn hand_to_script_with(host: &Host, vif: Vif, begin: impl FnOnce(&Host) -> String) {
    write(host, vif, SCRIPT.0, SCRIPT.1);
    end_backend(host, Signal::KILL, || {});
    let name = format!("vif{}.{}", vif.frontend, vif.handle);
    host.wait("the device", SOON, |host| ip(host, &format!("link show {name}")));
    let name = begin(host);
    ip_ok(host, &format!("link set {name} master xenbr0"));
    ip_ok(host, &format!("link set {name} up"));
    write(host, vif, "hotplug-status", "connected");
}

/// Stops the backend, does something, and then lets the next backend start.
pub(crate) fn end_backend(host: &Host, signal: Signal, meanwhile: impl FnOnce()) {
    let backend = host.pid_of("backend");
    host.signal(Signal::STOP);
    send(backend, signal);
    host.wait("the backend to end", SOON, |_| start_time(backend).is_none().then_some(()));
    meanwhile();
    host.signal(Signal::CONT);
    host.wait("another backend", SOON, |host| {
        let is_other = |member: &Member| member.name == "backend" && member.pid != backend;
        host.members().iter().any(is_other).then_some(())
    });
    host.wait("the backend to reply", SOON, Host::backend);
}

#[test]
fn a_device_on_a_bridge_outlives_a_killed_backend_but_not_its_vif() {
    let Some(_turn) = shared_turn(&["nsenter", "ip", "ping", "xenstore-read"]) else { return };
    let host = Host::start(&pair());
    ip_ok(&host, "link add xenbr0 type bridge");
    ip_ok(&host, "link set xenbr0 up");
    let vif_b = Vif { frontend: DomId(2), ..VIF_A };
    hand_to_script(&host, VIF_A);
    hand_to_script(&host, vif_b);
    let ping = || {
        host.wait("both to be connected", SOON, |host| {
            let vifs = host.vifs();
            vifs.iter().all(|vif| vif.state == "Connected").then_some(())
        });
        host.ping("a", "10.77.0.2");
    };
    ping();
    let before = ip_ok(&host, "-o link show vif1.0");
    end_backend(&host, Signal::KILL, || {});
    // The kernel reports NO-CARRIER until its queues are back.
    let place =
        |link: &str| link.split(' ').skip_while(|word| *word != "master").nth(1).map(str::to_owned);
    let after = ip_ok(&host, "-o link show vif1.0");
    assert_eq!(before.split(':').next(), after.split(':').next(), "the same device");
    assert_eq!(place(&after).as_deref(), Some("xenbr0"), "{after}");
    ping();
    // With another number of queues.
    host.text(&["guest", "set", "a", "queues", "1"]);
    host.wait("one queue", SOON, |host| {
        host.vif("vif1.0").filter(|vif| vif.queues.len() == 1 && vif.state == "Connected")
    });
    ping();
    // An orderly stop, as for an upgrade: no guest loses its connection by that, either.
    end_backend(&host, Signal::TERM, || {});
    ping();

    // A vif that is removed while no backend runs loses its device, and no other vif does.
    end_backend(&host, Signal::KILL, || {
        let mut store = host.store();
        store.remove(&vif_b.backend_dir()).expect("removed");
    });
    host.wait("the device to go", SOON, |host| {
        ip(host, "link show vif2.0").is_none().then_some(())
    });
    ip_ok(&host, "link show vif1.0");

    // The next backend closes a vif that is being removed, because the toolstack waits for that.
    end_backend(&host, Signal::KILL, || {
        write(&host, VIF_A, "online", "0");
        write(&host, VIF_A, "state", "5");
    });
    wait_state(&host, VIF_A, "6");
    host.wait("the device to go", SOON, |host| {
        ip(host, "link show vif1.0").is_none().then_some(())
    });
}

#[test]
fn a_guest_transmits_at_its_rate_even_after_a_change() {
    let Some(turn) = measured_turn(&["iperf3", "xenstore-read"]) else { return };
    let host = Host::start(&pair());
    let rate = |bytes: &str| write(&host, VIF_A, "rate", bytes);
    // `a` sends to the client of `b`, and the tx of `a` is limited.
    let transfer =
        |seconds| Iperf::start_with(&host, "b", ("a", "10.77.0.1"), seconds, &["-P", "2"]);
    let has_limit = |bytes: Option<u64>| {
        host.wait("the limit", SOON, |host| {
            let rate = host.vif("vif1.0")?.limits.rate;
            (rate.map(|rate| rate.bytes) == bytes).then_some(())
        });
    };
    for (bytes, limit, wanted) in
        [("100000,50000", 100_000, 2_000_000), ("10000,2000", 10_000, 5_000_000)]
    {
        rate(bytes);
        has_limit(Some(limit));
        let running = transfer(UNTIL_STOPPED);
        let carried = Carried::of(&host, |host| host.tx_bytes("vif1.0"));
        running.stop();
        println!("{bytes}: {carried:?}, at most {wanted} bytes per second");
        // How near TCP comes to the limit depends on the load of the machine; `worker/credit.rs`
        // tests the rest.
        assert!(carried.is_within(wanted), "{bytes}: {carried:?}");
        assert!(!carried.is_within(wanted / 2) || !turn.is_quiet, "{bytes}: {carried:?}");
    }
    for unlimited in ["0,0", "banana"] {
        rate("100000,50000");
        has_limit(Some(100_000));
        rate(unlimited);
        has_limit(None);
        let seen = transfer(1).finish().rate();
        assert!(seen > 160e6 || !turn.is_quiet, "{unlimited}: {seen}");
    }
    assert_eq!(host.log_count("banana"), 1, "{}", host.log());
    host.ping("a", "10.77.0.2");
}

#[test]
fn a_guest_that_cycles_through_the_states_does_not_fill_the_log() {
    let Some(_turn) = shared_turn(&["ping", "xenstore-read"]) else { return };
    let host = Host::start(&pair());
    let started = Instant::now();
    let mut guest = Hostile::new(&host);
    for _ in 0..40 {
        guest.connect();
        for (guests, ours) in [("5", "5"), ("6", "6"), ("1", "2")] {
            guest.set_state(guests);
            wait_state(&host, guest.vif(), ours);
        }
    }
    // 20 lines at once, and one more each 5 s.
    let lines = host.log_count(&guest.name());
    let most = 21 + started.elapsed().as_secs() / 5;
    assert!((20..=most).contains(&u64::try_from(lines).expect("few")), "{lines} lines, not {most}");
    host.ping("a", "10.77.0.2");
}

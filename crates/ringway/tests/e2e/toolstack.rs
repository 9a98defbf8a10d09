//! The life of a vif under a stock toolstack: its hotplug script, its limits, its removal. The test
//! acts as the toolstack and its script.

use ringway_e2e::host::{Host, SOON, describe, pair};
use ringway_e2e::traffic::{Carried, Iperf, UNTIL_STOPPED};
use ringway_e2e::{measured_turn, shared_turn};
use ringway_xenbus::Vif;
use ringway_xenstore::DomId;

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
        // The script has not put it on the bridge.
        host.wait("the device's new name", SOON, |host| {
            let vif = host.vif(&guest.name())?;
            (vif.queues.len() == 1 && vif.attached_to == "guest-tap").then_some(())
        });
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
        host.wait("the vif to go", SOON, |host| host.vif(&guest.name()).is_none().then_some(()));
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

//! Limits of a vif apply to all its queues and connections together, and can be changed while it
//! runs.

use std::time::Instant;

use ringway_control::VifStatus;
use ringway_datapath::MacAddr;
use ringway_e2e::host::{Host, Running, SOON, describe, pair, send};
use ringway_e2e::shared_turn;
use rustix::process::Signal;

use crate::hostile::Hostile;

fn received(vif: &VifStatus) -> u64 {
    vif.queues.iter().map(|queue| queue.rx_packets).sum()
}

fn dropped(vif: &VifStatus, reason: &str) -> u64 {
    vif.queues.iter().filter_map(|queue| queue.dropped.get(reason)).sum()
}

#[test]
fn a_guest_that_reconnects_repeatedly_floods_no_more_than_others() {
    const RATE: u64 = 50;
    const CONNECTIONS: u64 = 20;
    let Some(_turn) = shared_turn(&["xenstore-read"]) else { return };
    let description = format!(
        "{}\n[switch]\nflood-rate = {RATE}\n",
        describe("", &[("a", "", ""), ("b", "", "")])
    );
    let host = Host::start(&description);
    let mut guest = Hostile::new(&host);
    let start = Instant::now();
    let before = received(&host.vif("vif2.0").expect("it is there"));
    for _ in 0..CONNECTIONS {
        guest.connect();
        let name = guest.name();
        guest.send_frames(200, 60, MacAddr::BROADCAST);
        // A dropped frame gets a response like any other.
        host.wait("all frames to be taken", SOON, |host| {
            let vif = host.vif(&name)?;
            let taken: u64 = vif.queues.iter().map(|queue| queue.tx_packets).sum();
            (taken >= 200).then_some(())
        });
        guest.disconnect();
    }
    let seconds = start.elapsed().as_secs();
    let arrived = received(&host.vif("vif2.0").expect("it is there")) - before;
    println!("{arrived} of {} frames in {seconds} s", 200 * CONNECTIONS);
    // Credit for one second is available at the start, and the switch counts whole seconds. The
    // guests' own neighbour discovery is counted, too.
    assert!(arrived <= RATE * (seconds + 2) + 60, "{arrived} in {seconds} s");
    assert!(arrived >= RATE, "{arrived}");
}

#[test]
fn the_command_line_sets_and_shows_each_limit() {
    let Some(_turn) = shared_turn(&["xenstore-read"]) else { return };
    let host = Host::start(&pair());
    let expect = |what: &str, is_so: &dyn Fn(&VifStatus) -> bool| {
        host.wait(what, SOON, |host| host.vif("vif1.0").filter(|vif| is_so(vif)))
    };
    let before = expect("the defaults", &|vif| vif.state == "Connected").limits;
    assert_eq!((before.weight, before.rate, before.rate_rx), (1, None, None));
    assert_eq!(before.flood_frames_per_second, Some(1000));
    assert_eq!(before.flood_bytes_per_second, Some(1_250_000));
    assert_eq!(before.frame_len_max, Some(1518));
    for (limit, value) in [
        ("weight", "4"),
        ("rate", "16Mb/s"),
        ("rate-rx", "8Mb/s"),
        ("flood-rate", "0"),
        ("flood-mbit", "7"),
        ("broadcast-rate", "3"),
        ("multicast-mbit", "2"),
        ("unknown-rate", "5"),
    ] {
        host.text(&["vif", "set", "vif1.0", limit, value]);
    }
    let is_set = |vif: &VifStatus| {
        let limits = &vif.limits;
        let rate = |bytes| Some(ringway_control::RateStatus { bytes, interval_us: 50_000 });
        (limits.weight, limits.rate, limits.rate_rx) == (4, rate(100_000), rate(50_000))
            && limits.flood_frames_per_second.is_none()
            && limits.flood_bytes_per_second == Some(875_000)
            && limits.broadcast.frames_per_second == Some(3)
            && limits.multicast.bytes_per_second == Some(250_000)
            && limits.unknown.frames_per_second == Some(5)
    };
    expect("the limits that were set", &is_set);
    let shown = host.text(&["vif", "show", "vif1.0"]);
    for line in ["rate          16Mb/s", "rate-rx       8Mb/s", "weight        4"] {
        assert!(shown.contains(line), "{shown}");
    }
    let refused = host.verb(&["vif", "set", "vif1.0", "weight", "0"]);
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && complaint.contains("from 1 to 1000"), "{complaint}");
    host.text(&["vif", "set", "vif1.0", "rate", "none"]);
    expect("no limit", &|vif| vif.limits.rate.is_none());
}

#[test]
fn a_link_that_is_set_down_carries_nothing_also_after_a_kill() {
    let Some(_turn) = shared_turn(&["ping", "xenstore-read"]) else { return };
    let host = Host::start(&pair());
    let show = |link: &str| {
        let text = host.text(&["vif", "show", "vif1.0"]);
        let line = format!("{:13} {link}", "link");
        assert!(text.lines().any(|it| it == line), "{text}");
    };
    host.ping("a", "10.77.0.2");
    show("up");
    host.text(&["vif", "set", "vif1.0", "link", "down"]);
    for killed in [false, true] {
        if killed {
            send(host.pid_of("backend"), Signal::KILL);
            host.wait("the restart", SOON, |host| host.event("backend-restarted"));
        }
        let down = |host: &Host| host.vif("vif1.0").filter(|vif| vif.limits.link_down);
        let before = host.wait("the link to be down", SOON, down);
        // What b sends to a is dropped, and so is what a sends: whatever they try first.
        let mut ping = host.in_guest("b", &["ping", "-c", "1", "-w", "30", "10.77.0.1"]);
        let ping = Running::start(&mut ping);
        host.wait("frames to be dropped", SOON, |host| {
            let vif = host.vif("vif1.0")?;
            (dropped(&vif, "link_down") > dropped(&before, "link_down")).then_some(())
        });
        let vif = host.vif("vif1.0").expect("it is listed");
        assert_eq!(received(&vif), received(&before));
        drop(ping);
    }
    show("down");
    let refused = host.verb(&["vif", "set", "vif1.0", "link", "sideways"]);
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(complaint.contains("link: expected 1 (up) or 0 (down)"), "{complaint}");
    host.text(&["vif", "set", "vif1.0", "link", "up"]);
    host.ping("a", "10.77.0.2");
    show("up");
}

#[test]
fn a_guests_device_shows_its_link_and_mtu_as_they_are_set() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let host = Host::start(&pair());
    let mut store = host.store();
    let expect = |what: &str, value: &str| {
        let path = format!("/sys/class/net/eth0/{what}");
        host.wait(&format!("{what} {value}"), SOON, |host| {
            (host.guest_text("a", &["cat", &path]).trim() == value).then_some(())
        });
    };
    expect("carrier", "1");
    for (link, carrier) in [("down", "0"), ("up", "1")] {
        host.text(&["vif", "set", "vif1.0", "link", link]);
        expect("carrier", carrier);
    }
    for (key, value, what, shown) in [
        // As XenServer unplugs a vif.
        ("disconnect", "1", "carrier", "0"),
        ("disconnect", "0", "carrier", "1"),
        ("mtu", "1400", "mtu", "1400"),
    ] {
        store.write(&format!("/local/domain/1/device/vif/0/{key}"), value).expect("written");
        expect(what, shown);
    }
    host.ping("a", "10.77.0.2");
}

#[test]
fn frames_that_are_longer_than_the_vifs_mtu_are_dropped_and_counted() {
    let Some(_turn) = shared_turn(&["xenstore-read", "ping"]) else { return };
    let host = Host::start(&pair());
    let mut guest = Hostile::new(&host);
    guest.connect();
    let name = guest.name();
    for (len, too_long) in [(1518, 0), (1519, 10), (4000, 20)] {
        guest.send_frames(10, len, MacAddr::BROADCAST);
        host.wait("frames to be counted", SOON, |host| {
            let vif = host.vif(&name)?;
            (dropped(&vif, "too_long") == too_long).then_some(())
        });
    }
    host.ping("a", "10.77.0.2");
}

//! Limits of a vif as they are set and shown, and what its guest sees of them.

use ringway_control::VifStatus;
use ringway_e2e::host::{Host, SOON, pair};
use ringway_e2e::shared_turn;

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
        ("link", "down"),
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
            && limits.link_down
            && limits.flood_frames_per_second.is_none()
            && limits.flood_bytes_per_second == Some(875_000)
            && limits.broadcast.frames_per_second == Some(3)
            && limits.multicast.bytes_per_second == Some(250_000)
            && limits.unknown.frames_per_second == Some(5)
    };
    expect("the limits that were set", &is_set);
    let shown = host.text(&["vif", "show", "vif1.0"]);
    for (name, value) in [
        ("link", "down"),
        ("rate", "16Mb/s"),
        ("rate-rx", "8Mb/s"),
        ("weight", "4"),
        ("flood-rate", "none"),
        ("flood-mbit", "7Mb/s"),
        ("broadcast-rate", "3"),
    ] {
        assert!(shown.contains(&format!("\n{name:17} {value}\n")), "{name}: {shown}");
    }
    for (limit, value, reason) in [
        ("weight", "0", "from 1 to 1000"),
        ("link", "sideways", "link: expected 1 (up) or 0 (down)"),
    ] {
        let refused = host.verb(&["vif", "set", "vif1.0", limit, value]);
        let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && complaint.contains(reason), "{complaint}");
    }
    host.text(&["vif", "set", "vif1.0", "rate", "none"]);
    expect("no limit", &|vif| vif.limits.rate.is_none());
}

#[test]
fn a_guests_device_shows_its_link_mtu_and_speed_as_they_are_set() {
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
    //= netif.h:frontend-link
    for (key, value, what, shown) in [
        // As XenServer unplugs a vif.
        ("disconnect", "1", "carrier", "0"),
        ("disconnect", "0", "carrier", "1"),
        ("mtu", "1400", "mtu", "1400"),
        ("speed", "1G", "speed", "1000"),
        ("speed", "2500M", "speed", "2500"),
    ] {
        store.write(&format!("/local/domain/1/device/vif/0/{key}"), value).expect("written");
        expect(what, shown);
    }
    host.ping("a", "10.77.0.2");
}

#[test]
fn a_guest_whose_toolstack_distrusts_the_backend_copies_all_frames() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let host = Host::start(&pair());
    let copies = |host: &Host| host.guest("a")?.vifs.first().map(|vif| vif.must_copy);
    assert_eq!(copies(&host), Some(false));
    host.store().write("/local/domain/1/device/vif/0/trusted", "0").expect("written");
    // It applies to pages of the next connection.
    //= netif.h:trusted
    host.text(&["guest", "set", "a", "queues", "1"]);
    host.wait("frames to be copied", SOON, |host| copies(host).filter(|copies| *copies));
    host.ping("a", "10.77.0.2");
}

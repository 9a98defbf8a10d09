//! `ringway demo`, as scripts use it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use ringway_e2e::host::{Running, SOON, ringway, send, text_of, wait_for};
use ringway_e2e::shared_turn;
use rustix::process::Signal;
use serde_json::Value;

/// The demo compares network devices and shared memory before and after, so it has its own.
fn demo() -> Command {
    let ours = ringway();
    let mut demo = Command::new("unshare");
    for (name, _) in ours.get_envs() {
        demo.env_remove(name);
    }
    if !rustix::process::geteuid().is_root() {
        demo.args(["--user", "--map-root-user"]);
    }
    demo.args(["--net", "--mount", "sh", "-c"]);
    demo.arg("mount -t tmpfs tmpfs /dev/shm && exec \"$0\" demo \"$@\"");
    demo.arg(ours.get_program()).stdin(Stdio::null());
    demo
}

#[test]
fn the_demo_uses_all_queues_and_leaves_nothing_behind() {
    let Some(_turn) = shared_turn(&["iperf3", "mount", "unshare"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("demo.json");
    let mut demo = demo();
    demo.args(["--queues", "4", "--streams", "4", "--seconds", "1", "--json"]).arg(&file);
    text_of(demo.output().expect("it can be started"), "ringway demo");
    let text = fs::read_to_string(&file).expect("written");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((report["queues"].as_u64(), report["streams"].as_u64()), (Some(4), Some(4)));
    for rate in ["tx_bits_per_second", "rx_bits_per_second"] {
        assert!(report[rate].as_f64().expect("a rate") > 0.0, "{rate} in {text}");
    }
    let vifs = report["vifs"].as_array().expect("a list");
    assert_eq!(vifs.len(), 2, "{text}");
    for vif in vifs {
        let queues = vif["queues"].as_array().expect("a list");
        assert_eq!(queues.len(), 4, "{vif}");
        for queue in queues {
            for counter in ["tx_packets", "rx_packets", "tx_bytes", "rx_bytes"] {
                assert!(queue[counter].as_u64().expect("a counter") > 0, "{counter} in {vif}");
            }
        }
    }
    let cpu = report["cpu"].as_array().expect("a list");
    for process in ["broker", "backend", "opener", "guest a", "guest b"] {
        assert!(cpu.iter().any(|it| it["process"] == process), "{process} in {text}");
    }
    assert!(report["dropped"].is_object(), "{text}");
    assert_eq!(report["leftovers"], Value::Array(Vec::new()));
    // Packets without ports go to queue 0: one ping and the ARP before it, in each direction.
    for way in ["tx_packets", "rx_packets"] {
        let packets = report["ping"][way].as_array().expect("a list");
        assert_eq!(packets.len(), 4, "{text}");
        assert!(packets[0].as_u64() >= Some(2), "{way} in {text}");
        assert!(packets[1..].iter().all(|count| count.as_u64() == Some(0)), "{way} in {text}");
    }
}

/// Frames are longer than the MTU if segments cross uncut.
const FRAME_LEN_MAX: u64 = 1514;

#[test]
fn a_xen_guest_and_a_virtio_guest_exchange_long_segments_and_a_verified_file() {
    let Some(_turn) = shared_turn(&["iperf3", "mount", "unshare"]) else { return };
    let mut demo = demo();
    demo.args(["--guests", "xen,virtio", "--queues", "2", "--seconds", "1", "--json", "-"]);
    let text = text_of(demo.output().expect("it can be started"), "ringway demo");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    for rate in ["tx_bits_per_second", "rx_bits_per_second"] {
        assert!(report[rate].as_f64().expect("a rate") > 0.0, "{rate} in {text}");
    }
    assert_eq!(report["payload_bytes"].as_u64(), Some(2 * (16 << 20)), "{text}");
    let vifs = report["vifs"].as_array().expect("a list");
    let kinds: Vec<_> = vifs.iter().map(|vif| (&vif["kind"], &vif["guest"])).collect();
    assert_eq!(kinds, [(&"xen".into(), &"a".into()), (&"virtio".into(), &"b".into())], "{text}");
    for vif in vifs {
        let sum = |counter: &str| -> u64 {
            let queues = vif["queues"].as_array().expect("a list").iter();
            queues.map(|queue| queue[counter].as_u64().expect("a counter")).sum()
        };
        // No frame is longer than that if segments are cut, and many are acknowledgements.
        for way in ["tx", "rx"] {
            let (packets, bytes) = (sum(&format!("{way}_packets")), sum(&format!("{way}_bytes")));
            assert!(bytes > packets * FRAME_LEN_MAX, "{way}: {bytes} in {packets}: {vif}");
        }
    }
    // The processes that drive its queues run in the namespace of the guest.
    let mut cpu = report["cpu"].as_array().expect("a list").iter();
    let of_guest = cpu.find(|it| it["process"] == "guest b").expect("it is listed");
    let seconds = ["user_seconds", "system_seconds"].map(|part| of_guest[part].as_f64());
    assert!(seconds.into_iter().flatten().sum::<f64>() > 0.0, "{text}");
    assert_eq!(report["leftovers"], Value::Array(Vec::new()));
}

#[test]
fn a_demo_without_a_tap_driver_says_so_at_once() {
    let Some(_turn) = shared_turn(&["iperf3", "mount", "unshare"]) else { return };
    let mut demo = Command::new("unshare");
    demo.args(["--mount", "--net", "--user", "--map-root-user", "sh", "-c"]);
    demo.arg("mount -t tmpfs tmpfs /dev/net && exec \"$0\" demo").arg(ringway().get_program());
    let output = demo.output().expect("util-linux");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("/dev/net/tun: no TAP driver, try `modprobe tun`"), "{text}");
    assert!(text.contains("but the process ended"), "it need not wait: {text}");
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    let Some(_turn) = shared_turn(&["iperf3"]) else { return };
    let results = tempfile::tempdir().expect("a directory");
    let mut demo = ringway();
    demo.args(["demo", "--guests", "xen,virtio", "--queues", "2", "--seconds", "600", "--json"]);
    demo.arg(results.path().join("demo.json"));
    let mut demo = Running::start(demo.stderr(Stdio::piped()));
    let said = BufReader::new(demo.0.stderr.take().expect("it was piped"));
    let mut said = said.lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains("iperf3 a to b")));
    let place = std::env::temp_dir().join(format!("ringway-demo-{}", demo.0.id()));
    assert!(place.exists());
    send(demo.0.id(), Signal::INT);
    // The others keep it open until they end.
    assert!(said.any(|line| line.contains("ended before it was finished")));
    assert!(!demo.wait("the demo", 2 * SOON).success());
    assert!(!place.exists());
    assert_eq!(fs::read_dir(results.path()).expect("it is there").count(), 0);
    let place = place.display().to_string();
    wait_for("all that it had started to end", SOON, || {
        let processes = fs::read_dir("/proc").expect("it is there").flatten();
        let mut lines =
            processes.filter_map(|it| fs::read_to_string(it.path().join("cmdline")).ok());
        (!lines.any(|line| line.contains(&place))).then_some(())
    });
}

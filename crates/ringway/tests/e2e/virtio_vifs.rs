//! What users see of a virtio vif, and can set: the same as for a Xen vif.

use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::host::{Host, Running, SOON, ringway, send, text_of};
use crate::machine::{ADDRESS, EchoConnection};
use crate::vhost::wait_for_queues;
use crate::virtio::{Maker, description, guest_at, guest_with, wait_for_error};

#[test]
fn every_view_of_vifs_shows_both_kinds() {
    let Some(_turn) = crate::shared_turn(&["socat", "unshare", "tshark", "ping"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let host = Host::start(&description(dir, &[("vm1", "server")]));
    let _guest = guest_with(dir, "vm1", Maker::Backend, "");
    wait_for_queues(&host, 4);
    EchoConnection::start(&host, "a").expect_progress(&host, "it is served");
    for view in [&["vif", "list"][..], &["vif", "stats"], &["top", "--once"]] {
        let shown = host.text(view);
        let is_kind = |vif: &str, kind: &str| {
            let words = shown.lines().map(str::split_ascii_whitespace);
            let mut starts = words.map(|mut words| [words.next(), words.next()]);
            starts.any(|start| start == [Some(vif), Some(kind)])
        };
        assert!(is_kind("vif1.0", "xen") && is_kind("vm1", "virtio"), "{view:?}: {shown}");
    }
    let file = dir.join("vm1.pcapng");
    let mut command = ringway();
    command.env("RINGWAY_DIR", host.dir()).args(["capture", "vm1", "-w"]).arg(&file);
    let mut capture = Running::start(&mut command);
    host.wait("the capture to begin", SOON, |_| std::fs::metadata(&file).ok());
    host.ping("a", ADDRESS);
    send(capture.0.id(), Signal::INT);
    assert!(capture.wait("the capture to end", SOON).success());
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&file).args(["-Y", "icmp", "-T", "fields", "-e", "icmp.type"]);
    let types = text_of(tshark.output().expect("it can be started"), "tshark");
    // On a busy machine, `ping` sends more than it was asked for.
    for (kind, number) in [("requests", "8"), ("replies", "0")] {
        let count = types.lines().filter(|it| *it == number).count();
        assert!(count >= 2, "{count} {kind}: {types:?}");
    }
    assert!(types.lines().all(|it| ["0", "8"].contains(&it)), "requests and replies: {types:?}");
}

#[test]
fn tenants_of_virtio_vifs_have_processes_of_their_own() {
    let Some(_turn) = crate::shared_turn(&["socat", "unshare", "ping"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let text = description(dir, &[("vm1", "server"), ("vm2", "client")]);
    let text = text.replacen("[host]\n", "[host]\nisolate = true\n", 1);
    let host = Host::start(&(text + "tenant = \"red\"\n"));
    let _first = guest_with(dir, "vm1", Maker::Backend, "");
    let _second = guest_at("10.77.0.10", dir, "vm2", Maker::Guest, "");
    wait_for_queues(&host, 4);
    host.ping("a", ADDRESS);
    host.ping("a", "10.77.0.10");
    let tenant = |vif: &str| host.vif(vif).expect("it is there").tenant;
    assert_eq!(tenant("vm1").as_deref(), Some("vhost-vm1"));
    assert_eq!(tenant("vm2").as_deref(), Some("red"));
    let echo = EchoConnection::start(&host, "a");
    let (first, second) = (host.pid_of("tenant vhost-vm1"), host.pid_of("tenant red"));
    send(first, Signal::KILL);
    host.wait("the successor", SOON, |host| {
        let mut members = host.members().into_iter();
        members.find(|it| it.name == "tenant vhost-vm1" && it.pid != first)
    });
    echo.expect_progress(&host, "after its process was killed");
    assert_eq!(host.pid_of("tenant red"), second);
    host.text(&["vif", "set", "vm2", "rate", "100Mb/s"]);
    let added = host.verb(&["vif", "add", "vm3", "--vhost", "/tmp/none"]);
    let reason = String::from_utf8_lossy(&added.stderr);
    assert!(reason.contains("serves the virtio vifs of the description"), "{reason}");
}

#[test]
fn a_front_end_that_shares_too_much_memory_is_refused_with_both_numbers() {
    let Some(_turn) = crate::shared_turn(&["socat", "unshare"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let text = description(dir, &[("vm1", "server"), ("large", "server")]);
    let host = Host::start(&(text + "max-memory = \"1MiB\"\n"));
    let _served = guest_with(dir, "vm1", Maker::Backend, "");
    wait_for_queues(&host, 4);
    let echo = EchoConnection::start(&host, "a");
    let _refused = guest_at("10.77.0.10", dir, "large", Maker::Backend, "");
    wait_for_error(&host, "large", "max-memory is 1 MiB: raise it");
    echo.expect_progress(&host, "beside a refused front-end");
}

#[test]
fn a_rate_limits_what_a_virtio_guest_transmits_and_another_what_it_receives() {
    let Some(turn) = crate::measured_turn(&["iperf3", "unshare"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let host = Host::start(&description(dir, &[("vm1", "server")]));
    let _guest = guest_with(dir, "vm1", Maker::Backend, "iperf3 -s > /dev/null &");
    wait_for_queues(&host, 4);
    host.ping("a", ADDRESS);
    for (limit, rate, more) in [("rate", 16e6, Some("-R")), ("rate-rx", 8e6, None)] {
        host.text(&["vif", "set", "vm1", limit, &format!("{}Mb/s", rate / 1e6)]);
        let client = ["iperf3", "-c", ADDRESS, "-t", "2", "-J"];
        let client: Vec<&str> = client.into_iter().chain(more).collect();
        let result = host.guest_text("a", &client);
        let result: Value = serde_json::from_str(&result).expect("JSON");
        let measured = result["end"]["sum_received"]["bits_per_second"].as_f64();
        let measured = measured.expect("a number");
        println!("{limit}: {measured:.3e} bit/s");
        // A burst of 128 KiB is half a megabit per second.
        assert!(measured > 0.0 && measured < rate * 1.1 + 1e6, "{limit}: {measured}");
        assert!(measured > rate / 4.0 || !turn.is_quiet, "{limit}: {measured}");
        host.text(&["vif", "set", "vm1", limit, "none"]);
    }
}

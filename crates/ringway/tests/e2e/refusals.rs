//! Error messages for invalid input.

use std::process::{Output, Stdio};

use ringway_e2e::host::{Host, pair, ringway};
use ringway_e2e::shared_turn;

/// The error message of a command, in one line.
fn refusal(output: &Output, what: &str) -> String {
    assert!(!output.status.success(), "{what} was accepted");
    assert!(output.status.code().is_some(), "{what}: {}", output.status);
    let text = String::from_utf8(output.stderr.clone()).expect("text");
    assert!(!text.contains("panicked"), "{text}");
    text
}

fn expect_parts(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[test]
fn an_argument_that_cannot_be_used_is_refused_by_its_name() {
    let Some(_turn) = shared_turn(&["iperf3", "ping"]) else { return };
    for (arguments, parts) in [
        (&["run", "--workers", "0"][..], ["--workers", "from 1 to 1024"]),
        (&["run", "--max-queues", "65"], ["--max-queues", "from 1 to 64"]),
        (&["run", "--policy", "fair"], ["--policy", "balanced"]),
        (&["run", "--cnofig", "x"], ["--cnofig", "--config"]),
        (&["run", "--config", "/no/host.toml", "--dir", "/no"], ["/no/host.toml", "No such file"]),
        (&["demo", "--queues", "0"], ["--queues", "from 1 to 64"]),
        (&["demo", "--json", "/nowhere/at/all.json"], ["--json", "/nowhere/at/all.json"]),
        (&["vif", "set", "vif1.0", "queues", "2"], ["SETTING", "max-queues"]),
        (&["capture", "vif1.0"], ["--write", "required"]),
        (&["vif", "list", "--dir", "/nowhere/at/all"], ["/nowhere/at/all", "ringway run"]),
    ] {
        let mut command = ringway();
        let output = command.args(arguments).stdout(Stdio::null()).output();
        let text = refusal(&output.expect("it can be started"), &arguments.join(" "));
        expect_parts(&text, &parts);
    }
}

#[test]
fn an_order_that_would_change_nothing_is_refused() {
    let Some(_turn) = shared_turn(&[]) else { return };
    let bridge = "[[bridge]]\nname = \"br0\"\n";
    let host = Host::start(&format!(
        "[host]\nnetwork = \"private\"\n{bridge}[[guest]]\nname = \"a\"\n\
         [[guest.vif]]\nbridge = \"br0\"\nqueues = 1\n"
    ));
    for (arguments, parts) in [
        (&["vif", "release", "vif1.0"][..], ["vif1.0", "not quarantined"]),
        (&["vif", "set", "vif1.0", "broadcast-rate", "5"], ["bridge br0", "vif on the switch"]),
        (&["vif", "set", "vif1.0", "flood-mbit", "5"], ["bridge br0", "vif on the switch"]),
    ] {
        let text = refusal(&host.verb(arguments), &arguments.join(" "));
        expect_parts(&text, &parts);
    }
    host.text(&["vif", "set", "vif1.0", "rate", "100Mb/s"]);
    host.text(&["vif", "set", "vif1.0", "weight", "2"]);
}

#[test]
fn a_running_host_refuses_requests_for_missing_vifs_and_continues() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let host = Host::start(&pair());
    let file = host.file("never.pcapng").display().to_string();
    let dir = host.dir().display().to_string();
    let supervisor = host.pid_of("ringway run").to_string();
    for (arguments, parts) in [
        (&["vif", "show", "vif9.0"][..], ["vif9.0", "vif1.0, vif2.0"]),
        (&["vif", "set", "vif9.0", "max-queues", "2"], ["vif9.0", "no vif"]),
        (&["vif", "set", "vif1.0", "max-queues", "0"], ["0", "from 1 to 64"]),
        (&["vif", "set", "vif1.0", "max-queues", "65"], ["65", "from 1 to 64"]),
        (&["capture", "vif9.0", "-w", &file], ["vif9.0", "no vif"]),
        (&["guest", "exec", "z", "--", "true"], ["\"z\"", "a, b"]),
        (&["guest", "set", "z", "queues", "2"], ["\"z\"", "a, b"]),
        (&["guest", "set", "a", "--vif", "7", "queues", "2"], ["7", "vif"]),
        (&["guest", "exec", "a", "--", "no-such-program"], ["no-such-program", "run"]),
        (&["xenstore", "read", "/no/such/node"], ["use xenstore-read of", "XENSTORED_PATH="]),
        (&["run"], [&supervisor, &dir]),
    ] {
        let text = refusal(&host.verb(arguments), &arguments.join(" "));
        expect_parts(&text, &parts);
    }
    assert!(!host.file("never.pcapng").exists());
    host.ping("a", "10.77.0.2");
}

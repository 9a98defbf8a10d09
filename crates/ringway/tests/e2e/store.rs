//! XenStore of a running host, with the stock tools.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use ringway_e2e::host::{Host, Running, SOON, describe, pair};
use ringway_e2e::shared_turn;

#[test]
fn the_stock_tools_read_write_list_remove_and_watch_a_running_host() {
    let Some(_turn) = shared_turn(&["xenstore-ls", "xenstore-watch", "xenstore-chmod"]) else {
        return;
    };
    let host = Host::start(&pair());
    let all = host.tool_text("xenstore-ls", &["-f"]);
    for line in [
        "/local/domain/0/backend/vif/1/0/state = \"4\"",
        "/local/domain/2/device/vif/0/state = \"4\"",
        "/local/domain/1/name = \"a\"",
        "/local/domain/0/backend/vif/1/0/multi-queue-max-queues = \"4\"",
        "/local/domain/1/device/vif/0/multi-queue-num-queues = \"4\"",
    ] {
        assert!(all.lines().any(|found| found.trim_end() == line), "{line} is not in\n{all}");
    }
    let path = host.dir().join("xenstored.sock");
    let seen = host.file("watched");
    let mut watch = Command::new("xenstore-watch");
    watch.env("XENSTORED_PATH", path).arg("/tool").stdin(Stdio::null());
    let _watch = Running::start(watch.stdout(File::create(&seen).expect("created")));
    let saw = |line: &str| {
        host.wait(line, SOON, |_| {
            let seen = fs::read_to_string(&seen).ok()?;
            seen.lines().any(|found| found == line).then_some(())
        });
    };
    saw("/tool");
    host.tool_text("xenstore-write", &["/tool/e2e", "one", "/tool/other", "two"]);
    saw("/tool/e2e");
    assert_eq!(host.node("/tool/e2e").as_deref(), Some("one"));
    host.tool_text("xenstore-chmod", &["/tool/e2e", "n0", "r1"]);
    let list = host.tool_text("xenstore-ls", &["-p", "/tool"]);
    assert!(list.contains("(n0,r1)"), "{list}");
    host.tool_text("xenstore-rm", &["/tool/e2e"]);
    assert_eq!(host.node("/tool/e2e"), None);
    assert_eq!(host.node("/tool/other").as_deref(), Some("two"));
}

#[test]
fn a_guest_can_write_its_own_nodes_and_no_others() {
    let Some(_turn) = shared_turn(&["xenstore-read", "xenstore-write", "xenstore-rm"]) else {
        return;
    };
    let host = Host::start(&pair());
    let as_guest = |name: &str, arguments: &[&str]| {
        host.tool_at("xenstored-1.sock", name, arguments).status.success()
    };
    assert!(as_guest("xenstore-write", &["/local/domain/1/data/note", "mine"]));
    assert!(as_guest("xenstore-read", &["/local/domain/0/backend/vif/1/0/state"]));
    for path in [
        "/local/domain/2/data/note",
        "/local/domain/2/device/vif/0/state",
        "/local/domain/0/backend/vif/1/0/state",
        "/local/domain/0/backend/vif/2/0/state",
        "/local/domain/1/name",
        "/tool/note",
    ] {
        assert!(!as_guest("xenstore-write", &[path, "6"]), "{path}");
    }
    for path in ["/local/domain/2", "/local/domain/0/backend/vif/2/0", "/local"] {
        assert!(!as_guest("xenstore-rm", &[path]), "{path}");
    }
    assert!(!as_guest("xenstore-read", &["/local/domain/2/device/vif/0/tx-ring-ref"]));
    assert_eq!(host.node("/local/domain/2/device/vif/0/state").as_deref(), Some("4"));
}

#[test]
fn one_queue_has_flat_keys_and_more_have_directories() {
    let Some(_turn) = shared_turn(&["xenstore-ls"]) else { return };
    let host = Host::start(&describe(
        "max-queues = 4",
        &[("a", "", "queues = 1"), ("b", "", "queues = 2")],
    ));
    let keys = ["tx-ring-ref", "rx-ring-ref", "event-channel-tx", "event-channel-rx"];
    let is_there = |path: &str| host.node(path).is_some();
    for key in keys {
        assert!(is_there(&format!("/local/domain/1/device/vif/0/{key}")), "{key}");
        assert!(!is_there(&format!("/local/domain/1/device/vif/0/queue-0/{key}")), "{key}");
        assert!(!is_there(&format!("/local/domain/2/device/vif/0/{key}")), "{key}");
        for queue in 0..2 {
            assert!(
                is_there(&format!("/local/domain/2/device/vif/0/queue-{queue}/{key}")),
                "{key}"
            );
        }
        assert!(!is_there(&format!("/local/domain/2/device/vif/0/queue-2/{key}")), "{key}");
    }
}

//! XenStore of a running host: what a guest may do there.

use ringway_e2e::host::{Host, pair};
use ringway_e2e::shared_turn;

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

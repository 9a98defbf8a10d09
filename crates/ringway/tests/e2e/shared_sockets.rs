//! Sockets that a group of the host may connect to: for QEMU, which runs as another user.

use std::fs::{Permissions, metadata, set_permissions};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use ringway_e2e::host::{Host, SOON, describe};

/// A user without rights, as each Linux has it.
const UNPRIVILEGED: &str = "65534";
/// A group that each Debian has, and that root is not in.
const GROUP: &str = "daemon";

/// A program of a user without rights who is in this group only.
fn as_member(group: &str, program: &[&str]) -> bool {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", UNPRIVILEGED, "--regid", group, "--clear-groups"]).args(program);
    command.output().expect("util-linux").status.success()
}

fn can_connect(group: &str, socket: &Path) -> bool {
    let address = format!("UNIX-CONNECT:{}", socket.display());
    as_member(group, &["socat", "-u", "OPEN:/dev/null", &address])
}

fn vhost(socket: &Path) -> String {
    let socket = socket.display();
    format!("[[vhost]]\nname = \"vm1\"\nsocket = \"{socket}\"\nmode = \"server\"\n")
}

#[test]
fn a_group_may_connect_to_the_sockets_of_virtual_machines() {
    let Some(_turn) = ringway_e2e::shared_turn(&["setpriv", "socat"]) else { return };
    // A process with one user cannot give anything away.
    if !rustix::process::geteuid().is_root() || !as_member(GROUP, &["true"]) {
        let reason = format!("not root, or no right to become another user of group {GROUP}");
        let _ = writeln!(std::io::stderr(), "SKIPPED: {reason}");
        return;
    }
    // A directory of this process's own may be closed to others.
    let place = tempfile::tempdir_in("/tmp").expect("a directory");
    set_permissions(place.path(), Permissions::from_mode(0o711)).expect("it is ours");
    let sockets = ["vm1", "vm2"].map(|name| place.path().join(name));
    let [described, added] = &sockets;
    let keys = format!("socket-group = \"{GROUP}\"");
    let host = Host::start(&(describe(&keys, &[("a", "", "")]) + &vhost(described)));
    let path = added.to_str().expect("text");
    host.text(&["vif", "add", "vm2", "--vhost", path, "--mode", "server"]);
    for socket in &sockets {
        let found = host.wait("the socket", SOON, |_| metadata(socket).ok());
        assert!(found.file_type().is_socket());
        assert_eq!(found.permissions().mode() & 0o777, 0o660, "{}", socket.display());
        assert!(can_connect(GROUP, socket), "{}", socket.display());
        assert!(!can_connect(UNPRIVILEGED, socket), "{}", socket.display());
    }
    // Other files have the rights that files of this process have.
    let usual = host.file("usual");
    std::fs::write(&usual, "").expect("written");
    let [kept, usual] = [host.dir().join("opener/vhosts.json"), usual]
        .map(|file| metadata(file).expect("it is there").permissions().mode() & 0o777);
    assert_eq!(kept, usual, "{kept:o} {usual:o}");
}

#[test]
fn without_the_group_each_vif_has_the_reason_and_guests_have_their_network() {
    let Some(_turn) = ringway_e2e::shared_turn(&["ping"]) else { return };
    let keys = "socket-group = \"no-such-group\"";
    let guests = [("a", "", ""), ("b", "", "")];
    let socket = tempfile::tempdir().expect("a directory");
    let host = Host::start(&(describe(keys, &guests) + &vhost(&socket.path().join("vm1"))));
    host.ping("a", "10.77.0.2");
    let shown = host.text(&["vif", "show", "vm1"]);
    assert!(shown.contains("no group `no-such-group`"), "{shown}");
    let path = socket.path().join("vm2");
    let path = path.to_str().expect("text");
    let refused = host.verb(&["vif", "add", "vm2", "--vhost", path, "--mode", "server"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("no group `no-such-group`"), "{said}");
    let path = format!("{path}-of-qemu");
    host.text(&["vif", "add", "vm3", "--vhost", &path]);
}

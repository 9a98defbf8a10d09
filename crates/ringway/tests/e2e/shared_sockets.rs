//! Sockets that a group of the host may connect to: for QEMU, which runs as another user.

use std::fs::{Permissions, metadata, set_permissions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use crate::host::{Host, SOON, describe, ringway};

/// A user without rights, as each Linux has it.
const UNPRIVILEGED: &str = "65534";
/// A group that each Debian has, and that root is not in.
const GROUP: &str = "daemon";

/// Whether a user without rights can connect to a socket as a member of this group.
fn can_connect(group: &str, socket: &Path) -> bool {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", UNPRIVILEGED, "--regid", group, "--clear-groups"]);
    command.args(["socat", "-u", "OPEN:/dev/null"]);
    command.arg(format!("UNIX-CONNECT:{}", socket.display()));
    command.output().expect("util-linux").status.success()
}

#[test]
fn a_group_may_connect_to_the_sockets_of_virtual_machines() {
    let Some(_turn) = crate::turn(&["setpriv", "socat"]) else { return };
    let is_root = rustix::process::geteuid().is_root();
    let group = match is_root {
        true => GROUP.to_owned(),
        false => rustix::process::getegid().as_raw().to_string(),
    };
    let place = tempfile::tempdir().expect("a directory");
    set_permissions(place.path(), Permissions::from_mode(0o711)).expect("it is ours");
    let sockets = ["vm1", "vm2"].map(|name| place.path().join(name));
    let [described, added] = &sockets;
    let keys = format!("socket-group = \"{group}\"");
    let vhost = format!(
        "[[vhost]]\nname = \"vm1\"\nsocket = \"{}\"\nmode = \"server\"\n",
        described.display()
    );
    let host = Host::start(&(describe(&keys, &[("a", "", "")]) + &vhost));
    let path = added.to_str().expect("text");
    host.text(&["vif", "add", "vm2", "--vhost", path, "--mode", "server"]);
    for socket in &sockets {
        let found = host.wait("the socket", SOON, |_| metadata(socket).ok());
        assert!(found.file_type().is_socket());
        assert_eq!(found.mode() & 0o777, 0o660, "{}", socket.display());
        if !is_root {
            assert_eq!(found.gid().to_string(), group);
            continue;
        }
        assert!(can_connect(GROUP, socket), "{}", socket.display());
        assert!(!can_connect(UNPRIVILEGED, socket), "{}", socket.display());
    }
}

#[test]
fn a_group_that_does_not_exist_is_refused_at_the_start() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("host.toml");
    std::fs::write(&file, "[host]\nsocket-group = \"no-such-group\"\n").expect("written");
    let mut command = ringway();
    command.args(["run", "--config"]).arg(&file).arg("--dir").arg(place.path().join("run"));
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("no group `no-such-group`"), "{said}");
}

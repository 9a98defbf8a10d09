//! The group that may connect to the sockets that a host creates for virtual machines.

use anyhow::{Context, Result, bail};
use nix::unistd::{Gid, Group};
use ringway_vhost_shell::SocketGroup;
use rustix::fs::Mode;

use crate::description::GroupText;

/// Rights of a socket that its user and its group may connect to.
const SOCKET_RIGHTS: Mode = Mode::from_bits_truncate(0o660);

/// Finds a group of this machine by name or number.
pub(crate) fn find(GroupText(name): &GroupText) -> Result<SocketGroup> {
    let found = match name.parse() {
        Ok(id) => Group::from_gid(Gid::from_raw(id)),
        Err(_) => Group::from_name(name),
    };
    match found.with_context(|| format!("host.socket-group {name}"))? {
        Some(Group { name, gid, .. }) => Ok(SocketGroup { name, id: gid.as_raw() }),
        None => bail!(
            "host.socket-group: this machine has no group `{name}`: expected one that \
             `getent group` prints"
        ),
    }
}

/// Makes this process able to give its sockets to the group, and leaves such sockets to their user
/// and group. Call it before any other thread is started.
pub(crate) fn prepare(group: &SocketGroup) -> Result<()> {
    rustix::process::umask(SOCKET_RIGHTS.complement());
    let id = rustix::process::Gid::from_raw(group.id);
    let mut groups = rustix::process::getgroups().context("the groups of this process")?;
    if !groups.contains(&id) && rustix::process::getegid() != id {
        groups.push(id);
        // Without this right, creating a socket fails, and says what is missing.
        let _ = rustix::thread::set_thread_groups(&groups);
    }
    Ok(())
}

//! The group that may connect to the sockets that a host creates for virtual machines.

use anyhow::{Context, Result, bail};
use nix::unistd::{Gid, Group};
use ringway_vhost_shell::SocketGroup;

use crate::description::GroupText;

/// Finds a group of this machine by name or number, and joins it if this process has the right to.
/// Without this right, creating a socket fails, and the reason says what is missing. Call it before
/// any other thread is started.
pub(crate) fn join(group: &GroupText) -> Result<SocketGroup> {
    let group = find(group)?;
    let id = rustix::process::Gid::from_raw(group.id);
    let mut groups = rustix::process::getgroups().context("the groups of this process")?;
    if !groups.contains(&id) && rustix::process::getegid() != id {
        groups.push(id);
        let _ = rustix::thread::set_thread_groups(&groups);
    }
    Ok(group)
}

/// Finds a group of this machine by name or number.
///
/// # Errors
/// If there is no such group.
pub(crate) fn find(GroupText(name): &GroupText) -> Result<SocketGroup> {
    // The greatest number means no change to the system.
    let id = match name.parse().ok().filter(|id| *id != u32::MAX) {
        Some(id) => Some(Gid::from_raw(id)),
        None => {
            let found = Group::from_name(name);
            found.with_context(|| format!("host.socket-group {name}"))?.map(|found| found.gid)
        }
    };
    let Some(id) = id else {
        bail!(
            "host.socket-group: this machine has no group `{name}`: expected one that `getent \
             group` prints; ringway looks for it when it starts"
        );
    };
    Ok(SocketGroup { name: name.clone(), id: id.as_raw() })
}

//! The group that may connect to the sockets that a host creates for virtual machines.

use anyhow::{Context, Result, bail};
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
        Some(id) => Some(id),
        None => number_of(name).with_context(|| format!("host.socket-group {name}"))?,
    };
    let Some(id) = id else {
        bail!(
            "host.socket-group: this machine has no group `{name}`: expected one that `getent \
             group` prints; ringway looks for it when it starts"
        );
    };
    Ok(SocketGroup { name: name.clone(), id })
}

/// The number of a group, from wherever this machine has its groups.
#[cfg(not(target_feature = "crt-static"))]
fn number_of(name: &str) -> Result<Option<u32>> {
    Ok(nix::unistd::Group::from_name(name)?.map(|found| found.gid.as_raw()))
}

/// The number of a group. A static program has only the file of groups: other sources are libraries
/// of this machine's, made for its C library.
#[cfg(target_feature = "crt-static")]
fn number_of(name: &str) -> Result<Option<u32>> {
    Ok(number_in(&std::fs::read_to_string("/etc/group")?, name))
}

/// The number of a group in a file as in group(5).
#[cfg(any(test, target_feature = "crt-static"))]
fn number_in(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() == Some(name) { fields.nth(1)?.parse().ok() } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_groups_has_their_numbers() {
        let groups = "root:x:0:\nodd\nqemu:x:107:a,b\nqemu-kvm:x:no:\n";
        assert_eq!(number_in(groups, "root"), Some(0));
        assert_eq!(number_in(groups, "qemu"), Some(107));
        for missing in ["odd", "qemu-kvm", "a", ""] {
            assert_eq!(number_in(groups, missing), None, "{missing}");
        }
    }
}

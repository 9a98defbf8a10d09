//! Removes network devices that nothing needs any more.

use std::io;

use super::devices::Devices;
use super::keeper::Keeper;
use super::kernel::{Kernel, Link};
use super::purpose::{Purpose, is_tap};
use crate::notes::Notes;

impl<K: Kernel> Devices<K> {
    /// Deletes network devices of this host that this process keeps, unless `is_kept` is true for
    /// their purpose and link, and forgets them.
    pub fn delete_stale(
        &mut self,
        is_kept: impl Fn(&Purpose, &Link) -> bool,
        notes: &mut impl Notes,
    ) {
        // The supervisor removes those that it keeps.
        if let Some(keeper) = self.keeper() {
            keeper.delete_stale(is_kept, notes);
        }
    }
}

impl<K: Kernel> Keeper<K> {
    pub(crate) fn delete_stale(
        &mut self,
        is_kept: impl Fn(&Purpose, &Link) -> bool,
        notes: &mut impl Notes,
    ) {
        let deleted = delete_devices(&mut self.net, &self.applied.owner, is_kept);
        deleted.iter().for_each(|purpose| self.applied.forget(purpose, notes));
    }
}

/// Deletes network devices of `owner`, unless `is_kept` is true for their purpose and link. Returns
/// the purposes of those that it has deleted.
pub fn delete_devices(
    net: &mut impl Kernel,
    owner: &str,
    is_kept: impl Fn(&Purpose, &Link) -> bool,
) -> Vec<Purpose> {
    match delete_stale(net, owner, is_kept) {
        Ok(deleted) => {
            let (names, purposes): (Vec<_>, Vec<_>) = deleted.into_iter().unzip();
            if !names.is_empty() {
                tracing::info!(?names, "removed network devices that are not needed any more");
            }
            purposes
        }
        Err(error) => {
            tracing::warn!("cannot remove network devices that are not needed any more: {error}");
            Vec::new()
        }
    }
}

/// Deletes the devices of this owner that are no longer wanted, and returns their names. Devices
/// for which `is_kept` is true stay.
fn delete_stale(
    net: &mut impl Kernel,
    owner: &str,
    is_kept: impl Fn(&Purpose, &Link) -> bool,
) -> io::Result<Vec<(String, Purpose)>> {
    let mut deleted = Vec::new();
    for link in net.links()? {
        let purpose = link.alias.as_deref().and_then(|note| Purpose::of_note(owner, note));
        let Some(purpose) = purpose.filter(|_| is_tap(&link)) else { continue };
        if !is_kept(&purpose, &link) {
            net.delete(&link.name)?;
            deleted.push((link.name, purpose));
        }
    }
    Ok(deleted)
}

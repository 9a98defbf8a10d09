//! Removes network devices that nothing needs any more.

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
/// the purposes of those that it has deleted: one that cannot be deleted now stays, alone.
pub fn delete_devices(
    net: &mut impl Kernel,
    owner: &str,
    is_kept: impl Fn(&Purpose, &Link) -> bool,
) -> Vec<Purpose> {
    let (mut names, mut purposes) = (Vec::new(), Vec::new());
    let links = net.links().unwrap_or_else(|error| {
        tracing::warn!("cannot remove network devices that are not needed any more: {error}");
        Vec::new()
    });
    for link in links.into_iter().filter(is_tap) {
        let purpose = link.alias.as_deref().and_then(|note| Purpose::of_note(owner, note));
        let Some(purpose) = purpose.filter(|purpose| !is_kept(purpose, &link)) else { continue };
        match net.delete(&link.name) {
            Ok(()) => {
                names.push(link.name);
                purposes.push(purpose);
            }
            Err(error) => tracing::warn!(
                "cannot remove {}, a network device that is not needed any more: {error}",
                link.name
            ),
        }
    }
    if !names.is_empty() {
        tracing::info!(?names, "removed network devices that are not needed any more");
    }
    purposes
}

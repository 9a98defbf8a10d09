//! Limits how much each front-end may have mapped in this process.
//!
//! The guard's table and the process's address space are limited, and front-ends decide how many
//! regions they announce. So each has a share that no other can take, and anything beyond comes
//! from a common pool, first come, first served. There are at most [`FRONT_ENDS_MAX`] front-ends,
//! so the shares of all are always available.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Front-ends that may have memory mapped at the same time.
pub const FRONT_ENDS_MAX: u16 = 128;
/// A front-end's own share: QEMU has two regions, and one for each hot-plugged memory module.
pub(crate) const GUARANTEED: Amount = Amount { mappings: 32, bytes: 256 << 30 };
/// The common pool beyond that: sixteen tables of as many regions as vhost-user allows.
pub(crate) const COMMON_POOL: Amount = Amount { mappings: 8192, bytes: 32 << 40 };
/// The most mappings of all front-ends.
// not a limit: a sum of limits
pub(crate) const MAPPINGS_MAX: usize =
    FRONT_ENDS_MAX as usize * GUARANTEED.mappings as usize + COMMON_POOL.mappings as usize;

/// An amount of mapped memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) mappings: u64,
    /// Of addresses.
    pub(crate) bytes: u64,
}

const NOTHING: Amount = Amount { mappings: 0, bytes: 0 };

static FRONT_ENDS: AtomicU16 = AtomicU16::new(0);
/// The part of the common pool in use.
static TAKEN: Mutex<Amount> = Mutex::new(NOTHING);

/// The share of one front-end, for all tables of regions that it announces.
#[derive(Debug)]
pub struct MappingShare {
    /// What is mapped for it.
    used: Mutex<Amount>,
}

/// No share is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{FRONT_ENDS_MAX} front-ends share their memory with this process, which is the limit")]
pub struct NoShareLeft;

/// A share is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ShareExhausted {
    #[error(
        "this front-end has {used} mappings, {own} of its own, and the {common} that all \
         front-ends share are in use"
    )]
    Mappings { used: u64, own: u64, common: u64 },
    #[error(
        "this front-end has {used:#x} bytes, {own:#x} of its own, and needs {wanted:#x} more, but \
         of the {common:#x} that all front-ends share {taken:#x} are in use"
    )]
    Bytes { used: u64, own: u64, common: u64, taken: u64, wanted: u64 },
    #[error(
        "with these, this front-end would have {total:#x} bytes, more than the limit of {limit:#x}"
    )]
    TooLong { total: u64, limit: u64 },
}

impl MappingShare {
    /// Reserves the share of another front-end.
    ///
    /// # Errors
    /// [`NoShareLeft`].
    pub fn new() -> Result<Arc<MappingShare>, NoShareLeft> {
        let more = |count: u16| (count < FRONT_ENDS_MAX).then_some(count + 1);
        let counted = FRONT_ENDS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.map_err(|_| NoShareLeft)?;
        Ok(Arc::new(MappingShare { used: Mutex::new(NOTHING) }))
    }

    /// Counts one more mapping.
    pub(crate) fn take(&self, bytes: u64) -> Result<(), ShareExhausted> {
        let mut used = lock(&self.used);
        let after = Amount { mappings: used.mappings + 1, bytes: used.bytes.saturating_add(bytes) };
        let limit = GUARANTEED.bytes + COMMON_POOL.bytes;
        if after.bytes > limit {
            return Err(ShareExhausted::TooLong { total: after.bytes, limit });
        }
        let mut taken = lock(&TAKEN);
        let wanted = Amount {
            mappings: taken.mappings + beyond(after).mappings - beyond(*used).mappings,
            bytes: taken.bytes.saturating_add(beyond(after).bytes - beyond(*used).bytes),
        };
        if wanted.mappings > COMMON_POOL.mappings {
            let (used, own, common) = (used.mappings, GUARANTEED.mappings, COMMON_POOL.mappings);
            return Err(ShareExhausted::Mappings { used, own, common });
        }
        if wanted.bytes > COMMON_POOL.bytes {
            let (used, own, common) = (used.bytes, GUARANTEED.bytes, COMMON_POOL.bytes);
            let (taken, wanted) = (taken.bytes, bytes);
            return Err(ShareExhausted::Bytes { used, own, common, taken, wanted });
        }
        *taken = wanted;
        *used = after;
        Ok(())
    }

    /// Counts one mapping of `bytes` bytes less.
    pub(crate) fn give_back(&self, bytes: u64) {
        let mut used = lock(&self.used);
        let after = Amount { mappings: used.mappings - 1, bytes: used.bytes - bytes };
        let mut taken = lock(&TAKEN);
        taken.mappings -= beyond(*used).mappings - beyond(after).mappings;
        taken.bytes -= beyond(*used).bytes - beyond(after).bytes;
        *used = after;
    }
}

impl Drop for MappingShare {
    fn drop(&mut self) {
        // Each mapping holds a reference to its share, so none is left.
        FRONT_ENDS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The part of `used` that comes from the common pool.
fn beyond(used: Amount) -> Amount {
    Amount {
        mappings: used.mappings.saturating_sub(GUARANTEED.mappings),
        bytes: used.bytes.saturating_sub(GUARANTEED.bytes),
    }
}

/// The counts are consistent at any moment, so a panic elsewhere leaves nothing half done.
fn lock(amount: &Mutex<Amount>) -> MutexGuard<'_, Amount> {
    amount.lock().unwrap_or_else(PoisonError::into_inner)
}

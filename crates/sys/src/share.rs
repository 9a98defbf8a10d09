//! How much of a process each front-end may have mapped.
//!
//! The table of the guard and the addresses of a process have an end, and front-ends decide how
//! many regions they announce. So each has a part that no other can take, and what is beyond it
//! comes from a common part: first come, first served. As there are [`FRONT_ENDS_MAX`] at most, the
//! parts of all are there at all times.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Front-ends that have memory mapped at a time.
pub const FRONT_ENDS_MAX: u16 = 128;
/// What no other can take: QEMU has two regions, and one for each module that was plugged in.
pub(crate) const OWN: Amount = Amount { mappings: 32, bytes: 256 << 30 };
/// What all have together beyond that: sixteen tables of as many regions as vhost-user has.
pub(crate) const COMMON: Amount = Amount { mappings: 8192, bytes: 32 << 40 };
/// Mappings of all.
pub(crate) const MAPPINGS_MAX: usize =
    FRONT_ENDS_MAX as usize * OWN.mappings as usize + COMMON.mappings as usize;

/// What is mapped, or may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) mappings: u64,
    /// Of addresses.
    pub(crate) bytes: u64,
}

const NOTHING: Amount = Amount { mappings: 0, bytes: 0 };

static FRONT_ENDS: AtomicU16 = AtomicU16::new(0);
/// What is taken of the common part.
static TAKEN: Mutex<Amount> = Mutex::new(NOTHING);

/// The share of one front-end, for all tables of regions that it announces.
#[derive(Debug)]
pub struct MappingShare {
    /// What is mapped for it.
    used: Mutex<Amount>,
}

/// There is no share left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{FRONT_ENDS_MAX} front-ends share their memory with this process, which is the limit")]
pub struct NoShare;

/// A share is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UsedUp {
    #[error(
        "this front-end has {used} mappings of its own {own}, and all have taken the {common} \
         mappings beyond those of each"
    )]
    Mappings { used: u64, own: u64, common: u64 },
    #[error(
        "this front-end has {used:#x} bytes of its own {own:#x} and wants {wanted:#x} more, of \
         which all have {common:#x} beyond those of each"
    )]
    Bytes { used: u64, own: u64, common: u64, wanted: u64 },
}

impl MappingShare {
    /// The share of another front-end.
    ///
    /// # Errors
    /// [`NoShare`].
    pub fn new() -> Result<Arc<MappingShare>, NoShare> {
        let more = |count: u16| (count < FRONT_ENDS_MAX).then_some(count + 1);
        let counted = FRONT_ENDS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.map_err(|_| NoShare)?;
        Ok(Arc::new(MappingShare { used: Mutex::new(NOTHING) }))
    }

    /// Counts one mapping more.
    pub(crate) fn take(&self, bytes: u64) -> Result<(), UsedUp> {
        let mut used = lock(&self.used);
        let after = Amount { mappings: used.mappings + 1, bytes: used.bytes.saturating_add(bytes) };
        let mut taken = lock(&TAKEN);
        let wanted = Amount {
            mappings: taken.mappings + beyond(after).mappings - beyond(*used).mappings,
            bytes: taken.bytes.saturating_add(beyond(after).bytes - beyond(*used).bytes),
        };
        if wanted.mappings > COMMON.mappings {
            let (used, own, common) = (used.mappings, OWN.mappings, COMMON.mappings);
            return Err(UsedUp::Mappings { used, own, common });
        }
        if wanted.bytes > COMMON.bytes {
            let (used, own, common) = (used.bytes, OWN.bytes, COMMON.bytes);
            return Err(UsedUp::Bytes { used, own, common, wanted: bytes });
        }
        *taken = wanted;
        *used = after;
        Ok(())
    }

    /// Counts one less, of as many bytes.
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
        // Each mapping has a reference to its share, so nothing of it is mapped any more.
        FRONT_ENDS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What comes from the common part.
fn beyond(used: Amount) -> Amount {
    Amount {
        mappings: used.mappings.saturating_sub(OWN.mappings),
        bytes: used.bytes.saturating_sub(OWN.bytes),
    }
}

/// The counts are whole at any moment, so a panic elsewhere leaves nothing half done.
fn lock(amount: &Mutex<Amount>) -> MutexGuard<'_, Amount> {
    amount.lock().unwrap_or_else(PoisonError::into_inner)
}

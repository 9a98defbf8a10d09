//! What a front-end's messages say about a queue, as parts of a [`QueuePair`](crate::QueuePair).

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use ringway_sys::guest_memory::{GuestMemory, OutsideMemory};
use ringway_vhost::{Base, RingPlan};
use ringway_virtio::{Format, QueuePlace};
use ringway_wire::virtio::used;

use crate::QueueParts;

/// Why there are no parts of a queue.
#[derive(Debug, thiserror::Error)]
pub enum PartsError {
    /// The used ring is outside of the guest's memory, so its position is unknown.
    #[error("the used index: {0}")]
    Used(OutsideMemory),
    /// The host's system refused a call.
    #[error(transparent)]
    Host(#[from] io::Error),
}

impl QueueParts {
    /// The parts of a queue that continues where it stopped, without a log and an inflight area.
    ///
    /// Chains are completed in order, so a split queue continues at its used index. Front-ends
    /// report the same index, except DPDK, which reports 0 to a new back-end.
    ///
    /// # Errors
    /// [`PartsError`].
    pub fn of_plan(
        plan: &RingPlan,
        memory: &GuestMemory,
        format: Format,
    ) -> Result<QueueParts, PartsError> {
        let base = match (format, plan.base) {
            (Format::Packed, Base::At(base)) => base,
            _ => used_index(plan, memory).map(u32::from).map_err(PartsError::Used)?,
        };
        let call = plan.call.as_ref().map(|call| call.as_fd().try_clone_to_owned());
        Ok(QueueParts {
            place: QueuePlace {
                size: plan.size,
                descriptors: plan.addresses.descriptor,
                driver: plan.addresses.available,
                device: plan.addresses.used,
            },
            base,
            kick: plan.kick.as_fd().try_clone_to_owned()?,
            call: call.transpose()?,
            log: None,
            inflight: None,
        })
    }
}

/// The index of a used ring in memory.
///
/// # Errors
/// [`OutsideMemory`].
pub fn used_index(plan: &RingPlan, memory: &GuestMemory) -> Result<u16, OutsideMemory> {
    let pages = memory.pages_of_user(plan.addresses.used, USED_HEADER_LEN)?;
    Ok(pages.load_u16(used::IDX, Ordering::Acquire))
}

/// Bytes of a used ring before its entries: flags and index.
const USED_HEADER_LEN: u64 = 4;

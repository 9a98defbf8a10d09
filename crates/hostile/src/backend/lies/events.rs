//! Lies by events, and by what a backend writes where it must not.

use std::sync::atomic::Ordering;

use anyhow::Result;
use ringway_wire::PAGE_SIZE;
use ringway_wire::ring::{REQ_EVENT, REQ_PROD, RSP_EVENT};

use crate::backend::liar::Liar;

/// Events of a storm between two pauses, and the pauses.
const STORM: (u32, u32) = (500, 40);

pub(crate) fn storm(liar: &mut Liar<'_>) -> Result<()> {
    liar.connect(&[])?;
    for _ in 0..STORM.1 {
        let queue = liar.queue()?;
        (0..STORM.0).for_each(|_| queue.rx.ring());
        liar.pause();
    }
    liar.settle()
}

/// No event, or one for each request, or one for a request in the past.
pub(crate) fn wishes_absurd(liar: &mut Liar<'_>) -> Result<()> {
    for wish in [0, 1, 1 << 31, u32::MAX] {
        liar.try_out(|queue| {
            for ring in [&queue.tx, &queue.rx] {
                ring.page.store(REQ_EVENT, wish, Ordering::SeqCst);
                ring.ring();
            }
        })?;
    }
    Ok(())
}

pub(crate) fn foreign_indices(liar: &mut Liar<'_>) -> Result<()> {
    for value in [0, 1 << 31, u32::MAX] {
        liar.try_out(|queue| {
            for ring in [&queue.tx, &queue.rx] {
                ring.page.store(REQ_PROD, value, Ordering::SeqCst);
                ring.page.store(RSP_EVENT, value, Ordering::SeqCst);
                ring.ring();
            }
        })?;
    }
    Ok(())
}

pub(crate) fn pages_overwritten(liar: &mut Liar<'_>) -> Result<()> {
    for _ in 0..20 {
        let mut random = liar.random.fork();
        liar.try_out(|queue| {
            for ring in [&queue.tx, &queue.rx] {
                let bytes: Vec<u8> = (0..PAGE_SIZE).map(|_| random.u8(..)).collect();
                ring.page.copy_from(0, &bytes);
                ring.ring();
            }
        })?;
    }
    Ok(())
}

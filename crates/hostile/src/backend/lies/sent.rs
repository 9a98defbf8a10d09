//! Lies about what the frontend has sent: responses in the tx ring.

use std::sync::atomic::Ordering;

use anyhow::Result;
use ringway_wire::netif::{NETIF_RSP_NULL, NETIF_RSP_OKAY, TX_RING_SLOTS, TxResponse};
use ringway_wire::ring::RSP_PROD;

use crate::backend::liar::{Liar, Queue};

/// Producers that are further than any request: one slot, far off, half around, backwards.
pub(crate) const JUMPS: [u32; 5] = [257, 1000, 1 << 31, u32::MAX, u32::MAX - 300];

fn respond(queue: &mut Queue, ids: &[u16], status: i16) {
    ids.iter().for_each(|id| queue.tx.push(TxResponse { id: *id, status }));
    queue.tx.publish();
}

pub(crate) fn producer_jump(liar: &mut Liar<'_>) -> Result<()> {
    JUMPS.iter().try_for_each(|jump| {
        liar.provoke(|queue| {
            queue.tx.produced = *jump;
            queue.tx.publish();
        })
    })
}

pub(crate) fn producer_backwards(liar: &mut Liar<'_>) -> Result<()> {
    liar.connect(&[])?;
    let id = liar.sent(1)?.id;
    respond(liar.queue()?, &[id], NETIF_RSP_OKAY);
    (0..3).for_each(|_| liar.pause());
    let tx = &liar.queue()?.tx;
    tx.page.store(RSP_PROD, 0, Ordering::SeqCst);
    tx.ring();
    liar.expect_to_leave()
}

pub(crate) fn ids_unknown(liar: &mut Liar<'_>) -> Result<()> {
    [256, 257, 0x8000, u16::MAX]
        .iter()
        .try_for_each(|id| liar.provoke(|queue| respond(queue, &[*id], NETIF_RSP_OKAY)))
}

pub(crate) fn ids_twice(liar: &mut Liar<'_>) -> Result<()> {
    liar.connect(&[])?;
    let id = liar.sent(2)?.id;
    respond(liar.queue()?, &[id, id], NETIF_RSP_OKAY);
    liar.expect_to_leave()
}

pub(crate) fn statuses_odd(liar: &mut Liar<'_>) -> Result<()> {
    liar.connect(&[])?;
    for status in [2, -1, -2, -3, i16::MIN, i16::MAX] {
        let id = liar.sent(1)?.id;
        respond(liar.queue()?, &[id], status);
        liar.pause();
    }
    liar.settle()
}

/// A response for a slot without a request says nothing of the request's page.
pub(crate) fn null_responses(liar: &mut Liar<'_>) -> Result<()> {
    liar.connect(&[])?;
    for _ in 0..2 * TX_RING_SLOTS {
        let queue = liar.queue()?;
        (0..queue.tx.waiting()).for_each(|_| respond(queue, &[0], NETIF_RSP_NULL));
        liar.pause();
    }
    liar.settle()
}

//! Grants that do not exist, or do not allow the access for which they are used.

use anyhow::{Context, Result};
use ringway_hypervisor::Access;
use ringway_wire::netif::{RxRequest, TxRequest};

use crate::stage::Stage;

pub(crate) fn grants_absent(stage: &mut Stage) -> Result<()> {
    for gref in [0, 7, 4_000_000, u32::MAX] {
        stage.try_out(|queue| {
            // One bad grant among good ones: the good ones must still be copied.
            for slot in 0..64 {
                let good = queue.request(0, 0, 60, 0);
                let request = if slot == 31 { TxRequest { gref, ..good } } else { good };
                queue.push_tx(request);
            }
            queue.publish_tx();
        })?;
    }
    Ok(())
}

pub(crate) fn ring_page_as_buffer(stage: &mut Stage) -> Result<()> {
    let victim = stage.victim()?;
    stage.try_out(|queue| {
        for gref in queue.ring_refs() {
            let request = TxRequest { gref: gref.0, ..queue.request(0, 0, 4096, 0) };
            queue.push_tx(request);
        }
        queue.publish_tx();
    })?;
    // Then frames for this guest are written over its own rings.
    stage.guest.connect(1, 8)?;
    let queue = stage.queue()?;
    for _ in 0..32 {
        for gref in queue.ring_refs() {
            queue.push_rx(RxRequest { id: 0, pad: 0, gref: gref.0 });
        }
    }
    queue.publish_rx();
    for _ in 0..32 {
        if stage.is_over() || !stage.guest.is_served()? {
            break;
        }
        stage.introduce(victim)?;
    }
    Ok(())
}

/// Grants that end while the backend copies.
pub(crate) fn grants_revoked(stage: &mut Stage) -> Result<()> {
    stage.guest.connect(1, 64)?;
    let mut revoked = 0;
    while !stage.is_over() && revoked < 64 {
        let queue = stage.queue()?;
        for buffer in 0..queue.tx_room() {
            let request = queue.request(buffer, 0, 1000, 0);
            queue.push_tx(request);
        }
        queue.publish_tx();
        let gref = queue.buffers.grefs[revoked % 64];
        if stage.guest.machine.revoke(gref) {
            stage.count("grants revoked", 1);
        }
        revoked += 1;
        stage.queue()?.rest();
    }
    let [tx, rx] = stage.queue()?.ring_refs();
    for gref in [tx, rx] {
        // The backend has mapped them, so they cannot end.
        if stage.guest.machine.revoke(gref) {
            stage.account.notes.push(format!("ring page {gref} was revoked under the backend"));
        }
    }
    Ok(())
}

/// Pages for received frames that the backend may only read.
pub(crate) fn pages_read_only(stage: &mut Stage) -> Result<()> {
    let victim = stage.victim()?;
    stage.guest.connect(1, 8)?;
    let backend = stage.guest.vif.backend;
    let pages = stage.guest.machine.share(backend, 16, Access::ReadOnly).context("16 pages")?;
    while !stage.is_over() {
        let queue = stage.queue()?;
        for gref in &pages.grefs {
            queue.push_rx(RxRequest { id: 1, pad: 0, gref: gref.0 });
        }
        queue.publish_rx();
        for _ in 0..16 {
            stage.introduce(victim)?;
        }
        let received = stage.queue()?.take_rx();
        let written = received.iter().filter(|part| part.response.status > 0).count();
        if written > 0 {
            stage.account.notes.push(format!("{written} read-only pages were written"));
        }
        stage.count("refused pages", u64::try_from(received.len() - written).unwrap_or(0));
        stage.queue()?.rest();
    }
    Ok(())
}

//! Chains of requests: too many, too few, with invalid sizes and extras.

use anyhow::Result;
use ringway_wire::netif::{
    EXTRA_FLAG_MORE, EXTRA_TYPE_MCAST_ADD, EXTRA_TYPE_MCAST_DEL, ExtraInfo, NETTXF_EXTRA_INFO,
    NETTXF_MORE_DATA, NR_SLOTS_MIN,
};

use crate::queue::Queue;
use crate::stage::Stage;

/// A chain of slots of these sizes, the first of which claims a total.
fn chain(queue: &mut Queue, total: u16, sizes: &[u16]) {
    for (index, size) in sizes.iter().enumerate() {
        let more = if index + 1 < sizes.len() { NETTXF_MORE_DATA } else { 0 };
        let size = if index == 0 { total } else { *size };
        let request = queue.request(index, 0, size, more);
        queue.push_tx(request);
    }
}

pub(crate) fn slot_beyond_page(stage: &mut Stage) -> Result<()> {
    for (offset, size) in [(4000, 200), (4083, 14), (4096, 14), (u16::MAX, 14), (1, u16::MAX)] {
        stage.provoke(|queue| {
            let request = queue.request(0, offset, size, 0);
            queue.push_tx(request);
            queue.publish_tx();
        })?;
    }
    Ok(())
}

pub(crate) fn chain_cut_off(stage: &mut Stage) -> Result<()> {
    for flags in [NETTXF_MORE_DATA, NETTXF_EXTRA_INFO] {
        stage.provoke(|queue| {
            let request = queue.request(0, 0, 60, flags);
            queue.push_tx(request);
            queue.publish_tx();
        })?;
    }
    Ok(())
}

pub(crate) fn chain_too_long(stage: &mut Stage) -> Result<()> {
    for slots in [22_u16, 64, 255] {
        stage.provoke(|queue| {
            let sizes = vec![16; usize::from(slots)];
            chain(queue, 16 * slots, &sizes);
            queue.publish_tx();
        })?;
    }
    for slots in [19_u16, 20, 21] {
        stage.try_out(|queue| {
            let sizes = vec![16; usize::from(slots)];
            chain(queue, 16 * slots, &sizes);
            queue.publish_tx();
        })?;
    }
    Ok(())
}

/// As many slots as allowed, almost empty: around the 128 bytes that Linux copies before it reads a
/// frame.
pub(crate) fn slots_tiny(stage: &mut Stage) -> Result<()> {
    stage.guest.connect(1, 32)?;
    while !stage.is_over() {
        for slots in 2..=NR_SLOTS_MIN {
            for total in [14_u16, 15, 60, 127, 128, 129, 200] {
                let count = u16::try_from(slots).unwrap_or(2);
                let each = (total / count).max(1);
                let rest = each * (count - 1);
                if rest >= total || stage.is_over() {
                    continue;
                }
                let until = stage.until;
                let queue = stage.queue()?;
                if queue.wait_for_room(slots, until) {
                    chain(queue, total, &vec![each; slots]);
                    queue.publish_tx();
                    stage.count("frames", 1);
                }
            }
        }
    }
    Ok(())
}

pub(crate) fn slots_empty(stage: &mut Stage) -> Result<()> {
    let sizes: [&[u16]; 6] =
        [&[60, 0], &[60, 0, 0, 0], &[60, 0, 30, 0, 30], &[0, 60], &[30, 0, 30], &[0, 0, 0, 0]];
    for sizes in sizes {
        stage.try_out(|queue| {
            chain(queue, sizes.iter().sum(), sizes);
            queue.publish_tx();
        })?;
    }
    Ok(())
}

pub(crate) fn sizes_lie(stage: &mut Stage) -> Result<()> {
    let lies: [(u16, &[u16]); 9] = [
        // The total is less than one of its parts, or than all of them.
        (60, &[60, 61]),
        (60, &[60, 40, 40]),
        (60, &[60, 60]),
        // The total is zero, less than an Ethernet header, exactly one.
        (0, &[0]),
        (13, &[13]),
        (14, &[14]),
        // The sum does not fit into 16 bits.
        (u16::MAX, &[0, 4096, 4096]),
        (1, &[1, u16::MAX, u16::MAX, 3]),
        (100, &[100, 4096, 4096, 4096, 4096, 4096]),
    ];
    for (total, sizes) in lies {
        stage.try_out(|queue| {
            chain(queue, total, sizes);
            queue.publish_tx();
        })?;
    }
    Ok(())
}

/// A frame with these extras after its first slot.
fn with_extras(queue: &mut Queue, flags: u16, extras: &[ExtraInfo]) {
    let request = queue.request(0, 0, 60, flags | NETTXF_EXTRA_INFO);
    queue.push_tx(request);
    for (index, extra) in extras.iter().enumerate() {
        let more = if index + 1 < extras.len() { EXTRA_FLAG_MORE } else { extra.flags };
        queue.push_tx(ExtraInfo { flags: more, ..*extra });
    }
    if flags & NETTXF_MORE_DATA != 0 {
        let request = queue.request(1, 0, 30, 0);
        queue.push_tx(request);
    }
    queue.publish_tx();
}

fn extra(kind: u8, flags: u8) -> ExtraInfo {
    ExtraInfo { kind, flags, payload: [0xff; 6] }
}

pub(crate) fn extras_unknown(stage: &mut Stage) -> Result<()> {
    for kind in [0, 6, 255] {
        stage.provoke(|queue| with_extras(queue, 0, &[extra(kind, 0)]))?;
    }
    Ok(())
}

pub(crate) fn extras_odd(stage: &mut Stage) -> Result<()> {
    let gso = ExtraInfo::for_gso(1000, 1);
    let cases: [(u16, Vec<ExtraInfo>); 9] = [
        // One extra twice, and one beside an extra of another kind.
        (0, vec![gso, gso]),
        (0, vec![gso, extra(2, 0)]),
        // Multicast control and hash values that were never negotiated, with data and without.
        (0, vec![extra(2, 0)]),
        (0, vec![extra(3, 0)]),
        (0, vec![extra(4, 0)]),
        (0, vec![extra(5, 0)]),
        (NETTXF_MORE_DATA, vec![extra(2, 0)]),
        // A chain without an end, and one that fills the ring.
        (0, vec![ExtraInfo { flags: EXTRA_FLAG_MORE, ..gso }]),
        (0, vec![gso; 254]),
    ];
    for (flags, extras) in cases {
        stage.try_out(|queue| with_extras(queue, flags, &extras))?;
    }
    Ok(())
}

pub(crate) fn multicast_orders(stage: &mut Stage) -> Result<()> {
    stage.guest.connect(1, 32)?;
    let until = stage.until;
    let mut sent = 0_u32;
    while !stage.is_over() {
        let queue = stage.queue()?;
        while queue.tx_room() >= 2 {
            let [.., a, b] = sent.to_be_bytes();
            // Of the addresses that it adds, few are removed later.
            let kind = if sent % 3 == 2 { EXTRA_TYPE_MCAST_DEL } else { EXTRA_TYPE_MCAST_ADD };
            let request = queue.request(0, 0, 0, NETTXF_EXTRA_INFO);
            queue.push_tx(request);
            queue.push_tx(ExtraInfo::for_multicast(kind, [0x33, 0x33, 0, 0, a, b]));
            sent += 1;
        }
        queue.publish_tx();
        queue.wait_for_room(128, until);
    }
    stage.count("orders", sent.into());
    Ok(())
}

pub(crate) fn flags_unknown(stage: &mut Stage) -> Result<()> {
    for bit in 4..16 {
        stage.try_out(|queue| {
            let request = queue.request(0, 0, 60, 1 << bit);
            queue.push_tx(request);
            queue.publish_tx();
        })?;
    }
    Ok(())
}

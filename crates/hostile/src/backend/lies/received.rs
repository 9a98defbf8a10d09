//! Lies about what the frontend receives: responses and extras in the rx ring.

use std::sync::atomic::Ordering;

use anyhow::Result;
use ringway_wire::netif::{
    EXTRA_FLAG_MORE, EXTRA_TYPE_XDP, ExtraInfo, GSO_TYPE_TCPV4, GSO_TYPE_TCPV6, NETRXF_EXTRA_INFO,
    NETRXF_MORE_DATA, RX_RING_SLOTS, RxResponse,
};
use ringway_wire::ring::RSP_PROD;

use crate::backend::liar::{Liar, Queue};
use crate::backend::lies::sent::JUMPS;

const MORE: u16 = NETRXF_MORE_DATA;
const EXTRA: u16 = NETRXF_EXTRA_INFO;

pub(crate) fn producer_jump(liar: &mut Liar<'_>) -> Result<()> {
    JUMPS.iter().try_for_each(|jump| {
        liar.provoke(|queue| {
            queue.rx.produced = *jump;
            queue.rx.publish();
        })
    })
}

pub(crate) fn producer_backwards(liar: &mut Liar<'_>) -> Result<()> {
    liar.connect(&[])?;
    liar.queue()?.receive(0, 0, 60);
    liar.queue()?.publish();
    (0..3).for_each(|_| liar.pause());
    let rx = &liar.queue()?.rx;
    rx.page.store(RSP_PROD, 0, Ordering::SeqCst);
    rx.ring();
    liar.expect_to_leave()
}

pub(crate) fn beyond_page(liar: &mut Liar<'_>) -> Result<()> {
    for (offset, status) in [(0, 4097), (1, 4096), (4096, 1), (u16::MAX, 1), (4000, i16::MAX)] {
        for is_first in [true, false] {
            liar.provoke(|queue| {
                if !is_first {
                    queue.receive(0, MORE, 100);
                }
                queue.receive(offset, 0, status);
                queue.publish();
            })?;
        }
    }
    Ok(())
}

pub(crate) fn statuses_negative(liar: &mut Liar<'_>) -> Result<()> {
    liar.try_out(|queue| {
        for status in [-1, -2, -3, i16::MIN] {
            queue.receive(0, 0, status);
            // In the middle of a frame, at an offset beyond the page.
            queue.receive(0, MORE, 100);
            queue.receive(4096, MORE, status);
            queue.receive(0, 0, 100);
        }
        queue.publish();
    })
}

pub(crate) fn empty_slots(liar: &mut Liar<'_>) -> Result<()> {
    liar.try_out(|queue| {
        (0..4).for_each(|_| queue.receive(0, 0, 0));
        (0..17).for_each(|_| queue.receive(0, MORE, 0));
        queue.receive(4096, 0, 0);
        for len in [1, 13] {
            queue.receive(0, 0, len);
        }
        queue.publish();
    })
}

pub(crate) fn frame_too_long(liar: &mut Liar<'_>) -> Result<()> {
    liar.try_out(|queue| {
        (0..20).for_each(|_| queue.receive(0, MORE, 4096));
        queue.receive(0, 0, 4096);
        queue.publish();
    })
}

pub(crate) fn chain_endless(liar: &mut Liar<'_>) -> Result<()> {
    for len in [0, 1, 4096] {
        liar.provoke(|queue| {
            (0..RX_RING_SLOTS).for_each(|_| queue.receive(0, MORE, len));
            queue.publish();
        })?;
    }
    Ok(())
}

/// What was announced never comes.
pub(crate) fn chain_cut_off(liar: &mut Liar<'_>) -> Result<()> {
    for flags in [MORE, EXTRA, MORE | EXTRA] {
        liar.try_out(|queue| {
            queue.receive(0, flags, 100);
            queue.publish();
        })?;
    }
    Ok(())
}

/// A frame with these extras, each announced by the one before.
fn with_extras(queue: &mut Queue, extras: &[ExtraInfo]) {
    queue.receive(0, EXTRA, 100);
    for (index, extra) in extras.iter().enumerate() {
        let more = if index + 1 < extras.len() { EXTRA_FLAG_MORE } else { 0 };
        queue.rx.push(ExtraInfo { flags: extra.flags | more, ..*extra });
    }
}

pub(crate) fn extras_unknown(liar: &mut Liar<'_>) -> Result<()> {
    let kinds = [0, 2, 3, EXTRA_TYPE_XDP + 1, 7, 255];
    let extras = kinds.map(|kind| ExtraInfo { kind, flags: 0xfe, payload: [0xff; 6] });
    liar.try_out(|queue| {
        extras.iter().for_each(|extra| with_extras(queue, &[*extra]));
        with_extras(queue, &extras);
        queue.publish();
    })
}

pub(crate) fn extras_endless(liar: &mut Liar<'_>) -> Result<()> {
    for kind in [0, 1, 4, 255] {
        let mut extra = ExtraInfo::for_gso(100, GSO_TYPE_TCPV4);
        extra.kind = kind;
        liar.provoke(|queue| {
            with_extras(queue, &[extra; RX_RING_SLOTS - 1]);
            queue.publish();
        })?;
    }
    Ok(())
}

pub(crate) fn gso_invalid(liar: &mut Liar<'_>) -> Result<()> {
    for (size, kind) in [(0, GSO_TYPE_TCPV4), (100, 0), (100, 3), (100, 255)] {
        liar.provoke(|queue| {
            with_extras(queue, &[ExtraInfo::for_gso(size, kind)]);
            queue.publish();
        })?;
    }
    Ok(())
}

pub(crate) fn gso_absurd(liar: &mut Liar<'_>) -> Result<()> {
    liar.try_out(|queue| {
        for size in [1, 47, 101, u16::MAX] {
            let [v4, v6] = [GSO_TYPE_TCPV4, GSO_TYPE_TCPV6].map(|it| ExtraInfo::for_gso(size, it));
            with_extras(queue, &[v4]);
            with_extras(queue, &[v6, v4, v4]);
        }
        queue.publish();
    })
}

pub(crate) fn hash_malformed(liar: &mut Liar<'_>) -> Result<()> {
    liar.try_out(|queue| {
        for (kind, algorithm) in [(4, 1), (255, 1), (0, 0), (1, 255)] {
            let extra = ExtraInfo::for_hash(u32::MAX, kind, algorithm);
            with_extras(queue, &[extra]);
            with_extras(queue, &[extra, extra]);
        }
        queue.publish();
    })
}

pub(crate) fn headroom_absurd(liar: &mut Liar<'_>) -> Result<()> {
    liar.try_out(|queue| {
        for headroom in [1, 87, 99, 100, 101, 2048, 4096, u16::MAX] {
            let extra = ExtraInfo::for_xdp(headroom);
            with_extras(queue, &[extra]);
            with_extras(queue, &[extra, ExtraInfo::for_xdp(0), extra]);
            // It is in the first response, too, or in two of them.
            queue.receive(headroom.min(3996), EXTRA | MORE, 100);
            queue.rx.push(extra);
            queue.receive(0, 0, 50);
        }
        queue.publish();
    })
}

pub(crate) fn ids_and_flags_odd(liar: &mut Liar<'_>) -> Result<()> {
    let ids = [0, 255, 256, u16::MAX];
    liar.try_out(|queue| {
        for (id, flags) in ids.into_iter().flat_map(|id| (4..16).map(move |bit| (id, 1 << bit))) {
            queue.rx.push(RxResponse { id, offset: 0, flags, status: 60 });
        }
        queue.publish();
    })
}

pub(crate) fn random_responses(liar: &mut Liar<'_>) -> Result<()> {
    for _ in 0..20 {
        let mut random = liar.random.fork();
        liar.try_out(|queue| {
            for _ in 0..random.usize(1..RX_RING_SLOTS) {
                let (offset, flags) = (random.u16(0..200), random.u16(0..16));
                queue.receive(offset, flags, random.i16(-2..4000));
            }
            queue.publish();
        })?;
    }
    Ok(())
}

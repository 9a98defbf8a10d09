//! Indices and events: everything in a ring page except its slots.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use ringway_wire::PAGE_SIZE;
use ringway_wire::netif::{NETTXF_MORE_DATA, RxRequest, TX_RING_SLOTS, TX_SLOT_LEN, TxRequest};
use ringway_wire::ring::{REQ_EVENT, RSP_EVENT, RSP_PROD, SLOTS};

use crate::guest::state;
use crate::machine::{Event, SOON};
use crate::stage::Stage;

/// Invalid producer indices: one slot too far, far off, half around, backwards.
const JUMPS: [u32; 5] = [257, 1000, 1 << 31, u32::MAX, u32::MAX - 300];

pub(crate) fn tx_producer_jump(stage: &mut Stage) -> Result<()> {
    JUMPS.into_iter().try_for_each(|jump| {
        stage.provoke(|queue| {
            queue.tx_produced = queue.tx_produced.wrapping_add(jump);
            queue.publish_tx();
        })
    })
}

pub(crate) fn rx_producer_jump(stage: &mut Stage) -> Result<()> {
    let victim = stage.victim()?;
    JUMPS.into_iter().try_for_each(|jump| {
        stage.guest.connect(1, 32)?;
        let queue = stage.queue()?;
        queue.rx_produced = queue.rx_produced.wrapping_add(jump);
        queue.publish_rx();
        // The backend reads the index when it has a frame for this guest, and on a quiet network
        // only a reply is one.
        let deadline = Instant::now() + SOON;
        while stage.guest.is_served()? && Instant::now() < deadline {
            stage.introduce(victim)?;
            stage.queue()?.rest();
        }
        let reason = stage.guest.closed()?;
        stage.account.closed.push(reason);
        Ok(())
    })
}

/// Reconnects each time that the backend closes the vif.
fn again_until_over(
    stage: &mut Stage,
    mut act: impl FnMut(&mut Stage) -> Result<()>,
) -> Result<()> {
    while !stage.is_over() {
        stage.guest.connect(1, 32)?;
        stage.count("connections", 1);
        while !stage.is_over() {
            act(stage)?;
            if !stage.guest.is_served()? {
                stage.guest.wait_for_backend(&[state::CLOSING, state::CLOSED])?;
                break;
            }
        }
    }
    Ok(())
}

pub(crate) fn foreign_indices(stage: &mut Stage) -> Result<()> {
    again_until_over(stage, |stage| {
        for _ in 0..2000 {
            let (index, value) =
                ([RSP_PROD, RSP_EVENT, REQ_EVENT][stage.random.usize(0..3)], stage.random.u32(..));
            let is_tx = stage.random.bool();
            let queue = stage.queue()?;
            let page = if is_tx { &queue.tx } else { &queue.rx };
            page.store(index, value, Ordering::Release);
            queue.event.notify();
        }
        stage.count("writes", 2000);
        Ok(())
    })
}

pub(crate) fn event_storm(stage: &mut Stage) -> Result<()> {
    stage.guest.connect(8, 4)?;
    while !stage.is_over() {
        for _ in 0..10_000 {
            for queue in &stage.guest.queues {
                queue.event.notify();
                queue.event.ack();
            }
        }
        let events = 10_000 * u64::try_from(stage.guest.queues.len()).unwrap_or(0);
        stage.count("events", events);
    }
    Ok(())
}

/// Sends events on channels that are closed and created again meanwhile.
pub(crate) fn events_while_closing(stage: &mut Stage) -> Result<()> {
    while !stage.is_over() {
        stage.guest.connect(8, 4)?;
        stage.guest.set_state(state::CLOSING)?;
        let mut state = String::new();
        while ![state::CLOSED, state::INIT_WAIT].contains(&state.as_str()) && !stage.is_over() {
            for _ in 0..1000 {
                stage.guest.queues.iter().for_each(|queue| queue.event.notify());
            }
            state = stage.guest.backend_state()?;
            if state == state::CLOSING {
                stage.guest.set_state(state::CLOSED)?;
            }
        }
        stage.count("connections", 1);
    }
    Ok(())
}

/// Writes that race with the backend's reads: a value changes between its check and its use.
pub(crate) fn racing_writes(stage: &mut Stage) -> Result<()> {
    again_until_over(stage, |stage| {
        let mut random = fastrand::Rng::with_seed(stage.random.u64(..));
        let is_over = AtomicBool::new(false);
        let queue = stage.queue()?;
        let page = queue.tx.clone();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let slot = random.usize(0..TX_RING_SLOTS);
                    // Offset and flags, or id and size: valid or not.
                    let word = SLOTS + slot * TX_SLOT_LEN + [4, 8][random.usize(0..2)];
                    let values = [60 << 16, 4095, 0xffff_0000, 1 << 18, 0];
                    page.store(word, values[random.usize(0..values.len())], Ordering::Relaxed);
                }
            });
            for _ in 0..200 {
                for _ in 0..queue.tx_room() {
                    let flags = if queue.tx_produced % 3 == 0 { NETTXF_MORE_DATA } else { 0 };
                    let request = queue.request(0, 0, 60, flags);
                    queue.push_tx(request);
                }
                queue.publish_tx();
                queue.rest();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        stage.count("rings", 200);
        Ok(())
    })
}

pub(crate) fn random_requests(stage: &mut Stage) -> Result<()> {
    again_until_over(stage, |stage| {
        let mut words = [0_u32; 3];
        for _ in 0..stage.random.usize(1..64) {
            words.fill_with(|| stage.random.u32(..));
            let [gref, low, high] = words;
            let queue = stage.queue()?;
            let half = |word: u32| {
                let [a, b, c, d] = word.to_le_bytes();
                (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]))
            };
            let ((offset, flags), (id, size)) = (half(low), half(high));
            // Some references are plausible, or nothing would pass the first check.
            let is_near = gref % 4 != 0;
            let gref = if is_near { queue.gref(usize::from(id)) } else { gref };
            let offset = if is_near { offset % 2048 } else { offset };
            let (flags, size) = if is_near { (flags & 0xf, size % 2048) } else { (flags, size) };
            queue.push_tx(TxRequest { gref, offset, flags, id, size });
        }
        let queue = stage.queue()?;
        queue.publish_tx();
        queue.rest();
        stage.count("rings", 1);
        Ok(())
    })
}

/// Rx requests with odd ids, order and grants.
pub(crate) fn rx_requests_odd(stage: &mut Stage) -> Result<()> {
    let victim = stage.victim()?;
    again_until_over(stage, |stage| {
        let random = stage.random.u32(..);
        let queue = stage.queue()?;
        for index in 0..16_u32 {
            let own = queue.gref(usize::try_from(random % 32).unwrap_or(0));
            let [tx_ring, rx_ring] = queue.ring_refs();
            let gref = match (random >> (index % 16)) % 6 {
                0 => u32::MAX - index,
                1 => tx_ring.0,
                2 => rx_ring.0,
                3 => 0,
                _ => own,
            };
            let [low, high, ..] = random.rotate_left(index).to_le_bytes();
            queue.push_rx(RxRequest { id: u16::from_le_bytes([low, high]), pad: 0xffff, gref });
        }
        queue.publish_rx();
        // The peer replies, and each reply needs one of these pages.
        for _ in 0..8 {
            stage.introduce(victim)?;
        }
        let queue = stage.queue()?;
        queue.rest();
        let _ = queue.take_rx();
        stage.count("pages", 16);
        Ok(())
    })
}

/// Writes everywhere in both ring pages, all the time.
pub(crate) fn pages_overwritten(stage: &mut Stage) -> Result<()> {
    again_until_over(stage, |stage| {
        for _ in 0..4000 {
            let (word, value) = (4 * stage.random.usize(0..PAGE_SIZE / 4), stage.random.u32(..));
            let is_tx = stage.random.bool();
            let queue = stage.queue()?;
            if is_tx { &queue.tx } else { &queue.rx }.store(word, value, Ordering::Relaxed);
        }
        stage.queue()?.event.notify();
        stage.count("writes", 4000);
        Ok(())
    })
}

/// As many event channels as a domain may have.
pub(crate) fn ports_exhausted(stage: &mut Stage) -> Result<()> {
    stage.guest.connect(1, 8)?;
    let backend = stage.guest.vif.backend;
    let mut ports = Vec::new();
    while let (false, Ok(port)) = (stage.is_over(), stage.guest.machine.alloc_unbound(backend)) {
        port.notify();
        ports.push(port);
    }
    stage.count("ports", u64::try_from(ports.len()).unwrap_or(0));
    while !stage.is_over() {
        ports.iter().for_each(Event::notify);
        // waits: this is the rate of its events.
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

//! The control ring: messages about how frames to the guest are hashed, and where they go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use fastrand::Rng;
use ringway_wire::netif::{
    CTRL_RING_SLOTS, CTRL_SLOT_LEN, CTRL_STATUS_SUCCESS, CTRL_TYPE_GET_HASH_FLAGS,
    CTRL_TYPE_GET_HASH_MAPPING_SIZE, CTRL_TYPE_SET_HASH_ALGORITHM, CTRL_TYPE_SET_HASH_FLAGS,
    CTRL_TYPE_SET_HASH_KEY, CTRL_TYPE_SET_HASH_MAPPING, CTRL_TYPE_SET_HASH_MAPPING_SIZE,
};
use ringway_wire::ring::SLOTS;

use crate::control_ring::{ControlRing, Message};
use crate::machine::SOON;
use crate::stage::Stage;

/// Invalid producer indices: one slot too far, far off, half around, backwards.
const JUMPS: [u32; 5] = [129, 1000, 1 << 31, u32::MAX, u32::MAX - 300];
/// The entries of the mappings here.
const ENTRIES: u32 = 8;

pub(crate) fn producer_jump(stage: &mut Stage) -> Result<()> {
    for jump in JUMPS {
        if !stage.connect_with_control(1, 32)? {
            return Ok(());
        }
        let control = stage.control()?;
        control.produced = control.produced.wrapping_add(jump);
        control.publish();
        let reason = stage.guest.closed()?;
        stage.account.closed.push(reason);
    }
    Ok(())
}

/// Each of these messages must be refused, and cost only itself: the others are carried out.
pub(crate) fn messages_odd(stage: &mut Stage) -> Result<()> {
    if !stage.connect_with_control(4, 8)? {
        return Ok(());
    }
    let queues = u32::try_from(stage.guest.queues.len()).unwrap_or(1);
    let control = stage.control()?;
    control.name(0, &[0; 16]);
    for (page, entry) in [(1, queues), (2, 1 << 16), (3, u32::MAX)] {
        control.name(page, &[entry]);
    }
    let (good, odd) = (good_messages(control), odd_messages(control));
    control.ask(&good)?;
    let mut sent = 0;
    while !stage.is_over() {
        let random = stage.random.fork();
        sent += send_odd(stage.control()?, &good, &odd, random)?;
    }
    stage.count("messages", sent);
    Ok(())
}

/// Sends messages all at once, odd ones among good ones. Returns their number.
fn send_odd(
    control: &mut ControlRing,
    good: &[Message],
    odd: &[Message],
    mut random: Rng,
) -> Result<u64> {
    let messages: Vec<(Message, bool)> = (0..random.usize(1..=CTRL_RING_SLOTS))
        .map(|_| {
            let is_odd = random.bool();
            let of = if is_odd { odd } else { good };
            (of[random.usize(0..of.len())], is_odd)
        })
        .collect();
    messages.iter().for_each(|(message, _)| control.push(*message));
    control.publish();
    let responses = control.responses()?;
    for (((kind, data), is_odd), response) in messages.iter().zip(&responses) {
        let is_refused = response.status != CTRL_STATUS_SUCCESS;
        ensure!(
            response.kind == *kind && is_refused == *is_odd,
            "{response:?} to control message {kind} with {data:?}"
        );
    }
    Ok(u64::try_from(responses.len()).unwrap_or(0))
}

/// The messages of an honest guest, in its order; the first page has its key and its queues.
fn good_messages(control: &ControlRing) -> Vec<Message> {
    let page = control.gref(0);
    vec![
        (CTRL_TYPE_SET_HASH_ALGORITHM, [1, 0, 0]),
        (CTRL_TYPE_GET_HASH_MAPPING_SIZE, [0; 3]),
        (CTRL_TYPE_SET_HASH_MAPPING_SIZE, [ENTRIES, 0, 0]),
        (CTRL_TYPE_SET_HASH_MAPPING, [page, ENTRIES, 0]),
        (CTRL_TYPE_SET_HASH_KEY, [page, 40, 0]),
        (CTRL_TYPE_GET_HASH_FLAGS, [0; 3]),
        (CTRL_TYPE_SET_HASH_FLAGS, [15, 0, 0]),
    ]
}

/// Messages that no backend may carry out; each of the other pages has a queue that does not exist.
fn odd_messages(control: &ControlRing) -> Vec<Message> {
    let page = control.gref(0);
    let unknown = [0, 11, 255, 263, u16::MAX].map(|kind| (kind, [1; 3]));
    let with_value = [
        (CTRL_TYPE_SET_HASH_ALGORITHM, [2, 257, u32::MAX]),
        (CTRL_TYPE_SET_HASH_FLAGS, [16, 1 << 31, u32::MAX]),
        (CTRL_TYPE_SET_HASH_MAPPING_SIZE, [4097, 1 << 31, u32::MAX]),
    ];
    let with_value = with_value
        .into_iter()
        .flat_map(|(kind, values)| values.map(move |value| (kind, [value, 0, 0])));
    let keys = [[page, 41, 0], [page, 4097, 0], [page, u32::MAX, 0], [4_000_000, 40, 0]];
    let mappings = [
        [page, ENTRIES + 1, 0],
        [page, 1, ENTRIES],
        // Their sums are small again.
        [page, 2, u32::MAX],
        [page, u32::MAX, 2],
        [4_000_000, ENTRIES, 0],
        [u32::MAX, ENTRIES, 0],
    ];
    let absent_queues = [1, 2, 3].map(|page| [control.gref(page), 1, 0]);
    let mappings = mappings.into_iter().chain(absent_queues);
    unknown
        .into_iter()
        .chain(with_value)
        .chain(keys.map(|data| (CTRL_TYPE_SET_HASH_KEY, data)))
        .chain(mappings.map(|data| (CTRL_TYPE_SET_HASH_MAPPING, data)))
        .collect()
}

/// Values that change between their check and their use, while frames come by them.
pub(crate) fn racing_writes(stage: &mut Stage) -> Result<()> {
    let victim = stage.victim()?;
    if !stage.connect_with_control(4, 8)? {
        return Ok(());
    }
    let control = stage.control()?;
    control.name(0, &[0; 16]);
    let good = good_messages(control);
    control.ask(&good)?;
    while !stage.is_over() {
        let mut random = stage.random.fork();
        let is_over = AtomicBool::new(false);
        let control = stage.control()?;
        let (ring, page) = (control.ring.clone(), control.page(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let slot = SLOTS + random.usize(0..CTRL_RING_SLOTS) * CTRL_SLOT_LEN;
                    let value = [0, 1, 8, 9, 65_536, u32::MAX][random.usize(0..6)];
                    ring.store(slot + 4 * random.usize(1..4), value, Ordering::Relaxed);
                    page.store(4 * random.usize(0..16), value, Ordering::Relaxed);
                }
            });
            let sent = (0..50).try_for_each(|_| {
                (0..CTRL_RING_SLOTS).for_each(|slot| control.push(good[slot % good.len()]));
                control.publish();
                control.responses().map(drop)
            });
            is_over.store(true, Ordering::Relaxed);
            sent
        })?;
        stage.count("rings", 50);
        for queue in &mut stage.guest.queues {
            let _ = queue.take_rx();
            queue.post(4);
            queue.publish_rx();
        }
        stage.introduce(victim)?;
    }
    Ok(())
}

/// A mapping to a queue that does not exist any more: frames must come by one that does.
pub(crate) fn queues_gone(stage: &mut Stage) -> Result<()> {
    let victim = stage.victim()?;
    while !stage.is_over() {
        if !stage.connect_with_control(8, 4)? {
            return Ok(());
        }
        let last = u32::try_from(stage.guest.queues.len()).unwrap_or(1) - 1;
        let control = stage.control()?;
        control.name(0, &[last; 16]);
        let messages = good_messages(control);
        control.ask(&messages)?;
        stage.connect_with_control(1, 4)?;
        let queue = stage.queue()?;
        (0..4).for_each(|buffer| queue.post(buffer));
        queue.publish_rx();
        let deadline = Instant::now() + SOON;
        while stage.queue()?.take_rx().is_empty() {
            ensure!(Instant::now() < deadline, "no frame comes by the only queue");
            stage.introduce(victim)?;
            let queue = stage.queue()?;
            queue.rest();
            queue.event.ack();
        }
        stage.count("connections", 2);
    }
    Ok(())
}

/// Another key with each message, so that each changes something.
pub(crate) fn flood(stage: &mut Stage) -> Result<()> {
    if !stage.connect_with_control(8, 4)? {
        return Ok(());
    }
    let control = stage.control()?;
    control.name(0, &[0; 16]);
    control.name(1, &[1; 16]);
    let good = good_messages(control);
    control.ask(&good)?;
    let keys = [0, 1].map(|page| (CTRL_TYPE_SET_HASH_KEY, [control.gref(page), 40, 0]));
    let mut sent = 0;
    while !stage.is_over() {
        let control = stage.control()?;
        for _ in 0..control.room() {
            control.push(keys[sent % 2]);
            sent += 1;
        }
        control.publish();
        control.rest();
    }
    stage.count("messages", u64::try_from(sent).unwrap_or(0));
    Ok(())
}

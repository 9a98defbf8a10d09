//! The switch: frames from several ports over time. A frame is only sent to a port that its
//! destination was seen at and has not aged from, never back, and flooding stays within its limit.

#![no_main]

use std::collections::HashMap;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use ringway_datapath::{FrameBatch, FramePool, MacAddr, PoolBudget};
use ringway_fuzz::{Input, frames};
use ringway_switch::{
    FloodBudget, FloodLimit, PortId, PortPolicy, Switch, SwitchConfig, Ticks, Verdict, Verdicts,
};

const PORTS: u16 = 4;
const AGEING_TICKS: u32 = 10;
const LIMIT: FloodLimit = FloodLimit { frames_per_tick: 2, burst_frames: 6, ..FloodLimit::NONE };

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let addresses_max = if input.flag() { 8 } else { 64 };
    let switch = Switch::new(SwitchConfig {
        fdb_entries_max: 64,
        ports_max: PORTS,
        addresses_per_port_max: addresses_max,
        ageing_ticks: AGEING_TICKS,
        flood: LIMIT,
        multicast: None,
        hash_seed: 7,
    });
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    let start = input.u32();
    let mut now = Ticks(start);
    let budgets: Vec<Arc<FloodBudget>> = (0..PORTS).map(|_| switch.flood_budget(now)).collect();
    let mut flooded = [0_u64; PORTS as usize];
    let mut seen = Seen::new();
    let policy = PortPolicy::open();
    let mut verdicts = Verdicts::new();
    while !input.is_empty() {
        match input.u8() % 8 {
            0 => now = Ticks(now.0.wrapping_add(u32::from(input.u8() % 16))),
            1 => drop(switch.fdb().expire(now)),
            2 => {
                let port = PortId(input.u16() % PORTS);
                switch.fdb().remove_port(port);
                seen.values_mut().for_each(|ports| ports.retain(|(at, _)| *at != port));
            }
            _ => {
                let from = PortId(input.u16() % PORTS);
                let mut batch = batch(&mut input, &mut pool);
                let index = usize::from(from.0);
                switch.classify(from, &policy, &mut batch, now, &budgets[index], &mut verdicts);
                assert_eq!(verdicts.len(), batch.len(), "one verdict for each frame");
                for (frame, verdict) in batch.iter().zip(&verdicts) {
                    check(frame.bytes(), *verdict, from, now, &mut seen);
                    flooded[index] += u64::from(*verdict == Verdict::Flood);
                }
                batch.into_iter().for_each(|frame| pool.recycle(frame));
            }
        }
        for port in 0..PORTS {
            let addresses = switch.fdb().port_len(PortId(port));
            assert!(addresses <= addresses_max, "port {port} has {addresses} addresses");
        }
    }
    let ticks = u64::from(now.0.wrapping_sub(start));
    let most = u64::from(LIMIT.burst_frames) + ticks * u64::from(LIMIT.frames_per_tick);
    assert!(flooded.iter().all(|count| *count <= most), "{flooded:?} floods in {ticks} ticks");
});

/// A few frames, most of them between a dozen addresses.
fn batch(input: &mut Input<'_>, pool: &mut FramePool) -> FrameBatch {
    let mut batch = FrameBatch::new();
    for _ in 0..input.below(8) + 1 {
        let mut bytes = [0; frames::ETHERNET_LEN];
        let [dst, src] = [0, 6].map(|_| input.u8());
        let whole = if dst < 250 && src < 250 {
            bytes[..6].copy_from_slice(&[2, 0, 0, 0, 0, dst % 12]);
            bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, src % 12]);
            &bytes[..]
        } else {
            input.bytes(frames::ETHERNET_LEN)
        };
        batch.extend(frames::in_pool(whole, pool));
    }
    batch
}

/// The ports that each source was seen at, and when last. A live address moves to no other port, so
/// any of them may have it.
type Seen = HashMap<MacAddr, Vec<(PortId, Ticks)>>;

fn check(frame: &[u8], verdict: Verdict, from: PortId, now: Ticks, seen: &mut Seen) {
    let address = |at: usize| frame.get(at..at + 6)?.try_into().ok().map(MacAddr);
    let (Some(dst), Some(src)) = (address(0), address(6)) else {
        assert!(matches!(verdict, Verdict::Drop(_)), "half a header went to {verdict:?}");
        return;
    };
    if src.0[0] & 1 != 0 || src.0 == [0; 6] {
        assert!(matches!(verdict, Verdict::Drop(_)), "a frame from {src} went to {verdict:?}");
        return;
    }
    let ports = seen.entry(src).or_default();
    ports.retain(|(port, _)| *port != from);
    ports.push((from, now));
    if let Verdict::Unicast(port) = verdict {
        assert_ne!(port, from, "a frame went back");
        let ports = seen.get(&dst).map_or(&[][..], Vec::as_slice);
        let Some((_, when)) = ports.iter().find(|(at, _)| *at == port) else {
            panic!("{dst} was not seen at {port}")
        };
        assert!(now.since(*when) <= AGEING_TICKS, "{dst} had aged");
    }
}

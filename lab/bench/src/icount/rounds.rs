//! The cost of a round of the engine with many vifs, of which few or all have frames.
//!
//! The vifs have no rings, so only the engine and the switch are counted.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use anyhow::bail;
use ringway_datapath::{
    Budget, FrameBatch, FramePool, FrameQueue, MacAddr, OffloadCaps, PeerProgress, Pending,
    PortQueue, PortRules, QueueTraits, Result, Woken,
};
use ringway_switch::{Binding, PortId, PortPolicy};

use super::switch::{Ports, switch_of};
use super::{Counted, FRAME_LEN, Unit};
use crate::ring::work::Header;

/// Frames that an active vif sends in each round.
const FRAMES: usize = 8;
/// Rounds until vifs without frames are at rest.
const WARM_UP: usize = 80;
/// Rounds of the shorter run.
const ROUNDS: usize = 10;

/// Vifs and how many of them are active.
const CASES: [(u16, u16); 9] = [
    (1, 1),
    (10, 1),
    (10, 10),
    (100, 1),
    (100, 10),
    (100, 100),
    (1000, 1),
    (1000, 100),
    (1000, 1000),
];

pub(super) fn cases() -> impl Iterator<Item = Counted> {
    CASES.into_iter().map(|(vifs, active)| Counted {
        name: format!("round, {active} of {vifs} vifs active, {FRAMES} frames each"),
        function: "*engine_turn*",
        words: vec!["rounds".into(), vifs.to_string(), active.to_string()],
        unit: Unit::Round,
        turns: ROUNDS,
    })
}

/// The counted run: `vifs active rounds`.
pub(super) fn run(words: &[&str]) -> anyhow::Result<()> {
    let [vifs, active, rounds] = words else { bail!("usage: rounds VIFS ACTIVE ROUNDS") };
    let (vifs, active, rounds): (u16, u16, usize) =
        (vifs.parse()?, active.parse()?, rounds.parse()?);
    let switch = switch_of((1..=vifs + 1).map(|port| (address(port), PortId(port))))?;
    let received = Rc::new(Cell::new(0));
    let mut ports = Ports::new(switch, Instant::now());
    // Each sends to the next one, so there is one more that only receives.
    for port in 1..=vifs + 1 {
        let frames = if port <= active { FRAMES } else { 0 };
        let header = Header::udp().between(address(port), address(port + 1));
        let queue = Vif { header, frames, received: Rc::clone(&received) };
        let rules = PortRules::default();
        let policy = PortPolicy::for_vif(&rules, None, 1, Some(address(port)), Binding::Static);
        ports.attach(queue, policy);
    }
    (0..WARM_UP).for_each(|_| ports.turn_uncounted());
    (0..rounds).for_each(|_| ports.turn());
    let (received, expected) = (received.get(), (WARM_UP + rounds) * usize::from(active) * FRAMES);
    if received != expected {
        bail!("{received} of {expected} frames arrived");
    }
    Ok(())
}

fn address(port: u16) -> MacAddr {
    let [high, low] = port.to_be_bytes();
    MacAddr([2, 0, 0, 0, high, low])
}

/// A queue that has a number of frames in each round, and accepts all frames for it.
struct Vif {
    header: Header,
    frames: usize,
    /// Frames that all vifs have received.
    received: Rc<Cell<usize>>,
}

impl PortQueue for Vif {
    fn ingress(&mut self, budget: Budget, pool: &mut FramePool, into: &mut FrameBatch) -> Result {
        for _ in 0..self.frames.min(budget.frames) {
            let Some(mut frame) = pool.take(FRAME_LEN) else { break };
            let header = self.header.bytes(FRAME_LEN);
            frame.bytes_mut()[..header.len()].copy_from_slice(header);
            into.push(frame);
        }
        Ok(())
    }

    fn settle(&mut self, _: &mut FramePool) -> Result {
        Ok(())
    }

    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result {
        self.received.set(self.received.get() + from.len());
        from.drain(..).for_each(|frame| pool.recycle(frame));
        Ok(())
    }

    fn arm(&mut self) -> Result<Pending> {
        Ok(if self.frames > 0 { Pending::Work } else { Pending::Nothing })
    }

    fn woken(&mut self, _: Woken) -> Result {
        Ok(())
    }

    fn describe(&self) -> QueueTraits {
        QueueTraits::in_memory(OffloadCaps::ALL)
    }

    fn room_for(&mut self, _: usize) -> Option<usize> {
        None
    }

    fn peer_progress(&mut self) -> Option<PeerProgress> {
        None
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn active_vifs_send_all_that_they_have() {
        for words in [["1", "1", "3"], ["10", "1", "3"], ["100", "100", "3"]] {
            super::run(&words).expect("frames arrive");
        }
    }
}

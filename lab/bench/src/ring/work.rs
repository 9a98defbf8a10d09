//! What the two ends of a ring do, in testpmd's words: `txonly`, `rxonly` and `io`.

use std::time::{Duration, Instant};

use ringway_datapath::{
    Budget, Frame, FrameBatch, FramePool, FrameQueue, MacAddr, PoolBudget, PortQueue, QueueDown,
};
use serde::{Deserialize, Serialize};

use crate::options::Spans;

/// Frames that a guest handles at once; testpmd's default.
pub(crate) const BURST: usize = 32;
/// Frames in flight in a loop, per queue: testpmd's `start tx_first 8`.
pub(crate) const LOOP_FRAMES: usize = 8 * BURST;
/// Rounds between two readings of the clock.
const ROUNDS_PER_CLOCK_READ: usize = 256;

/// What one end does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Work {
    /// Sends as fast as it can.
    Send,
    /// Receives and discards.
    Receive,
    /// Sends back what it receives.
    Bounce,
}

/// What a receiver counted.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Frames received.
    pub(crate) frames: u64,
    /// Seconds in which they were received.
    pub(crate) seconds: f64,
    /// Seconds of those rounds that received frames; 0 if rounds are not timed.
    #[serde(default)]
    pub(crate) busy_seconds: f64,
}

impl Tally {
    /// Million frames per second.
    #[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "a rate needs no more")]
    pub(crate) fn mpps(self) -> f64 {
        self.frames as f64 / self.seconds / 1e6
    }
}

/// Calls `round`, which returns how many frames it received, until `warm_up` and then `window` have
/// passed. Only the window counts.
///
/// # Errors
/// What `round` reports.
pub(crate) fn measure(
    spans: Spans,
    mut round: impl FnMut() -> Result<usize, QueueDown>,
) -> Result<Tally, QueueDown> {
    let mut run_for = |span: Duration| {
        let start = Instant::now();
        let mut frames = 0_u64;
        loop {
            for _ in 0..ROUNDS_PER_CLOCK_READ {
                frames += u64::try_from(round()?).unwrap_or(u64::MAX);
            }
            let seconds = start.elapsed();
            if seconds >= span {
                return Ok(Tally { frames, seconds: seconds.as_secs_f64(), busy_seconds: 0.0 });
            }
        }
    };
    run_for(spans.warm_up)?;
    run_for(spans.window)
}

/// Calls `round` as [`measure`] does, and measures the time of each round.
///
/// # Errors
/// What `round` reports.
pub(crate) fn measure_timed(
    spans: Spans,
    mut round: impl FnMut() -> Result<usize, QueueDown>,
) -> Result<Tally, QueueDown> {
    measure(Spans { window: Duration::ZERO, ..spans }, &mut round)?;
    let mut busy = Duration::ZERO;
    let tally = measure(Spans { warm_up: Duration::ZERO, ..spans }, || {
        let start = Instant::now();
        let received = round()?;
        if received > 0 {
            busy += start.elapsed();
        }
        Ok(received)
    })?;
    Ok(Tally { busy_seconds: busy.as_secs_f64(), ..tally })
}

/// One end that consists of ports.
pub(crate) struct PortEnd<P> {
    ports: Vec<P>,
    pool: FramePool,
    batch: FrameBatch,
    queues: Vec<FrameQueue>,
    header: Header,
}

impl<P: PortQueue> PortEnd<P> {
    /// An end without frames in flight.
    pub(crate) fn new(ports: Vec<P>) -> PortEnd<P> {
        let queues = ports.iter().map(|_| FrameQueue::with_capacity(1024)).collect();
        let pool = FramePool::new(PoolBudget::new(64 << 20));
        PortEnd { ports, pool, batch: FrameBatch::new(), queues, header: Header::udp() }
    }

    /// Queues the first frames of a loop.
    pub(crate) fn prime(&mut self, len: usize) {
        for queue in &mut self.queues {
            fill(queue, LOOP_FRAMES, len, &mut self.pool, &self.header);
        }
    }

    /// One turn of every port. Returns how many frames were received.
    pub(crate) fn round(&mut self, work: Work, len: usize) -> Result<usize, QueueDown> {
        let mut received = 0;
        let mut has_lent = false;
        for (port, queue) in self.ports.iter_mut().zip(&mut self.queues) {
            if work == Work::Send {
                fill(queue, BURST, len, &mut self.pool, &self.header);
            } else {
                port.ingress(Budget::BATCH, &mut self.pool, &mut self.batch)?;
                received += self.batch.len();
                has_lent = self.batch.iter().any(Frame::is_lent);
            }
            match work {
                Work::Receive => {
                    for mut frame in self.batch.drain(..) {
                        self.pool.complete(&mut frame).expect("its memory is there");
                        self.pool.recycle(frame);
                    }
                }
                Work::Bounce => queue.extend(self.batch.drain(..)),
                Work::Send => {}
            }
            if work != Work::Receive {
                port.egress(queue, &mut self.pool)?;
            }
            if has_lent {
                for frame in queue.iter_mut() {
                    self.pool.complete(frame).expect("its memory is there");
                }
                port.settle(&mut self.pool)?;
                self.pool.end_loans();
            }
        }
        Ok(received)
    }
}

/// Makes frames until `count` wait.
fn fill(queue: &mut FrameQueue, count: usize, len: usize, pool: &mut FramePool, header: &Header) {
    while queue.len() < count {
        let Some(mut frame) = pool.take(len) else { return };
        let header = header.bytes(len);
        frame.bytes_mut()[..header.len()].copy_from_slice(header);
        queue.push_back(frame);
    }
}

/// The headers of a frame, which testpmd's `txonly` also writes into each frame.
pub(crate) struct Header(Vec<u8>);

impl Header {
    /// Ethernet, IPv4 and UDP as in testpmd: between two addresses of the benchmarking range (RFC
    /// 2544).
    pub(crate) fn udp() -> Header {
        let mut bytes = vec![0; 42];
        bytes[..6].copy_from_slice(&[0x02, 0, 0, 0, 0, 2]);
        bytes[6..12].copy_from_slice(&[0x02, 0, 0, 0, 0, 1]);
        bytes[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0x00]);
        bytes[22..24].copy_from_slice(&[64, 17]);
        bytes[26..34].copy_from_slice(&[198, 18, 0, 1, 198, 18, 0, 2]);
        bytes[34..38].copy_from_slice(&[0, 9, 0, 9]);
        Header(bytes)
    }

    /// A header of TCP over IPv4.
    pub(crate) fn tcp() -> Header {
        let mut bytes = Header::udp().0;
        bytes[23] = 6;
        bytes.extend([0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
        Header(bytes)
    }

    /// An ARP reply, between the same addresses.
    pub(crate) fn arp() -> Header {
        let mut bytes = Header::udp().0;
        bytes[12..22].copy_from_slice(&[0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 2]);
        bytes[22..28].copy_from_slice(&[0x02, 0, 0, 0, 0, 1]);
        bytes[28..32].copy_from_slice(&[198, 18, 0, 1]);
        bytes[32..38].copy_from_slice(&[0x02, 0, 0, 0, 0, 2]);
        bytes[38..42].copy_from_slice(&[198, 18, 0, 2]);
        Header(bytes)
    }

    /// This header between two other Ethernet addresses.
    pub(crate) fn between(mut self, from: MacAddr, to: MacAddr) -> Header {
        self.0[..6].copy_from_slice(&to.0);
        self.0[6..12].copy_from_slice(&from.0);
        self
    }

    /// The part of it that fits into a frame.
    pub(crate) fn bytes(&self, frame_len: usize) -> &[u8] {
        &self.0[..self.0.len().min(frame_len)]
    }
}

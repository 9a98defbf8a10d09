//! A port whose far side is the test: it sends numbered frames of numbered flows and takes frames
//! as it grants room. It wakes its worker as a ring does: only if it was armed.
//!
//! It may lock, because it is not the data path; after its warm-up it does not allocate per frame.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use ringway_datapath::{
    BATCH, Budget, Frame, FrameBatch, FramePool, FrameQueue, OffloadCaps, PeerProgress, Pending,
    PortQueue, Probe, QueueCounters, QueueDown, QueueTraits, Result, Wakers, Woken,
};
use ringway_steering::FlowKey;
use ringway_switch::{FloodBudget, FloodLimit, Ticks};
use ringway_worker::{Attachment, Policy, Polling, Stations, Weight, WorkersConfig};
use rustix::event::{EventfdFlags, eventfd};

/// The time after which a test has failed. No test waits for it to elapse.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Flows of a test have numbers below this.
pub(crate) const FLOWS_MAX: usize = 256;

/// A frame to come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scripted {
    /// Number of the station that it goes to; [`EVERYONE`] for broadcast.
    pub(crate) to: u8,
    /// Number of the station that sends it.
    pub(crate) from: u8,
    /// Which flow it belongs to.
    pub(crate) flow: u16,
    /// Its place in the flow, from 0.
    pub(crate) sequence: u32,
    /// Bytes.
    pub(crate) len: usize,
}

/// The station number of broadcasts.
pub(crate) const EVERYONE: u8 = 255;
/// The shortest frame that carries its numbers.
pub(crate) const LEN_MIN: usize = 60;
const NUMBERS_AT: usize = 42;

/// The state of the far side, and what it has seen.
#[derive(Debug)]
pub(crate) struct Far {
    /// Frames to come in, the first one first.
    pub(crate) script: VecDeque<Scripted>,
    /// Frames that may still leave.
    pub(crate) room: usize,
    /// Room that is added with every poll of the port.
    pub(crate) room_per_poll: usize,
    /// Frames that one call takes in at most.
    pub(crate) batch: usize,
    /// Frames that left.
    pub(crate) received: u64,
    /// By flow: the next sequence number if nothing was lost.
    pub(crate) expected: Vec<u32>,
    /// Frames with a lower number than an earlier frame.
    pub(crate) reordered: u64,
    /// By flow: numbers that were skipped.
    pub(crate) missing: Vec<u64>,
    /// Whether the next poll reports a peer fault.
    pub(crate) fails: bool,
    /// Calls of the port by its worker.
    pub(crate) polls: u64,
    /// The last poll for frames left some.
    may_have_more: bool,
    /// Calls of `ingress` with an empty budget.
    pub(crate) settled: u64,
    is_ingress_armed: bool,
    is_egress_armed: bool,
    is_egress_wanted: bool,
}

/// The test's end.
#[derive(Debug, Clone)]
pub(crate) struct Peer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    far: Mutex<Far>,
    changed: Condvar,
    wake: OwnedFd,
    probe: Probe,
}

/// The worker's end.
#[derive(Debug)]
pub(crate) struct TestPort {
    shared: Arc<Shared>,
}

/// A port and its far side, which has endless room.
pub(crate) fn port() -> (TestPort, Peer) {
    port_with(Probe::Memory)
}

/// A port with this cost of a probe.
pub(crate) fn port_with(probe: Probe) -> (TestPort, Peer) {
    let far = Far {
        script: VecDeque::new(),
        room: usize::MAX,
        room_per_poll: 0,
        batch: BATCH,
        received: 0,
        expected: vec![0; FLOWS_MAX],
        reordered: 0,
        missing: vec![0; FLOWS_MAX],
        fails: false,
        polls: 0,
        may_have_more: false,
        settled: 0,
        is_ingress_armed: false,
        is_egress_armed: false,
        is_egress_wanted: false,
    };
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("descriptors");
    let shared = Arc::new(Shared { far: Mutex::new(far), changed: Condvar::new(), wake, probe });
    (TestPort { shared: Arc::clone(&shared) }, Peer(shared))
}

/// Ready to attach, without a flood limit.
pub(crate) fn attachment(port: TestPort) -> Attachment<TestPort> {
    attachment_counting(port, &Arc::default())
}

/// Ready to attach, without a flood limit, and with counters that the test keeps.
pub(crate) fn attachment_counting(
    port: TestPort,
    counters: &Arc<QueueCounters>,
) -> Attachment<TestPort> {
    let flood = Arc::new(FloodBudget::new(FloodLimit::NONE, Ticks(0)));
    let stations = Stations::One(Weight::ONE);
    Attachment { queue: port, counters: Arc::clone(counters), flood, stations }
}

/// Workers with the defaults of these tests.
pub(crate) fn config(workers: usize, policy: Policy) -> WorkersConfig {
    WorkersConfig {
        workers,
        policy,
        cpus: Vec::new(),
        polling: Polling::default(),
        frame_memory: 64 << 20,
        flow_key: FlowKey::new([1, 2]),
        name: "test".to_owned(),
    }
}

impl Peer {
    /// A poll of the far side.
    pub(crate) fn far(&self) -> MutexGuard<'_, Far> {
        self.0.far.lock().expect("no test panics with the lock")
    }

    /// Sends frames, and an event if the port asked for one.
    pub(crate) fn send(&self, frames: impl IntoIterator<Item = Scripted>) {
        let mut far = self.far();
        far.script.extend(frames);
        let is_armed = std::mem::take(&mut far.is_ingress_armed);
        // A port that is probed by system calls reports every frame.
        if !far.script.is_empty() && (is_armed || self.0.probe == Probe::SystemCall) {
            self.0.ring();
        }
    }

    /// Sends the next `count` frames of a flow, the first of them with number `first`.
    pub(crate) fn send_flow(&self, from: u8, to: u8, flow: u16, first: u32, count: u32) {
        let frame = |sequence| Scripted { to, from, flow, sequence, len: LEN_MIN };
        self.send((first..first + count).map(frame));
    }

    /// Lets this many more frames leave, and sends an event if the port asked for one.
    pub(crate) fn grant(&self, frames: usize) {
        let mut far = self.far();
        far.room = far.room.saturating_add(frames);
        if far.room > 0 && std::mem::take(&mut far.is_egress_armed) {
            self.0.ring();
        }
    }

    /// Lets nothing leave any more.
    pub(crate) fn stop_draining(&self) {
        self.far().room = 0;
    }

    /// Breaks the protocol, which the port finds at its next poll.
    pub(crate) fn fail(&self) {
        self.far().fails = true;
        self.0.ring();
    }

    /// Blocks the port's worker at its next poll, which is now, until the result is dropped.
    pub(crate) fn block_worker(&self) -> MutexGuard<'_, Far> {
        let far = self.far();
        self.0.ring();
        far
    }

    /// Waits until the far side satisfies a condition, and fails the test if it never does.
    pub(crate) fn wait_until(&self, what: &str, wanted: impl Fn(&Far) -> bool) {
        let (far, timeout) = self
            .0
            .changed
            .wait_timeout_while(self.far(), PATIENCE, |far| !wanted(far))
            .expect("no test panics with the lock");
        let (received, script, room) = (far.received, far.script.len(), far.room);
        drop(far);
        assert!(
            !timeout.timed_out(),
            "waited for: {what}; {received} received, {script} to come, room for {room}"
        );
    }
}

impl Shared {
    fn ring(&self) {
        rustix::io::write(&self.wake, &1_u64.to_ne_bytes()).expect("the counter is emptied");
    }

    fn poll(&self) -> Result<MutexGuard<'_, Far>> {
        let mut far = self.far.lock().expect("no test panics with the lock");
        far.polls += 1;
        match far.fails {
            true => Err(QueueDown::peer(std::io::Error::other("a fault of the peer"))),
            false => Ok(far),
        }
    }
}

impl PortQueue for TestPort {
    fn ingress(&mut self, budget: Budget, pool: &mut FramePool, into: &mut FrameBatch) -> Result {
        let mut far = self.shared.poll()?;
        let room = far.batch.min(into.remaining_capacity()).min(budget.frames);
        let count = room.min(far.script.len());
        let mut bytes = 0;
        for _ in 0..count {
            if bytes >= budget.bytes {
                break;
            }
            let Some(scripted) = far.script.front().copied() else { break };
            let Some(mut frame) = pool.take(scripted.len) else { break };
            far.script.pop_front();
            bytes += scripted.len;
            write_frame(frame.bytes_mut(), scripted);
            into.push(frame);
        }
        far.may_have_more = !far.script.is_empty();
        if far.script.is_empty() {
            self.shared.changed.notify_all();
        }
        Ok(())
    }

    fn settle(&mut self, _: &mut FramePool) -> Result {
        self.shared.poll()?.settled += 1;
        self.shared.changed.notify_all();
        Ok(())
    }

    fn egress(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result {
        let mut far = self.shared.poll()?;
        if far.room_per_poll > 0 {
            far.room = far.room_per_poll;
        }
        let mut count = 0;
        while far.room > 0 {
            let Some(frame) = from.pop_front() else { break };
            far.take(&frame);
            pool.recycle(frame);
            count += 1;
        }
        far.is_egress_wanted = !from.is_empty();
        if count > 0 {
            self.shared.changed.notify_all();
        }
        Ok(())
    }

    fn arm(&mut self) -> Result<Pending> {
        let mut far = self.shared.poll()?;
        self.shared.changed.notify_all();
        if self.shared.probe == Probe::SystemCall {
            // Like a TAP device: the descriptor reports every frame that arrives at an empty queue.
            return Ok(if far.may_have_more { Pending::Work } else { Pending::Nothing });
        }
        far.is_ingress_armed = true;
        far.is_egress_armed = far.is_egress_wanted;
        let has_room = far.room > 0 || far.room_per_poll > 0;
        Ok(match !far.script.is_empty() || far.is_egress_wanted && has_room {
            true => Pending::Work,
            false => Pending::Nothing,
        })
    }

    fn woken(&mut self, _: Woken) -> Result {
        // It may be empty already: the port was polled meanwhile.
        let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
        Ok(())
    }

    fn describe(&self) -> QueueTraits {
        let probe = self.shared.probe;
        let retry = (probe == Probe::SystemCall).then_some(Duration::from_millis(50));
        QueueTraits { probe, retry, ..QueueTraits::in_memory(OffloadCaps::ALL) }
    }

    fn room_for(&mut self, _: usize) -> Option<usize> {
        None
    }

    fn peer_progress(&mut self) -> Option<PeerProgress> {
        None
    }
}

impl Wakers for TestPort {
    fn wakers(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        visit(self.shared.wake.as_fd());
    }
}

impl Far {
    fn take(&mut self, frame: &Frame) {
        if self.room != usize::MAX {
            self.room -= 1;
        }
        self.received += 1;
        let (flow, sequence) = numbers(frame.bytes());
        let flow = usize::from(flow);
        let expected = &mut self.expected[flow];
        if sequence < *expected {
            self.reordered += 1;
        } else {
            self.missing[flow] += u64::from(sequence - *expected);
            *expected = sequence + 1;
        }
    }
}

/// The address of a station.
pub(crate) fn mac(station: u8) -> [u8; 6] {
    match station {
        255 => [0xff; 6],
        _ => [0x02, 0, 0, 0, 0, station],
    }
}

/// A UDP packet whose ports are those of its flow.
fn write_frame(bytes: &mut [u8], frame: Scripted) {
    bytes.fill(0);
    bytes[0..6].copy_from_slice(&mac(frame.to));
    bytes[6..12].copy_from_slice(&mac(frame.from));
    bytes[12..14].copy_from_slice(&[0x08, 0x00]);
    let packet_len = u16::try_from(bytes.len() - 14).expect("frames of tests are short");
    bytes[14] = 0x45;
    bytes[16..18].copy_from_slice(&packet_len.to_be_bytes());
    bytes[22..24].copy_from_slice(&[64, 17]);
    bytes[26..30].copy_from_slice(&[10, 0, 0, frame.from]);
    bytes[30..34].copy_from_slice(&[10, 0, 0, frame.to]);
    bytes[34..36].copy_from_slice(&(1000 + frame.flow).to_be_bytes());
    bytes[36..38].copy_from_slice(&5000_u16.to_be_bytes());
    bytes[38..40].copy_from_slice(&(packet_len - 20).to_be_bytes());
    bytes[NUMBERS_AT..NUMBERS_AT + 2].copy_from_slice(&frame.flow.to_be_bytes());
    bytes[NUMBERS_AT + 2..NUMBERS_AT + 6].copy_from_slice(&frame.sequence.to_be_bytes());
}

/// Flow and sequence number of a frame.
pub(crate) fn numbers(bytes: &[u8]) -> (u16, u32) {
    let flow = u16::from_be_bytes([bytes[NUMBERS_AT], bytes[NUMBERS_AT + 1]]);
    let sequence = bytes[NUMBERS_AT + 2..].first_chunk().expect("frames of tests have numbers");
    (flow, u32::from_be_bytes(*sequence))
}

//! The path of a frame from its source to the outbox by which it leaves.

use std::iter;
use std::sync::Arc;

use ringway_datapath::tagging::{insert_tag, remove_tag};
use ringway_datapath::vlan::Tag;
use ringway_datapath::{
    DropReason, Frame, FrameBatch, FramePool, FrameVlan, MIDDLE_LEN, MacAddr, PortQueue,
};
use ringway_steering::{FlowKey, flow_hash_parsed, queue_of};
use ringway_switch::{PortId, Switch, Verdict};

use crate::balance::Table;
use crate::directory::{Directory, Forwarding, QueueAddress};
use crate::gauge::{Admission, Gauge};
use crate::inbox::Parcel;
use crate::kept::Ahead;
use crate::outbox::{Enqueue, Outboxes, Sums};
use crate::parked::ParkedFrame;
use crate::share::{Handling, Stations, cost};
use crate::slot::SlotId;
use crate::source::{Held, Source};
use crate::steering::PortSteering;

/// Frames put into another engine's inbox between checks of how full it is.
const PARCELS_PER_MEASURE: usize = 32;

/// The state that forwarding uses: everything in an engine except its sources.
pub(crate) struct Router<'a> {
    pub(crate) number: usize,
    pub(crate) flow_key: FlowKey,
    pub(crate) outboxes: &'a mut Outboxes,
    pub(crate) pool: &'a mut FramePool,
    pub(crate) mailed: &'a mut Vec<usize>,
    pub(crate) directory: &'a Directory,
    pub(crate) at: Enqueue<'a>,
    /// The cost of copies for mirrors, charged to the port by which the frames came in.
    pub(crate) mirrored: usize,
    /// Whether a frame of the source's batch is long.
    pub(crate) has_long: bool,
    /// The gauge last looked up for frames to another guest on a bridge of the host, with that
    /// guest's address.
    pub(crate) neighbor: Option<(MacAddr, Option<&'a Arc<Gauge>>)>,
}

impl<'a> Router<'a> {
    /// Forwards the frames of a source up to the first one that meets pressure. That one and the
    /// ones after it are kept there.
    pub(crate) fn forward<Q: PortQueue>(&mut self, source: &mut Source<Q>, batch: &mut FrameBatch) {
        self.has_long = batch.iter().any(|frame| frame.len() > MIDDLE_LEN);
        let watching = match &source.forwarding {
            Forwarding::Switch(switch) if switch.mirrors().is_active() => Some(Arc::clone(switch)),
            Forwarding::Switch(_) | Forwarding::Patch(_) => None,
        };
        match watching {
            None => self.forward_plain(source, batch),
            Some(switch) => self.forward_watched(&switch, source, batch),
        }
    }

    /// Forwards frames of which mirrors get no copy: those for one queue together.
    fn forward_plain<Q: PortQueue>(&mut self, source: &mut Source<Q>, batch: &mut FrameBatch) {
        source.kept.is_front_mirrored = false;
        let sums = Sums::of(batch);
        let are_untagged =
            sums.is_some() || batch.iter().all(|frame| frame.vlan == FrameVlan::None);
        let of_all = verdict_of_all(batch);
        let mut frames = batch.drain(..);
        if let (Some(_), Some(Verdict::Unicast(to))) = (sums, of_all) {
            // Nearly all batches are of this kind, and nothing of them is left.
            self.deliver_run(&mut frames, sums, to, source);
        }
        let mut frames = frames.peekable();
        while let Some(verdict) = frames.peek().map(|frame| frame.verdict) {
            if let (Verdict::Unicast(to), true) = (verdict, are_untagged) {
                let mut run = iter::from_fn(|| frames.next_if(|frame| frame.verdict == verdict));
                self.deliver_run(&mut run, None, to, source);
            }
            while let Some(frame) = frames.next_if(|frame| frame.verdict == verdict) {
                if let Err(frame) = self.forward_one(frame, source) {
                    return source.kept.keep(frame, frames);
                }
            }
        }
    }

    /// Forwards frames of which mirrors get copies. The mirror may have been set after the frames
    /// were inspected.
    #[cold]
    fn forward_watched<Q: PortQueue>(
        &mut self,
        switch: &Switch,
        source: &mut Source<Q>,
        batch: &mut FrameBatch,
    ) {
        let mut frames = batch.drain(..);
        while let Some(mut frame) = frames.next() {
            if let Err(reason) = self.pool.complete(&mut frame) {
                self.discard(frame, reason, source);
                continue;
            }
            if !std::mem::take(&mut source.kept.is_front_mirrored) {
                self.mirror(switch, &frame, source);
            }
            if let Err(frame) = self.forward_one(frame, source) {
                source.kept.is_front_mirrored = true;
                return source.kept.keep(frame, frames);
            }
        }
    }

    /// Forwards one frame.
    ///
    /// # Errors
    /// The frame, if the source has to wait.
    #[inline]
    fn forward_one<Q: PortQueue>(
        &mut self,
        frame: Frame,
        source: &mut Source<Q>,
    ) -> Result<(), Frame> {
        match frame.verdict {
            Verdict::Unicast(to) => return self.deliver(frame, to, source),
            Verdict::Flood | Verdict::Routers => self.flood(frame, source),
            Verdict::Drop(reason) => self.discard(frame, reason, source),
        }
        Ok(())
    }

    /// Gives frames to the queue that they are all for, up to the first that meets pressure, if the
    /// port `to` has such a queue in this engine: it is looked up once for all of them. `sums` are
    /// those of the frames, if they have any.
    ///
    /// Not inlined, so that all that a frame needs is in registers.
    #[inline(never)]
    fn deliver_run<Q: PortQueue>(
        &mut self,
        frames: &mut impl Iterator<Item = Frame>,
        sums: Option<Sums>,
        to: PortId,
        source: &mut Source<Q>,
    ) {
        if self.directory.steering(to).is_some_and(PortSteering::is_set) {
            return;
        }
        let address = match self.directory.queues(to) {
            [only] => Some(only),
            queues => same_queue(source, queues),
        };
        let Some(address) = address.filter(|address| address.engine == self.number) else { return };
        if self.directory.has_neighbors(to) {
            return;
        }
        let (admission, never_waits) = match source.stations {
            Stations::Many => (Admission::Shared, true),
            Stations::One(_) | Stations::Bridge(_) => (Admission::Waits, false),
        };
        if !never_waits && address.gauge.has_pressure() {
            return;
        }
        let are_added = sums.is_some_and(|sums| {
            self.outboxes.enqueue_together(address.slot, frames, sums, self.pool, &self.at)
        });
        if !are_added {
            let admitted = iter::from_fn(|| match never_waits || !address.gauge.has_pressure() {
                true => frames.next(),
                false => None,
            });
            self.outboxes.enqueue_all(address.slot, admitted, admission, self.pool, &self.at);
        }
        self.note_long(source, address.slot);
    }

    /// Notes the queue of this engine that the last frame of a source went to, if that is long and
    /// comes from a queue that leaves long frames in pages.
    #[inline]
    fn note_long<Q: PortQueue>(&mut self, source: &mut Source<Q>, to: SlotId) {
        if !self.has_long {
            return;
        }
        let Some(has_end) = self.outboxes.note_long(to) else { return };
        if has_end || source.ahead.to.is_some() {
            source.ahead = Ahead { to: Some(to), is_due: true };
        }
    }

    /// Gives a frame to the queue of `to` that its flow belongs to.
    ///
    /// # Errors
    /// The frame, if the source has to wait.
    fn deliver<Q: PortQueue>(
        &mut self,
        mut frame: Frame,
        to: PortId,
        source: &mut Source<Q>,
    ) -> Result<(), Frame> {
        let queues = self.directory.queues(to);
        if queues.is_empty() {
            self.discard(frame, DropReason::NoRoute, source);
            return Ok(());
        }
        let chosen = self.directory.steering(to);
        let address = match same_queue(source, queues) {
            Some(address) if !chosen.is_some_and(PortSteering::is_set) => address,
            _ => match self.steer(&mut frame, (to, queues), chosen) {
                Ok(address) => address,
                Err(hash) => {
                    self.wait_for_flow(frame, (to, hash), source);
                    return Ok(());
                }
            },
        };
        let admission = match source.stations {
            Stations::Many => Admission::Shared,
            Stations::One(_) | Stations::Bridge(_) => {
                if let Some(inbox) = self.full_inbox(address) {
                    source.hold_for_engine(inbox, self.at.now);
                    return Err(frame);
                }
                if let Some(gauge) = self.neighbor(to, &frame) {
                    if source.hold_for_neighbor(gauge, self.at.now) == Held::Yes {
                        return Err(frame);
                    }
                }
                match source.hold(&address.gauge, self.at.now) {
                    Held::NotNeeded => Admission::Waits,
                    Held::Yes => return Err(frame),
                    Held::No => Admission::Late,
                }
            }
        };
        // With more queues, flows decide which engine serves both ends.
        if address.engine != self.number && queues.len() == 1 && source.queue_count == 1 {
            source.count_hop(address.engine);
        }
        self.hand_over(frame, admission, (to, address), source);
        if address.engine == self.number {
            self.note_long(source, address.slot);
        }
        Ok(())
    }

    /// Copies a frame to every port in its scope. No source waits for a flood: a full queue drops
    /// its copy.
    fn flood<Q: PortQueue>(&mut self, mut frame: Frame, source: &mut Source<Q>) {
        let Forwarding::Switch(switch) = &source.forwarding else {
            return self.discard(frame, DropReason::NoRoute, source);
        };
        if let Err(reason) = self.pool.complete(&mut frame) {
            return self.discard(frame, reason, source);
        }
        let scope = switch.scope_of(source.port_id, &source.policy, &frame, frame.verdict);
        let ports = (0..).map(PortId).zip(&self.directory.ports);
        let others = ports.filter(|(port, queues)| !queues.is_empty() && scope.has(*port));
        for (port, queues) in others {
            let Some(mut copy) = self.pool.take(frame.len()) else {
                source.count_drop(DropReason::NoBuffer);
                continue;
            };
            copy.bytes_mut().copy_from_slice(frame.bytes());
            copy.offload = frame.offload;
            copy.vlan = frame.vlan;
            let chosen = self.directory.steering(port);
            match self.steer(&mut copy, (port, queues), chosen) {
                Ok(address) => self.hand_over(copy, Admission::Late, (port, address), source),
                Err(hash) => self.wait_for_flow(copy, (port, hash), source),
            }
        }
        self.pool.recycle(frame);
    }

    /// Copies a frame that is forwarded to each mirror of a port by which it enters or leaves: in
    /// its form at ingress, or else in its form at egress from the first of those ports. A mirror
    /// gets it once, if there is room.
    fn mirror<Q: PortQueue>(&mut self, switch: &Switch, frame: &Frame, source: &Source<Q>) {
        let verdict = frame.verdict;
        for (output, mirror) in switch.mirrors().active() {
            let from = source.port_id;
            let left_by = match verdict {
                Verdict::Drop(_) => continue,
                _ if mirror.has_ingress(from) => None,
                Verdict::Unicast(to) if mirror.has_egress(to) => Some(to),
                Verdict::Unicast(_) => continue,
                Verdict::Flood | Verdict::Routers => {
                    let scope = switch.scope_of(from, &source.policy, frame, verdict);
                    let ports = (0..).map(PortId).zip(&self.directory.ports);
                    let mut ports = ports.filter(|(_, queues)| !queues.is_empty());
                    match ports.find(|(port, _)| mirror.has_egress(*port) && scope.has(*port)) {
                        Some((port, _)) => Some(port),
                        None => continue,
                    }
                }
            };
            if self.send_copy(frame, left_by, output, source).is_none() {
                source.count_drop(DropReason::MirrorLost);
            }
        }
    }

    /// Sends a mirror its copy of a frame; `None` if there is no room for it.
    fn send_copy<Q: PortQueue>(
        &mut self,
        frame: &Frame,
        left_by: Option<PortId>,
        output: PortId,
        source: &Source<Q>,
    ) -> Option<()> {
        let queues = self.directory.queues(output);
        let mut copy = (!queues.is_empty()).then(|| self.pool.take(frame.len())).flatten()?;
        copy.bytes_mut().copy_from_slice(frame.bytes());
        copy.offload = frame.offload;
        if let Some(port) = left_by {
            copy.vlan = frame.vlan;
            copy = self.fit_tag(copy, port, source)?;
        }
        self.mirrored += cost(&copy, Handling::Memory);
        let chosen = self.directory.steering(output);
        let address = match self.steer(&mut copy, (output, queues), chosen) {
            Ok(address) => address,
            Err(hash) => {
                self.wait_for_flow(copy, (output, hash), source);
                return Some(());
            }
        };
        let parcel = Parcel { to: address.slot, frame: copy, admission: Admission::Late };
        if address.engine == self.number {
            self.outboxes.enqueue(parcel, self.pool, &self.at);
        } else if let Err(copy) = self.mail(parcel, address.engine) {
            self.pool.recycle(copy);
            return None;
        }
        Some(())
    }

    /// Keeps a frame until the flow with this hash has moved to another queue, or stays.
    #[cold]
    fn wait_for_flow<Q: PortQueue>(
        &mut self,
        frame: Frame,
        (to, hash): (PortId, u32),
        source: &Source<Q>,
    ) {
        let Some(mut frame) = self.fit_tag(frame, to, source) else { return };
        if let Err(reason) = self.pool.complete(&mut frame) {
            return self.discard(frame, reason, source);
        }
        let counters = Arc::clone(&source.counters);
        self.park(to, ParkedFrame { hash, frame, counters });
    }

    fn hand_over<Q: PortQueue>(
        &mut self,
        frame: Frame,
        admission: Admission,
        (port, to): (PortId, &QueueAddress),
        source: &Source<Q>,
    ) {
        let frame = match frame.vlan {
            FrameVlan::None => frame,
            _ => match self.fit_tag(frame, port, source) {
                Some(frame) => frame,
                None => return,
            },
        };
        let mut parcel = Parcel { to: to.slot, frame, admission };
        // Check the common case first, so that no frame is moved into an error that cannot happen.
        if to.engine == self.number {
            return self.outboxes.enqueue(parcel, self.pool, &self.at);
        }
        // Only this engine knows when the source is detached.
        let lent = parcel.frame.is_lent();
        let completed = if lent { self.pool.complete(&mut parcel.frame) } else { Ok(()) };
        if let Err(reason) = completed {
            self.discard(parcel.frame, reason, source);
        } else if let Err(frame) = self.mail(parcel, to.engine) {
            self.discard(frame, DropReason::InboxFull, source);
        }
    }

    /// Puts a frame into the inbox of another engine.
    ///
    /// # Errors
    /// The frame, if the inbox is full.
    pub(crate) fn mail(&mut self, parcel: Parcel, engine: usize) -> Result<(), Frame> {
        let inbox = &self.directory.inboxes[engine];
        // A copy must not take inbox room from frames whose sources wait.
        if parcel.admission == Admission::Late && inbox.gauge().has_pressure() {
            return Err(parcel.frame);
        }
        inbox.push(parcel)?;
        if self.mailed.len() <= engine {
            self.mailed.resize(engine + 1, 0);
        }
        let mailed = &mut self.mailed[engine];
        *mailed += 1;
        if *mailed % PARCELS_PER_MEASURE == 0 {
            inbox.measure();
        }
        Ok(())
    }

    /// Inserts or removes the tag of a frame of a VLAN, as the port requires.
    #[cold]
    fn fit_tag<Q: PortQueue>(
        &mut self,
        mut frame: Frame,
        port: PortId,
        source: &Source<Q>,
    ) -> Option<Frame> {
        let Forwarding::Switch(switch) = &source.forwarding else { return Some(frame) };
        let wants_tag = switch.scope(source.port_id, &source.policy, frame.vlan).wants_tag(port);
        match std::mem::take(&mut frame.vlan) {
            FrameVlan::Untagged(vid) if wants_tag => match insert_tag(frame, vid, self.pool) {
                Ok(frame) => return Some(frame),
                Err(reason) => {
                    source.count_drop(reason);
                    return None;
                }
            },
            FrameVlan::Tagged(_) if !wants_tag => {
                remove_tag(&mut frame);
                // An inner tag would become the frame's own: a station behind an untagged port
                // would take it for a VLAN that the sender is not in.
                if Tag::of(frame.bytes()) != Tag::None {
                    self.discard(frame, DropReason::Vlan, source);
                    return None;
                }
            }
            _ => {}
        }
        Some(frame)
    }

    /// The gauge of the inbox on the way to a queue, if that is full.
    fn full_inbox(&self, to: &QueueAddress) -> Option<&Arc<Gauge>> {
        let inbox = (to.engine != self.number).then(|| self.directory.inboxes[to.engine].gauge());
        inbox.filter(|gauge| gauge.has_pressure())
    }

    /// If a frame that leaves by the device `port` is for the guest of another device on its
    /// bridge, the gauge of that device.
    #[inline]
    fn neighbor(&mut self, port: PortId, frame: &Frame) -> Option<&'a Arc<Gauge>> {
        let directory = self.directory;
        if !directory.has_neighbors(port) {
            return None;
        }
        let address = MacAddr(*frame.bytes().first_chunk()?);
        match self.neighbor {
            Some((known, gauge)) if known == address => gauge,
            _ => {
                let gauge = directory.neighbor(port, address);
                self.neighbor = Some((address, gauge));
                gauge
            }
        }
    }

    /// The queue of a port that a frame's flow belongs to; the port has at least one. What its
    /// guest has chosen counts first, then the table by which its flows are balanced.
    ///
    /// # Errors
    /// The hash of the flow, if that is leaving its queue.
    fn steer(
        &self,
        frame: &mut Frame,
        (port, queues): (PortId, &'a [QueueAddress]),
        chosen: Option<&PortSteering>,
    ) -> Result<&'a QueueAddress, u32> {
        let count = u16::try_from(queues.len()).unwrap_or(u16::MAX);
        if let Some(queue) = chosen.and_then(|chosen| chosen.queue_of(frame, count)) {
            return Ok(&queues[usize::from(queue.0)]);
        }
        if count == 1 {
            return Ok(&queues[0]);
        }
        let headers = frame.headers();
        let key = self.flow_key;
        let flow = headers.and_then(|headers| flow_hash_parsed(frame.bytes(), &headers, key));
        let Some((table, hash)) = chosen.and_then(PortSteering::table).zip(flow) else {
            return Ok(&queues[usize::from(queue_of(flow, count).0)]);
        };
        let queue = self.by_table(table, port, hash, frame.len()).ok_or(hash)?;
        // A port has as many queues as its table.
        Ok(queues.get(queue).unwrap_or(&queues[0]))
    }

    /// The queue of a frame of `len` bytes of a flow; `None` while the flow is leaving its queue or
    /// earlier frames of its bucket are parked.
    pub(crate) fn by_table(
        &self,
        table: &Table,
        port: PortId,
        hash: u32,
        len: usize,
    ) -> Option<usize> {
        if self.outboxes.parked.has(port, hash) {
            return None;
        }
        table.queue_of(hash, len)
    }

    fn discard<Q: PortQueue>(&mut self, frame: Frame, reason: DropReason, source: &Source<Q>) {
        source.count_drop(reason);
        self.pool.recycle(frame);
    }
}

/// The verdict of all frames of a batch, if it is the same.
#[inline]
fn verdict_of_all(frames: &[Frame]) -> Option<Verdict> {
    let first = frames.first()?.verdict;
    frames.iter().all(|frame| frame.verdict == first).then_some(first)
}

/// The queue that corresponds to that of a patched source, if each of the source's queues has one.
///
/// The number of the source's queues is not looked up in the directory: the first frames may come
/// before the directory lists the source's port, and later ones must use the same queue.
fn same_queue<'a, Q: PortQueue>(
    source: &Source<Q>,
    queues: &'a [QueueAddress],
) -> Option<&'a QueueAddress> {
    source.forwarding.patched_to()?;
    let is_paired = usize::from(source.queue_count) == queues.len();
    queues.get(usize::from(source.queue_index)).filter(|_| is_paired)
}

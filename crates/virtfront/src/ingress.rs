//! What the guest receives: used chains become frames, and are made available again.

use ringway_datapath::headers::ETH_LEN;
use ringway_datapath::{Budget, DropReason, Frame, FrameBatch, FramePool};
use ringway_virtio::{Buffer, UsedFault};
use ringway_wire::virtio::VirtioNetHdrV1;
use zerocopy::FromBytes;

use crate::memory::BUFFER_LEN;
use crate::{FrontFault, QueuePair};

impl QueuePair {
    pub(crate) fn copy_frames(
        &mut self,
        budget: Budget,
        pool: &mut FramePool,
        into: &mut FrameBatch,
    ) -> Result<(), FrontFault> {
        // Drops count as well, so a call is bounded whatever the device sends.
        let mut room = into.remaining_capacity().min(budget.frames);
        let (mut packets, mut bytes) = (0, 0);
        self.rx.half.poll().map_err(fault)?;
        let mut result = Ok(());
        while room > 0 && bytes < budget.bytes {
            match self.gather() {
                Ok(true) => {}
                Ok(false) => break,
                Err(fault) => {
                    result = Err(fault);
                    break;
                }
            }
            match self.copy_frame(pool) {
                Ok(frame) => {
                    packets += 1;
                    bytes += frame.len();
                    into.push(frame);
                }
                // The chains are held until a buffer is free.
                Err(DropReason::NoBuffer) => break,
                Err(reason) => self.counters.dropped.count(reason, 1),
            }
            room -= 1;
            self.post_held();
        }
        self.counters.add_rx(packets, u64::try_from(bytes).unwrap_or(u64::MAX));
        result
    }

    /// Takes the chains of the next frame, unless a frame's chains are held already. Returns false
    /// without any.
    fn gather(&mut self) -> Result<bool, FrontFault> {
        if !self.held.is_empty() {
            return Ok(true);
        }
        let Some((place, len)) = self.take_chain()? else { return Ok(false) };
        self.held.push((place, len));
        if usize::try_from(len).unwrap_or(usize::MAX) < self.form.header_len {
            return Err(FrontFault::NoHeader { bytes: len });
        }
        if !self.form.is_mergeable {
            return Ok(true);
        }
        let num_buffers = self.header(place).num_buffers;
        while self.held.len() < usize::from(num_buffers) {
            match self.take_chain()? {
                Some(chain) => self.held.push(chain),
                None => {
                    let used = self.held.len();
                    return Err(FrontFault::FrameCutOff { num_buffers, used });
                }
            }
        }
        Ok(true)
    }

    fn take_chain(&mut self) -> Result<Option<(u16, u32)>, FrontFault> {
        let used = self.rx.half.take().map_err(fault)?;
        Ok(used.map(|used| (self.rx_places[usize::from(used.id)], used.len)))
    }

    fn header(&self, place: u16) -> VirtioNetHdrV1 {
        let mut bytes = [0; size_of::<VirtioNetHdrV1>()];
        self.memory.rx_buffers.copy_to(self.start_of(place), &mut bytes[..self.form.header_len]);
        VirtioNetHdrV1::read_from_bytes(&bytes).expect("as many bytes")
    }

    /// Copies the frame whose chains are held.
    fn copy_frame(&self, pool: &mut FramePool) -> Result<Frame, DropReason> {
        let total: usize = self.held.iter().map(|(_, len)| bytes_of(*len)).sum();
        let len = total - self.form.header_len;
        if len < ETH_LEN {
            return Err(DropReason::Malformed);
        }
        if len > pool.frame_len_max() {
            return Err(DropReason::TooLong);
        }
        let mut frame = pool.take(len).ok_or(DropReason::NoBuffer)?;
        let mut rest = frame.bytes_mut();
        let mut skip = self.form.header_len;
        for (place, len) in &self.held {
            let (piece, others) = rest.split_at_mut(bytes_of(*len) - skip);
            self.memory.rx_buffers.copy_to(self.start_of(*place) + skip, piece);
            rest = others;
            skip = 0;
        }
        let (first, _) = self.held[0];
        match self.form.read(&self.header(first).hdr, &mut frame) {
            Ok(offload) => {
                frame.offload = offload;
                Ok(frame)
            }
            Err(reason) => {
                pool.recycle(frame);
                Err(reason)
            }
        }
    }

    /// Makes the chains of a frame available again.
    fn post_held(&mut self) {
        while let Some((place, _)) = self.held.pop() {
            self.post(place);
        }
    }

    /// Makes the chain at `place` available.
    pub(crate) fn post(&mut self, place: u16) {
        let start = self.memory.rx_address
            + u64::try_from(self.start_of(place)).expect("memory is 64 bits");
        let len = u32::try_from(BUFFER_LEN).expect("a buffer is small");
        self.chain.clear();
        for number in 0..u64::from(self.rx_buffers_per_chain) {
            self.chain.push(Buffer { address: start + number * u64::from(len), len });
        }
        let id = self.rx.half.push(&self.chain);
        self.rx_places[usize::from(id)] = place;
    }

    /// Byte offset of a chain's buffers, which follow each other.
    fn start_of(&self, place: u16) -> usize {
        usize::from(place) * usize::from(self.rx_buffers_per_chain) * BUFFER_LEN
    }
}

fn bytes_of(len: u32) -> usize {
    usize::try_from(len).expect("32 bits fit")
}

fn fault(fault: UsedFault) -> FrontFault {
    FrontFault::Queue { queue: "rx", fault }
}

//! What the guest transmits: frames become chains.

use ringway_datapath::{DropReason, Frame, FramePool, FrameQueue, QueueDown, Result};
use ringway_virtio::{Buffer, UsedFault};
use ringway_wire::virtio::VirtioNetHdrV1;
use ringway_wire::vnet::VirtioNetHdr;
use zerocopy::IntoBytes;

use crate::memory::BUFFER_LEN;
use crate::{FrontFault, QueuePair};

impl QueuePair {
    pub(crate) fn give_frames(&mut self, from: &mut FrameQueue, pool: &mut FramePool) -> Result {
        self.is_tx_short = false;
        if from.is_empty() {
            return Ok(());
        }
        self.take_back()?;
        let (mut packets, mut bytes) = (0, 0);
        while let Some(frame) = from.front_mut() {
            let count = (self.form.header_len + frame.len()).div_ceil(BUFFER_LEN);
            if count > self.tx_links.len() {
                self.counters.dropped.count(DropReason::TooLong, 1);
            } else if count > self.tx_free.len() || count > self.tx.half.free() {
                self.is_tx_short = true;
                break;
            } else {
                match self.form.write(frame) {
                    Ok(hdr) => {
                        packets += 1;
                        bytes += u64::try_from(frame.len()).unwrap_or(u64::MAX);
                        self.push_frame(hdr, frame);
                    }
                    Err(reason) => self.counters.dropped.count(reason, 1),
                }
            }
            from.pop_front().into_iter().for_each(|frame| pool.recycle(frame));
        }
        self.counters.add_tx(packets, bytes);
        let notify = self.tx.half.publish();
        self.notify(&self.tx, notify)
    }

    /// Copies one frame into buffers, after its header, and makes a chain of them.
    fn push_frame(&mut self, hdr: VirtioNetHdr, frame: &Frame) {
        let header = VirtioNetHdrV1 { hdr, num_buffers: 0 };
        let header = &header.as_bytes()[..self.form.header_len];
        let (first, others) = frame.bytes().split_at(frame.len().min(BUFFER_LEN - header.len()));
        self.chain.clear();
        let head = self.fill(header, first);
        let mut last = head;
        for piece in others.chunks(BUFFER_LEN) {
            let next = self.fill(&[], piece);
            self.tx_links[usize::from(last)] = next;
            last = next;
        }
        let id = self.tx.half.push(&self.chain);
        let count = u16::try_from(self.chain.len()).expect("a queue is small");
        self.tx_chains[usize::from(id)] = (head, count);
    }

    fn fill(&mut self, header: &[u8], bytes: &[u8]) -> u16 {
        let buffer = self.tx_free.pop().expect("the caller counted free buffers");
        let offset = usize::from(buffer) * BUFFER_LEN;
        self.memory.tx_buffers.copy_from(offset, header);
        self.memory.tx_buffers.copy_from(offset + header.len(), bytes);
        self.chain.push(Buffer {
            address: self.memory.tx_address + u64::try_from(offset).expect("memory is 64 bits"),
            len: u32::try_from(header.len() + bytes.len()).expect("a buffer is small"),
        });
        buffer
    }

    /// Takes back all buffers that the device has read. Returns how many it has not.
    ///
    /// # Errors
    /// [`QueueDown::Peer`] with a [`FrontFault`].
    pub fn take_back(&mut self) -> Result<usize> {
        self.reap().map_err(|fault| QueueDown::peer(FrontFault::Queue { queue: "tx", fault }))?;
        Ok(self.tx_links.len() - self.tx_free.len())
    }

    fn reap(&mut self) -> Result<(), UsedFault> {
        self.tx.half.poll()?;
        while let Some(used) = self.tx.half.take()? {
            let (mut buffer, count) = self.tx_chains[usize::from(used.id)];
            for _ in 0..count {
                self.tx_free.push(buffer);
                buffer = self.tx_links[usize::from(buffer)];
            }
        }
        Ok(())
    }
}

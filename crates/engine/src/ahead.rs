//! What a source finds out about its next long frames before it takes them in.

use std::time::Instant;

use ringway_datapath::PortQueue;

use crate::engine::Engine;
use crate::outbox::Room;

impl<Q: PortQueue> Engine<Q> {
    /// The room where the long frames of a source's last batch went. Without any, the source is
    /// held, or goes on as if it had not asked; `None` for any other source.
    #[inline]
    pub(crate) fn room_ahead(&mut self, slot: usize, now: Instant) -> Option<Room> {
        let source = self.sources[slot].as_mut().filter(|source| source.ahead.is_due)?;
        source.refresh(now);
        let to = source.ahead.to.filter(|_| source.ahead.is_due && source.is_open())?;
        let target = self.sources.get_mut(to.index)?.as_mut()?;
        self.current_queue = Some((target.port_id, target.queue_index));
        let outbox = self.outboxes.get(to.index).filter(|outbox| outbox.id == to)?;
        let room = outbox.room(&mut target.queue)?;
        if room.frames > 0 {
            return Some(room);
        }
        let gauge = self.outboxes.await_room(to)?;
        self.sources[slot].as_mut()?.hold_for_room(&gauge, now);
        None
    }
}

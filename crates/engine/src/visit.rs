//! The frames that an engine has, for checks between rounds.

use ringway_datapath::{Frame, PortQueue};

use crate::engine::Engine;
use crate::inspect::Whereabouts;
use crate::outbox::{Expected, OutboxSlot};

impl<Q: PortQueue> Engine<Q> {
    /// Calls `visit` with every frame that the engine has, except those in its inbox.
    pub fn visit_frames(&self, visit: &mut dyn FnMut(Whereabouts, &Frame)) {
        self.sources.iter().flatten().for_each(|source| source.visit_kept(visit));
        for (to, frame) in self.outboxes.parked.frames() {
            visit(Whereabouts::Parked { to }, frame);
        }
        for (source, slot) in self.outboxes.slots().iter().enumerate() {
            match slot {
                OutboxSlot::Vacant => {}
                OutboxSlot::Expected(Expected { id, frames, .. }) => {
                    let slot = *id;
                    frames.iter().for_each(|frame| visit(Whereabouts::Gathers { slot }, frame));
                }
                OutboxSlot::Here(outbox) => {
                    let source = self.sources.get(source).and_then(Option::as_ref);
                    let (Some(source), slot) = (source, outbox.id) else { continue };
                    let to = source.port_id;
                    let at = Whereabouts::Waits { to, slot };
                    outbox.frames().for_each(|frame| visit(at, frame));
                }
            }
        }
    }

    /// Dropped frames that are not yet counted: the queue that they were for counts them when it
    /// arrives.
    pub fn drops_to_count(&self) -> u64 {
        let expected = self.outboxes.slots().iter().filter_map(|slot| match slot {
            OutboxSlot::Expected(expected) => Some(expected.dropped),
            OutboxSlot::Vacant | OutboxSlot::Here(_) => None,
        });
        expected.sum()
    }
}

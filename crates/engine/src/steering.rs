//! How frames for a port are spread over its queues, where the guest behind it has a say.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use ringway_datapath::{FlowHash, Frame};
use ringway_steering::QueueIndex;
use ringway_steering::toeplitz::ToeplitzSteering;

/// What a guest has chosen for the frames that it receives. Its control ring changes it at any
/// time; engines read it for each frame, and see each choice as a whole.
#[derive(Debug, Default)]
pub struct PortSteering(ArcSwapOption<ToeplitzSteering>);

impl PortSteering {
    /// Replaces the choice; with `None`, frames are spread as for any other port.
    pub fn set(&self, chosen: Option<ToeplitzSteering>) {
        self.0.store(chosen.map(Arc::new));
    }

    /// Whether the guest has chosen something.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load().is_some()
    }

    /// The queue of a frame, among `count`, if the guest has chosen something. The frame keeps its
    /// hash, which the guest is shown.
    pub(crate) fn queue_of(&self, frame: &mut Frame, count: u16) -> Option<QueueIndex> {
        let chosen = self.0.load();
        let chosen = chosen.as_ref()?;
        let headers = frame.headers();
        let hash = headers.and_then(|headers| chosen.flow_hash_parsed(frame.bytes(), &headers));
        frame.flow = hash.map(|(value, kind)| FlowHash { value, kind: kind.number() });
        Some(chosen.queue_of(hash.map(|(value, _)| value), count))
    }
}

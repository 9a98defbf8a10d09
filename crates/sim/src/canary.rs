//! Intended defects, to verify that the checkers find them.
//!
//! Each is in the simulator's own wrappers around the real parts, so no other code has a switch for
//! it. The exceptions are `canary.rs` of `ringway-ring` and of `ringway-host`.

macro_rules! canaries {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// An intended defect.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Canary {
            $($(#[$about])* $name,)*
        }

        impl Canary {
            /// All of them.
            pub const ALL: [Canary; [$(Canary::$name),*].len()] = [$(Canary::$name,)*];
        }
    };
}

canaries! {
    /// Occasionally, the bell of an engine does not ring.
    LostRing,
    /// Occasionally, an engine misses the event of a queue.
    LostEvent,
    /// Occasionally, two frames of a batch are swapped.
    SwappedFrames,
    /// Occasionally, a frame is dropped and not counted.
    UncountedDrop,
    /// Occasionally, a frame arrives twice.
    DoubledFrame,
    /// Occasionally, a buffer is taken and never returned.
    LeakedBuffer,
    /// The last byte of a frame is changed.
    ChangedByte,
    /// A queue moves before every engine has seen its new place.
    HastyMove,
    /// Flows move before their guest has taken their frames.
    HastyBucket,
    /// A released vif stays mapped.
    KeptMapping,
    /// A guest gets its responses while frames refer to the pages.
    EarlyResponse,
    /// A backend does not notice that the toolstack sets a rate.
    LostSetting,
    /// The notes of a process end with it.
    LostNotes,
    /// The key of flows ends with a process.
    LostFlowKey,
    /// A backend that is killed before it publishes its responses has not noted that it wrote them.
    UnnotedResponses,
    /// Changes of links are not announced.
    UnseenLinks,
    /// A device returns to its bridge, wherever its administrator has put it.
    ReturnedDevice,
    /// A fault of a device is not shown.
    HiddenFault,
    /// A process that asks Open vSwitch, after one that was killed, does not say that it begins.
    UnsaidBegin,
    /// Ports of Open vSwitch stay when they should go.
    KeptPort,
    /// Why no one can connect to the socket of a virtio vif is not shown.
    HiddenObstacle,
    /// A front-end's message that enables or disables a ring is lost.
    LostMessage,
    /// The backend waits for the rest of a front-end's message.
    StuckTurn,
    /// What a front-end uses is not noted for the next process.
    ForgottenOffer,
    /// What was set of virtio vifs is not noted for the next process.
    ForgottenLimits,
    /// What a guest orders of multicast frames has its response, and is not noted for the next
    /// process.
    UnnotedOrders,
    /// What was in flight is forgotten with a backend.
    EmptiedArea,
    /// A backend says of a ring that it has stopped less than was used.
    RewoundRing,
    /// The pairs of a front-end that has passed all are not attached.
    LeftPairs,
    /// The notes of vifs that were removed stay.
    LeftNotes,
    /// A guest has another budget of floods with each connection.
    FreshBudgets,
    /// A note that found no room is not written again.
    UnwrittenNotes,
    /// The control plane handles all that has happened in one turn.
    LongTurn,
    /// A vif ends when the description is read again, although that has it.
    AbruptReload,
    /// A weight of the first vif of a description that is read again applies to the last one, too.
    BroadReload,
}

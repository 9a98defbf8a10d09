//! Named points that a world passes: a run that never hits one proves nothing about it.

use std::ops::AddAssign;

macro_rules! marks {
    ($($name:ident => $words:literal,)*) => {
        /// An event that can happen in a world.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mark {
            $(#[doc = $words] $name,)*
        }

        impl Mark {
            /// All of them, in the order of their declaration.
            pub const ALL: &[Mark] = &[$(Mark::$name,)*];

            /// Its name in reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Mark::$name => $words,)*
                }
            }
        }
    };
}

marks! {
    Sent => "frames sent",
    Arrived => "frames arrived",
    SeveralSlots => "frames of several slots",
    LentAcross => "ends of frames copied from guest to guest",
    LentCompleted => "ends of frames copied out of a guest's pages",
    ReceivedInPages => "received frames that stay in pages",
    OrphanTaken => "received frames taken after the end",
    LenderDead => "guest dead while frames refer to its pages",
    ToSegment => "frames to be segmented",
    BlankChecksum => "frames with a blank checksum",
    EngineSleeps => "engine waits for an event",
    EngineWaitsForTime => "engine waits for a time",
    Rest => "world at rest, and checked",
    Announced => "guest announced",
    Moved => "queue moved",
    FlowsLeave => "flows leave a queue",
    MovedUnderTraffic => "queue moved with frames in flight",
    KeyByKey => "vif made key by key",
    StateTwice => "vif made again while it is served",
    HalfMade => "vif half made, and made again",
    RateChanged => "rate set or removed",
    LinkDown => "link down at rest",
    LinkCut => "link cut while the backend is stopped",
    BudgetKept => "budget kept over connections",
    SettingUnseen => "backend killed before it sees a setting",
    OutOfCredit => "queue out of credit",
    CaptureOn => "capture on",
    CaptureOff => "capture off",
    NoBuffer => "frame budget empty",
    QueueFull => "queue full, which drops",
    InboxHigh => "inbox holds senders back",
    EnginePaused => "engine paused",
    ReceiverStalled => "receiver stalled",
    TimePassed => "time passed",
    StationSent => "frames sent by stations",
    StationReceived => "frames arrived at stations",
    Uplink => "uplink attached",
    CallDone => "call done",
    CallRefused => "call refused",
    QueuesOffered => "queues offered by a call",
    Hashed => "wish carried out over a control ring",
    Staged => "pages mapped at rest",
    Ordered => "multicast frames ordered",
    HeadroomChanged => "other headroom asked for",
    OffloadsCompleted => "offloads off under a guest that uses them",
    Headroom => "headroom given at rest",
    WishRepeated => "wish repeated after a refusal",
    Patched => "vif patched to a device",
    DeviceFull => "device full",
    DeviceStalled => "device stalled",
    BackendKilled => "backend killed",
    BackendPanics => "backend panics over a vif",
    Quarantined => "vif quarantined for its panics",
    DiskFull => "disk full",
    NoteLate => "note written once there is room",
    BackendKilledMidway => "backend killed while it waits for engines",
    BackendKilledUnpublished => "backend killed with unpublished responses",
    Reattached => "rings in use attached again",
    GuestKilled => "guest killed",
    GuestDiedInUse => "guest died in use",
    Connected => "guest connected",
    Reconnected => "guest reconnects",
    Removed => "vif removed",
    AskedToClose => "vif asked to close",
    EventLost => "event lost",
    EventDoubled => "event doubled",
    EventSpurious => "event spurious",
    CopyCallFailed => "copy call refused",
    CopyRefused => "copy refused",
    MapRefused => "map refused",
    BindRefused => "bind refused",
    ShareRefused => "share refused",
    PlaceRefused => "no engine for queues",
    DeviceRefused => "device refuses its queues",
    NotifyRefused => "notify refused",
    WatchesReordered => "watches of several ends reordered",
    HostileRing => "hostile: ring page overwritten",
    HostileProducer => "hostile: producer jumps",
    HostileChain => "hostile: odd chain",
    HostileGrant => "hostile: bad grant",
    HostileFlood => "hostile: floods",
    HostileAddress => "hostile: address of another guest",
    DeviceDeleted => "device of a vif deleted",
    NameTaken => "name of a deleted device taken",
    DeviceMoved => "device of a vif moved to another bridge, or off it",
    DeviceSetDown => "device of a vif set down or up",
    DeviceRenamed => "device of a vif renamed",
    BridgeDeleted => "bridge deleted",
    BridgeRenamed => "bridge renamed",
    KernelRefuses => "call of the kernel refused",
    DeviceFaulty => "device of a vif not in its place",
    BridgeLate => "bridge later than the first backend",
    VirtioUnattached => "virtio vif waits for its bridge",
    VirtioOnBridge => "virtio vif on a bridge",
    VifRefused => "vif without its device",
    PortAdded => "port of Open vSwitch added",
    PortRemoved => "port of Open vSwitch removed",
    PortRefused => "port of Open vSwitch not changed",
    PortNameTaken => "name of a port taken",
    OvsBridgeDeleted => "bridge of Open vSwitch deleted",
    DatapathChanged => "another datapath of Open vSwitch",
    OvsSilent => "Open vSwitch silent",
    PluggerKilled => "process that asks Open vSwitch killed during an order",
    HostileRevoke => "hostile: grant withdrawn",
    HostileEvents => "hostile: events for nothing",
    HostileStore => "hostile: odd keys",
    HostileClosed => "hostile: vif closed",
    VirtioUp => "virtio guest up, whose frames flow",
    BetweenKinds => "frames between Xen and virtio",
    VirtioStarted => "virtio guest starts",
    VirtioStopped => "virtio guest stops",
    VirtioPaused => "virtual machine paused",
    VirtioResumed => "virtual machine resumed",
    VirtioDisabled => "virtio rings disabled",
    VirtioEnabled => "virtio rings enabled",
    OfferKept => "more offered than described, to who uses it",
    VirtioExplained => "virtio guest not served, and why",
    PositionLost => "packed rings begin again",
    AreaMade => "inflight area made",
    AreaPassedOn => "inflight area passed on",
    PackedUp => "packed rings up",
    VirtioLimited => "limit of a virtio vif set",
    ReloadChanged => "reload: another value",
    ReloadUnchanged => "reload: nothing else",
    ReloadRefused => "reload: refused",
    ReloadAdds => "reload: one added",
    ReloadEnds => "reload: one removed",
    ReloadRemoves => "reload: all removed",
    ReloadQueues => "reload: other queues for guests of Xen",
    ReloadFloods => "reload: other floods for all vifs",
    ReloadUplink => "reload: other rules of the uplink",
    FrontEndKilled => "front-end killed",
    FrontEndStarted => "front-end starts again",
    FrontEndLeaves => "front-end disconnects",
    SocketRemoved => "socket removed",
    SocketReplaced => "removed socket made again",
    SocketOfOtherKind => "not a socket at its place",
    NoDescriptorForSocket => "no descriptor for a connection",
    NoDescriptorForMessage => "no descriptor for a message",
    NoMemoryForGuest => "guest memory not mapped",
    IntruderServed => "intruder: passes rings",
    IntruderRequest => "intruder: odd request",
    IntruderBytes => "intruder: arbitrary bytes",
    IntruderPart => "intruder: part of a message",
    IntruderFloods => "intruder: floods",
    IntruderTruncates => "intruder: memory cut",
    IntruderRings => "intruder: rings overwritten",
    IntruderLeaves => "intruder: leaves",
}

/// How often each mark was hit.
#[derive(Debug, Clone)]
pub struct Marks(Vec<u64>);

impl Default for Marks {
    fn default() -> Marks {
        Marks(vec![0; Mark::ALL.len()])
    }
}

impl Marks {
    pub(crate) fn hit(&mut self, mark: Mark) {
        self.add(mark, 1);
    }

    pub(crate) fn add(&mut self, mark: Mark, times: u64) {
        // The list is in the order of the declaration, so the search ends at the mark's own index.
        if let Some(place) = Mark::ALL.iter().position(|other| *other == mark) {
            self.0[place] += times;
        }
    }

    /// How often a point was hit.
    pub fn count(&self, mark: Mark) -> u64 {
        let place = Mark::ALL.iter().position(|other| *other == mark);
        place.map_or(0, |place| self.0[place])
    }

    /// Every point with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Mark, u64)> + '_ {
        Mark::ALL.iter().copied().zip(self.0.iter().copied())
    }
}

impl AddAssign<&Marks> for Marks {
    fn add_assign(&mut self, other: &Marks) {
        self.0.iter_mut().zip(&other.0).for_each(|(own, more)| *own += more);
    }
}

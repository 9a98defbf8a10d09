//! Named points that a world passes: a run that never hits one proves nothing about it.

use std::ops::AddAssign;

macro_rules! marks {
    ($($(#[doc = $doc:literal])* $name:ident => $words:literal,)*) => {
        /// An event that can happen in a world.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mark {
            $($(#[doc = $doc])* $name,)*
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
    /// A frame of an honest guest was sent.
    Sent => "frames sent",
    /// A frame of an honest guest, or a segment of one, arrived.
    Arrived => "frames arrived",
    /// A frame of several slots was sent.
    SeveralSlots => "frames of several slots",
    /// The end of a frame went from the pages of one guest to those of another.
    LentAcross => "ends of frames copied from guest to guest",
    /// The end of a frame was copied out of the pages of a guest.
    LentCompleted => "ends of frames completed",
    /// A received frame stayed in the pages that it came in while its guest did something else.
    ReceivedInPages => "received frames that stay in pages",
    /// A device took a received frame whose connection had ended.
    OrphanTaken => "received frames taken after the end",
    /// A guest was dead when the ends of its frames were to be copied.
    LenderDead => "guest dead while frames refer to its pages",
    /// A frame to be segmented was sent.
    ToSegment => "frames to be segmented",
    /// A frame with a blank checksum was sent.
    BlankChecksum => "frames with a blank checksum",
    /// An engine came to rest and waits for an event.
    EngineSleeps => "engine waits for an event",
    /// An engine waits for a time.
    EngineWaitsForTime => "engine waits for a time",
    /// The world came to rest, and everything was checked.
    Rest => "world at rest",
    /// A guest was announced to the network.
    Announced => "guest announced",
    /// A queue moved from one engine to another.
    Moved => "queue moved",
    /// Flows were to leave a queue that could not keep up.
    FlowsLeave => "flows leave a queue",
    /// Frames queued up for a queue that was being moved.
    MovedUnderTraffic => "queue moved with frames in flight",
    /// A toolstack wrote the keys of a vif one by one.
    KeyByKey => "vif made key by key",
    /// It wrote its first state when the backend served the vif already.
    StateTwice => "vif made twice",
    /// It gave up before it had written all keys, and began again.
    HalfMade => "vif half made, and made again",
    /// A rate was set or removed.
    RateChanged => "rate changed",
    /// The link of a vif was down at rest.
    LinkDown => "link down",
    /// The link of a vif was down while no backend served it.
    LinkCut => "link cut while the backend is stopped",
    /// A vif had another connection, and the budget of floods of an earlier one.
    BudgetKept => "budget kept over connections",
    /// A backend was killed before it had seen what the toolstack set.
    SettingUnseen => "backend killed before it sees a setting",
    /// A queue had to wait for credit.
    OutOfCredit => "queue out of credit",
    /// A capture began.
    CaptureOn => "capture on",
    /// A capture ended.
    CaptureOff => "capture off",
    /// A backend ran out of buffers.
    NoBuffer => "frame budget empty",
    /// A queue was full and dropped.
    QueueFull => "queue full",
    /// So many frames waited in an inbox that its senders were held back.
    InboxHigh => "inbox holds senders back",
    /// An engine got no CPU for a while.
    EnginePaused => "engine paused",
    /// A receiver stopped for a while.
    ReceiverStalled => "receiver stalled",
    /// Time advanced.
    TimePassed => "time passed",
    /// A frame of a station behind a device was sent.
    StationSent => "frames sent by stations",
    /// A frame, or a segment of one, arrived at a station behind a device.
    StationReceived => "frames arrived at stations",
    /// An uplink was attached.
    Uplink => "uplink attached",
    /// A call changed something.
    CallDone => "call done",
    /// A call was refused.
    CallRefused => "call refused",
    /// Another number of queues was offered to a guest.
    QueuesOffered => "queues offered by a call",
    /// A guest's frames are hashed as it wishes.
    Hashed => "wish carried out over a control ring",
    /// Pages of a guest stayed mapped at rest.
    Staged => "pages mapped for good",
    /// The backend knows what a guest has ordered of multicast frames.
    Ordered => "multicast frames ordered",
    /// A guest asked for other headroom.
    HeadroomChanged => "headroom changed",
    /// A guest went on to use offloads since they were turned off.
    OffloadsCompleted => "offloads off under a guest that uses them",
    /// Frames for a guest had headroom at rest.
    Headroom => "headroom given",
    /// A message was refused, for example because a backend was killed before it published the
    /// response, and the guest wished again.
    WishRepeated => "wish repeated after a refusal",
    /// A vif was patched to its own device.
    Patched => "vif patched to a device",
    /// A device had no room for a frame.
    DeviceFull => "device full",
    /// The stations behind a device stopped for a while.
    DeviceStalled => "device stalled",
    /// The backend's process was killed, and another one started.
    BackendKilled => "backend killed",
    /// It ended because an engine panicked over a vif.
    BackendPanics => "backend panics over a vif",
    /// A vif was not served because of panics.
    Quarantined => "vif quarantined",
    /// There was no room for notes.
    DiskFull => "disk full",
    /// What found no room was noted later.
    NoteLate => "note written late",
    /// It was killed during an operation that waits for engines.
    BackendKilledMidway => "backend killed midway",
    /// It was killed between writing responses and publishing them.
    BackendKilledUnpublished => "backend killed with unpublished responses",
    /// Another backend attached to rings that were in use.
    Reattached => "rings attached again",
    /// A guest was killed.
    GuestKilled => "guest killed",
    /// A guest died just while the backend used its pages.
    GuestDiedInUse => "guest died in use",
    /// A guest connected.
    Connected => "guest connected",
    /// A guest disconnected and reconnected.
    Reconnected => "guest reconnects",
    /// The toolstack removed a vif.
    Removed => "vif removed",
    /// The toolstack asked a backend to close a vif that stays.
    AskedToClose => "vif asked to close",
    /// An event was lost.
    EventLost => "event lost",
    /// An event arrived twice.
    EventDoubled => "event doubled",
    /// An event arrived that no domain sent.
    EventSpurious => "event spurious",
    /// A call of copies failed.
    CopyCallFailed => "copy call refused",
    /// One copy was refused.
    CopyRefused => "copy refused",
    /// A page could not be mapped.
    MapRefused => "map refused",
    /// A port could not be bound.
    BindRefused => "bind refused",
    /// A guest had no pages to share.
    ShareRefused => "share refused",
    /// There was no engine for the queues of a port.
    PlaceRefused => "no engine for queues",
    /// A network device refused its queues.
    DeviceRefused => "device refuses its queues",
    /// A notification failed.
    NotifyRefused => "notify refused",
    /// Watch events of several ends were handled in another order than they arrived.
    WatchesReordered => "watches reordered",
    /// A hostile guest wrote arbitrary bytes into a ring page.
    HostileRing => "hostile: ring page overwritten",
    /// It made a producer index jump.
    HostileProducer => "hostile: producer jumps",
    /// It sent an odd chain of slots.
    HostileChain => "hostile: odd chain",
    /// It named grants that do not exist.
    HostileGrant => "hostile: bad grant",
    /// It flooded.
    HostileFlood => "hostile: floods",
    /// It sent with the address of an honest guest.
    HostileAddress => "hostile: address of another guest",
    /// An administrator deleted the device of a vif.
    DeviceDeleted => "device of a vif deleted",
    /// Another link then had its name.
    NameTaken => "name of a device taken",
    /// An administrator moved the device of a vif to another bridge, or off its bridge.
    DeviceMoved => "device of a vif moved",
    /// An administrator set the device of a vif down or up.
    DeviceSetDown => "device of a vif set down",
    /// An administrator renamed the device of a vif.
    DeviceRenamed => "device of a vif renamed",
    /// An administrator deleted a bridge.
    BridgeDeleted => "bridge deleted",
    /// An administrator renamed a bridge.
    BridgeRenamed => "bridge renamed",
    /// A call of the kernel was to be refused.
    KernelRefuses => "kernel refuses a call",
    /// A vif was not where it should be, and said why.
    DeviceFaulty => "device of a vif not in its place",
    /// The bridge of a virtio vif did not exist when the first backend started.
    BridgeLate => "bridge comes late",
    /// A virtio vif without its device waited for that, and said so.
    VirtioUnattached => "virtio vif waits for its bridge",
    /// A virtio vif was on its bridge, or where it was put.
    VirtioOnBridge => "virtio vif on a bridge",
    /// A vif could not have its device.
    VifRefused => "vif without its device",
    /// A vif got its port of Open vSwitch.
    PortAdded => "port of Open vSwitch added",
    /// A vif has no port any more.
    PortRemoved => "port of Open vSwitch removed",
    /// A port could not be added or removed.
    PortRefused => "port of Open vSwitch not changed",
    /// Another program had a port with the name of a vif's device.
    PortNameTaken => "name of a port taken",
    /// An administrator deleted a bridge of Open vSwitch.
    OvsBridgeDeleted => "bridge of Open vSwitch deleted",
    /// Bridges of Open vSwitch got another datapath.
    DatapathChanged => "another datapath of Open vSwitch",
    /// Open vSwitch or its database did not respond.
    OvsSilent => "Open vSwitch silent",
    /// The process that asks Open vSwitch was killed during an order.
    PluggerKilled => "process that asks Open vSwitch killed",
    /// It withdrew a grant in use.
    HostileRevoke => "hostile: grant withdrawn",
    /// It sent events without work.
    HostileEvents => "hostile: events for nothing",
    /// It wrote invalid keys or states.
    HostileStore => "hostile: odd keys",
    /// A hostile guest's vif was closed because of its actions.
    HostileClosed => "hostile: vif closed",
    /// Everything of a virtio guest was passed, and its frames flow.
    VirtioUp => "virtio guest up",
    /// A frame arrived, of which one end is a virtio guest, and the other is not.
    BetweenKinds => "frames between Xen and virtio",
    /// The driver of a virtio guest began, perhaps with another number of pairs.
    VirtioStarted => "virtio guest starts",
    /// It ended.
    VirtioStopped => "virtio guest stops",
    /// A virtual machine was paused.
    VirtioPaused => "virtual machine paused",
    /// It ran again.
    VirtioResumed => "virtual machine resumed",
    /// All rings of a virtio guest were disabled.
    VirtioDisabled => "virtio rings disabled",
    /// They were enabled again.
    VirtioEnabled => "virtio rings enabled",
    /// A front-end of virtio came again when the description allowed less than it uses.
    OfferKept => "more offered than described, to who uses it",
    /// A virtio guest was not served at rest, and its vif said why.
    VirtioExplained => "virtio guest not served, and why",
    /// A front-end with packed rings lost its backend without an area for what was in flight.
    PositionLost => "packed rings begin again",
    /// A backend's area for what is in flight was sent to a front-end.
    AreaMade => "inflight area made",
    /// A front-end passed it to another backend.
    AreaPassedOn => "inflight area passed on",
    /// A virtio guest with packed rings is up.
    PackedUp => "packed rings up",
    /// A limit of a virtio vif was set.
    VirtioLimited => "limit of a virtio vif set",
    /// A description that was read again had another value.
    ReloadChanged => "reload: another value",
    /// It had none.
    ReloadUnchanged => "reload: nothing else",
    /// It was wrong.
    ReloadRefused => "reload: refused",
    /// It had a virtio vif again.
    ReloadAdds => "reload: one added",
    /// It had a virtio vif no more.
    ReloadEnds => "reload: one removed",
    /// It had no virtio vif any more.
    ReloadRemoves => "reload: all removed",
    /// It had another number of queues for guests of Xen.
    ReloadQueues => "reload: other queues for guests of Xen",
    /// It had another limit of floods for vifs without their own.
    ReloadFloods => "reload: other floods for all vifs",
    /// It had other rules of the uplink.
    ReloadUplink => "reload: other rules of the uplink",
    /// The process of a front-end was killed.
    FrontEndKilled => "front-end killed",
    /// Another process came in its place.
    FrontEndStarted => "front-end starts again",
    /// A front-end closed its connection.
    FrontEndLeaves => "front-end disconnects",
    /// The socket of a virtio vif was removed.
    SocketRemoved => "socket removed",
    /// It was made again.
    SocketReplaced => "socket made again",
    /// Something else was put in its place.
    SocketOfOtherKind => "not a socket at its place",
    /// There was no descriptor left for a connection.
    NoDescriptorForSocket => "no descriptor for a connection",
    /// There was none for those of a message.
    NoDescriptorForMessage => "no descriptor for a message",
    /// Memory of a guest could not be mapped.
    NoMemoryForGuest => "guest memory not mapped",
    /// A hostile front-end did what it must to be served.
    IntruderServed => "intruder: passes rings",
    /// It sent a request that makes no sense.
    IntruderRequest => "intruder: odd request",
    /// It sent arbitrary bytes.
    IntruderBytes => "intruder: arbitrary bytes",
    /// It sent a part of a message.
    IntruderPart => "intruder: part of a message",
    /// It sent more than a backend reads at once.
    IntruderFloods => "intruder: floods",
    /// It cut the memory of its guest.
    IntruderTruncates => "intruder: memory cut",
    /// Its guest wrote arbitrary bytes into its rings.
    IntruderRings => "intruder: rings overwritten",
    /// It left.
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

//! A checker's finding.

use std::fmt;

/// A broken rule. If the cause is a defect of the code under test, the seed of the world is all
/// that is needed to reproduce it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    /// The rule.
    pub rule: Rule,
    /// What was found instead.
    pub found: String,
}

/// The rules that hold in every world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Frames of a flow arrive in the order in which they were sent, none twice.
    Order,
    /// Frames of a flow meet the same queue of a guest, whichever process sends them to it, unless
    /// flows may leave queues.
    Steering,
    /// Each byte and each checksum of a frame arrives as it was sent.
    Content,
    /// After each round every part of a flow that entered the engines is in them, has left them, or
    /// was dropped and counted. At rest frames that have not arrived were dropped and counted;
    /// where none was flooded, no drop is counted twice.
    Conservation,
    /// Each response that a guest gets is valid, and in the end none is missing: no buffer is used
    /// twice, or lost. A virtio ring that was stopped continues behind all that was used.
    Responses,
    /// After each round every buffer of the budget is in a pool, an engine, an inbox, or with a
    /// queue that moves; in the end all are returned.
    Budget,
    /// After each round no backlog exceeds its limit by more than the segments of one frame.
    Backlog,
    /// At rest what can be delivered is delivered: no engine and no guest sleeps while there is
    /// work for it.
    WakeUps,
    /// A part without work sleeps: the world comes to rest. A vif that waits for its bridge neither
    /// makes nor changes a link.
    Rest,
    /// A guest's actions affect only its own vif: no honest vif is closed while the machine fails
    /// no call.
    Isolation,
    /// At rest a guest is connected, at the latest after it tries again without a fault of the
    /// machine. A virtio vif is attached if its front-end has passed what that needs, and only
    /// then.
    Handshake,
    /// At rest what a toolstack has set applies, and what a guest has set over a control ring or
    /// ordered of multicast frames, whichever process serves the vif; it has its device. A guest
    /// that connects again has the budget of floods that it had, no frame passes a link that is
    /// down, and a front-end that comes again is offered what it uses.
    Settings,
    /// A description that is read again applies: vifs come and go with it; others keep ports,
    /// counters, limits and rules but for what it says of them; a wrong one changes nothing.
    Reload,
    /// A panic is charged to the vif over which it happened. A vif with two is not served until it
    /// is released, and says so.
    Quarantine,
    /// Once there is room, notes for the next process say what is.
    Notes,
    /// A call of an administrator is done or refused as it must be. The status shows each vif as it
    /// was made, and at rest as it was set, with the queues that its guest has and no more than
    /// offered.
    Calls,
    /// A guest of Xen is announced at most once for each time that it has made rings, or its vif
    /// was made, and not when another process serves them.
    Arrival,
    /// A turn of the control plane, between two of which it handles calls, makes few requests of
    /// XenStore.
    Turns,
    /// At rest all ports are those of connected vifs, or the uplink's. In the end no page, grant,
    /// mapping, port, address, watch, node or device is left; all numbers of ports are free.
    Release,
    /// The backend submits no copy beyond the end of a page, which would fail the whole call.
    CopiesInPage,
    /// The backend reads a page of an honest guest only while a request for it has no response, and
    /// no frame refers to such a page between rounds. A guest ends no grant of a page that a frame
    /// refers to.
    LentPages,
    /// In the end a vif on a bridge has its network device, where its keys say.
    Attachment,
    /// At rest a network device is where an administrator has put it, up or down.
    Placement,
    /// A vif has its port of Open vSwitch, with VLAN and ids, while its guest is connected, or says
    /// why not; none is half made, those of others stay.
    Ports,
    /// At rest a vif whose network device is not where it should be, or whose virtio guest is not
    /// served, says why, and no other does; before and after what is missing is brought back.
    Explanation,
    /// Nothing panics.
    NoPanic,
}

/// The result of a step.
pub(crate) type Checked<T = ()> = Result<T, Flaw>;

impl Flaw {
    pub(crate) fn new(rule: Rule, found: impl Into<String>) -> Flaw {
        Flaw { rule, found: found.into() }
    }
}

/// A flaw unless the condition holds.
pub(crate) fn ensure(holds: bool, rule: Rule, found: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Flaw::new(rule, found())) }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.found)
    }
}

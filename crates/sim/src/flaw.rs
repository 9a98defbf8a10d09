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
    /// Frames of a flow arrive in the order in which they were sent.
    Order,
    /// Frames of a flow meet the same queue of a guest, whichever process sends them to it.
    Steering,
    /// A frame arrives as it was sent.
    Content,
    /// Frames that were sent have arrived, or their drop is counted.
    Conservation,
    /// Each request has one response.
    Responses,
    /// Every buffer of the budget is accounted for, and in the end all are returned.
    Budget,
    /// No backlog exceeds its limit.
    Backlog,
    /// What can be delivered is delivered: no part sleeps while there is work for it.
    WakeUps,
    /// A part without work sleeps.
    Rest,
    /// A guest's actions affect only its own vif.
    Isolation,
    /// A guest is connected sooner or later, if both sides want it.
    Handshake,
    /// What a toolstack has set applies, whichever process serves the vif.
    Settings,
    /// A description that is read again applies, disturbs no vif that it has, and changes nothing
    /// if it is wrong.
    Reload,
    /// A vif over which two processes have panicked is not served until it is released, and says
    /// so.
    Quarantine,
    /// Once there is room, notes for the next process say what is.
    Notes,
    /// The reply to a call is true.
    Calls,
    /// A guest of Xen is announced when it has made new rings, and not when another process serves
    /// them.
    Arrival,
    /// A turn of the control plane, between two of which it handles calls, is short.
    Turns,
    /// In the end nothing is left.
    Release,
    /// The backend submits no copy beyond the end of a page, which would fail the whole call.
    CopiesInPage,
    /// The backend reads a page of a guest only while a request for it has no response, and no
    /// frame refers to such a page between rounds.
    LentPages,
    /// In the end a vif on a bridge has its network device, where its keys say.
    Attachment,
    /// What an administrator has done to a network device stays so.
    Placement,
    /// A vif has its port of Open vSwitch, with all ids, while its guest is connected.
    Ports,
    /// A vif whose network device is not where it should be says why, in words.
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

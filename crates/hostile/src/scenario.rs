//! What a scenario consists of.

use anyhow::Result;

use crate::stage::Stage;

/// What a guest does to others, and what must hold all the same.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What the guest does.
    pub what: &'static str,
    /// Where that is from: an advisory, a rule of `netif.h`, or what was seen to harm a backend.
    pub source: &'static str,
    /// The guest's part.
    pub act: fn(&mut Stage) -> Result<()>,
    /// What else goes on during it, or is checked afterwards.
    pub beside: Beside,
    /// Keys that the toolstack writes for the backend, beside the usual ones.
    pub given: &'static [(&'static str, &'static str)],
    /// What must become of the guest's own vif.
    pub own: Own,
    /// What the vif is attached to.
    pub net: Net,
    /// How many guests do it at once.
    pub guests: u8,
    /// Whether domains end and others begin while it lasts.
    pub lives: Lives,
    /// Whether a share is measured, beside a process that burns as much CPU as the guest.
    pub control: Control,
    /// What the honest guests are entitled to while it lasts, in percent of what they have beside
    /// that process.
    pub fair_percent: u8,
    /// Where it can run.
    pub place: Place,
    /// Whether `--quick` has it.
    pub pace: Pace,
    /// Pings from one honest guest to another, or to the host, that may be lost, in percent.
    pub loss_max: u8,
    /// Frames for others that the guest may receive.
    pub overheard_max: Option<u64>,
    /// What is known not to hold so far: a bound that is broken is reported and is no failure.
    pub known: Option<&'static str>,
}

/// What must become of the guest's own vif.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own {
    /// The backend closes it, each time, and says why.
    Closed,
    /// The backend serves it to the end.
    Served,
    /// Whatever the backend does with it.
    Any,
}

/// What the vif is attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Net {
    /// The backend's own switch.
    Switch,
    /// A bridge of the kernel's, as toolstacks have it by default.
    Bridge,
}

/// What else goes on beside a hostile guest, or is checked afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// Nothing.
    Nothing,
    /// A user of the host captures an honest guest's frames and does not read them.
    UnreadCapture,
    /// Honest guests are asked which routers they know: none.
    Routers,
    /// There is no guest: a process that is confined as the backend is does it.
    ConfinedBackend,
}

/// How often the domain of the guest is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lives {
    /// Once.
    One,
    /// Again each time that the guest ends, which is at a moment of its own choice.
    Many,
}

/// What the honest guests are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// With themselves, before.
    Before,
    /// Also with themselves beside a process that burns as much CPU as the guest.
    SameCpu,
}

/// Where a scenario can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In any domain.
    Everywhere,
    /// Only on the emulated hypervisor: it needs what a program in a Xen domain cannot do.
    Emulated,
}

/// How long a scenario takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Also when time is short.
    Quick,
    /// Only when there is time.
    Full,
}

/// Pings that may be lost beside most guests, in percent. Where CPUs are short some are lost in
/// full queues; what this bound finds loses nearly all.
const LOSS_MAX: u8 = 80;

impl Scenario {
    /// One guest on the switch, whose vif may end as it likes.
    pub(crate) const fn new(
        name: &'static str,
        what: &'static str,
        source: &'static str,
        act: fn(&mut Stage) -> Result<()>,
    ) -> Scenario {
        Scenario {
            name,
            what,
            source,
            act,
            beside: Beside::Nothing,
            given: &[],
            own: Own::Any,
            net: Net::Switch,
            guests: 1,
            lives: Lives::One,
            control: Control::Before,
            fair_percent: 100,
            place: Place::Everywhere,
            pace: Pace::Quick,
            loss_max: LOSS_MAX,
            overheard_max: None,
            known: None,
        }
    }

    /// The backend has to close the vif.
    pub(crate) const fn closes(self) -> Scenario {
        Scenario { own: Own::Closed, ..self }
    }

    /// The backend has to serve the vif.
    pub(crate) const fn serves(self) -> Scenario {
        Scenario { own: Own::Served, ..self }
    }

    /// On a bridge.
    pub(crate) const fn on_bridge(self) -> Scenario {
        Scenario { net: Net::Bridge, ..self }
    }

    /// With something else beside it.
    pub(crate) const fn beside(self, beside: Beside) -> Scenario {
        Scenario { beside, ..self }
    }

    /// Another bound for lost pings, in percent.
    pub(crate) const fn loses(self, loss_max: u8) -> Scenario {
        Scenario { loss_max, ..self }
    }

    /// With keys from the toolstack.
    pub(crate) const fn given(self, given: &'static [(&'static str, &'static str)]) -> Scenario {
        Scenario { given, ..self }
    }

    /// By several guests.
    pub(crate) const fn by(self, guests: u8) -> Scenario {
        Scenario { guests, ..self }
    }

    /// In many lives.
    pub(crate) const fn again_and_again(self) -> Scenario {
        Scenario { lives: Lives::Many, ..self }
    }

    /// With a share.
    pub(crate) const fn with_share(self) -> Scenario {
        Scenario { control: Control::SameCpu, ..self }
    }

    /// With a share of half: what the guest sends is legal and never ends, so half of the backend
    /// is the guest's own share.
    pub(crate) const fn with_half_a_share(self) -> Scenario {
        Scenario { fair_percent: 50, ..self.with_share() }
    }

    /// Not in a Xen domain.
    pub(crate) const fn emulated(self) -> Scenario {
        Scenario { place: Place::Emulated, ..self }
    }

    /// Not with `--quick`.
    pub(crate) const fn slow(self) -> Scenario {
        Scenario { pace: Pace::Full, ..self }
    }

    /// The guest must not hear what is for others.
    pub(crate) const fn deaf(self, frames: u64) -> Scenario {
        Scenario { overheard_max: Some(frames), ..self }
    }

    /// What must hold, in words.
    pub fn promise(&self) -> String {
        let own = match self.own {
            Own::Closed => "its vif is closed with a reason, ",
            Own::Served => "its vif is served on, ",
            Own::Any => "",
        };
        let deaf = match self.overheard_max {
            Some(0) => ", it hears no frame for others".to_owned(),
            Some(frames) => format!(", it hears at most {frames} frames for others"),
            None => String::new(),
        };
        format!("{own}no other vif is closed, the backend is not restarted{deaf}")
    }
}

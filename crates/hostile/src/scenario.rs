//! The description of a scenario.

use anyhow::Result;

use crate::stage::Stage;

/// An attack by a guest, and the bounds that must hold during it.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// The attack.
    pub what: &'static str,
    /// The source: an advisory, a rule of `netif.h`, or an observed failure of a backend.
    pub source: &'static str,
    /// The guest's code.
    pub act: fn(&mut Stage) -> Result<()>,
    /// What else happens during the attack, or is checked afterwards.
    pub beside: Beside,
    /// Keys that the toolstack writes for the backend, besides the usual ones.
    pub given: &'static [(&'static str, &'static str)],
    /// What must happen to the guest's own vif.
    pub own: Own,
    /// What the vif is attached to.
    pub net: Net,
    /// The number of simultaneous guests.
    pub guests: u8,
    /// Whether domains end and others begin during the attack.
    pub lives: Lives,
    /// Whether a share is measured, against a process that burns as much CPU as the guest.
    pub control: Control,
    /// What honest guests are entitled to during the attack, in percent of their throughput beside
    /// that process.
    pub fair_percent: u8,
    /// Where it can run.
    pub place: Place,
    /// Whether `--quick` includes it.
    pub pace: Pace,
    /// The most pings, from one honest guest to another or to the host, that may be lost, in
    /// percent.
    pub loss_max: u8,
    /// The most frames for others that the guest may receive.
    pub overheard_max: Option<u64>,
    /// A bound that is known to be broken: it is reported and is no failure.
    pub known: Option<&'static str>,
}

/// What must happen to the vif of the hostile end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own {
    /// The other end closes it, each time, and reports why.
    Closed,
    /// The other end stays connected to the last.
    Served,
    /// Anything.
    Any,
}

/// What the vif is attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Net {
    /// The backend's own switch.
    Switch,
    /// A kernel bridge, the default of toolstacks.
    Bridge,
}

/// What else happens beside a hostile guest, or is checked afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// Nothing.
    Nothing,
    /// A user of the host captures an honest guest's frames and does not read them.
    UnreadCapture,
    /// Honest guests must have accepted no routers.
    Routers,
    /// There is no guest: a process that is confined like the backend makes the attack.
    ConfinedBackend,
}

/// How often the guest's domain is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lives {
    /// Once.
    One,
    /// Again each time that the guest ends, at a moment of its own choice.
    Many,
}

/// What the measurements of honest guests are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Their own before the attack.
    Before,
    /// Also their own beside a process that burns as much CPU as the guest.
    SameCpu,
}

/// Where a scenario can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In any domain.
    Everywhere,
    /// Only on the emulated hypervisor: it needs something that a program in a Xen domain cannot
    /// do.
    Emulated,
}

/// The duration of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Short enough for quick runs.
    Quick,
    /// Only for full runs.
    Full,
}

/// The rows of a catalogue. Each has a name, the code, what is special about it, what it does, and
/// the source.
macro_rules! rows {
    ($kind:ident: $(
        $name:literal, $act:path $(, $(.$how:ident($($with:tt)*))+)?:
            $what:literal, $source:literal;
    )*) => {
        &[$($kind::new($name, $what, $source, $act)$($(.$how($($with)*))+)?,)*]
    };
}
pub(crate) use rows;

/// The most pings that may be lost beside most guests, in percent. On a machine short of CPUs some
/// are lost in full queues; the failures that this bound is for lose nearly all.
const LOSS_MAX: u8 = 80;

impl Scenario {
    /// One guest on the switch, whose vif may end in any way.
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

    /// The backend must close the vif.
    pub(crate) const fn closes(self) -> Scenario {
        Scenario { own: Own::Closed, ..self }
    }

    /// The backend must serve the vif.
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

    /// With several guests.
    pub(crate) const fn by(self, guests: u8) -> Scenario {
        Scenario { guests, ..self }
    }

    /// With many lives.
    pub(crate) const fn again_and_again(self) -> Scenario {
        Scenario { lives: Lives::Many, ..self }
    }

    /// With a share.
    pub(crate) const fn with_share(self) -> Scenario {
        Scenario { control: Control::SameCpu, ..self }
    }

    /// With a fair share of half: the guest's traffic is legal and never ends, so half of the
    /// backend is the guest's own share.
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

    /// The guest must receive at most this many frames for others.
    pub(crate) const fn deaf(self, frames: u64) -> Scenario {
        Scenario { overheard_max: Some(frames), ..self }
    }

    /// The bounds, in words.
    pub fn promise(&self) -> String {
        let own = match self.own {
            Own::Closed => "its vif is closed with a reason, ",
            Own::Served => "its vif stays served, ",
            Own::Any => "",
        };
        let deaf = match self.overheard_max {
            Some(0) => ", it receives no frame for others".to_owned(),
            Some(frames) => format!(", it receives at most {frames} frames for others"),
            None => String::new(),
        };
        format!("{own}no other vif is closed, the backend is not restarted{deaf}")
    }
}

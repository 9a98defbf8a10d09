//! What vifs, and the sides of queues, wait for, in words.

use std::time::{Duration, Instant};

use ringway_calls::{RefusalsStatus, WaitStatus};
use ringway_datapath::{WaitCell, WaitReason};
use ringway_switch::PortId;
use ringway_vif_shell::{BackendEnd, EndWait};

use crate::quarantine::{Charged, Quarantine};

/// What the status of a port's waits is made from.
pub(crate) struct Waits<'a> {
    pub(crate) now: Instant,
    pub(crate) name_of: &'a dyn Fn(PortId) -> String,
    pub(crate) receiver: Receiver,
}

/// What is behind a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receiver {
    /// A guest, whose network device is this port, if it is not on the switch.
    Guest(Option<PortId>),
    /// The host's network, or a process of ringway's.
    Other,
}

impl Waits<'_> {
    /// What a side of a queue waits for.
    pub(crate) fn status(&self, cell: &WaitCell) -> Option<WaitStatus> {
        let (reason, since) = cell.get()?;
        let milliseconds = milliseconds(self.now.saturating_duration_since(since));
        Some(WaitStatus { milliseconds, ..self.of(reason) })
    }

    fn of(&self, reason: WaitReason) -> WaitStatus {
        match (reason, self.receiver) {
            (WaitReason::NoRoom, Receiver::Guest(_)) => {
                wait("no_buffers", "its guest posts no buffers")
            }
            (WaitReason::NoRoom, Receiver::Other) => wait("no_room", "it takes no more frames"),
            (WaitReason::Port(port), Receiver::Guest(Some(device))) if port == device => {
                wait("no_room", "its network device has no room")
            }
            (WaitReason::Port(port), _) => {
                let name = (self.name_of)(port);
                let reason = format!("{name} has no room");
                WaitStatus { at: Some(name), ..wait("no_room", &reason) }
            }
            (WaitReason::Rate, _) => wait("rate", "it has used up its rate"),
            (WaitReason::Segments, _) => {
                wait("segments", "its frames ask for more segments than are cut at once")
            }
            (WaitReason::Another, _) => {
                wait("behind", "a worker, or a guest on its bridge, is behind")
            }
            (WaitReason::NoMemory, _) => wait("no_memory", "there is no memory for frames"),
        }
    }
}

fn wait(kind: &str, reason: &str) -> WaitStatus {
    WaitStatus { kind: kind.to_owned(), reason: reason.to_owned(), ..WaitStatus::default() }
}

fn milliseconds(waited: Duration) -> u64 {
    u64::try_from(waited.as_millis()).unwrap_or(u64::MAX)
}

/// What the backend's end of a vif waits for.
pub(crate) fn of_end(end: &BackendEnd, now: Instant) -> impl Iterator<Item = WaitStatus> {
    end.waits(now).map(move |(awaited, since)| {
        let said = match awaited {
            EndWait::Script => wait(
                "script",
                "the toolstack's hotplug script has not reported that its device is connected",
            ),
            EndWait::Resources => {
                wait("resources", "this host lacks what it needs, and tries again")
            }
            EndWait::Keys => wait("keys", "its guest changes its keys faster than they are read"),
        };
        WaitStatus { milliseconds: milliseconds(now.saturating_duration_since(since)), ..said }
    })
}

/// What XenStore has refused the backend's end of a vif.
pub(crate) fn refusals(end: &BackendEnd, now: Instant) -> Option<RefusalsStatus> {
    let refusals = end.refusals()?;
    let milliseconds = milliseconds(now.saturating_duration_since(refusals.at));
    Some(RefusalsStatus { count: refusals.count, last: refusals.last.to_string(), milliseconds })
}

/// For how long a vif has been in quarantine at this time, and still will be.
pub(crate) fn of_quarantine(
    quarantine: &Quarantine,
    vif: &Charged,
    seconds: u64,
) -> Option<WaitStatus> {
    let [since, left] = quarantine.times(vif, seconds)?;
    let reason = format!("it is quarantined for {} more minutes", left.as_secs().div_ceil(60));
    Some(WaitStatus { milliseconds: milliseconds(since), ..wait("quarantine", &reason) })
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_wait_has_a_kind_for_scripts_and_the_port_without_room() {
        let name_of = |port: PortId| format!("vif{port}.0");
        let (cell, since) = (WaitCell::default(), Instant::now());
        let status = |receiver, reason| {
            cell.set(reason, since);
            let now = since + Duration::from_millis(1234);
            let wait = Waits { now, name_of: &name_of, receiver }.status(&cell);
            let WaitStatus { kind, at, reason, milliseconds } = wait.expect("it waits");
            assert_eq!(milliseconds, 1234);
            cell.clear();
            (kind, at, reason)
        };
        let (on_switch, on_bridge) = (Receiver::Guest(None), Receiver::Guest(Some(PortId(8))));
        for (receiver, reason, kind, at, text) in [
            (on_switch, WaitReason::NoRoom, "no_buffers", None, "its guest posts no buffers"),
            (Receiver::Other, WaitReason::NoRoom, "no_room", None, "it takes no more frames"),
            (
                on_switch,
                WaitReason::Port(PortId(8)),
                "no_room",
                Some("vif8.0"),
                "vif8.0 has no room",
            ),
            (
                on_bridge,
                WaitReason::Port(PortId(7)),
                "no_room",
                Some("vif7.0"),
                "vif7.0 has no room",
            ),
            (
                on_bridge,
                WaitReason::Port(PortId(8)),
                "no_room",
                None,
                "its network device has no room",
            ),
            (on_switch, WaitReason::Rate, "rate", None, "it has used up its rate"),
        ] {
            let expected = (kind.to_owned(), at.map(str::to_owned), text.to_owned());
            assert_eq!(status(receiver, reason), expected);
        }
        let kinds = [WaitReason::Segments, WaitReason::Another, WaitReason::NoMemory];
        let kinds = kinds.map(|reason| status(on_switch, reason).0);
        assert_eq!(kinds, ["segments", "behind", "no_memory"]);
    }
}

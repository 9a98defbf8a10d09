//! Checks whether queues carried what their streams measured, and describes how often their number
//! changed.

use ringway_stats::float;

use crate::counters::Counted;
use crate::record::{QueueUse, Run, Stream};
use crate::setup::Setup;
use crate::study::Subject;
use crate::topology::Blueprint;

/// A queue with streams carries at least this fraction of what they measured. A queue without
/// streams carries at most the remaining fraction of all bytes: acknowledgements and ARP.
const QUEUE_SHARE_MIN: f64 = 0.5;
const QUEUE_SHARE_MAX: f64 = 0.1;

/// The queues that carry a stream, and the direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carrier {
    /// The queues of its guest's vif; the guest sends.
    GuestTx,
    /// The queues of its guest's vif; the guest receives.
    GuestRx,
    /// The queues of the router's first vif, which receives all streams.
    RouterRx,
}

impl Carrier {
    pub(super) fn of(blueprint: &Blueprint, is_receiving: bool) -> Carrier {
        match (blueprint.kind, is_receiving) {
            (kind, _) if kind.has_router() => Carrier::RouterRx,
            (_, true) => Carrier::GuestRx,
            (_, false) => Carrier::GuestTx,
        }
    }

    fn has(self, stream: &Stream, vif: usize) -> bool {
        match self {
            Carrier::RouterRx => vif == 0,
            _ => usize::try_from(stream.guest) == Ok(vif),
        }
    }

    fn bytes(self, queue: &QueueUse) -> f64 {
        let bytes = if self == Carrier::GuestTx { queue.tx_bytes } else { queue.rx_bytes };
        float(usize::try_from(bytes).unwrap_or(usize::MAX))
    }
}

/// Compares the expected queues of streams with what the queues carried.
pub(super) fn unexpected(run: &Run, counted: &Counted, carrier: Carrier) -> Option<String> {
    let is_known = |stream: &Stream| stream.queue.is_some() && stream.bps.is_some();
    if run.subject != Subject::Ringway || !run.streams.iter().all(is_known) {
        return None;
    }
    // Measured guests are created first, so their vifs come first.
    let mut vifs: Vec<&str> = counted.queues.iter().map(|queue| queue.vif.as_str()).collect();
    vifs.dedup();
    let bytes_of = |streams: &mut dyn Iterator<Item = &Stream>| {
        streams.filter_map(|stream| stream.bps).map(|bps| bps * counted.seconds / 8.0).sum::<f64>()
    };
    let all = bytes_of(&mut run.streams.iter());
    let is_odd = |queue: &&QueueUse| {
        let Some(vif) = vifs.iter().position(|vif| *vif == queue.vif) else { return false };
        let own: Vec<&Stream> = run.streams.iter().filter(|s| carrier.has(s, vif)).collect();
        let here = own.iter().copied().filter(|stream| stream.queue == Some(queue.index));
        let expected = bytes_of(&mut here.clone());
        let carried = carrier.bytes(queue);
        !own.is_empty()
            && (carried < expected * QUEUE_SHARE_MIN
                || (expected == 0.0 && carried > all * QUEUE_SHARE_MAX))
    };
    let odd = counted.queues.iter().find(is_odd)?;
    Some(format!("queue {} of {} did not carry what its streams report", odd.index, odd.vif))
}

/// The note about changes of the number of queues: how many there were while streams ran, and how
/// many the set-up asks for.
pub(super) fn changes(changed: usize, setup: &Setup, other: u16) -> String {
    let Setup { queues, queue_changes, .. } = setup;
    let is_short = changed < usize::from(*queue_changes);
    let why = if is_short { "; the run was too short for the others" } else { "" };
    format!(
        "ethtool -L changed the queues of both interfaces {changed} times while streams ran \
         (queue-changes = {queue_changes}), between {queues} and {other}{why}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::shipped;

    #[test]
    fn a_note_has_the_number_of_changes_and_the_number_that_was_asked_for() {
        let study = shipped("network-node").expect("it is shipped");
        let cell = study.cell_of_label("t6.q1.ethtool").expect("a cell");
        let setup = Setup::of(&study, &cell).expect("it is one");
        assert_eq!(
            changes(2, &setup, 2),
            "ethtool -L changed the queues of both interfaces 2 times while streams ran \
             (queue-changes = 4), between 1 and 2; the run was too short for the others"
        );
        let all = changes(4, &setup, 2);
        assert!(all.contains("4 times") && all.ends_with("(queue-changes = 4), between 1 and 2"));
    }
}

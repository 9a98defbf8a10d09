//! The states of a queue's two sides, and the transitions between them.
//!
//! Only [`Ingress::on`] and [`Egress::on`] change a side's state; both are pure functions. In each
//! round, the engine polls a queue unless it is [`Ingress::Armed`], and sends its frames unless it
//! is [`Egress::Empty`]. A queue that had no frames for many rounds in which others had work is
//! armed, so that it costs nothing.
//!
//! The receiving side, by which frames enter the switch. An empty cell means no change:
//!
//! | event | `Polling` | `Armed` | `Held` | `Unpaid` | `Starved` |
//! |---|---|---|---|---|---|
//! | `Woken` | | `Polling` | | | |
//! | `Pressure` | `Held` | | | | `Held` |
//! | `Relieved` | | | `Polling` | | |
//! | `OutOfCredit` | `Unpaid` | | | `Unpaid` until the new time | |
//! | `Due` | | | `Polling` | `Polling` | `Polling` |
//! | `NoBuffer` | `Starved` | | | | |
//! | `Idle` | `Armed` | | | | |
//! | `Restart` | | `Polling` | `Polling` | `Polling` | `Polling` |
//!
//! A queue that is held, unpaid or starved does not wait for an event, so an event of its
//! descriptor changes nothing. `Idle` requires that arming the queue found no work. Only
//! [`Ingress::Polling`] can become `Armed`, so a pool without buffers never leads to sleep.
//!
//! The sending side, by which frames leave the switch:
//!
//! | state | `Enqueued` | `Sent`, all | `Sent`, some | `Sent`, none |
//! |---|---|---|---|---|
//! | `Empty` | `Draining` since now | | | |
//! | `Draining` | | `Empty` | `Draining` since now | `Stalled` once [`STALL`] is over |
//! | `Stalled` | | `Empty` | `Draining` since now | |

use std::sync::Arc;
use std::time::Instant;

use crate::gauge::{Gauge, STALL};

/// What the receiving side of a queue does.
#[derive(Debug, Clone, Default)]
pub enum Ingress {
    /// It is polled for frames in each round.
    #[default]
    Polling,
    /// It has no frames, and will send an event when it has.
    Armed,
    /// A destination queue is full: nothing enters until its pressure falls.
    Held {
        /// The gauge of the destination queue.
        gauge: Arc<Gauge>,
        /// When the wait ends, unless it is unlimited.
        until: Option<Instant>,
    },
    /// Its port has used up its credit: nothing enters before `until`.
    Unpaid {
        /// When there is credit again.
        until: Instant,
    },
    /// The pool had no buffer for its frames.
    Starved,
}

/// What happens to the receiving side.
#[derive(Debug, Clone)]
pub enum IngressEvent {
    /// An event of the queue came.
    Woken,
    /// A frame met pressure.
    Pressure {
        /// The gauge of the queue that the frame is for.
        gauge: Arc<Gauge>,
        /// When the wait ends, unless it is unlimited.
        until: Option<Instant>,
    },
    /// The gauge that held it no longer has pressure.
    Relieved,
    /// Its port has no credit before `until`.
    OutOfCredit {
        /// When there is credit again.
        until: Instant,
    },
    /// Its wait, for whatever reason, is over: it tries again.
    Due,
    /// The pool had no buffer.
    NoBuffer,
    /// It was armed, and there was no work.
    Idle,
    /// It has a new owner or a new limit: the reason to wait is evaluated again.
    Restart,
}

impl Ingress {
    /// The state that follows.
    #[must_use]
    pub fn on(self, event: IngressEvent) -> Ingress {
        use IngressEvent as Event;
        match (self, event) {
            (_, Event::Restart)
            | (Ingress::Armed, Event::Woken)
            | (Ingress::Held { .. }, Event::Relieved | Event::Due)
            | (Ingress::Unpaid { .. } | Ingress::Starved, Event::Due) => Ingress::Polling,
            (Ingress::Polling | Ingress::Starved, Event::Pressure { gauge, until }) => {
                Ingress::Held { gauge, until }
            }
            (Ingress::Polling | Ingress::Unpaid { .. }, Event::OutOfCredit { until }) => {
                Ingress::Unpaid { until }
            }
            (Ingress::Polling, Event::NoBuffer) => Ingress::Starved,
            (Ingress::Polling, Event::Idle) => Ingress::Armed,
            (state, _) => state,
        }
    }

    /// The event that ends its wait, if there is one.
    pub fn due(&self, now: Instant) -> Option<IngressEvent> {
        match self {
            Ingress::Held { gauge, .. } if !gauge.has_pressure() => Some(IngressEvent::Relieved),
            Ingress::Held { until: Some(until), .. } | Ingress::Unpaid { until }
                if *until <= now =>
            {
                Some(IngressEvent::Due)
            }
            _ => None,
        }
    }
}

/// What the sending side of a queue does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Egress {
    /// Nothing waits to leave.
    #[default]
    Empty,
    /// Frames wait.
    Draining {
        /// When the first frame was enqueued, or a frame last left.
        since: Instant,
    },
    /// Frames wait, and none has left for so long that sources are no longer held.
    Stalled {
        /// When the first frame was enqueued, or a frame last left.
        since: Instant,
    },
}

/// What happens to the sending side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EgressEvent {
    /// Frames were added.
    Enqueued,
    /// The queue was called to send.
    Sent {
        /// Frames that left.
        moved: usize,
        /// Frames that wait.
        left: usize,
    },
}

impl Egress {
    /// The state that follows.
    #[must_use]
    pub fn on(self, event: EgressEvent, now: Instant) -> Egress {
        match (self, event) {
            (_, EgressEvent::Sent { left: 0, .. }) => Egress::Empty,
            (Egress::Empty, EgressEvent::Enqueued) => Egress::Draining { since: now },
            (_, EgressEvent::Sent { moved: 1.., .. }) => Egress::Draining { since: now },
            (Egress::Draining { since }, EgressEvent::Sent { moved: 0, .. })
                if now.saturating_duration_since(since) >= STALL =>
            {
                Egress::Stalled { since }
            }
            (state, _) => state,
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Every state, with its name in the table.
    fn states(now: Instant) -> [(&'static str, Ingress); 5] {
        [
            ("Polling", Ingress::Polling),
            ("Armed", Ingress::Armed),
            ("Held", Ingress::Held { gauge: Arc::default(), until: None }),
            ("Unpaid", Ingress::Unpaid { until: now }),
            ("Starved", Ingress::Starved),
        ]
    }

    fn events(now: Instant) -> [IngressEvent; 8] {
        [
            IngressEvent::Woken,
            IngressEvent::Pressure { gauge: Arc::default(), until: None },
            IngressEvent::Relieved,
            IngressEvent::OutOfCredit { until: now },
            IngressEvent::Due,
            IngressEvent::NoBuffer,
            IngressEvent::Idle,
            IngressEvent::Restart,
        ]
    }

    fn name(state: &Ingress) -> &'static str {
        match state {
            Ingress::Polling => "Polling",
            Ingress::Armed => "Armed",
            Ingress::Held { .. } => "Held",
            Ingress::Unpaid { .. } => "Unpaid",
            Ingress::Starved => "Starved",
        }
    }

    #[test]
    fn ingress_transitions_match_the_table() {
        let now = Instant::now();
        // Rows in the order of `states`, columns in that of `events`.
        let table = [
            ["", "Held", "", "Unpaid", "", "Starved", "Armed", "Polling"],
            ["Polling", "", "", "", "", "", "", "Polling"],
            ["", "", "Polling", "", "Polling", "", "", "Polling"],
            ["", "", "", "Unpaid", "Polling", "", "", "Polling"],
            ["", "Held", "", "", "Polling", "", "", "Polling"],
        ];
        for ((from, state), row) in states(now).into_iter().zip(table) {
            for (event, to) in events(now).into_iter().zip(row) {
                let expected = if to.is_empty() { from } else { to };
                assert_eq!(name(&state.clone().on(event.clone())), expected, "{from}: {event:?}");
            }
        }
    }

    #[test]
    fn a_queue_without_buffers_never_waits_for_an_event() {
        // Its descriptor is edge-triggered: it would never report frames left behind.
        let starved = Ingress::Polling.on(IngressEvent::NoBuffer);
        assert_eq!(name(&starved.clone().on(IngressEvent::Idle)), "Starved");
        assert_eq!(name(&starved.on(IngressEvent::Due)), "Polling");
    }

    #[test]
    fn a_frame_for_a_held_queue_does_not_wake_it() {
        let gauge = Arc::new(Gauge::default());
        gauge.raise();
        let pressure = IngressEvent::Pressure { gauge: Arc::clone(&gauge), until: None };
        let held = Ingress::Polling.on(pressure);
        assert_eq!(name(&held.clone().on(IngressEvent::Woken)), "Held");
        assert_eq!(name(&held.clone().on(IngressEvent::Idle)), "Held");
        assert!(held.due(Instant::now()).is_none());
        gauge.lower();
        assert!(matches!(held.due(Instant::now()), Some(IngressEvent::Relieved)));
    }

    #[test]
    fn a_hold_ends_at_its_limit() {
        let now = Instant::now();
        let gauge = Arc::new(Gauge::default());
        gauge.raise();
        let until = Some(now + Duration::from_millis(50));
        let held = Ingress::Polling.on(IngressEvent::Pressure { gauge, until });
        assert!(held.due(now + Duration::from_millis(49)).is_none());
        let late = held.due(now + Duration::from_millis(50)).expect("it has waited long enough");
        assert_eq!(name(&held.on(late)), "Polling");
    }

    #[test]
    fn a_moved_queue_waits_for_nothing_of_its_old_owner() {
        for (from, state) in states(Instant::now()) {
            assert_eq!(name(&state.on(IngressEvent::Restart)), "Polling", "{from}");
        }
    }

    #[test]
    fn a_queue_without_credit_waits_only_for_its_time() {
        let now = Instant::now();
        let until = now + Duration::from_millis(5);
        let unpaid = Ingress::Polling.on(IngressEvent::OutOfCredit { until });
        assert!(unpaid.due(now).is_none());
        assert!(matches!(unpaid.due(until), Some(IngressEvent::Due)));
    }

    #[test]
    fn egress_stalls_when_nothing_leaves_and_recovers_with_the_first_frame() {
        let start = Instant::now();
        let sent = |moved, left| EgressEvent::Sent { moved, left };
        let draining = Egress::Empty.on(EgressEvent::Enqueued, start);
        assert_eq!(draining, Egress::Draining { since: start });
        let soon = start + STALL - Duration::from_nanos(1);
        assert_eq!(draining.on(sent(0, 3), soon), draining);
        // Enqueuing more frames is not progress.
        assert_eq!(draining.on(EgressEvent::Enqueued, soon), draining);
        let stalled = draining.on(sent(0, 3), start + STALL);
        assert_eq!(stalled, Egress::Stalled { since: start });
        let later = start + 10 * STALL;
        // Repeated attempts change nothing: it waits for an event, not for time.
        assert_eq!(stalled.on(sent(0, 3), later), stalled);
        assert_eq!(stalled.on(EgressEvent::Enqueued, later), stalled);
        assert_eq!(stalled.on(sent(1, 2), later), Egress::Draining { since: later });
        assert_eq!(stalled.on(sent(3, 0), later), Egress::Empty);
        assert_eq!(draining.on(sent(0, 0), later), Egress::Empty);
    }
}

//! Serves vifs round robin.
//!
//! An event of a vif is only recorded when it arrives, once per vif, however often it occurs. Then
//! the vifs are served in turn: a guest that causes events as fast as it can gets no more turns
//! than others.

use std::collections::{BTreeMap, VecDeque};

use ringway_xenbus::Vif;

/// The vifs with pending events, in the order in which they are served.
#[derive(Debug, Default)]
pub(crate) struct RoundRobin {
    order: VecDeque<Vif>,
    events: BTreeMap<Vif, VifEvents>,
}

/// The pending events of a vif.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VifEvents {
    /// The toolstack may have created, changed or removed it.
    pub(crate) has_device_changed: bool,
    /// The backend's own state was written, not by the backend.
    pub(crate) was_own_state_written: bool,
    /// The frontend's state may have changed.
    pub(crate) has_frontend_changed: bool,
    /// Deferred work is due.
    pub(crate) is_due: bool,
}

impl RoundRobin {
    /// Notes an event of a vif, which gets a turn if it has none yet.
    pub(crate) fn note(&mut self, vif: Vif, record: impl FnOnce(&mut VifEvents)) {
        let events = self.events.entry(vif).or_insert_with(|| {
            self.order.push_back(vif);
            VifEvents::default()
        });
        record(events);
    }

    /// The next vif, with all its pending events.
    pub(crate) fn next(&mut self) -> Option<(Vif, VifEvents)> {
        let vif = self.order.pop_front()?;
        Some((vif, self.events.remove(&vif).unwrap_or_default()))
    }

    /// The next vif, if it is like this.
    pub(crate) fn next_if(&mut self, is_it: impl FnOnce(&Vif, &VifEvents) -> bool) -> Option<Vif> {
        let vif = self.order.front()?;
        self.events.get(vif).filter(|events| is_it(vif, events))?;
        self.next().map(|(vif, _)| vif)
    }

    /// Whether no vif has a turn.
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use ringway_wire::DomId;

    use super::*;

    #[test]
    fn a_vif_with_many_events_gets_no_more_turns_than_others() {
        let vif = |guest| Vif { backend: DomId(0), frontend: DomId(guest), handle: 0 };
        let mut turns = RoundRobin::default();
        for _ in 0..1000 {
            turns.note(vif(1), |events| events.has_frontend_changed = true);
            turns.note(vif(1), |events| events.is_due = true);
        }
        turns.note(vif(2), |events| events.has_device_changed = true);
        let (first, events) = turns.next().expect("two have turns");
        assert_eq!((first, events.has_frontend_changed, events.is_due), (vif(1), true, true));
        turns.note(vif(1), |events| events.has_frontend_changed = true);
        let expected = VifEvents { has_device_changed: true, ..VifEvents::default() };
        let has_frontend = |_: &Vif, events: &VifEvents| events.has_frontend_changed;
        assert_eq!(turns.next_if(has_frontend), None, "it keeps its turn");
        assert_eq!(turns.next(), Some((vif(2), expected)));
        assert_eq!(turns.next_if(has_frontend), Some(vif(1)));
        assert!(turns.is_empty());
    }
}

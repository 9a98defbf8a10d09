//! Turns of vifs.
//!
//! An event of a vif is only noted when it arrives, once per vif, however often it occurs. Then the
//! vifs are served in turn: a guest that causes events as fast as it can gets no more turns than
//! others.

use std::collections::{BTreeMap, VecDeque};

use ringway_xenbus::Vif;

/// The vifs with pending events, in the order in which they are served.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    order: VecDeque<Vif>,
    news: BTreeMap<Vif, News>,
}

/// The pending events of a vif.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct News {
    /// The toolstack may have created, changed or removed it.
    pub(crate) has_device_changed: bool,
    /// The backend's own state was written, not by the backend.
    pub(crate) was_own_state_written: bool,
    /// The frontend's state may have changed.
    pub(crate) has_frontend_changed: bool,
    /// Deferred work is due.
    pub(crate) is_due: bool,
}

impl Turns {
    /// Notes an event of a vif, which gets a turn if it has none yet.
    pub(crate) fn note(&mut self, vif: Vif, happen: impl FnOnce(&mut News)) {
        let news = self.news.entry(vif).or_insert_with(|| {
            self.order.push_back(vif);
            News::default()
        });
        happen(news);
    }

    /// The next vif, with all its pending events.
    pub(crate) fn next(&mut self) -> Option<(Vif, News)> {
        let vif = self.order.pop_front()?;
        Some((vif, self.news.remove(&vif).unwrap_or_default()))
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
    fn a_vif_to_which_much_happens_has_one_turn_for_each_of_the_others() {
        let vif = |guest| Vif { backend: DomId(0), frontend: DomId(guest), handle: 0 };
        let mut turns = Turns::default();
        for _ in 0..1000 {
            turns.note(vif(1), |news| news.has_frontend_changed = true);
            turns.note(vif(1), |news| news.is_due = true);
        }
        turns.note(vif(2), |news| news.has_device_changed = true);
        let (first, news) = turns.next().expect("two have turns");
        assert_eq!((first, news.has_frontend_changed, news.is_due), (vif(1), true, true));
        turns.note(vif(1), |news| news.has_frontend_changed = true);
        let expected = News { has_device_changed: true, ..News::default() };
        assert_eq!(turns.next(), Some((vif(2), expected)));
        assert_eq!(turns.next().map(|(vif, _)| vif), Some(vif(1)));
        assert!(turns.is_empty());
    }
}

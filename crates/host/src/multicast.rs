//! The multicast frames that the guest of a Xen vif has ordered, noted for the next process of a
//! backend: the guest orders them only once.
//!
//! Engines carry out the orders, and only the control plane notes them: in turns of the vif, with a
//! [`PAUSE`] between two notes, whatever the guest orders meanwhile. Its responses wait for that.

use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use ringway_datapath::MulticastFilter;
use ringway_netback::MulticastControl;
use ringway_xenbus::{Keys, XenbusState};

use crate::notes::{self, Note, Notes};

/// The shortest time between two notes of a guest's orders. A guest that orders as fast as it can
/// then writes a kilobyte a hundred times in a second.
const PAUSE: Duration = Duration::from_millis(10);

/// What the guest of a vif has ordered, and what is noted of that.
#[derive(Debug)]
pub(crate) struct Ordered {
    filter: Arc<MulticastFilter>,
    /// What its queues change, since it is connected.
    control: Option<Arc<MulticastControl>>,
    /// What the note says.
    noted: String,
    /// When orders may be noted again.
    due: Instant,
    is_logged: bool,
}

impl Ordered {
    /// Nothing, by a guest that has yet to connect.
    pub(crate) fn nothing(now: Instant) -> Ordered {
        Ordered::of(MulticastFilter::default(), String::new(), now)
    }

    /// What an earlier process that has served the vif has noted. Without a note the guest gets all
    /// multicast frames, so that none is missing which it has ordered.
    pub(crate) fn known(name: &str, keys: &Keys, notes: &mut impl Notes, now: Instant) -> Ordered {
        // A toolstack has just made the vif.
        if keys.state() == XenbusState::Initialising {
            notes::forget(&note(name), notes);
        }
        let noted = notes::text_of(&note(name), MulticastFilter::TEXT_LEN_MAX, notes);
        let filter = MulticastFilter::from_text(&noted).unwrap_or_else(MulticastFilter::unknown);
        Ordered::of(filter, noted.trim_end().to_owned(), now)
    }

    fn of(filter: MulticastFilter, noted: String, now: Instant) -> Ordered {
        let filter = Arc::new(filter);
        Ordered { filter, control: None, noted, due: now, is_logged: false }
    }

    /// The frames that the guest wants.
    pub(crate) fn filter(&self) -> &Arc<MulticastFilter> {
        &self.filter
    }

    /// Another frontend connects: it has ordered nothing yet.
    pub(crate) fn begin_again(&mut self) {
        self.filter = Arc::default();
    }

    /// What the queues of a new connection change. `waker` wakes the control plane.
    pub(crate) fn connect(
        &mut self,
        name: &str,
        notes: &mut impl Notes,
        waker: Waker,
    ) -> Arc<MulticastControl> {
        let control = Arc::new(MulticastControl::new(Arc::clone(&self.filter), waker));
        self.control = Some(Arc::clone(&control));
        self.write(name, notes);
        control
    }

    /// When orders are to be noted, if there are any.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.control.as_ref().filter(|control| control.has_unnoted()).map(|_| self.due)
    }

    /// Notes orders, if that is due. Returns true if queues may wait for it.
    pub(crate) fn note(&mut self, name: &str, notes: &mut impl Notes, now: Instant) -> bool {
        let Some(control) = self.control.clone().filter(|_| self.due().is_some_and(|it| it <= now))
        else {
            return false;
        };
        self.due = now + PAUSE;
        control.note(|_| self.write(name, notes));
        true
    }

    fn write(&mut self, name: &str, notes: &mut impl Notes) {
        let text = self.filter.to_string();
        if text == self.noted {
            return;
        }
        let note = note(name);
        // What finds no room is written once there is some. Until then, without a note, the next
        // process gives the guest more than it has ordered, but not less.
        let written = notes.write(&note, text.as_bytes()).or_else(|_| {
            notes.remove(&note)?;
            notes.write(&note, text.as_bytes())
        });
        let Err(error) = written else {
            self.noted = text;
            return;
        };
        self.noted = String::new();
        // A guest may order as much as it likes.
        if !std::mem::replace(&mut self.is_logged, true) {
            let vif = name;
            tracing::warn!(vif, %error, "what its guest has ordered is not noted");
        }
    }
}

/// The note of a vif.
pub(crate) fn note(name: &str) -> Note {
    Note::Multicast(name.to_owned())
}

#[cfg(test)]
mod tests {
    use ringway_datapath::MacAddr;
    use ringway_netback::MulticastOrder;

    use super::*;
    use crate::notes::tests::Kept;

    const GROUP: MacAddr = MacAddr([0x33, 0x33, 0, 0, 0, 1]);

    fn found(state: &str) -> Keys {
        Keys::new("/b", [("state".to_owned(), state.to_owned())])
    }

    fn known(notes: &mut Kept, state: &str) -> Option<Vec<MacAddr>> {
        Ordered::known("vif1.0", &found(state), notes, Instant::now()).filter().addresses()
    }

    #[test]
    fn a_process_knows_what_was_ordered_from_the_one_before_or_passes_all() {
        let mut notes = Kept::default();
        assert_eq!(known(&mut notes, "4"), None);
        let mut ordered = Ordered::nothing(Instant::now());
        ordered.filter().add(GROUP).expect("there is room");
        ordered.connect("vif1.0", &mut notes, Waker::noop().clone());
        assert_eq!(known(&mut notes, "4"), Some(vec![GROUP]));
        // A shorter note leaves the rest of the longer one.
        ordered.begin_again();
        ordered.connect("vif1.0", &mut notes, Waker::noop().clone());
        assert_eq!(known(&mut notes, "4"), Some(Vec::new()));
        // A toolstack has just made it, with the name of an earlier one.
        assert_eq!(known(&mut notes, "1"), None);
        assert_eq!(known(&mut notes, "4"), None, "the note is gone");
    }

    #[test]
    fn what_a_guest_orders_within_a_pause_is_noted_together() {
        let group = |number| MacAddr([0x33, 0x33, 0, 0, 0, number]);
        let (mut notes, start) = (Kept::default(), Instant::now());
        let mut ordered = Ordered::nothing(start);
        let control = ordered.connect("vif1.0", &mut notes, Waker::noop().clone());
        assert_eq!(ordered.due(), None);
        let order = |number| {
            let order = MulticastOrder::Add(group(number));
            control.carry_out(order).expect("there is room");
            control.end_batch();
        };
        order(1);
        assert_eq!(ordered.due(), Some(start));
        assert!(ordered.note("vif1.0", &mut notes, start));
        assert_eq!((known(&mut notes, "4"), ordered.due()), (Some(vec![group(1)]), None));
        (2..=4).for_each(order);
        let (soon, due) = (start + PAUSE / 2, start + PAUSE);
        assert!(!ordered.note("vif1.0", &mut notes, soon));
        assert_eq!((known(&mut notes, "4"), ordered.due()), (Some(vec![group(1)]), Some(due)));
        assert!(ordered.note("vif1.0", &mut notes, due));
        assert_eq!(known(&mut notes, "4"), Some((1..=4).map(group).collect()));
        assert!(!control.has_unnoted());
    }

    #[test]
    fn a_disk_without_room_keeps_no_note_that_is_too_short() {
        let mut notes = Kept::default();
        let mut ordered = Ordered::nothing(Instant::now());
        ordered.connect("vif1.0", &mut notes, Waker::noop().clone());
        assert_eq!(known(&mut notes, "4"), Some(Vec::new()));
        ordered.filter().add(GROUP).expect("there is room");
        notes.is_full = true;
        ordered.connect("vif1.0", &mut notes, Waker::noop().clone());
        assert_eq!(known(&mut notes, "4"), None);
        notes.is_full = false;
        ordered.connect("vif1.0", &mut notes, Waker::noop().clone());
        assert_eq!(known(&mut notes, "4"), Some(vec![GROUP]));
    }
}

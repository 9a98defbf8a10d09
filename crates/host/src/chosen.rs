//! What the guest of a Xen vif chooses by requests, noted for the next process of a backend: the
//! guest says only once which multicast frames it gets and how frames to it are steered.
//!
//! Engines carry that out, and only the control plane notes it: in turns of the vif, with a
//! [`PAUSE`] between two notes, whatever the guest chooses meanwhile. Its responses wait for that.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use ringway_datapath::MulticastFilter;
use ringway_netback::{Changes, MulticastControl};
use ringway_steering::control::{HashControl, TEXT_LEN_MAX};
use ringway_xenbus::{Keys, XenbusState};

use crate::notes::{self, Note, Notes};

/// The shortest time between two notes of what a guest chooses. One that does so as fast as it can
/// then has a kilobyte written a hundred times in a second.
const PAUSE: Duration = Duration::from_millis(10);

/// What the guest of a vif has chosen, and what is noted of that.
#[derive(Debug)]
pub(crate) struct Chosen {
    /// The multicast frames that it has ordered.
    filter: Arc<MulticastFilter>,
    /// How frames to it are steered.
    hashing: Arc<Mutex<HashControl>>,
    /// What its queues change, since it is connected.
    changes: Option<Arc<Changes>>,
    /// What the note of each says.
    noted: [String; 2],
    /// When changes may be noted again.
    due: Instant,
    is_logged: bool,
}

impl Chosen {
    /// Nothing, by a guest that has yet to connect.
    pub(crate) fn nothing(now: Instant) -> Chosen {
        Chosen::of(MulticastFilter::default(), String::new(), HashControl::default(), now)
    }

    /// What an earlier process that has served the vif has noted. Without a note the guest gets all
    /// multicast frames, so that none is missing which it has ordered.
    pub(crate) fn known(name: &str, keys: &Keys, notes: &mut impl Notes, now: Instant) -> Chosen {
        // A toolstack has just made the vif.
        if keys.state() == XenbusState::Initialising {
            forget(name, notes);
        }
        let [of_filter, of_hashing] = notes_of(name);
        let noted = notes::text_of(&of_filter, MulticastFilter::TEXT_LEN_MAX, notes);
        let filter = MulticastFilter::from_text(&noted).unwrap_or_else(MulticastFilter::unknown);
        let hashing = HashControl::from_text(&notes::text_of(&of_hashing, TEXT_LEN_MAX, notes));
        Chosen::of(filter, noted.trim_end().to_owned(), hashing.unwrap_or_default(), now)
    }

    fn of(filter: MulticastFilter, noted: String, hashing: HashControl, now: Instant) -> Chosen {
        let noted = [noted, hashing.to_string()];
        let (filter, hashing) = (Arc::new(filter), Arc::new(Mutex::new(hashing)));
        Chosen { filter, hashing, changes: None, noted, due: now, is_logged: false }
    }

    /// The multicast frames that the guest wants.
    pub(crate) fn filter(&self) -> &Arc<MulticastFilter> {
        &self.filter
    }

    /// How frames to it are steered.
    pub(crate) fn hashing(&self) -> &Arc<Mutex<HashControl>> {
        &self.hashing
    }

    /// Another frontend connects: it has ordered nothing yet.
    pub(crate) fn begin_again(&mut self) {
        self.filter = Arc::default();
    }

    /// What the queues of a new connection change, of both. `waker` wakes the control plane.
    pub(crate) fn connect(
        &mut self,
        name: &str,
        notes: &mut impl Notes,
        waker: Waker,
    ) -> (Arc<MulticastControl>, Arc<Changes>) {
        let changes = Arc::new(Changes::new(waker));
        self.changes = Some(Arc::clone(&changes));
        self.write(name, notes);
        let control =
            MulticastControl { filter: Arc::clone(&self.filter), changes: Arc::clone(&changes) };
        (Arc::new(control), changes)
    }

    /// When changes are to be noted, if there are any.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.changes.as_ref().filter(|changes| changes.has_unnoted()).map(|_| self.due)
    }

    /// Notes changes, if that is due. Returns true if queues may wait for it.
    pub(crate) fn note(&mut self, name: &str, notes: &mut impl Notes, now: Instant) -> bool {
        let Some(changes) = self.changes.clone().filter(|_| self.due().is_some_and(|it| it <= now))
        else {
            return false;
        };
        self.due = now + PAUSE;
        changes.note(|| self.write(name, notes));
        true
    }

    fn write(&mut self, name: &str, notes: &mut impl Notes) {
        let hashing = self.hashing.lock().unwrap_or_else(PoisonError::into_inner).to_string();
        let texts = [self.filter.to_string(), hashing];
        for ((note, text), noted) in notes_of(name).iter().zip(texts).zip(&mut self.noted) {
            let Err(error) = update(note, text, noted, notes) else { continue };
            // A guest may choose as often as it likes.
            if !std::mem::replace(&mut self.is_logged, true) {
                tracing::warn!(vif = name, %error, "what its guest has chosen is not noted");
            }
        }
    }
}

/// Has a note say this, if it does not yet.
fn update(note: &Note, text: String, noted: &mut String, notes: &mut impl Notes) -> io::Result<()> {
    if text == *noted {
        return Ok(());
    }
    // What finds no room is written once there is some. Until then no note is better than one that
    // is wrong: the next process gives the guest more frames than it has ordered, but not less.
    let written = notes.write(note, text.as_bytes()).or_else(|_| {
        let _ = notes.remove(note);
        notes.write(note, text.as_bytes())
    });
    *noted = if written.is_ok() { text } else { String::new() };
    written
}

/// Removes the notes of a vif.
pub(crate) fn forget(name: &str, notes: &mut impl Notes) {
    notes_of(name).iter().for_each(|note| notes::forget(note, notes));
}

/// The notes of a vif: its multicast frames, and how frames are steered.
fn notes_of(name: &str) -> [Note; 2] {
    [Note::Multicast(name.to_owned()), Note::Hashing(name.to_owned())]
}

#[cfg(test)]
mod tests {
    use ringway_datapath::MacAddr;

    use super::*;
    use crate::notes::tests::Kept;

    const GROUP: MacAddr = MacAddr([0x33, 0x33, 0, 0, 0, 1]);

    fn found(state: &str) -> Keys {
        Keys::new("/b", [("state".to_owned(), state.to_owned())])
    }

    fn known(notes: &mut Kept, state: &str) -> Option<Vec<MacAddr>> {
        Chosen::known("vif1.0", &found(state), notes, Instant::now()).filter().addresses()
    }

    #[test]
    fn a_process_knows_what_was_ordered_from_the_one_before_or_passes_all() {
        let mut notes = Kept::default();
        assert_eq!(known(&mut notes, "4"), None);
        let mut chosen = Chosen::nothing(Instant::now());
        chosen.filter().add(GROUP).expect("there is room");
        chosen.connect("vif1.0", &mut notes, Waker::noop().clone());
        assert_eq!(known(&mut notes, "4"), Some(vec![GROUP]));
        // A shorter note leaves the rest of the longer one.
        chosen.begin_again();
        chosen.connect("vif1.0", &mut notes, Waker::noop().clone());
        assert_eq!(known(&mut notes, "4"), Some(Vec::new()));
        // A toolstack has just made it, with the name of an earlier one.
        assert_eq!(known(&mut notes, "1"), None);
        assert_eq!(known(&mut notes, "4"), None, "the note is gone");
    }

    #[test]
    fn what_a_guest_orders_within_a_pause_is_noted_together() {
        let group = |number| MacAddr([0x33, 0x33, 0, 0, 0, number]);
        let (mut notes, start) = (Kept::default(), Instant::now());
        let mut chosen = Chosen::nothing(start);
        let (control, changes) = chosen.connect("vif1.0", &mut notes, Waker::noop().clone());
        assert_eq!(chosen.due(), None);
        let order = |number| {
            control.filter.add(group(number)).expect("there is room");
            changes.add();
        };
        order(1);
        assert_eq!(chosen.due(), Some(start));
        assert!(chosen.note("vif1.0", &mut notes, start));
        assert_eq!((known(&mut notes, "4"), chosen.due()), (Some(vec![group(1)]), None));
        (2..=4).for_each(order);
        let (soon, due) = (start + PAUSE / 2, start + PAUSE);
        assert!(!chosen.note("vif1.0", &mut notes, soon));
        assert_eq!((known(&mut notes, "4"), chosen.due()), (Some(vec![group(1)]), Some(due)));
        assert!(chosen.note("vif1.0", &mut notes, due));
        assert_eq!(known(&mut notes, "4"), Some((1..=4).map(group).collect()));
        assert!(!changes.has_unnoted());
    }

    #[test]
    fn a_disk_without_room_keeps_no_note_that_is_too_short() {
        let mut notes = Kept::default();
        let mut chosen = Chosen::nothing(Instant::now());
        chosen.connect("vif1.0", &mut notes, Waker::noop().clone());
        assert_eq!(known(&mut notes, "4"), Some(Vec::new()));
        chosen.filter().add(GROUP).expect("there is room");
        notes.is_full = true;
        chosen.connect("vif1.0", &mut notes, Waker::noop().clone());
        assert_eq!(known(&mut notes, "4"), None);
        notes.is_full = false;
        chosen.connect("vif1.0", &mut notes, Waker::noop().clone());
        assert_eq!(known(&mut notes, "4"), Some(vec![GROUP]));
    }
    #[test]
    fn what_a_guest_sets_outlives_a_process_and_one_that_sets_nothing_has_no_note_of_it() {
        let mut notes = Kept::default();
        let wish = "1 3 key=0102 mapping=0,1";
        let steered = |chosen: &Chosen| chosen.hashing().lock().expect("no panic").to_string();
        let mut next = |set: Option<&str>| {
            let now = Instant::now();
            let mut chosen = Chosen::known("vif1.0", &found("4"), &mut notes, now);
            let before = steered(&chosen);
            let (_, changes) = chosen.connect("vif1.0", &mut notes, Waker::noop().clone());
            if let Some(set) = set {
                let set = HashControl::from_text(set).expect("it is valid");
                *chosen.hashing().lock().expect("no panic") = set;
                changes.add();
            }
            assert_eq!(chosen.note("vif1.0", &mut notes, now), set.is_some());
            (before, notes.notes.contains_key(&Note::Hashing("vif1.0".to_owned())))
        };
        let nothing = HashControl::default().to_string();
        assert_eq!(next(None), (nothing.clone(), false));
        assert_eq!(next(Some(wish)), (nothing, true));
        assert_eq!(next(None), (wish.to_owned(), true));
    }
}

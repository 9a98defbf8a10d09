//! Watches, and the events that wait for a session.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use ringway_wire::xenstore::{Errno, XENSTORE_PAYLOAD_MAX};

use crate::session::SessionId;

/// All watches, by the path they are set on.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    by_path: BTreeMap<String, Vec<Watch>>,
}

/// One watch of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Watch {
    pub(crate) session: SessionId,
    pub(crate) token: Vec<u8>,
    /// The home directory to cut from event paths, if the watch was set on a relative path.
    pub(crate) home: Option<String>,
}

impl Watches {
    /// Sets a watch.
    ///
    /// # Errors
    /// `EEXIST` when the session has one with the same path and token.
    pub(crate) fn insert(&mut self, path: &str, watch: Watch) -> Result<(), Errno> {
        let here = self.by_path.entry(path.to_owned()).or_default();
        if here.iter().any(|w| w.session == watch.session && w.token == watch.token) {
            return Err(Errno::Exist);
        }
        here.push(watch);
        Ok(())
    }

    /// Withdraws a watch.
    ///
    /// # Errors
    /// `ENOENT` when there is no such watch.
    pub(crate) fn remove(
        &mut self,
        path: &str,
        session: SessionId,
        token: &[u8],
    ) -> Result<(), Errno> {
        let here = self.by_path.get_mut(path).ok_or(Errno::Noent)?;
        let index = here.iter().position(|w| w.session == session && w.token == token);
        here.remove(index.ok_or(Errno::Noent)?);
        if here.is_empty() {
            self.by_path.remove(path);
        }
        Ok(())
    }

    /// Withdraws all watches of a session.
    pub(crate) fn remove_session(&mut self, session: SessionId) {
        self.by_path.retain(|_, here| {
            here.retain(|watch| watch.session != session);
            !here.is_empty()
        });
    }

    /// The watches that are set on exactly this path.
    pub(crate) fn at(&self, path: &str) -> &[Watch] {
        self.by_path.get(path).map_or(&[], Vec::as_slice)
    }
}

impl Watch {
    /// The event of this watch for a change of `path`. `None` for an event that fits into no
    /// message, which the stock daemon leaves out too.
    pub(crate) fn event(&self, path: &str) -> Option<Event> {
        let prefix = self.home.as_deref().unwrap_or_default();
        let relative = path.strip_prefix(prefix).unwrap_or(path);
        let shown = if prefix.is_empty() { path } else { relative.trim_start_matches('/') };
        let fits = shown.len() + self.token.len() + 2 <= XENSTORE_PAYLOAD_MAX;
        fits.then(|| Event { path: shown.to_owned(), token: self.token.clone() })
    }
}

/// One watch event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Event {
    path: String,
    token: Vec<u8>,
}

impl Event {
    pub(crate) fn payload(&self) -> Vec<u8> {
        [self.path.as_bytes(), b"\0", &self.token, b"\0"].concat()
    }
}

/// The events that a session has not taken yet, without duplicates: a second event for the same
/// path adds nothing, because the reader reads the node afterwards anyway.
///
/// The number of waiting events per watch is limited. Beyond it, a single event replaces all others
/// of that watch: an event for the watched node itself. That event also fires when a watch is set,
/// so the owner reads everything that it watches. No change is lost. A guest that makes changes
/// endlessly (XSA-349) gets no more room than that, and affects neither other watches nor the
/// session.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    order: VecDeque<Waiting>,
    waiting: HashSet<Arc<Event>>,
    /// Waiting events per watch. The key is the event that can replace all of a watch.
    per_watch: HashMap<Arc<Event>, usize>,
}

#[derive(Debug)]
struct Waiting {
    event: Arc<Event>,
    all_of_watch: Arc<Event>,
}

/// One watch may use up this fraction of a session's limit.
const SHARES: usize = 16;

impl EventQueue {
    /// Queues an event. At most `limit` wait, plus one for each watch.
    pub(crate) fn push(&mut self, event: Event, all_of_watch: Event, limit: usize) {
        if self.waiting.contains(&event) {
            return;
        }
        let all_of_watch = Arc::new(all_of_watch);
        let of_watch = self.per_watch.get(&all_of_watch).copied().unwrap_or(0);
        let has_room = self.order.len() < limit && of_watch < (limit / SHARES).max(1);
        let event = if has_room { Arc::new(event) } else { Arc::clone(&all_of_watch) };
        if self.waiting.insert(Arc::clone(&event)) {
            self.per_watch.insert(Arc::clone(&all_of_watch), of_watch + 1);
            self.order.push_back(Waiting { event, all_of_watch });
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Arc<Event>> {
        let Waiting { event, all_of_watch } = self.order.pop_front()?;
        self.waiting.remove(&event);
        match self.per_watch.get_mut(&all_of_watch) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.per_watch.remove(&all_of_watch)),
        }
        Some(event)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        *self = EventQueue::default();
    }
}

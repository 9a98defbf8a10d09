//! Watch events that wait for the owner of a client.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::error::Lost;

/// The most watch events that are kept for an owner that does not take them. More than these are
/// replaced by one [`Watched::Overflow`].
const EVENTS_MAX: usize = 1 << 14;

/// The next report of a client's watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watched {
    /// A node has changed, or a watch was just set.
    Node(WatchEvent),
    /// There were more events than are kept: any watched node may have changed, so the owner must
    /// read everything once.
    Overflow,
}

/// A node that is watched, or one below it, has changed, or the watch was just set.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WatchEvent {
    /// The node that changed; relative if the watch is.
    pub path: String,
    /// The token that the watch was set with.
    pub token: String,
}

/// Events that have arrived and that have not been taken yet, without duplicates.
#[derive(Debug, Default)]
pub struct Events {
    order: VecDeque<WatchEvent>,
    /// The events in `order`.
    kept: HashSet<WatchEvent>,
    has_overflowed: bool,
    /// Watches of a single node: the node by the watch's token.
    single: HashMap<String, String>,
}

impl Events {
    /// Keeps an event, unless it is kept already or is not about the node that its watch is for.
    ///
    /// # Errors
    /// If this is not the payload of a watch event: the store breaks the protocol.
    pub(crate) fn keep(&mut self, payload: &[u8]) -> Result<(), Lost> {
        let mut strings = payload.split(|byte| *byte == 0).map(std::str::from_utf8);
        let (Some(Ok(path)), Some(Ok(token))) = (strings.next(), strings.next()) else {
            return Err(Lost::sent("a watch event without path and token"));
        };
        if self.single.get(token).is_some_and(|node| node != path) {
            return Ok(());
        }
        let event = WatchEvent { path: path.to_owned(), token: token.to_owned() };
        if self.has_overflowed || self.kept.contains(&event) {
            return Ok(());
        }
        if self.order.len() >= EVENTS_MAX {
            self.order.clear();
            self.kept.clear();
            self.has_overflowed = true;
            return Ok(());
        }
        self.kept.insert(event.clone());
        self.order.push_back(event);
        Ok(())
    }

    pub(crate) fn pop(&mut self) -> Option<Watched> {
        if std::mem::take(&mut self.has_overflowed) {
            return Some(Watched::Overflow);
        }
        let event = self.order.pop_front()?;
        self.kept.remove(&event);
        Some(Watched::Node(event))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty() && !self.has_overflowed
    }

    /// From now on keeps events with this token only if they are about `node` itself.
    pub(crate) fn keep_only(&mut self, node: &str, token: &str) {
        self.single.insert(token.to_owned(), node.to_owned());
    }

    /// The watch with this token is gone.
    pub(crate) fn forget(&mut self, token: &str) {
        self.single.remove(token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(events: &mut Events, path: &str, token: &str) {
        events.keep(format!("{path}\0{token}\0").as_bytes()).expect("it is an event");
    }

    #[test]
    fn events_beyond_the_limit_become_one_overflow_event() {
        let mut events = Events::default();
        for n in 0..=2 * EVENTS_MAX {
            keep(&mut events, &format!("/a/{n}"), "t");
        }
        assert_eq!(events.pop(), Some(Watched::Overflow));
        assert_eq!(events.pop(), None);
        keep(&mut events, "/a/0", "t");
        assert!(matches!(events.pop(), Some(Watched::Node(_))), "later ones are kept again");
    }

    #[test]
    fn a_watch_keeps_one_event_for_all_changes_below_its_node() {
        let mut events = Events::default();
        events.keep_only("/a/state", "t");
        for n in 0..2 * EVENTS_MAX {
            keep(&mut events, &format!("/a/state/{n}"), "t");
            keep(&mut events, "/a/state", "t");
        }
        let node = WatchEvent { path: "/a/state".to_owned(), token: "t".to_owned() };
        assert_eq!(events.pop(), Some(Watched::Node(node)));
        assert_eq!(events.pop(), None);
    }
}

//! A XenStore in this process: the same tree as behind the server, without sockets or threads.
//!
//! For simulations and tests of whole histories: the results depend only on the order of calls.

use std::cell::RefCell;
use std::rc::Rc;

use ringway_wire::DomId;
use ringway_wire::xenstore::{Errno, XENSTORE_PAYLOAD_MAX};

use crate::client::Client;
use crate::error::Lost;
use crate::events::Events;
use crate::quota::Quota;
use crate::session::SessionId;
use crate::transport::{Reply, Request, Transport};
use crate::tree::Tree;

/// A XenStore that its clients share. Clones refer to the same store.
#[derive(Debug, Clone)]
pub struct LocalStore {
    tree: Rc<RefCell<Tree>>,
}

/// One session of a [`LocalStore`]. It ends when this is dropped.
#[derive(Debug)]
pub struct LocalTransport {
    tree: Rc<RefCell<Tree>>,
    session: SessionId,
}

impl LocalStore {
    /// An empty store that limits guests by `quota`.
    pub fn new(quota: Quota) -> LocalStore {
        LocalStore { tree: Rc::new(RefCell::new(Tree::new(quota))) }
    }

    /// A client that acts as `domain`; `None` if the domain has too many.
    pub fn connect(&self, domain: DomId) -> Option<Client<LocalTransport>> {
        LocalTransport::open(self, domain).map(Client::with_transport)
    }

    /// Introduces a domain. Fires `@introduceDomain` if it was unknown.
    pub fn introduce(&self, domain: DomId) {
        self.tree.borrow_mut().introduce(domain);
    }

    /// Releases a domain: ends its sessions, removes the nodes it owns and its rights on others,
    /// and fires `@releaseDomain`. Its clients find the store lost.
    pub fn release(&self, domain: DomId) {
        self.tree.borrow_mut().release(domain);
    }
}

impl LocalTransport {
    /// Begins a session that acts as `domain`; `None` if the domain has too many.
    pub fn open(store: &LocalStore, domain: DomId) -> Option<LocalTransport> {
        let session = store.tree.borrow_mut().open(domain)?;
        Some(LocalTransport { tree: Rc::clone(&store.tree), session })
    }
}

impl Client<LocalTransport> {
    /// Whether [`next_watch`](Client::next_watch) may return something, so that this client should
    /// get a turn. Events that are not about the node of a [`watch_node`](Client::watch_node) count
    /// too, until they are taken.
    pub fn has_events(&self) -> bool {
        let LocalTransport { tree, session } = self.transport();
        self.has_kept_events() || tree.borrow().has_events(*session)
    }
}

impl Transport for LocalTransport {
    fn request(&mut self, request: Request<'_>, _events: &mut Events) -> Result<Reply, Lost> {
        let Request { op, tx, payload } = request;
        let mut tree = self.tree.borrow_mut();
        if !tree.is_open(self.session) {
            return Err(Lost::closed());
        }
        if payload.len() > XENSTORE_PAYLOAD_MAX {
            return Ok(Err(Errno::Toobig));
        }
        Ok(tree.request(self.session, op.number(), tx, payload))
    }

    fn take_events(&mut self, events: &mut Events) -> Result<(), Lost> {
        let mut tree = self.tree.borrow_mut();
        // Bounded, because nothing is added meanwhile.
        while let Some(payload) = tree.next_event(self.session) {
            events.keep(&payload)?;
        }
        if tree.is_open(self.session) || !events.is_empty() { Ok(()) } else { Err(Lost::closed()) }
    }
}

impl Drop for LocalTransport {
    fn drop(&mut self) {
        self.tree.borrow_mut().close(self.session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Permissions, Rights, Watched};

    #[test]
    fn clients_of_several_domains_see_one_tree_with_rights_watches_and_transactions() {
        let store = LocalStore::new(Quota::default());
        let mut host = store.connect(DomId(0)).expect("few sessions");
        let mut guest = store.connect(DomId(3)).expect("few sessions");
        host.mkdir("/local/domain/3/data").expect("domain 0 may");
        let own = Permissions::new(DomId(3), Rights::None);
        host.set_permissions("/local/domain/3/data", &own).expect("domain 0 may");
        host.watch_node("/local/domain/3/data", "t").expect("domain 0 may");
        assert!(matches!(host.next_watch(), Ok(Some(Watched::Node(_)))));
        assert!(!host.has_events());

        let written = guest.transaction(|tx| {
            tx.write("data/below", "x")?;
            assert!(!host.has_events(), "nothing is seen before the transaction ends");
            tx.write("data", "y")
        });
        written.expect("it is the guest's");
        assert!(host.has_events());
        assert!(matches!(host.next_watch(), Ok(Some(Watched::Node(_)))));
        assert!(matches!(host.next_watch(), Ok(None)), "what is below is not watched");
        assert_eq!(host.read("/local/domain/3/data").expect("read").as_deref(), Some("y"));
        assert!(guest.write("/local/domain/0/x", "").expect_err("not its own").is(Errno::Acces));

        store.release(DomId(3));
        assert!(matches!(guest.read("data"), Err(crate::XsError::Lost(_))));
        assert!(guest.next_watch().is_err());
    }
}

//! XenStore without its transport: sessions send requests, get replies and collect watch events.
//!
//! Nothing here does I/O or reads a clock, so whole histories run as ordinary tests.

use std::collections::{BTreeMap, BTreeSet};

use ringway_wire::DomId;
use ringway_wire::xenstore::{Errno, Op, XENSTORE_PAYLOAD_MAX};

use crate::path::{NodePath, domain_path};
use crate::permissions::{Permissions, Rights};
use crate::quota::Quota;
use crate::request::{self, Strings};
use crate::session::SessionId;
use crate::store::{Change, Edit, Mutation, Node, Reach, Store};
use crate::transaction::Transaction;
use crate::watch::{EventQueue, Watch, Watches};

/// Watched to learn that a domain was introduced.
const INTRODUCE_DOMAIN: &str = "@introduceDomain";
/// Watched to learn that a domain was released.
const RELEASE_DOMAIN: &str = "@releaseDomain";

/// The whole state of a XenStore.
#[derive(Debug)]
pub struct Tree {
    store: Store,
    watches: Watches,
    sessions: BTreeMap<SessionId, Session>,
    /// The watches on [`INTRODUCE_DOMAIN`] and [`RELEASE_DOMAIN`].
    special: BTreeMap<&'static str, Permissions>,
    introduced: BTreeSet<DomId>,
    quota: Quota,
    next_session: u64,
    /// Sessions with new events, and sessions that the tree has closed.
    ready: BTreeSet<SessionId>,
}

#[derive(Debug)]
struct Session {
    domain: DomId,
    watch_count: usize,
    transactions: BTreeMap<u32, Transaction>,
    last_transaction: u32,
    events: EventQueue,
}

impl Tree {
    /// An empty tree that limits guests by `quota`.
    pub fn new(quota: Quota) -> Tree {
        let domain_0_only = Permissions::new(DomId(0), Rights::None);
        Tree {
            store: Store::new(),
            watches: Watches::default(),
            sessions: BTreeMap::new(),
            special: [INTRODUCE_DOMAIN, RELEASE_DOMAIN]
                .map(|name| (name, domain_0_only.clone()))
                .into(),
            introduced: BTreeSet::from([DomId(0)]),
            quota,
            next_session: 1,
            ready: BTreeSet::new(),
        }
    }

    /// Begins a session that acts as `domain`; `None` if the domain has too many.
    pub fn open(&mut self, domain: DomId) -> Option<SessionId> {
        let open = self.sessions.values().filter(|session| session.domain == domain).count();
        if open >= self.quota.of(domain).connections {
            return None;
        }
        let id = SessionId(self.next_session);
        self.next_session += 1;
        let session = Session {
            domain,
            watch_count: 0,
            transactions: BTreeMap::new(),
            last_transaction: 0,
            events: EventQueue::default(),
        };
        self.sessions.insert(id, session);
        Some(id)
    }

    /// Ends a session: its watches and transactions go with it.
    pub fn close(&mut self, id: SessionId) {
        if self.sessions.remove(&id).is_some() {
            self.watches.remove_session(id);
            self.ready.insert(id);
        }
    }

    /// Whether a session is open. The tree itself closes one whose domain is released.
    pub fn is_open(&self, id: SessionId) -> bool {
        self.sessions.contains_key(&id)
    }

    /// The next session that has new events, or that was closed.
    pub fn next_ready(&mut self) -> Option<SessionId> {
        self.ready.pop_first()
    }

    /// Takes the payload of the session's next watch event.
    pub fn next_event(&mut self, id: SessionId) -> Option<Vec<u8>> {
        self.sessions.get_mut(&id)?.events.pop().map(|event| event.payload())
    }

    /// Whether the session has events to take.
    pub fn has_events(&self, id: SessionId) -> bool {
        self.sessions.get(&id).is_some_and(|session| !session.events.is_empty())
    }

    /// Introduces a domain. Fires `@introduceDomain` if it was unknown.
    pub fn introduce(&mut self, domain: DomId) {
        if self.introduced.insert(domain) {
            self.fire_special(INTRODUCE_DOMAIN);
        }
    }

    /// Releases a domain: ends its sessions, removes the nodes it owns and its rights on others,
    /// and fires `@releaseDomain`. Domain 0 stays.
    pub fn release(&mut self, domain: DomId) {
        if domain == DomId(0) {
            return;
        }
        let of_domain = |(id, s): (&SessionId, &Session)| (s.domain == domain).then_some(*id);
        let ended: Vec<SessionId> = self.sessions.iter().filter_map(of_domain).collect();
        for id in ended {
            self.close(id);
        }
        for permissions in self.special.values_mut() {
            if let Some(left) = permissions.without(domain) {
                *permissions = left;
            }
        }
        let changes = self.store.forget_domain(domain);
        self.fire(&changes);
        if self.introduced.remove(&domain) {
            self.fire_special(RELEASE_DOMAIN);
        }
    }

    /// Serves one request and returns the payload of its reply.
    ///
    /// Send the resulting events after the reply.
    ///
    /// # Errors
    /// The error of the reply. Whatever a guest sends has no other consequence.
    pub fn request(
        &mut self,
        id: SessionId,
        kind: u32,
        tx: u32,
        payload: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        let session = self.sessions.get(&id).ok_or(Errno::Io)?;
        let who = session.domain;
        let op = Op::from_number(kind).ok_or(Errno::Nosys)?;
        if tx != 0 && !session.transactions.contains_key(&tx) {
            return Err(Errno::Noent);
        }
        let strings = Strings::new(payload);
        let call = Call { id, who, tx };
        let reply = match op {
            Op::Directory => {
                let names = self.read(&call, strings.only()?, directory)?;
                if names.len() > XENSTORE_PAYLOAD_MAX {
                    return Err(Errno::Toobig);
                }
                names
            }
            Op::DirectoryPart => {
                let [path, offset] = strings.exactly()?;
                let offset = request::number(offset)?;
                self.read(&call, path, |node| directory_part(node, offset))?
            }
            Op::Read => self.read(&call, strings.only()?, |node| node.value.clone())?,
            Op::GetPerms => self.permissions(&call, strings.only()?)?,
            Op::Write => {
                let (path, value) = strings.first_and_rest()?;
                self.mutate(&call, path, Mutation::Write(value.to_vec()))?
            }
            Op::Mkdir => self.mutate(&call, strings.only()?, Mutation::MakeDirectory)?,
            Op::Rm => self.mutate(&call, strings.only()?, Mutation::Remove)?,
            Op::SetPerms => self.set_permissions(&call, strings)?,
            Op::Watch => self.watch(&call, strings.exactly()?)?,
            Op::Unwatch => self.unwatch(&call, strings.exactly()?)?,
            Op::ResetWatches => self.reset(&call)?,
            Op::TransactionStart => return self.start(&call),
            Op::TransactionEnd => self.end(&call, strings.only()?)?,
            Op::GetDomainPath => {
                let domain = request::domain(strings.only()?)?;
                request::string(&domain_path(domain))
            }
            Op::Introduce | Op::Release | Op::IsDomainIntroduced => {
                self.domain_request(&call, op, strings)?
            }
            Op::Control | Op::Resume | Op::SetTarget | Op::WatchEvent | Op::Error => {
                return Err(Errno::Nosys);
            }
        };
        if reply.len() > XENSTORE_PAYLOAD_MAX {
            return Err(Errno::Toobig);
        }
        Ok(reply)
    }

    fn read<T>(
        &mut self,
        call: &Call,
        path: &[u8],
        take: impl FnOnce(&Node) -> T,
    ) -> Result<T, Errno> {
        let path = NodePath::parse(call.who, path)?;
        let quota = *self.quota.of(call.who);
        match self.transaction(call) {
            Some(transaction) => transaction.get(call.who, &path, Rights::Read, &quota).map(take),
            None => self.store.get(call.who, &path, Rights::Read).map(take),
        }
    }

    fn mutate(&mut self, call: &Call, path: &[u8], mutation: Mutation) -> Result<Vec<u8>, Errno> {
        let edit = Edit { path: NodePath::parse(call.who, path)?, mutation };
        let quota = *self.quota.of(call.who);
        if let Some(transaction) = self.transaction(call) {
            transaction.apply(call.who, edit, &quota)?;
        } else {
            let changes = self.store.apply(call.who, &edit, &quota)?;
            self.fire(&changes);
        }
        Ok(request::ok())
    }

    fn permissions(&mut self, call: &Call, path: &[u8]) -> Result<Vec<u8>, Errno> {
        match self.special_name(path) {
            Some(_) if call.who != DomId(0) => Err(Errno::Acces),
            Some(name) => Ok(self.special.get(name).map(Permissions::to_wire).unwrap_or_default()),
            None => self.read(call, path, |node| node.permissions.to_wire()),
        }
    }

    fn set_permissions(&mut self, call: &Call, strings: Strings<'_>) -> Result<Vec<u8>, Errno> {
        let mut strings = strings.all()?;
        let path = strings.next().ok_or(Errno::Inval)?;
        let permissions = Permissions::parse(strings)?;
        match self.special_name(path) {
            Some(_) if call.who != DomId(0) => Err(Errno::Acces),
            Some(name) => {
                self.special.insert(name, permissions);
                Ok(request::ok())
            }
            None => self.mutate(call, path, Mutation::SetPermissions(permissions)),
        }
    }

    fn watch(&mut self, call: &Call, [path, token]: [&[u8]; 2]) -> Result<Vec<u8>, Errno> {
        let (on, home) = self.watch_path(call.who, path)?;
        let of_domain = self.sessions.values().filter(|session| session.domain == call.who);
        let watch_count: usize = of_domain.map(|session| session.watch_count).sum();
        if watch_count >= self.quota.of(call.who).watches {
            return Err(Errno::Nospc);
        }
        let watch = Watch { session: call.id, token: token.to_vec(), home };
        self.watches.insert(&on, watch.clone())?;
        if let Some(session) = self.sessions.get_mut(&call.id) {
            session.watch_count += 1;
        }
        // A watch fires once when it is set: its owner then reads the node, so it cannot miss an
        // earlier change.
        self.queue_events(&[watch], &on, &on);
        Ok(request::ok())
    }

    fn unwatch(&mut self, call: &Call, [path, token]: [&[u8]; 2]) -> Result<Vec<u8>, Errno> {
        let (on, _) = self.watch_path(call.who, path)?;
        self.watches.remove(&on, call.id, token)?;
        if let Some(session) = self.sessions.get_mut(&call.id) {
            session.watch_count = session.watch_count.saturating_sub(1);
        }
        Ok(request::ok())
    }

    fn reset(&mut self, call: &Call) -> Result<Vec<u8>, Errno> {
        self.watches.remove_session(call.id);
        if let Some(session) = self.sessions.get_mut(&call.id) {
            session.watch_count = 0;
            session.transactions.clear();
            session.events.clear();
        }
        Ok(request::ok())
    }

    fn start(&mut self, call: &Call) -> Result<Vec<u8>, Errno> {
        if call.tx != 0 {
            return Err(Errno::Busy);
        }
        let of_domain = self.sessions.values().filter(|session| session.domain == call.who);
        let open: usize = of_domain.map(|session| session.transactions.len()).sum();
        if open >= self.quota.of(call.who).transactions {
            return Err(Errno::Nospc);
        }
        let session = self.sessions.get_mut(&call.id).ok_or(Errno::Io)?;
        // Terminates: there are more numbers than open transactions.
        while session.last_transaction == 0
            || session.transactions.contains_key(&session.last_transaction)
        {
            session.last_transaction = session.last_transaction.wrapping_add(1);
        }
        let tx = session.last_transaction;
        session.last_transaction = tx.wrapping_add(1);
        session.transactions.insert(tx, Transaction::new(&self.store));
        Ok(request::string(&tx.to_string()))
    }

    fn end(&mut self, call: &Call, verdict: &[u8]) -> Result<Vec<u8>, Errno> {
        let commits = match verdict {
            b"T" => true,
            b"F" => false,
            _ => return Err(Errno::Inval),
        };
        let session = self.sessions.get_mut(&call.id).ok_or(Errno::Io)?;
        let transaction = session.transactions.remove(&call.tx).ok_or(Errno::Noent)?;
        if commits {
            let quota = self.quota.of(call.who);
            let (store, changes) = transaction.commit(call.who, &self.store, quota)?;
            self.store = store;
            self.fire(&changes);
        }
        Ok(request::ok())
    }

    fn domain_request(
        &mut self,
        call: &Call,
        op: Op,
        strings: Strings<'_>,
    ) -> Result<Vec<u8>, Errno> {
        if call.who != DomId(0) {
            return Err(Errno::Acces);
        }
        let domain = match op {
            // The other two strings are the frame and the port of a ring. They are unused here,
            // because every domain connects by a socket.
            Op::Introduce => strings.exactly().map(|[domain, _, _]| domain)?,
            _ => strings.only()?,
        };
        let domain = request::domain(domain)?;
        let is_introduced = self.introduced.contains(&domain);
        match op {
            Op::Introduce => self.introduce(domain),
            Op::Release if domain == DomId(0) => return Err(Errno::Inval),
            Op::Release if !is_introduced => return Err(Errno::Noent),
            Op::Release => self.release(domain),
            _ => return Ok(request::string(if is_introduced { "T" } else { "F" })),
        }
        Ok(request::ok())
    }

    /// The path of a watch, and the home directory to cut from its events.
    fn watch_path(&self, who: DomId, path: &[u8]) -> Result<(String, Option<String>), Errno> {
        if let Some(name) = self.special_name(path) {
            return Ok((name.to_owned(), None));
        }
        let on = NodePath::parse(who, path)?;
        let home = (!path.starts_with(b"/")).then(|| domain_path(who));
        Ok((on.as_str().to_owned(), home))
    }

    fn special_name(&self, path: &[u8]) -> Option<&'static str> {
        self.special.keys().find(|name| name.as_bytes() == path).copied()
    }

    fn transaction(&mut self, call: &Call) -> Option<&mut Transaction> {
        self.sessions.get_mut(&call.id)?.transactions.get_mut(&call.tx)
    }

    fn fire(&mut self, changes: &[Change]) {
        for change in changes {
            let depth = match change.reach {
                Reach::Lineage => usize::MAX,
                Reach::Exact => 1,
            };
            for on in change.path.lineage_text().take(depth) {
                let may_know = |watch: &&Watch| {
                    let session = self.sessions.get(&watch.session);
                    session.is_some_and(|session| change.is_visible_to(session.domain))
                };
                let notified: Vec<Watch> =
                    self.watches.at(on).iter().filter(may_know).cloned().collect();
                self.queue_events(&notified, on, change.path.as_str());
            }
        }
    }

    fn fire_special(&mut self, name: &'static str) {
        let Some(permissions) = self.special.get(name) else { return };
        let may_know = |watch: &&Watch| {
            let session = self.sessions.get(&watch.session);
            session.is_some_and(|s| permissions.rights_of(s.domain).include(Rights::Read))
        };
        let notified: Vec<Watch> = self.watches.at(name).iter().filter(may_know).cloned().collect();
        self.queue_events(&notified, name, name);
    }

    /// Queues an event that `path` has changed for each of these watches of `on`.
    fn queue_events(&mut self, watches: &[Watch], on: &str, path: &str) {
        for watch in watches {
            let Some(session) = self.sessions.get_mut(&watch.session) else { continue };
            let (Some(event), Some(all)) = (watch.event(path), watch.event(on)) else { continue };
            let limit = self.quota.of(session.domain).events;
            self.ready.insert(watch.session);
            session.events.push(event, all, limit);
        }
    }
}

/// The caller of a request, and its transaction (0 for none).
struct Call {
    id: SessionId,
    who: DomId,
    tx: u32,
}

fn directory(node: &Node) -> Vec<u8> {
    node.child_names().flat_map(|name| name.bytes().chain([0])).collect()
}

/// The generation of the list, then as many whole names from byte `offset` on as fit; an empty
/// name ends the list. The reader starts again when the generation changes.
fn directory_part(node: &Node, offset: usize) -> Vec<u8> {
    let mut reply = request::string(&node.generation.to_string());
    let mut position = 0;
    for name in node.child_names() {
        let len = name.len() + 1;
        if position >= offset {
            if reply.len() + len + 1 > XENSTORE_PAYLOAD_MAX {
                return reply;
            }
            reply.extend(name.bytes().chain([0]));
        }
        position += len;
    }
    reply.push(0);
    reply
}

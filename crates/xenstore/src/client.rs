//! A synchronous client of any XenStore: ours, a real one by socket or `/dev/xen/xenbus`, or one in
//! this process.
//!
//! Watch events may arrive between a request and its reply; they are kept, each once, until
//! [`Client::next_watch`] takes them. A control loop polls the client's descriptor and then takes
//! all events.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use ringway_wire::DomId;
use ringway_wire::xenstore::{Errno, Op};

use crate::error::{Lost, Reason, Refusal, XsError};
use crate::events::{Events, Watched};
use crate::permissions::Permissions;
use crate::socket::{Socket, Writes};
use crate::transport::{Request, Transport};

/// How often a transaction is retried after a conflict before the caller gets the error.
const TRANSACTION_ATTEMPTS_MAX: usize = 64;
/// The most parts in which a directory is read. The stock daemon's limits allow for fewer.
const DIRECTORY_PARTS_MAX: usize = 4096;
/// Where the daemon of a domain 0 listens: the default of the stock tools without `XENSTORED_PATH`.
const DAEMON_SOCKET: &str = "/run/xenstored/socket";
/// The device through which the kernel of any domain lets programs use XenStore.
const KERNEL_DEVICE: &str = "/dev/xen/xenbus";

/// The value of a node, `None` if there is no such node, or why it cannot be read.
pub type Found = Result<Option<Vec<u8>>, XsError>;

/// Whether a watch is set, or why not.
pub type Watching = Result<(), Refusal>;

/// A session with a XenStore.
///
/// Every method may fail with [`XsError::Lost`] once the store is gone.
#[derive(Debug)]
pub struct Client<T = Socket> {
    transport: T,
    events: Events,
}

impl Client {
    /// Connects to the socket of a XenStore.
    ///
    /// # Errors
    /// What the system reports, with the path.
    pub fn connect(path: &Path) -> io::Result<Client> {
        let stream = UnixStream::connect(path).map_err(|error| {
            io::Error::new(error.kind(), format!("XenStore socket {}: {error}", path.display()))
        })?;
        Ok(Client::from_stream(stream))
    }

    /// Connects to the XenStore of the Xen domain that this program runs in: by the daemon's
    /// socket where the daemon runs and lets us in, otherwise by the kernel's device.
    ///
    /// # Errors
    /// When there is neither, or it is not permitted, with the remedy.
    pub fn of_this_domain() -> io::Result<Client> {
        match Client::connect(Path::new(DAEMON_SOCKET)) {
            // The socket is for root only; the device's mode may admit others.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {}
            connected => return connected,
        }
        let device = File::options().read(true).write(true).open(KERNEL_DEVICE);
        let device = device.map_err(|error| {
            let remedy = match error.kind() {
                ErrorKind::NotFound => "not found: this machine is not a Xen domain",
                ErrorKind::PermissionDenied => {
                    "not permitted: run as root, or as a user with access to the node"
                }
                _ => "open",
            };
            io::Error::new(error.kind(), format!("{KERNEL_DEVICE}: {remedy}: {error}"))
        })?;
        Ok(Client::from_fd(device.into()))
    }

    /// Uses a connected socket, which must be blocking.
    pub fn from_stream(stream: UnixStream) -> Client {
        Client::with_transport(Socket::new(stream.into(), Writes::Joined))
    }

    /// Uses any blocking descriptor that carries the protocol, such as `/dev/xen/xenbus`.
    pub fn from_fd(fd: OwnedFd) -> Client {
        Client::with_transport(Socket::new(fd, Writes::OneByOne))
    }
}

impl<T: Transport> Client<T> {
    /// Uses this transport.
    pub fn with_transport(transport: T) -> Client<T> {
        Client { transport, events: Events::default() }
    }

    /// The value of a node as text, or `None` if there is no such node.
    ///
    /// # Errors
    /// What the store refuses, and a value that is not UTF-8.
    pub fn read(&mut self, path: &str) -> Result<Option<String>, XsError> {
        self.outside().read(path)
    }

    /// The value of a node, or `None` if there is no such node.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn read_bytes(&mut self, path: &str) -> Result<Option<Vec<u8>>, XsError> {
        self.outside().read_bytes(path)
    }

    /// The values of several nodes, in the same order, each as [`read_bytes`](Client::read_bytes)
    /// returns it. They are requested together ([`Transport::requests`]).
    ///
    /// # Errors
    /// The loss of the store.
    pub fn read_all(&mut self, paths: &[String]) -> Result<Vec<Found>, Lost> {
        self.outside().read_all(paths)
    }

    /// Reads groups of nodes side by side, each group as it is at one moment; those of all groups
    /// are requested together ([`Transport::requests`]). Returns what `work` returns, and for each
    /// group whether it was refused: with `EAGAIN` if another session changed a node of it
    /// meanwhile.
    ///
    /// A store may limit the transactions of a session, so there should be few groups.
    ///
    /// # Errors
    /// The loss of the store.
    pub fn snapshots<R>(
        &mut self,
        groups: usize,
        work: impl FnOnce(&mut Snapshots<'_, T>) -> Result<R, Lost>,
    ) -> Result<(R, Vec<Result<(), Refusal>>), Lost> {
        let started = self.call_all(&vec![START; groups])?;
        let started = started.into_iter().map(|reply| match reply {
            Ok(reply) => transaction_id(&reply).map(Ok),
            Err(refusal) => Ok(Err(refusal)),
        });
        let ids = started.collect::<Result<Vec<_>, Lost>>()?;
        let mut snapshots = Snapshots { client: self, ids };
        let value = work(&mut snapshots)?;
        let Snapshots { client, ids } = snapshots;
        let end = |tx: &u32| Request { op: Op::TransactionEnd, tx: *tx, payload: COMMIT };
        let ends: Vec<Request<'_>> = ids.iter().flatten().map(end).collect();
        let mut ended = client.call_all(&ends)?.into_iter();
        let outcomes = ids.into_iter().map(|id| match id {
            Ok(_) => ended.next().map_or(Ok(()), |reply| reply.map(drop)),
            Err(refusal) => Err(refusal),
        });
        Ok((value, outcomes.collect()))
    }

    /// Sets the value of a node; creates it, and its parent directories, if needed.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn write(&mut self, path: &str, value: impl AsRef<[u8]>) -> Result<(), XsError> {
        self.outside().write(path, value)
    }

    /// Creates a node with an empty value unless it exists.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn mkdir(&mut self, path: &str) -> Result<(), XsError> {
        self.outside().mkdir(path)
    }

    /// Removes a node and all below it; succeeds if it does not exist.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn remove(&mut self, path: &str) -> Result<(), XsError> {
        self.outside().remove(path)
    }

    /// Names of the children of a node; none if there is no such node.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn directory(&mut self, path: &str) -> Result<Vec<String>, XsError> {
        self.outside().directory(path)
    }

    /// The names of the children of several nodes, in the same order, each as
    /// [`directory`](Client::directory) returns them. They are requested together
    /// ([`Transport::requests`]).
    ///
    /// # Errors
    /// The loss of the store.
    pub fn directories(
        &mut self,
        paths: &[String],
    ) -> Result<Vec<Result<Vec<String>, XsError>>, Lost> {
        let payloads: Vec<Vec<u8>> = terminated(paths).collect();
        let list = |payload| Request { op: Op::Directory, tx: 0, payload };
        let requests: Vec<Request<'_>> =
            payloads.iter().map(|payload| list(payload.as_slice())).collect();
        let replies = self.call_all(&requests)?.into_iter().zip(paths);
        let listed =
            replies.map(|(reply, path)| self.outside().listed(path, reply.map_err(XsError::from)));
        Ok(listed.collect())
    }

    /// Replaces the permissions of a node.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn set_permissions(&mut self, path: &str, to: &Permissions) -> Result<(), XsError> {
        self.outside().set_permissions(path, to)
    }

    /// Requests an event when the node or anything below it changes. The watch also fires once
    /// right away.
    ///
    /// # Errors
    /// What the store refuses; `EEXIST` if this watch is set.
    pub fn watch(&mut self, path: &str, token: &str) -> Result<(), XsError> {
        self.call(0, Op::Watch, path, &[path.as_bytes(), b"\0", token.as_bytes(), b"\0"]).map(drop)
    }

    /// Requests an event when the node changes, and one right away. Changes of nodes below it are
    /// dropped on arrival, so a guest that may write there cannot make us keep more than one event.
    /// No other watch may use the token.
    ///
    /// # Errors
    /// As [`watch`](Client::watch).
    pub fn watch_node(&mut self, path: &str, token: &str) -> Result<(), XsError> {
        let watches = [(path.to_owned(), token.to_owned())];
        let (mut set, _) = self.watch_and_read(&watches, &[])?;
        Ok(set.pop().unwrap_or(Ok(()))?)
    }

    /// Sets watches as [`watch_node`](Client::watch_node) does, each a node and a token, and then
    /// reads nodes as [`read_all`](Client::read_all) does, requested together
    /// ([`Transport::requests`]).
    ///
    /// # Errors
    /// The loss of the store.
    pub fn watch_and_read(
        &mut self,
        watches: &[(String, String)],
        paths: &[String],
    ) -> Result<(Vec<Watching>, Vec<Found>), Lost> {
        // Beforehand, because events may come together with replies.
        watches.iter().for_each(|(node, token)| self.events.keep_only(node, token));
        let payload = |(node, token): &(String, String)| format!("{node}\0{token}\0").into_bytes();
        let payloads: Vec<Vec<u8>> = watches.iter().map(payload).chain(terminated(paths)).collect();
        let watching = std::iter::repeat_n(Op::Watch, watches.len());
        let ops = watching.chain(std::iter::repeat(Op::Read));
        let requests: Vec<Request<'_>> =
            payloads.iter().zip(ops).map(|(payload, op)| Request { op, tx: 0, payload }).collect();
        let mut replies = self.call_all(&requests)?.into_iter();
        let mut set = Vec::new();
        for ((_, token), reply) in watches.iter().zip(&mut replies) {
            if reply.as_ref().is_err_and(|refusal| !refusal.is(Errno::Exist)) {
                self.events.forget(token);
            }
            set.push(reply.map(drop));
        }
        Ok((set, replies.map(found).collect()))
    }

    /// Withdraws a watch. Events in flight may still arrive.
    ///
    /// # Errors
    /// What the store refuses; `ENOENT` if there is no such watch.
    pub fn unwatch(&mut self, path: &str, token: &str) -> Result<(), XsError> {
        self.events.forget(token);
        self.call(0, Op::Unwatch, path, &[path.as_bytes(), b"\0", token.as_bytes(), b"\0"])
            .map(drop)
    }

    /// The home directory of a domain.
    ///
    /// # Errors
    /// What the store refuses.
    pub fn domain_path(&mut self, domain: DomId) -> Result<String, XsError> {
        let text = domain.to_string();
        let reply = self.call(0, Op::GetDomainPath, &text, &[text.as_bytes(), b"\0"])?;
        let reply = reply.strip_suffix(b"\0").unwrap_or(&reply);
        utf8(Op::GetDomainPath, reply.to_vec(), &text)
    }

    /// Runs `work` so that its reads see one moment and its writes take effect together.
    ///
    /// After a conflict it runs again, a bounded number of times, so it must not have effects
    /// outside the transaction. If it fails, none of its writes takes effect.
    ///
    /// # Errors
    /// The errors of `work`, or what the store refuses; `EAGAIN` if conflicts do not end.
    pub fn transaction<R>(
        &mut self,
        mut work: impl FnMut(&mut Transaction<'_, T>) -> Result<R, XsError>,
    ) -> Result<R, XsError> {
        let mut outcome = self.attempt(&mut work);
        for _ in 1..TRANSACTION_ATTEMPTS_MAX {
            match outcome {
                Err(error) if error.is(Errno::Again) => outcome = self.attempt(&mut work),
                outcome => return outcome,
            }
        }
        outcome
    }

    /// Does `work` in a transaction, in a single attempt: a caller that others must not keep busy
    /// tries again later.
    ///
    /// # Errors
    /// The errors of `work`, or what the store refuses; `EAGAIN` if another session changed a node
    /// that `work` read or wrote.
    pub fn attempt<R>(
        &mut self,
        work: impl FnOnce(&mut Transaction<'_, T>) -> Result<R, XsError>,
    ) -> Result<R, XsError> {
        let started = self.call(0, Op::TransactionStart, "", &[START.payload])?;
        let id = transaction_id(&started)?;
        let outcome = work(&mut Transaction { client: self, id });
        let verdict = if outcome.is_ok() { COMMIT } else { b"F\0" };
        let ended = self.call(id, Op::TransactionEnd, "", &[verdict]);
        let value = outcome?;
        ended.map(|_| value)
    }

    /// The next event of a watch, if there is one; does not block.
    ///
    /// # Errors
    /// If the store is gone.
    pub fn next_watch(&mut self) -> Result<Option<Watched>, Lost> {
        if self.events.is_empty() {
            self.transport.take_events(&mut self.events)?;
        }
        Ok(self.events.pop())
    }

    /// The transport.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// The transport, mutable.
    pub fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    pub(crate) fn has_kept_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Requests outside of any transaction.
    fn outside(&mut self) -> Transaction<'_, T> {
        Transaction { client: self, id: 0 }
    }

    fn call(&mut self, tx: u32, op: Op, path: &str, parts: &[&[u8]]) -> Result<Vec<u8>, XsError> {
        let request = Request { op, tx, payload: &parts.concat() };
        let reply = self.transport.request(request, &mut self.events)?;
        reply.map_err(|errno| refusal(op, path, Reason::Errno(errno)))
    }

    /// Makes requests of which none depends on another's reply.
    fn call_all(
        &mut self,
        requests: &[Request<'_>],
    ) -> Result<Vec<Result<Vec<u8>, Refusal>>, Lost> {
        let replies = self.transport.requests(requests, &mut self.events)?;
        let replies = replies.into_iter().zip(requests).map(|(reply, request)| {
            reply.map_err(|errno| {
                let path = request.payload.split(|byte| *byte == 0).next().unwrap_or_default();
                let path = String::from_utf8_lossy(path).into_owned();
                Refusal { op: request.op, path, reason: Reason::Errno(errno) }
            })
        });
        Ok(replies.collect())
    }
}

/// Readable when there may be watch events. Events that came together with a reply are inside the
/// client already, so take all events before polling.
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.transport.as_fd()
    }
}

/// The start of a transaction.
const START: Request<'static> = Request { op: Op::TransactionStart, tx: 0, payload: b"\0" };
/// What ends a transaction that takes effect.
const COMMIT: &[u8] = b"T\0";

/// Groups of nodes that are read side by side. See [`Client::snapshots`].
#[derive(Debug)]
pub struct Snapshots<'a, T = Socket> {
    client: &'a mut Client<T>,
    /// The number of each group's transaction, or why it was refused.
    ids: Vec<Result<u32, Refusal>>,
}

impl<T: Transport> Snapshots<'_, T> {
    /// Reads these nodes of each group, as [`Client::read_all`] does; nothing of a group that was
    /// refused.
    ///
    /// # Errors
    /// The loss of the store.
    pub fn read(&mut self, groups: &[Vec<String>]) -> Result<Vec<Vec<Found>>, Lost> {
        let (mut payloads, mut counts) = (Vec::new(), Vec::new());
        for (id, paths) in self.ids.iter().zip(groups) {
            let before = payloads.len();
            if let Ok(tx) = id {
                payloads.extend(terminated(paths).map(|payload| (*tx, payload)));
            }
            counts.push(payloads.len() - before);
        }
        let requests: Vec<Request<'_>> = payloads
            .iter()
            .map(|(tx, payload)| Request { op: Op::Read, tx: *tx, payload })
            .collect();
        let mut replies = self.client.call_all(&requests)?.into_iter().map(found);
        Ok(counts.into_iter().map(|count| replies.by_ref().take(count).collect()).collect())
    }
}

/// The requests of one transaction. See [`Client::transaction`]; methods are as in [`Client`].
#[derive(Debug)]
pub struct Transaction<'a, T = Socket> {
    client: &'a mut Client<T>,
    id: u32,
}

impl<T: Transport> Transaction<'_, T> {
    /// As [`Client::read`].
    ///
    /// # Errors
    /// As there.
    pub fn read(&mut self, path: &str) -> Result<Option<String>, XsError> {
        self.read_bytes(path)?.map(|value| utf8(Op::Read, value, path)).transpose()
    }

    /// As [`Client::read_bytes`].
    ///
    /// # Errors
    /// As there.
    pub fn read_bytes(&mut self, path: &str) -> Result<Option<Vec<u8>>, XsError> {
        absent_as_none(self.call(Op::Read, path))
    }

    /// As [`Client::read_all`].
    ///
    /// # Errors
    /// As there.
    pub fn read_all(&mut self, paths: &[String]) -> Result<Vec<Found>, Lost> {
        let payloads: Vec<Vec<u8>> = terminated(paths).collect();
        let request = |payload| Request { op: Op::Read, tx: self.id, payload };
        let requests: Vec<Request<'_>> =
            payloads.iter().map(|payload| request(payload.as_slice())).collect();
        Ok(self.client.call_all(&requests)?.into_iter().map(found).collect())
    }

    /// As [`Client::write`].
    ///
    /// # Errors
    /// As there.
    pub fn write(&mut self, path: &str, value: impl AsRef<[u8]>) -> Result<(), XsError> {
        let parts = [path.as_bytes(), b"\0", value.as_ref()];
        self.client.call(self.id, Op::Write, path, &parts).map(drop)
    }

    /// As [`Client::mkdir`].
    ///
    /// # Errors
    /// As there.
    pub fn mkdir(&mut self, path: &str) -> Result<(), XsError> {
        self.call(Op::Mkdir, path).map(drop)
    }

    /// As [`Client::remove`].
    ///
    /// # Errors
    /// As there.
    pub fn remove(&mut self, path: &str) -> Result<(), XsError> {
        absent_as_none(self.call(Op::Rm, path)).map(drop)
    }

    /// As [`Client::directory`].
    ///
    /// # Errors
    /// As there.
    pub fn directory(&mut self, path: &str) -> Result<Vec<String>, XsError> {
        let reply = self.call(Op::Directory, path);
        self.listed(path, reply)
    }

    /// The names in the reply to a request for a directory.
    fn listed(
        &mut self,
        path: &str,
        reply: Result<Vec<u8>, XsError>,
    ) -> Result<Vec<String>, XsError> {
        match reply {
            Err(error) if error.is(Errno::Toobig) => self.directory_in_parts(path),
            listed => match absent_as_none(listed)? {
                Some(names) => split_names(&names, path),
                None => Ok(Vec::new()),
            },
        }
    }

    /// As [`Client::set_permissions`].
    ///
    /// # Errors
    /// As there.
    pub fn set_permissions(&mut self, path: &str, to: &Permissions) -> Result<(), XsError> {
        let parts = [path.as_bytes(), b"\0", &to.to_wire()];
        self.client.call(self.id, Op::SetPerms, path, &parts).map(drop)
    }

    /// Reads a list of children that is too long for one message. Starts again whenever it changes
    /// meanwhile.
    fn directory_in_parts(&mut self, path: &str) -> Result<Vec<String>, XsError> {
        let mut generation = Vec::new();
        let mut names = Vec::new();
        for _ in 0..DIRECTORY_PARTS_MAX {
            let offset = names.len().to_string();
            let parts = [path.as_bytes(), b"\0", offset.as_bytes(), b"\0"];
            let reply = self.client.call(self.id, Op::DirectoryPart, path, &parts)?;
            let end = reply.iter().position(|byte| *byte == 0).unwrap_or(reply.len());
            let (current, part) = reply.split_at(end);
            let part = part.get(1..).unwrap_or_default();
            if current != generation {
                let is_first = names.is_empty();
                generation = current.to_vec();
                names.clear();
                if !is_first {
                    continue;
                }
            }
            // An empty name ends the list; no other name is empty.
            if let Some(last) = part.strip_suffix(b"\0\0") {
                names.extend_from_slice(last);
                names.push(0);
                return split_names(&names, path);
            }
            if part == b"\0" {
                return split_names(&names, path);
            }
            names.extend_from_slice(part);
        }
        // It changes faster than it can be read.
        Err(refusal(Op::DirectoryPart, path, Reason::Errno(Errno::Again)))
    }

    fn call(&mut self, op: Op, path: &str) -> Result<Vec<u8>, XsError> {
        self.client.call(self.id, op, path, &[path.as_bytes(), b"\0"])
    }
}

fn split_names(names: &[u8], path: &str) -> Result<Vec<String>, XsError> {
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| utf8(Op::Directory, name.to_vec(), path)).collect()
}

fn utf8(op: Op, bytes: Vec<u8>, path: &str) -> Result<String, XsError> {
    String::from_utf8(bytes).map_err(|_| refusal(op, path, Reason::NotText))
}

/// Paths as the protocol carries them.
fn terminated(paths: &[String]) -> impl Iterator<Item = Vec<u8>> {
    paths.iter().map(|path| [path.as_bytes(), b"\0"].concat())
}

fn found(reply: Result<Vec<u8>, Refusal>) -> Found {
    absent_as_none(reply.map_err(XsError::from))
}

fn transaction_id(started: &[u8]) -> Result<u32, Lost> {
    let text = std::str::from_utf8(started.strip_suffix(b"\0").unwrap_or(started)).ok();
    let id = text.and_then(|id| id.parse().ok());
    id.ok_or_else(|| Lost::sent("a transaction without a number"))
}

fn absent_as_none(outcome: Result<Vec<u8>, XsError>) -> Result<Option<Vec<u8>>, XsError> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is(Errno::Noent) => Ok(None),
        Err(error) => Err(error),
    }
}

fn refusal(op: Op, path: &str, reason: Reason) -> XsError {
    Refusal { op, path: path.to_owned(), reason }.into()
}

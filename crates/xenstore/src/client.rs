//! A synchronous client of any XenStore: ours, or a real one by socket or `/dev/xen/xenbus`.
//!
//! Watch events may arrive between a request and its reply; they are kept, each once, until
//! [`Client::next_watch`] takes them. A control loop polls the client's descriptor and then takes
//! events until there are none.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use ringway_wire::DomId;
use ringway_wire::xenstore::{Errno, Op, SOCKMSG_LEN, SockMsg, XENSTORE_PAYLOAD_MAX};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zerocopy::{FromBytes, IntoBytes};

use crate::permissions::Permissions;

/// Watch events that are kept for a caller that does not take them: a backend that finds a thousand
/// vifs makes a dozen for each before it looks at one.
const EVENTS_MAX: usize = 1 << 16;
/// How often a transaction is run again after a conflict before the caller is told.
const TRANSACTION_ATTEMPTS_MAX: usize = 64;
/// Parts that a directory may be read in. The stock daemon's limits allow for fewer.
const DIRECTORY_PARTS_MAX: usize = 4096;
/// Where the daemon of a domain 0 listens.
const DAEMON_SOCKET: &str = "/run/xenstored/socket";
/// Where the kernel of any domain lets programs in.
const KERNEL_DEVICE: &str = "/dev/xen/xenbus";
/// Bytes read at a time: the longest message.
const READ_LEN: usize = SOCKMSG_LEN + XENSTORE_PAYLOAD_MAX;

/// A connection to a XenStore.
///
/// Every method fails with kind `UnexpectedEof` once the store has closed the connection.
#[derive(Debug)]
pub struct Client {
    stream: File,
    input: Vec<u8>,
    events: VecDeque<WatchEvent>,
    /// What is in `events`.
    kept: HashSet<WatchEvent>,
    last_request: u32,
}

/// Something watched has changed, or a watch was just set.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WatchEvent {
    /// The node that changed; relative if the watch is.
    pub path: String,
    /// The token that the watch was set with.
    pub token: String,
}

/// A request that the store refused. It is inside the [`io::Error`] that methods return.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("XenStore {op:?} {path}: {errno}")]
pub struct StoreError {
    /// What was asked.
    pub op: Op,
    /// Of which path.
    pub path: String,
    /// The answer.
    pub errno: Errno,
}

/// Whether an error is the store's answer, such as a missing right or a quota, and not the loss of
/// the store.
pub fn is_refusal(error: &io::Error) -> bool {
    error.get_ref().and_then(|inner| inner.downcast_ref::<StoreError>()).is_some()
}

/// What the store answered, or what is to be assumed where it refused.
///
/// # Errors
/// All that is no refusal.
pub fn unless_refused<T>(answer: io::Result<T>, otherwise: T) -> io::Result<T> {
    match answer {
        Err(error) if is_refusal(&error) => Ok(otherwise),
        answer => answer,
    }
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
            // Only root may use the socket, and others may be let in to the device.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {}
            connected => return connected,
        }
        let device = File::options().read(true).write(true).open(KERNEL_DEVICE);
        let device = device.map_err(|error| {
            let remedy = match error.kind() {
                ErrorKind::NotFound => "not there: this is no domain of Xen's",
                ErrorKind::PermissionDenied => {
                    "not permitted: run as root, or as a user whom the mode of the node lets in"
                }
                _ => "open",
            };
            io::Error::new(error.kind(), format!("{KERNEL_DEVICE}: {remedy}: {error}"))
        })?;
        Ok(Client::from_fd(device.into()))
    }

    /// Uses a connected socket, which must be blocking.
    pub fn from_stream(stream: UnixStream) -> Client {
        Client::from_fd(stream.into())
    }

    /// Uses any blocking descriptor that carries the protocol, such as `/dev/xen/xenbus`.
    pub fn from_fd(fd: OwnedFd) -> Client {
        let stream = File::from(fd);
        Client {
            stream,
            input: Vec::new(),
            events: VecDeque::new(),
            kept: HashSet::new(),
            last_request: 0,
        }
    }

    /// The value of a node as text, or `None` if there is no such node.
    ///
    /// # Errors
    /// What the store answers, or of kind `InvalidData` if the value is not UTF-8.
    pub fn read(&mut self, path: &str) -> io::Result<Option<String>> {
        self.outside().read(path)
    }

    /// The value of a node, or `None` if there is no such node.
    ///
    /// # Errors
    /// What the store answers.
    pub fn read_bytes(&mut self, path: &str) -> io::Result<Option<Vec<u8>>> {
        self.outside().read_bytes(path)
    }

    /// Sets the value of a node; makes it, and the directories it is in, if needed.
    ///
    /// # Errors
    /// What the store answers.
    pub fn write(&mut self, path: &str, value: impl AsRef<[u8]>) -> io::Result<()> {
        self.outside().write(path, value)
    }

    /// Makes a node with an empty value unless it is there.
    ///
    /// # Errors
    /// What the store answers.
    pub fn mkdir(&mut self, path: &str) -> io::Result<()> {
        self.outside().mkdir(path)
    }

    /// Removes a node and all below it; fine if it is not there.
    ///
    /// # Errors
    /// What the store answers.
    pub fn remove(&mut self, path: &str) -> io::Result<()> {
        self.outside().remove(path)
    }

    /// Names of the children of a node; none if there is no such node.
    ///
    /// # Errors
    /// What the store answers.
    pub fn directory(&mut self, path: &str) -> io::Result<Vec<String>> {
        self.outside().directory(path)
    }

    /// The permissions of a node.
    ///
    /// # Errors
    /// What the store answers.
    pub fn permissions(&mut self, path: &str) -> io::Result<Permissions> {
        self.outside().permissions(path)
    }

    /// Replaces the permissions of a node.
    ///
    /// # Errors
    /// What the store answers.
    pub fn set_permissions(&mut self, path: &str, to: &Permissions) -> io::Result<()> {
        self.outside().set_permissions(path, to)
    }

    /// Asks to be told when the node or anything below it changes. Fires once right away.
    ///
    /// # Errors
    /// What the store answers; of kind `AlreadyExists` if this watch is set.
    pub fn watch(&mut self, path: &str, token: &str) -> io::Result<()> {
        self.call(0, Op::Watch, path, &[path.as_bytes(), b"\0", token.as_bytes(), b"\0"]).map(drop)
    }

    /// Withdraws a watch. Events that are on their way may still come.
    ///
    /// # Errors
    /// What the store answers; of kind `NotFound` if there is no such watch.
    pub fn unwatch(&mut self, path: &str, token: &str) -> io::Result<()> {
        self.call(0, Op::Unwatch, path, &[path.as_bytes(), b"\0", token.as_bytes(), b"\0"])
            .map(drop)
    }

    /// The home directory of a domain.
    ///
    /// # Errors
    /// What the store answers.
    pub fn domain_path(&mut self, domain: DomId) -> io::Result<String> {
        let text = domain.to_string();
        let reply = self.call(0, Op::GetDomainPath, &text, &[text.as_bytes(), b"\0"])?;
        let reply = reply.strip_suffix(b"\0").unwrap_or(&reply);
        utf8(reply.to_vec(), &text)
    }

    /// Runs `work` so that its reads see one moment and its writes take effect together.
    ///
    /// After a conflict it is run again, a bounded number of times, so it must not have effects
    /// outside the transaction. If it fails, nothing it wrote takes effect.
    ///
    /// # Errors
    /// Of `work`, or what the store answers; of kind `WouldBlock` if conflicts do not end.
    pub fn transaction<T>(
        &mut self,
        mut work: impl FnMut(&mut Transaction<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        for _ in 0..TRANSACTION_ATTEMPTS_MAX {
            let started = self.call(0, Op::TransactionStart, "", &[b"\0"])?;
            let id = std::str::from_utf8(started.strip_suffix(b"\0").unwrap_or(&started))
                .ok()
                .and_then(|id| id.parse().ok())
                .ok_or_else(|| broken("a transaction without a number"))?;
            let outcome = work(&mut Transaction { client: self, id });
            let verdict = if outcome.is_ok() { b"T\0" } else { b"F\0" };
            let ended = self.call(id, Op::TransactionEnd, "", &[verdict]);
            match (outcome, ended) {
                (Ok(value), Ok(_)) => return Ok(value),
                (Ok(_), Err(error)) | (Err(error), _) if error.kind() != ErrorKind::WouldBlock => {
                    return Err(error);
                }
                _ => {}
            }
        }
        let refused = StoreError {
            op: Op::TransactionEnd,
            path: format!("after {TRANSACTION_ATTEMPTS_MAX} attempts"),
            errno: Errno::Again,
        };
        Err(io::Error::new(ErrorKind::WouldBlock, refused))
    }

    /// The next watch event if one is there; does not wait.
    ///
    /// # Errors
    /// Of kind `UnexpectedEof` when the store is gone.
    pub fn next_watch(&mut self) -> io::Result<Option<WatchEvent>> {
        loop {
            // First what came together with an earlier reply: the socket does not tell of it again.
            if let Some((header, _)) = self.next_reply()? {
                return Err(broken(&format!("a reply to request {}, not asked", header.req_id)));
            }
            if let Some(event) = self.events.pop_front() {
                self.kept.remove(&event);
                return Ok(Some(event));
            }
            if !self.is_readable()? {
                return Ok(None);
            }
            self.receive()?;
        }
    }

    /// Requests that belong to no transaction.
    fn outside(&mut self) -> Transaction<'_> {
        Transaction { client: self, id: 0 }
    }

    fn call(&mut self, tx: u32, op: Op, path: &str, parts: &[&[u8]]) -> io::Result<Vec<u8>> {
        let payload = parts.concat();
        let refused = |errno| refusal(StoreError { op, path: path.to_owned(), errno });
        if payload.len() > XENSTORE_PAYLOAD_MAX {
            return Err(refused(Errno::Toobig));
        }
        let len = u32::try_from(payload.len()).map_err(|_| refused(Errno::Toobig))?;
        self.last_request = self.last_request.wrapping_add(1);
        let header = SockMsg { kind: op.number(), req_id: self.last_request, tx_id: tx, len };
        let message = [header.as_bytes(), payload.as_slice()].concat();
        self.stream.write_all(&message).map_err(gone_or)?;
        let (reply, payload) = loop {
            match self.next_reply()? {
                Some(reply) => break reply,
                None => self.receive()?,
            }
        };
        if reply.req_id != header.req_id {
            return Err(broken(&format!("a reply to request {}", reply.req_id)));
        }
        if reply.kind == header.kind {
            return Ok(payload);
        }
        let name = payload.strip_suffix(b"\0").unwrap_or(&payload);
        let errno = std::str::from_utf8(name).ok().and_then(Errno::from_name);
        Err(match errno {
            Some(errno) if reply.kind == Op::Error.number() => refused(errno),
            _ => broken(&format!("a reply of type {} to {op:?}", reply.kind)),
        })
    }

    /// The next message that is not a watch event; events before it are put aside.
    fn next_reply(&mut self) -> io::Result<Option<(SockMsg, Vec<u8>)>> {
        while let Ok((header, body)) = SockMsg::read_from_prefix(&self.input) {
            let len = usize::try_from(header.len).unwrap_or(usize::MAX);
            if len > XENSTORE_PAYLOAD_MAX {
                return Err(broken(&format!("a message of {len} bytes")));
            }
            let Some(payload) = body.get(..len) else { break };
            let payload = payload.to_vec();
            self.input.drain(..SOCKMSG_LEN + len);
            if header.kind != Op::WatchEvent.number() {
                return Ok(Some((header, payload)));
            }
            self.keep_event(&payload)?;
        }
        Ok(None)
    }

    fn keep_event(&mut self, payload: &[u8]) -> io::Result<()> {
        let mut strings = payload.split(|byte| *byte == 0).map(std::str::from_utf8);
        let (Some(Ok(path)), Some(Ok(token))) = (strings.next(), strings.next()) else {
            return Err(broken("a watch event without path and token"));
        };
        let event = WatchEvent { path: path.to_owned(), token: token.to_owned() };
        if self.kept.contains(&event) {
            return Ok(());
        }
        if self.events.len() >= EVENTS_MAX {
            return Err(broken(&format!("more than {EVENTS_MAX} watch events nobody takes")));
        }
        self.kept.insert(event.clone());
        self.events.push_back(event);
        Ok(())
    }

    /// Waits for bytes and takes what is there.
    fn receive(&mut self) -> io::Result<()> {
        let mut chunk = [0; READ_LEN];
        let len = match self.stream.read(&mut chunk) {
            Ok(0) => return Err(gone_or(ErrorKind::UnexpectedEof.into())),
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::Interrupted => 0,
            Err(error) => return Err(gone_or(error)),
        };
        self.input.extend_from_slice(chunk.get(..len).unwrap_or_default());
        Ok(())
    }

    fn is_readable(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Readable when there may be watch events. Events that came together with a reply are inside the
/// client already, so take events until there are none before polling.
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The requests of one transaction. See [`Client::transaction`]; methods are as in [`Client`].
#[derive(Debug)]
pub struct Transaction<'a> {
    client: &'a mut Client,
    id: u32,
}

impl Transaction<'_> {
    /// As [`Client::read`].
    ///
    /// # Errors
    /// As there.
    pub fn read(&mut self, path: &str) -> io::Result<Option<String>> {
        self.read_bytes(path)?.map(|value| utf8(value, path)).transpose()
    }

    /// As [`Client::read_bytes`].
    ///
    /// # Errors
    /// As there.
    pub fn read_bytes(&mut self, path: &str) -> io::Result<Option<Vec<u8>>> {
        absent_as_none(self.call(Op::Read, path))
    }

    /// As [`Client::write`].
    ///
    /// # Errors
    /// As there.
    pub fn write(&mut self, path: &str, value: impl AsRef<[u8]>) -> io::Result<()> {
        let parts = [path.as_bytes(), b"\0", value.as_ref()];
        self.client.call(self.id, Op::Write, path, &parts).map(drop)
    }

    /// As [`Client::mkdir`].
    ///
    /// # Errors
    /// As there.
    pub fn mkdir(&mut self, path: &str) -> io::Result<()> {
        self.call(Op::Mkdir, path).map(drop)
    }

    /// As [`Client::remove`].
    ///
    /// # Errors
    /// As there.
    pub fn remove(&mut self, path: &str) -> io::Result<()> {
        absent_as_none(self.call(Op::Rm, path)).map(drop)
    }

    /// As [`Client::directory`].
    ///
    /// # Errors
    /// As there.
    pub fn directory(&mut self, path: &str) -> io::Result<Vec<String>> {
        match self.call(Op::Directory, path) {
            Err(error) if is_too_long(&error) => self.directory_in_parts(path),
            listed => match absent_as_none(listed)? {
                Some(names) => split_names(&names, path),
                None => Ok(Vec::new()),
            },
        }
    }

    /// As [`Client::permissions`].
    ///
    /// # Errors
    /// As there.
    pub fn permissions(&mut self, path: &str) -> io::Result<Permissions> {
        let reply = self.call(Op::GetPerms, path)?;
        let entries = reply.strip_suffix(b"\0").unwrap_or(&reply).split(|byte| *byte == 0);
        Permissions::parse(entries).map_err(|_| broken(&format!("permissions of {path}")))
    }

    /// As [`Client::set_permissions`].
    ///
    /// # Errors
    /// As there.
    pub fn set_permissions(&mut self, path: &str, to: &Permissions) -> io::Result<()> {
        let parts = [path.as_bytes(), b"\0", &to.to_wire()];
        self.client.call(self.id, Op::SetPerms, path, &parts).map(drop)
    }

    /// Reads a list of children that is too long for one message, from its start again whenever
    /// it changes meanwhile.
    fn directory_in_parts(&mut self, path: &str) -> io::Result<Vec<String>> {
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
        Err(broken(&format!("the list of {path} does not end")))
    }

    fn call(&mut self, op: Op, path: &str) -> io::Result<Vec<u8>> {
        self.client.call(self.id, op, path, &[path.as_bytes(), b"\0"])
    }
}

fn split_names(names: &[u8], path: &str) -> io::Result<Vec<String>> {
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| utf8(name.to_vec(), path)).collect()
}

fn utf8(bytes: Vec<u8>, path: &str) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| {
        io::Error::new(ErrorKind::InvalidData, format!("XenStore {path}: the value is not UTF-8"))
    })
}

fn absent_as_none(outcome: io::Result<Vec<u8>>) -> io::Result<Option<Vec<u8>>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_too_long(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<StoreError>());
    inner.is_some_and(|refused| refused.errno == Errno::Toobig)
}

fn refusal(error: StoreError) -> io::Error {
    let kind = match error.errno {
        Errno::Noent => ErrorKind::NotFound,
        Errno::Acces | Errno::Perm => ErrorKind::PermissionDenied,
        Errno::Exist => ErrorKind::AlreadyExists,
        Errno::Again => ErrorKind::WouldBlock,
        Errno::Inval => ErrorKind::InvalidInput,
        Errno::Nosys => ErrorKind::Unsupported,
        Errno::Nospc => ErrorKind::QuotaExceeded,
        Errno::Nomem => ErrorKind::OutOfMemory,
        Errno::Busy => ErrorKind::ResourceBusy,
        _ => ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// The system reports a store that is gone in one of three ways, depending on what it was doing.
fn gone_or(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
            io::Error::new(ErrorKind::UnexpectedEof, "XenStore closed the connection")
        }
        _ => error,
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("XenStore sent {what}"))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn message(op: Op, req_id: u32, payload: &[u8]) -> Vec<u8> {
        let len = u32::try_from(payload.len()).expect("a test's payload is short");
        let header = SockMsg { kind: op.number(), req_id, tx_id: 0, len };
        [header.as_bytes(), payload].concat()
    }

    #[test]
    fn an_event_that_came_with_a_reply_is_found_without_another_byte() {
        let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
        let store = std::thread::spawn(move || {
            let mut request = [0; SOCKMSG_LEN + 3];
            theirs.read_exact(&mut request).expect("the request for /a");
            let reply = message(Op::Read, 1, b"value");
            let event = message(Op::WatchEvent, 0, b"/b\0token\0");
            theirs.write_all(&[reply, event].concat()).expect("both at once");
            theirs
        });
        let mut client = Client::from_stream(ours);
        assert_eq!(client.read("/a").expect("a reply").as_deref(), Some("value"));
        let event = client.next_watch().expect("no error").expect("the event is in the client");
        assert_eq!((event.path.as_str(), event.token.as_str()), ("/b", "token"));
        assert_eq!(client.next_watch().expect("no error"), None);
        drop(store.join().expect("the store ends"));
    }
}

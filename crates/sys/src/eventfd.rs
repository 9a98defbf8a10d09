//! Event descriptors (`eventfd(2)`) that another process has as well.
//!
//! All processes with such a descriptor share its flags and its counter, so a peer may at any
//! moment make it block, empty it before we read it, or fill it. Each read asks the kernel not to
//! block. There is no such write: a write to a full counter blocks until one of our threads, which
//! polls the counters of all peers, empties it ([`FULL_POLL_PAUSE`]) and records that it was full.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::descriptor::{self, Kind};

/// The interval at which the counters of peers are polled. A full counter blocks its writer for at
/// most this long, once: after that its peer is disconnected.
pub const FULL_POLL_PAUSE: Duration = Duration::from_millis(50);

/// Counters that one call polls.
const POLLED_AT_ONCE: usize = 64;

/// A counter that one side increments and the other waits for.
#[derive(Debug)]
pub struct EventFd(Arc<Counter>);

#[derive(Debug)]
struct Counter {
    fd: OwnedFd,
    /// Whether it was found full. A peer that reads its counter never lets it come so far: that
    /// takes as many events as there are 64-bit numbers.
    was_full: AtomicBool,
}

impl EventFd {
    /// Creates an eventfd.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new() -> io::Result<EventFd> {
        Ok(EventFd::of(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Uses an eventfd that a peer sent, to wait for.
    ///
    /// # Errors
    /// Of kind `InvalidInput` for a descriptor of another kind.
    pub fn from_peer(fd: OwnedFd) -> io::Result<EventFd> {
        let refused = |what: &str| {
            let what = format!("{what} in the place of an event descriptor (eventfd)");
            io::Error::new(io::ErrorKind::InvalidInput, what)
        };
        match descriptor::kind(&fd)? {
            Kind::Anonymous => {}
            other => return Err(refused(other.name())),
        }
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        // Other kinds of nameless files, such as those of epoll(7), refuse the number, and do so
        // without blocking. An eventfd is not changed by adding 0.
        match rustix::io::write(&fd, &0_u64.to_ne_bytes()) {
            Ok(8) | Err(Errno::AGAIN) => Ok(EventFd::of(fd)),
            _ => Err(refused("another descriptor without a name")),
        }
    }

    /// Uses an eventfd that a peer sent, to signal.
    ///
    /// # Errors
    /// As [`from_peer`](EventFd::from_peer); if the thread that polls it cannot be started.
    pub fn to_peer(fd: OwnedFd) -> io::Result<EventFd> {
        let event_fd = EventFd::from_peer(fd)?;
        watch(&event_fd.0)?;
        Ok(event_fd)
    }

    fn of(fd: OwnedFd) -> EventFd {
        EventFd(Arc::new(Counter { fd, was_full: AtomicBool::new(false) }))
    }

    /// Increments the counter. A full counter has not been read, so the peer is awake.
    ///
    /// # Errors
    /// Of kind `WouldBlock` if the peer has filled its counter, which can block the caller; what
    /// write(2) reports.
    pub fn signal(&self) -> io::Result<()> {
        let EventFd(counter) = self;
        match rustix::io::write(&counter.fd, &1_u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        match counter.was_full.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::WouldBlock.into()),
            false => Ok(()),
        }
    }

    /// Clears the counter, and returns whether it was raised.
    ///
    /// # Errors
    /// What preadv2(2) reports.
    pub fn clear(&self) -> io::Result<bool> {
        self.0.clear()
    }

    /// Another descriptor of the same counter, for the peer.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.0.fd.try_clone()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

impl Counter {
    fn clear(&self) -> io::Result<bool> {
        let mut number = [0; 8];
        // The offset that means "none".
        let read = |number: &mut [u8]| {
            preadv2(&self.fd, &mut [IoSliceMut::new(number)], u64::MAX, ReadWriteFlags::NOWAIT)
        };
        let read = match read(&mut number) {
            // Linux before 5.8, and QEMU's emulation of it: there a peer can block the reader.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => rustix::io::read(&self.fd, &mut number),
            read => read,
        };
        match read {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// The channel that passes counters to the thread that polls them, once it runs.
static WATCHED: Mutex<Option<Sender<Weak<Counter>>>> = Mutex::new(None);

fn watch(counter: &Arc<Counter>) -> io::Result<()> {
    // The value is consistent at any moment.
    let mut sender = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    let sender = match &mut *sender {
        Some(sender) => sender,
        none => {
            let (sender, counters) = mpsc::channel();
            thread::Builder::new().name("bells".to_owned()).spawn(move || empty_all(&counters))?;
            none.insert(sender)
        }
    };
    sender.send(Arc::downgrade(counter)).map_err(|_| io::ErrorKind::BrokenPipe.into())
}

/// Empties full counters as long as there are any counters, and sleeps otherwise.
fn empty_all(new: &Receiver<Weak<Counter>>) {
    let mut known: Vec<Weak<Counter>> = Vec::new();
    loop {
        if known.is_empty() {
            let Ok(first) = new.recv() else { return };
            known.push(first);
        }
        known.extend(new.try_iter());
        known.retain(|counter| counter.strong_count() > 0);
        known.chunks(POLLED_AT_ONCE).for_each(empty_full);
        thread::sleep(FULL_POLL_PAUSE);
    }
}

/// Polls a few counters, without allocating.
fn empty_full(known: &[Weak<Counter>]) {
    let counters: ArrayVec<Arc<Counter>, POLLED_AT_ONCE> =
        known.iter().filter_map(Weak::upgrade).collect();
    let mut fds: ArrayVec<PollFd<'_>, POLLED_AT_ONCE> =
        counters.iter().map(|it| PollFd::new(&it.fd, PollFlags::OUT)).collect();
    if poll(&mut fds, Some(&Timespec::default())).is_err() {
        return;
    }
    let is_full = |fd: &PollFd<'_>| !fd.revents().contains(PollFlags::OUT);
    for (counter, _) in counters.iter().zip(&fds).filter(|(_, fd)| is_full(fd)) {
        // Set before the blocked write can return.
        counter.was_full.store(true, Ordering::Relaxed);
        // The counter is readable; if its peer has read it first, there is nothing to do.
        let _ = counter.clear();
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::epoll;
    use rustix::fs::inotify;

    use super::*;

    /// A generous limit: only a machine that is stuck takes this long.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A peer's descriptor and our duplicate of it, which the peer has set to blocking.
    fn blocking(open: impl FnOnce(OwnedFd) -> io::Result<EventFd>) -> (OwnedFd, EventFd) {
        let peers = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let event_fd = open(peers.try_clone().unwrap()).unwrap();
        fcntl_setfl(&peers, fcntl_getfl(&peers).unwrap() - OFlags::NONBLOCK).unwrap();
        (peers, event_fd)
    }

    /// The result of a call that may block forever.
    fn in_time<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
        let (sender, outcome) = mpsc::channel();
        thread::spawn(move || sender.send(what()));
        outcome.recv_timeout(PATIENCE).expect("it waits for its peer")
    }

    #[test]
    fn a_shared_event_descriptor_wakes_its_holder() {
        let event_fd = EventFd::new().unwrap();
        let other = EventFd::from_peer(event_fd.share().unwrap()).unwrap();
        assert!(!other.clear().unwrap());
        event_fd.signal().unwrap();
        event_fd.signal().unwrap();
        assert!(other.clear().unwrap());
        assert!(!event_fd.clear().unwrap());
    }

    #[test]
    fn a_full_counter_is_not_an_error() {
        let event_fd = EventFd::new().unwrap();
        rustix::io::write(&event_fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        event_fd.signal().unwrap();
    }

    #[test]
    fn a_peer_that_makes_its_kick_blocking_delays_no_other() {
        let (_peers, event_fd) = blocking(EventFd::from_peer);
        let mut number = [0; 8];
        let buffer = &mut [IoSliceMut::new(&mut number)];
        let read = preadv2(&event_fd.0.fd, buffer, u64::MAX, ReadWriteFlags::NOWAIT);
        if let Err(Errno::OPNOTSUPP | Errno::NOSYS) = read {
            eprintln!("SKIPPED: this system reads no eventfd without waiting");
            return;
        }
        assert!(!in_time(move || event_fd.clear()).unwrap());
    }

    #[test]
    fn a_peer_that_fills_its_call_and_makes_it_blocking_is_detected() {
        let (peers, event_fd) = blocking(EventFd::to_peer);
        event_fd.signal().unwrap();
        rustix::io::write(&peers, &(u64::MAX - 2).to_ne_bytes()).unwrap();
        let refused = in_time(move || {
            // The first write may succeed, before the polling thread finds the counter full.
            (0..2).find_map(|_| event_fd.signal().err())
        });
        assert_eq!(refused.map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
    }

    #[test]
    fn other_descriptors_are_refused() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        for fd in [OwnedFd::from(socket), OwnedFd::from(file), epoll, inotify] {
            assert_eq!(EventFd::from_peer(fd).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}

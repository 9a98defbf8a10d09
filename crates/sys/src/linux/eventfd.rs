//! Event descriptors (`eventfd(2)`) that another process has as well.
//!
//! All processes with such a descriptor share its flags and its counter, so a peer may at any
//! moment make it block, empty it before we read it, or fill it. Each read asks the kernel not to
//! block. There is no such write: a write to a full counter blocks until one of our threads, which
//! polls the counters of all peers ([`FULL_POLL_PAUSE`]), interrupts it. From then on, none of this
//! peer's counters is written to ([`PeerCounters`]). Emptying the counter would not do: the peer
//! may fill it again before the writer runs. Nor would `pwritev2` with `RWF_NOWAIT`, which an
//! eventfd does not have (Linux 6.18), or `poll` before each write, which is a second call for each
//! event, and the peer may fill the counter between the two.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::linux::descriptor::{self, Kind};
use crate::linux::interrupt;

/// The interval at which the counters of peers are polled. A full counter blocks its writer for at
/// most twice this long, once: after that its peer is disconnected.
pub const FULL_POLL_PAUSE: Duration = Duration::from_millis(20);

/// Counters that one call polls.
const POLLED_AT_ONCE: usize = 64;

/// A counter that one side increments and the other waits for.
#[derive(Debug)]
pub struct EventFd(Arc<Counter>);

/// The counters of one peer, of which one was found full, or none. A peer that reads its counters
/// never lets it come so far: that takes as many events as there are 64-bit numbers.
#[derive(Debug, Clone, Default)]
pub struct PeerCounters(Arc<AtomicBool>);

#[derive(Debug)]
struct Counter {
    fd: OwnedFd,
    peer: PeerCounters,
    /// The thread that is writing, as the kernel numbers it, or 0.
    writer: AtomicI32,
}

impl EventFd {
    /// Creates an eventfd.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new() -> io::Result<EventFd> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(EventFd::of(eventfd(0, flags)?, PeerCounters::default()))
    }

    /// Uses an eventfd that a peer sent, to wait for.
    ///
    /// # Errors
    /// Of kind `InvalidInput` for a descriptor of another kind.
    pub fn from_peer(fd: OwnedFd) -> io::Result<EventFd> {
        Ok(EventFd::of(checked(fd)?, PeerCounters::default()))
    }

    /// Uses an eventfd that a peer sent, to signal. `peer` is shared by all its counters.
    ///
    /// # Errors
    /// As [`from_peer`](EventFd::from_peer); if the thread that polls it cannot be started.
    pub fn to_peer(fd: OwnedFd, peer: &PeerCounters) -> io::Result<EventFd> {
        let event_fd = EventFd::of(checked(fd)?, peer.clone());
        watch(&event_fd.0)?;
        Ok(event_fd)
    }

    fn of(fd: OwnedFd, peer: PeerCounters) -> EventFd {
        EventFd(Arc::new(Counter { fd, peer, writer: AtomicI32::new(0) }))
    }

    /// Increments the counter. A full counter has not been read, so the peer is awake.
    ///
    /// # Errors
    /// Of kind `WouldBlock` if the peer has filled its counter, which can block the caller; what
    /// write(2) reports.
    pub fn signal(&self) -> io::Result<()> {
        let Counter { fd, peer: PeerCounters(was_full), writer } = &*self.0;
        let is_fine = || match was_full.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::WouldBlock.into()),
            false => Ok(()),
        };
        is_fine()?;
        writer.store(interrupt::this_thread(), Ordering::Relaxed);
        let written = rustix::io::write(fd, &1_u64.to_ne_bytes());
        writer.store(0, Ordering::Relaxed);
        match written {
            Ok(_) | Err(Errno::AGAIN) => is_fine(),
            // By our thread, or by a signal to the process before it has written.
            Err(Errno::INTR) => is_fine().and_then(|()| self.signal()),
            Err(error) => Err(error.into()),
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

/// Whether this kernel reads counters without waiting, whatever a peer has done to their flags:
/// since Linux 5.8. Elsewhere a peer can block a thread that reads its counter.
pub fn reads_without_waiting() -> bool {
    let Ok(event_fd) = EventFd::new() else { return true };
    !matches!(event_fd.0.read_now(&mut [0; 8]), Err(Errno::OPNOTSUPP | Errno::NOSYS))
}

/// A descriptor that a peer sent, if it is an eventfd. It does not block.
fn checked(fd: OwnedFd) -> io::Result<OwnedFd> {
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
        Ok(8) | Err(Errno::AGAIN) => Ok(fd),
        _ => Err(refused("another descriptor without a name")),
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
        let read = match self.read_now(&mut number) {
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

    /// Reads the counter; `AGAIN` if it is 0.
    fn read_now(&self, number: &mut [u8; 8]) -> rustix::io::Result<usize> {
        // The offset that means "none".
        preadv2(&self.fd, &mut [IoSliceMut::new(number)], u64::MAX, ReadWriteFlags::NOWAIT)
    }
}

/// The channel that passes counters to the thread that polls them, once it runs.
static WATCHED: Mutex<Option<Sender<Weak<Counter>>>> = Mutex::new(None);

fn watch(counter: &Arc<Counter>) -> io::Result<()> {
    // The value is consistent at any moment.
    let mut sender = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    static HANDLER: Once = Once::new();
    HANDLER.call_once(interrupt::prepare);
    let sender = match &mut *sender {
        Some(sender) => sender,
        none => {
            let (sender, counters) = mpsc::channel();
            thread::Builder::new().name("bells".to_owned()).spawn(move || poll_all(&counters))?;
            none.insert(sender)
        }
    };
    sender.send(Arc::downgrade(counter)).map_err(|_| io::ErrorKind::BrokenPipe.into())
}

/// Looks for full counters as long as there are any counters, and sleeps otherwise.
fn poll_all(new: &Receiver<Weak<Counter>>) {
    let mut known: Vec<Weak<Counter>> = Vec::new();
    loop {
        if known.is_empty() {
            let Ok(first) = new.recv() else { return };
            known.push(first);
        }
        known.extend(new.try_iter());
        known.retain(|counter| counter.strong_count() > 0);
        known.chunks(POLLED_AT_ONCE).for_each(poll_some);
        thread::sleep(FULL_POLL_PAUSE);
    }
}

/// Polls a few counters, without allocating.
fn poll_some(known: &[Weak<Counter>]) {
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
        counter.peer.0.store(true, Ordering::Relaxed);
        // Emptying it would not do: the peer may fill it before the writer has run.
        interrupt::thread(counter.writer.load(Ordering::Relaxed));
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
        if !reads_without_waiting() {
            eprintln!("SKIPPED: this system reads no eventfd without waiting");
            return;
        }
        assert!(!in_time(move || event_fd.clear()).unwrap());
    }

    #[test]
    fn a_peer_that_fills_its_call_and_makes_it_blocking_is_detected() {
        let peer = PeerCounters::default();
        let (peers, event_fd) = blocking(|fd| EventFd::to_peer(fd, &peer));
        let (_others, other) = blocking(|fd| EventFd::to_peer(fd, &peer));
        event_fd.signal().unwrap();
        rustix::io::write(&peers, &(u64::MAX - 2).to_ne_bytes()).unwrap();
        // It fills the counter again as soon as that has room.
        let is_over = Arc::new(AtomicBool::new(false));
        let is_over_too = Arc::clone(&is_over);
        let refill = thread::spawn(move || {
            while !is_over_too.load(Ordering::Relaxed) {
                let mut fds = [PollFd::new(&peers, PollFlags::OUT)];
                let pause = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                if poll(&mut fds, Some(&pause)) == Ok(1) {
                    let _ = rustix::io::read(&peers, &mut [0; 8]);
                    rustix::io::write(&peers, &(u64::MAX - 1).to_ne_bytes()).unwrap();
                }
            }
        });
        let refused = in_time(move || event_fd.signal().err());
        assert_eq!(refused.map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
        // None of its counters is written to any more, so none can delay a writer.
        assert_eq!(other.signal().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        is_over.store(true, Ordering::Relaxed);
        refill.join().unwrap();
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

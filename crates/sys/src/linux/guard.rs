//! Mappings of a peer's file that may be truncated, without `SIGBUS` ending this process.
//!
//! The peer owns the file and may truncate it at any moment, also between a check and an access. An
//! access beyond the end then raises `SIGBUS`, which would end the process and with it the service
//! of all other peers. So mappings are in a table that the signal handler searches: it replaces the
//! whole mapping by private zero pages, marks it as lost, and lets the access continue. The user of
//! the mapping reads the mark after each batch, and disconnects the peer.
//!
//! A file raises the same signal where its file system has no room for a page that is written, or
//! read from huge pages. Once the signal is raised, nothing shows which of the two it was.
//!
//! The table has a fixed size and no lock, because a handler may not block.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::linux::share::{MAPPINGS_MAX, MappingShare};

static TABLE: [Entry; MAPPINGS_MAX] = [const { Entry::free() }; MAPPINGS_MAX];
/// How often the handler replaced a mapping or another part of a peer's memory turned out to be
/// missing: a single load shows that nothing was lost since.
static LOST: AtomicU32 = AtomicU32::new(0);
/// The previous handler of `SIGBUS`.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// A shared mapping of a file that another process may truncate.
pub(crate) struct GuardedMapping {
    base: NonNull<u8>,
    len: usize,
    entry: &'static Entry,
    /// The share that the table entry counts against.
    share: Arc<MappingShare>,
}

// SAFETY: the mapping only records what to unmap, and munmap may be called from any thread.
unsafe impl Send for GuardedMapping {}
// SAFETY: methods with a shared reference read an atomic flag or copy the address.
unsafe impl Sync for GuardedMapping {}

impl GuardedMapping {
    /// Maps `len` bytes of `fd` from `offset`, for reading and writing. Both are multiples of the
    /// file's page size.
    ///
    /// # Errors
    /// What mmap(2) and sigaction(2) report; of kind `OutOfMemory` if the share is used up.
    pub(crate) fn new(
        share: &Arc<MappingShare>,
        fd: impl AsFd,
        offset: u64,
        len: usize,
    ) -> io::Result<GuardedMapping> {
        install()?;
        let out_of_memory = |error| io::Error::new(io::ErrorKind::OutOfMemory, error);
        share.take(len as u64).map_err(out_of_memory)?;
        let mapped = GuardedMapping::map(share, fd, offset, len);
        mapped.inspect_err(|_| share.give_back(len as u64))
    }

    /// Maps the file, if the share has room.
    fn map(
        share: &Arc<MappingShare>,
        fd: impl AsFd,
        offset: u64,
        len: usize,
    ) -> io::Result<GuardedMapping> {
        let entry = TABLE.iter().find(|entry| entry.claim());
        // Cannot fail as long as all shares together have no more mappings than the table has
        // entries.
        let entry = entry.ok_or(io::ErrorKind::OutOfMemory)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint with no MAP_FIXED cannot replace an existing mapping.
        let base = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, fd, offset) };
        let base = base.map_err(io::Error::from).and_then(|base| {
            NonNull::new(base.cast::<u8>()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
        });
        let base = base.inspect_err(|_| entry.release())?;
        entry.set(base.as_ptr().addr(), len);
        Ok(GuardedMapping { base, len, entry, share: Arc::clone(share) })
    }

    /// The first address.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether zeros replaced the file, because it was truncated or had no memory for a page.
    pub(crate) fn is_lost(&self) -> bool {
        self.entry.is_lost.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for GuardedMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedMapping").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Drop for GuardedMapping {
    fn drop(&mut self) {
        self.entry.set(0, 0);
        // SAFETY: the range was returned by mmap, and no handle to this mapping is left. The
        // handler can only have replaced it within its bounds.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
        self.entry.release();
        self.share.give_back(self.len as u64);
    }
}

/// How many losses the process has had since it started.
#[inline]
pub(crate) fn lost_count() -> u32 {
    LOST.load(Ordering::Relaxed)
}

/// Counts one more. What shows the loss itself must be stored before.
pub(crate) fn count_loss() {
    // Orders the sign of the loss before the count; the partner is the fence in `LossCheck::run`.
    LOST.fetch_add(1, Ordering::Release);
}

/// One mapping in the table.
struct Entry {
    is_taken: AtomicBool,
    /// Odd while the range changes, so that the handler never combines the start of one range with
    /// the length of another.
    version: AtomicU32,
    start: AtomicUsize,
    len: AtomicUsize,
    is_lost: AtomicBool,
}

impl Entry {
    const fn free() -> Entry {
        Entry {
            is_taken: AtomicBool::new(false),
            version: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            is_lost: AtomicBool::new(false),
        }
    }

    fn claim(&self) -> bool {
        // Acquire: pairs with the release by which the previous owner freed the entry.
        !self.is_taken.load(Ordering::Relaxed) && !self.is_taken.swap(true, Ordering::Acquire)
    }

    fn release(&self) {
        self.is_taken.store(false, Ordering::Release);
    }

    /// Only the owner of the entry calls this, so each version has one writer.
    fn set(&self, start: usize, len: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        // Orders the odd version before the range; the partner is the fence in `range`.
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.is_lost.store(false, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// The range; `None` while it changes, when no thread can be accessing it.
    fn range(&self) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::Acquire);
        let range = (self.start.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        // Orders the range before the second read of the version; the partner is in `set`.
        fence(Ordering::Acquire);
        let is_stable = version % 2 == 0 && version == self.version.load(Ordering::Relaxed);
        is_stable.then_some(range)
    }
}

/// Installs the handler, once per process.
fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), c_int>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        let mut action = default_action();
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
        action.sa_sigaction = handler as *const () as usize;
        // On the alternate stack, which Rust gives each thread: the fault does not show whether the
        // normal stack is usable.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let mut previous = default_action();
        // Read the previous handler first, so that ours knows it from its first call on.
        //
        // SAFETY: no action is given, and `previous` has room for the one that is returned.
        let asked = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut previous) };
        PREVIOUS.get_or_init(|| previous);
        // SAFETY: the action is complete, and its handler does only what a handler may: atomic
        // loads and stores, and system calls without a lock.
        let set = unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) };
        match asked | set {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
        }
    });
    installed.map_err(io::Error::from_raw_os_error)
}

/// The default disposition, an empty mask, and no flags.
pub(crate) fn default_action() -> libc::sigaction {
    // SAFETY: all-zero bytes are a valid `sigaction`.
    unsafe { mem::zeroed() }
}

/// Replaces the mapping that holds the address, or leaves the signal to the previous handler.
extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel calls this with a valid `siginfo_t`, as SA_SIGINFO requires, and nothing
    // else refers to it.
    let details = unsafe { &*info };
    let code = details.si_code;
    // Only a fault has an address; for a signal from a process, that field holds the sender.
    if code == libc::BUS_ADRERR || code == BUS_MCEERR_AR {
        // SAFETY: the code says that the address field is the valid one.
        let address = unsafe { details.si_addr() };
        if replace(address.addr()) {
            return;
        }
    }
    call_previous(signal, info, context);
}

/// An access met broken memory of the machine: treated as a loss of the peer that the memory
/// belongs to.
const BUS_MCEERR_AR: c_int = 4;

/// Puts zero pages over the guarded mapping that contains an address, if there is one.
fn replace(address: usize) -> bool {
    let holds = |(start, len): (usize, usize)| start != 0 && address.wrapping_sub(start) < len;
    let found = TABLE.iter().find_map(|entry| Some((entry, entry.range().filter(|r| holds(*r))?)));
    let Some((entry, (start, len))) = found else { return false };
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the range is exactly one of our mappings, created by its owner. It stays mapped
    // meanwhile: the interrupted thread is accessing it, so it holds a handle. Its contents may be
    // lost: accesses are volatile or atomic, and accept any bytes.
    let mapped = unsafe { mmap_anonymous(ptr::without_provenance_mut(start), len, access, flags) };
    if mapped.is_err() {
        return false;
    }
    entry.is_lost.store(true, Ordering::Relaxed);
    count_loss();
    true
}

/// Does what would have happened without this handler.
fn call_previous(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = PREVIOUS.get().filter(|previous| {
        previous.sa_sigaction != libc::SIG_DFL && previous.sa_sigaction != libc::SIG_IGN
    });
    match previous {
        Some(previous) if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            type Full = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
            // SAFETY: sigaction(2) returned it as a handler with three arguments.
            let handler = unsafe { mem::transmute::<usize, Full>(previous.sa_sigaction) };
            handler(signal, info, context);
        }
        Some(previous) => {
            // SAFETY: sigaction(2) returned it as a handler with one argument.
            let handler =
                unsafe { mem::transmute::<usize, extern "C" fn(c_int)>(previous.sa_sigaction) };
            handler(signal);
        }
        None => {
            // The access is repeated after the return, and ends the process as it would have
            // without this handler.
            //
            // SAFETY: the default disposition is valid for every signal.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

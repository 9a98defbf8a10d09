//! Memory of a peer's file that may end before our mapping does, without `SIGBUS` ending us.
//!
//! The peer keeps the file and may cut it at any moment, also between a check and an access. An
//! access behind the end then raises `SIGBUS`, which ends a process and with it the service of all
//! other peers. So mappings are in a table that the signal handler searches: it puts private zero
//! pages in the place of the whole mapping, marks it as lost, and lets the access go on. Who works
//! with the mapping reads the mark after each batch, and gives the peer up.
//!
//! The table is fixed and has no lock, because a handler may not wait.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::share::{MAPPINGS_MAX, MappingShare};

static TABLE: [Entry; MAPPINGS_MAX] = [const { Entry::free() }; MAPPINGS_MAX];
/// How often the handler replaced a mapping: one load shows that nothing was lost since.
static LOST: AtomicU32 = AtomicU32::new(0);
/// What handled `SIGBUS` before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// A shared mapping of a file that another process may cut.
pub(crate) struct GuardedMapping {
    base: NonNull<u8>,
    len: usize,
    entry: &'static Entry,
    /// Whose it is, by which the table has an entry for each.
    share: Arc<MappingShare>,
}

// SAFETY: it only remembers what to unmap, and munmap may be called from any thread.
unsafe impl Send for GuardedMapping {}
// SAFETY: what takes a shared reference reads an atomic flag or copies the address.
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

    /// Maps what the share has room for.
    fn map(
        share: &Arc<MappingShare>,
        fd: impl AsFd,
        offset: u64,
        len: usize,
    ) -> io::Result<GuardedMapping> {
        let entry = TABLE.iter().find(|entry| entry.claim());
        // Not so while the shares of all have no more mappings than there are entries.
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

    /// Where it begins.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether the file was cut, and what is read here are zeros.
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
        // SAFETY: the range was returned by mmap, and no handle on this mapping is left. It was
        // replaced within its bounds at most.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
        self.entry.release();
        self.share.give_back(self.len as u64);
    }
}

/// How many mappings were lost since the process started, of all.
#[inline]
pub(crate) fn lost_count() -> u32 {
    LOST.load(Ordering::Relaxed)
}

/// One mapping in the table.
struct Entry {
    is_taken: AtomicBool,
    /// Odd while the range changes, so that the handler never takes a start and a length that do
    /// not belong together.
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
        // Acquire: after the release by which an earlier owner gave it up.
        !self.is_taken.load(Ordering::Relaxed) && !self.is_taken.swap(true, Ordering::Acquire)
    }

    fn release(&self) {
        self.is_taken.store(false, Ordering::Release);
    }

    /// Only its owner calls this, so one writer changes a version at a time.
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

    /// The range, unless it is changing: then no thread can be accessing it.
    fn range(&self) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::Acquire);
        let range = (self.start.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        // Orders the range before the second read of the version; the partner is in `set`.
        fence(Ordering::Acquire);
        let is_stable = version % 2 == 0 && version == self.version.load(Ordering::Relaxed);
        is_stable.then_some(range)
    }
}

/// Installs the handler, once in the life of the process.
fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), c_int>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        // SAFETY: all-zero bytes are a valid `sigaction`: the default disposition, an empty mask.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
        action.sa_sigaction = handler as *const () as usize;
        // On the alternate stack, which Rust gives each thread: the fault says nothing of ours.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: as above.
        let mut previous: libc::sigaction = unsafe { mem::zeroed() };
        // Asked for first, so that the handler finds it from its first call on.
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

/// Replaces the mapping that holds the address, or leaves the signal to the previous handler.
extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel calls this with a valid `siginfo_t`, as SA_SIGINFO asks it to, and no one
    // else refers to it.
    let details = unsafe { &*info };
    let code = details.si_code;
    // Only a fault has an address; a signal that a process sent has its sender in that place.
    if code == libc::BUS_ADRERR || code == BUS_MCEERR_AR {
        // SAFETY: the code says that the field with the address is the valid one.
        let address = unsafe { details.si_addr() };
        if replace(address.addr()) {
            return;
        }
    }
    call_previous(signal, info, context);
}

/// Memory of the machine is broken, and an access met it: costs the peer that it belongs to.
const BUS_MCEERR_AR: c_int = 4;

/// Puts zero pages over the guarded mapping that holds an address, if one does.
fn replace(address: usize) -> bool {
    let holds = |(start, len): (usize, usize)| start != 0 && address.wrapping_sub(start) < len;
    let found = TABLE.iter().find_map(|entry| Some((entry, entry.range().filter(|r| holds(*r))?)));
    let Some((entry, (start, len))) = found else { return false };
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the range is one mapping of ours, which its owner made and nothing else is part of.
    // It stays mapped meanwhile: the interrupted thread is accessing it, so it holds a handle.
    // What was there may be lost: accesses are volatile or atomic, and expect any bytes.
    let mapped = unsafe { mmap_anonymous(ptr::without_provenance_mut(start), len, access, flags) };
    if mapped.is_err() {
        return false;
    }
    entry.is_lost.store(true, Ordering::Relaxed);
    LOST.fetch_add(1, Ordering::Relaxed);
    true
}

/// Does what would have happened without this module.
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
            // The access is repeated when we return, and ends the process as it would have.
            // SAFETY: the default disposition is valid for every signal.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

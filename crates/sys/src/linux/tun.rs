//! One queue of a TAP device: an open `/dev/net/tun`, bound to an interface.
//!
//! A frame is one system call, with the virtio-net header before it in a slice of its own, so that
//! nothing is copied to join them. This module never reads a frame's content. The kernel's side is
//! described in its `Documentation/networking/tuntap.rst`.

use std::ffi::c_int;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use ringway_wire::vnet::VirtioNetHdr;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Opcode, Setter, Updater, ioctl};
use zerocopy::IntoBytes;

use crate::SharedPages;
use crate::linux::explain;

/// One queue of a TAP device. It is non-blocking and is not inherited by child processes.
///
/// The device belongs to the network namespace of the thread that opened the file; the queue may
/// then be used from any thread. Without [`Lifetime::Persistent`], the device goes with its last
/// file.
#[derive(Debug)]
pub struct TunFile {
    fd: OwnedFd,
}

/// Whether a device can have more than one queue. All files of a device agree on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueMode {
    /// One queue; a second open of the same name fails.
    Single,
    /// Each open of the same name adds a queue, up to 256.
    Multi,
}

/// Whether the kernel uses a queue of a multi-queue device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueState {
    /// It carries traffic.
    Attached,
    /// The kernel selects it for no frame, and frames queued in it are lost. Reads find nothing;
    /// writes still work.
    Detached,
}

/// How long a device lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// Until its last file is closed.
    LastFile,
    /// Until it is deleted.
    Persistent,
}

/// Work that the kernel may leave undone in frames that are read. In frames that are written it
/// always accepts all of it, except UDP segmentation, which kernels before 6.2 do not support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TunOffload {
    /// Transport checksums, over IPv4 and IPv6 alike. The others require it.
    pub checksum: bool,
    /// TCP segmentation over IPv4.
    pub tso_v4: bool,
    /// TCP segmentation over IPv6.
    pub tso_v6: bool,
    /// UDP segmentation: the kernel has one switch for both versions of IP.
    pub uso: bool,
}

/// The outcome of writing a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The kernel has it.
    Sent,
    /// The send buffer is full (`EAGAIN`): write it again later.
    Full,
    /// The kernel found the frame or its header wrong (`EINVAL`).
    Refused,
    /// The interface is not up (`EIO`).
    LinkDown,
    /// The kernel had no memory for it (`ENOMEM`, `ENOBUFS`).
    NoMemory,
}

impl TunFile {
    /// Opens one queue of the TAP device `name` in this thread's network namespace, and creates the
    /// device if it does not exist. The kernel completes a name that ends in `%d`; see
    /// [`name`](TunFile::name) for the result.
    ///
    /// # Errors
    /// With the remedy: the driver is not loaded, the device node or the namespace does not permit
    /// it, or the name is taken or invalid.
    pub fn open(name: &str, mode: QueueMode) -> io::Result<TunFile> {
        let mut request = InterfaceRequest::named(name)?;
        request.flags = FRAMING;
        if mode == QueueMode::Multi {
            request.flags |= flag(libc::IFF_MULTI_QUEUE);
        }
        let fd = open_driver()?;
        interface_ioctl::<SET_INTERFACE>(&fd, &mut request).map_err(|error| {
            explain(error, format_args!("TAP {name}: {}", attach_remedy(error)))
        })?;
        let file = TunFile { fd };
        file.set_header_len()?;
        Ok(file)
    }

    /// Takes over a queue that a more privileged process has opened.
    ///
    /// # Errors
    /// If it is not a queue of a TAP device with virtio-net headers and without packet information.
    pub fn from_fd(fd: OwnedFd) -> io::Result<TunFile> {
        let stat = rustix::fs::fstat(&fd)?;
        let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice || device != NUMBER {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("inherited descriptor: not an open {DEVICE}"),
            ));
        }
        let file = TunFile { fd };
        let request = file.interface()?;
        if request.flags & FRAMING != FRAMING {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{}: not opened with IFF_TAP, IFF_NO_PI and IFF_VNET_HDR", request.name()),
            ));
        }
        file.set_header_len()?;
        rustix::io::ioctl_fionbio(&file.fd, true)?;
        rustix::io::fcntl_setfd(&file.fd, rustix::io::FdFlags::CLOEXEC)?;
        Ok(file)
    }

    /// The interface's name.
    ///
    /// # Errors
    /// If the device was deleted.
    pub fn name(&self) -> io::Result<String> {
        Ok(self.interface()?.name())
    }

    /// Lets the kernel leave work undone in frames that are read from the whole device.
    ///
    /// # Errors
    /// If the device was deleted; of kind `InvalidInput` if UDP segmentation is included and the
    /// kernel does not support it (before 6.2).
    pub fn set_offload(&self, offload: TunOffload) -> io::Result<()> {
        let mut flags = 0;
        if offload.checksum {
            flags |= libc::TUN_F_CSUM;
            if offload.tso_v4 {
                flags |= libc::TUN_F_TSO4 | libc::TUN_F_TSO_ECN;
            }
            if offload.tso_v6 {
                flags |= libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
            }
            if offload.uso {
                flags |= libc::TUN_F_USO4 | libc::TUN_F_USO6;
            }
        }
        integer_ioctl::<SET_OFFLOAD>(&self.fd, flags as usize)
            .map_err(|error| explain(error, "TAP: set offloads (TUNSETOFFLOAD)"))
    }

    /// Attaches or detaches this queue of a multi-queue device.
    ///
    /// # Errors
    /// If it is in that state already, or its device is not multi-queue or was deleted.
    pub fn set_queue(&self, state: QueueState) -> io::Result<()> {
        let flags = match state {
            QueueState::Attached => libc::IFF_ATTACH_QUEUE,
            QueueState::Detached => libc::IFF_DETACH_QUEUE,
        };
        let mut request = InterfaceRequest { flags: flag(flags), ..InterfaceRequest::EMPTY };
        interface_ioctl::<SET_QUEUE>(&self.fd, &mut request).map_err(|error| {
            explain(error, format_args!("TAP: queue to be {state:?} (TUNSETQUEUE)"))
        })
    }

    /// Whether the kernel uses this queue.
    ///
    /// # Errors
    /// If the device was deleted.
    pub fn queue_state(&self) -> io::Result<QueueState> {
        let is_detached = self.interface()?.flags & flag(libc::IFF_DETACH_QUEUE) != 0;
        Ok(if is_detached { QueueState::Detached } else { QueueState::Attached })
    }

    /// Decides how long the device lives.
    ///
    /// # Errors
    /// If the device was deleted.
    pub fn set_lifetime(&self, lifetime: Lifetime) -> io::Result<()> {
        integer_ioctl::<SET_PERSIST>(&self.fd, usize::from(lifetime == Lifetime::Persistent))
            .map_err(|error| explain(error, "TAP: set lifetime (TUNSETPERSIST)"))
    }

    /// Reads one frame and returns its length, or `None` if no frame waits. A frame longer than
    /// `buffer` is truncated without notice: treat a result of `buffer.len()` as too long.
    ///
    /// # Errors
    /// `EBADFD` if the device was deleted.
    pub fn read_frame(
        &self,
        header: &mut VirtioNetHdr,
        buffer: &mut [u8],
    ) -> io::Result<Option<usize>> {
        let header = IoSliceMut::new(header.as_mut_bytes());
        match rustix::io::readv(&self.fd, &mut [header, IoSliceMut::new(buffer)]) {
            Ok(len) => Ok(Some(len.saturating_sub(HEADER_LEN))),
            Err(Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads one frame into `head`, and what does not fit there into a part of the pages, given as
    /// offset and length. A frame longer than both together is truncated without notice.
    ///
    /// # Panics
    /// If the part is not in the pages.
    ///
    /// # Errors
    /// As [`read_frame`](TunFile::read_frame).
    pub fn read_pages(
        &self,
        header: &mut VirtioNetHdr,
        head: &mut [u8],
        pages: &SharedPages,
        (at, len): (usize, usize),
    ) -> io::Result<Option<usize>> {
        let raw = |base: *mut u8, len| libc::iovec { iov_base: base.cast(), iov_len: len };
        let header = header.as_mut_bytes();
        let slices = [
            raw(header.as_mut_ptr(), header.len()),
            raw(head.as_mut_ptr(), head.len()),
            raw(pages.at(at, len), len),
        ];
        let count = slices.len() as c_int;
        // SAFETY: each slice is writable for the whole call: the first two are borrowed, and `at`
        // checked that the third is inside memory that `pages` keeps, to which no reference exists.
        // All of them are plain bytes.
        let read = unsafe { libc::readv(self.fd.as_raw_fd(), slices.as_ptr(), count) };
        match usize::try_from(read) {
            Ok(len) => Ok(Some(len.saturating_sub(HEADER_LEN))),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                error => Err(error),
            },
        }
    }

    /// Writes one frame.
    ///
    /// # Errors
    /// `EBADFD` if the device was deleted. A problem that concerns only this frame, or that is
    /// temporary, is an outcome and not an error.
    pub fn write_frame(&self, header: &VirtioNetHdr, frame: &[u8]) -> io::Result<WriteOutcome> {
        let slices = [IoSlice::new(header.as_bytes()), IoSlice::new(frame)];
        outcome_of(rustix::io::writev(&self.fd, &slices).map(drop))
    }

    /// Writes one frame of several parts, in this order. A peer may change pages meanwhile; the
    /// kernel reads them once.
    ///
    /// # Panics
    /// If there are more parts than [`PARTS_MAX`], or one is not in its pages.
    ///
    /// # Errors
    /// As [`write_frame`](TunFile::write_frame).
    pub fn write_parts<'a>(
        &self,
        header: &'a VirtioNetHdr,
        parts: impl Iterator<Item = Part<'a>>,
    ) -> io::Result<WriteOutcome> {
        let raw =
            |base: *const u8, len| libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len };
        let mut slices: ArrayVec<libc::iovec, { 1 + PARTS_MAX }> = ArrayVec::new();
        let header = header.as_bytes();
        slices.push(raw(header.as_ptr(), header.len()));
        slices.extend(parts.map(|part| match part {
            Part::Bytes(bytes) => raw(bytes.as_ptr(), bytes.len()),
            Part::Pages(pages, at, len) => raw(pages.at(at, len), len),
        }));
        let count = slices.len() as c_int;
        // SAFETY: each slice is readable for the whole call: bytes are borrowed for as long, and
        // `at` checked that the others are inside memory that their pages, borrowed as well, keep.
        // The kernel only reads them. No reference into shared memory exists, so a peer that writes
        // it races with none of our accesses.
        let written = unsafe { libc::writev(self.fd.as_raw_fd(), slices.as_ptr(), count) };
        outcome_of(match written {
            0.. => Ok(()),
            _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        })
    }

    fn interface(&self) -> io::Result<InterfaceRequest> {
        let mut request = InterfaceRequest::EMPTY;
        interface_ioctl::<GET_INTERFACE>(&self.fd, &mut request)
            .map_err(|error| explain(error, "TAP: which interface (TUNGETIFF)"))?;
        Ok(request)
    }

    fn set_header_len(&self) -> io::Result<()> {
        int_ioctl::<SET_HEADER_LEN>(&self.fd, HEADER_LEN as c_int)
            .map_err(|error| explain(error, "TAP: virtio-net header length (TUNSETVNETHDRSZ)"))
    }
}

impl AsFd for TunFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A part of a frame.
#[derive(Debug, Clone, Copy)]
pub enum Part<'a> {
    /// Bytes of our own.
    Bytes(&'a [u8]),
    /// A piece of pages that a peer may write: its offset and its length.
    Pages(&'a SharedPages, usize, usize),
}

/// The most parts of one frame.
pub const PARTS_MAX: usize = 20; // not a limit: our own frames

fn outcome_of(written: rustix::io::Result<()>) -> io::Result<WriteOutcome> {
    match written {
        Ok(()) => Ok(WriteOutcome::Sent),
        Err(Errno::AGAIN) => Ok(WriteOutcome::Full),
        Err(Errno::INVAL) => Ok(WriteOutcome::Refused),
        Err(Errno::IO) => Ok(WriteOutcome::LinkDown),
        Err(Errno::NOMEM | Errno::NOBUFS) => Ok(WriteOutcome::NoMemory),
        Err(error) => Err(error.into()),
    }
}

/// Checks that this process can open the driver of TAP devices, before anything that needs one is
/// started.
///
/// # Errors
/// With the remedy: as [`TunFile::open`] would fail, whatever the device.
pub fn check_driver() -> io::Result<()> {
    open_driver().map(drop)
}

fn open_driver() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(DEVICE, flags, Mode::empty())
        .map_err(|error| explain(error, open_remedy(error)))
}

const DEVICE: &str = "/dev/net/tun";
/// Its device number, the same on every Linux.
const NUMBER: (u32, u32) = (10, 200);
const HEADER_LEN: usize = size_of::<VirtioNetHdr>();
/// The framing of all our queues.
const FRAMING: libc::c_short = flag(libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR);

const SET_INTERFACE: Opcode = libc::TUNSETIFF as Opcode;
const GET_INTERFACE: Opcode = libc::TUNGETIFF as Opcode;
const SET_QUEUE: Opcode = libc::TUNSETQUEUE as Opcode;
const SET_OFFLOAD: Opcode = libc::TUNSETOFFLOAD as Opcode;
const SET_PERSIST: Opcode = libc::TUNSETPERSIST as Opcode;
const SET_HEADER_LEN: Opcode = libc::TUNSETVNETHDRSZ as Opcode;

/// `struct ifreq` with the member of its union that TAP ioctls use, so that no union must be read.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    _unused: [u8; 22],
}

const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());

impl InterfaceRequest {
    const EMPTY: InterfaceRequest =
        InterfaceRequest { name: [0; libc::IFNAMSIZ], flags: 0, _unused: [0; 22] };

    fn named(name: &str) -> io::Result<InterfaceRequest> {
        let mut request = InterfaceRequest::EMPTY;
        // The last byte stays 0 and ends the name.
        let space = &mut request.name[..libc::IFNAMSIZ - 1];
        if name.is_empty() || name.len() > space.len() || name.contains('\0') {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{name:?}: an interface name has 1 to {} bytes", space.len()),
            ));
        }
        space[..name.len()].copy_from_slice(name.as_bytes());
        Ok(request)
    }

    fn name(&self) -> String {
        let end = self.name.iter().position(|&byte| byte == 0).unwrap_or(self.name.len());
        String::from_utf8_lossy(&self.name[..end]).into_owned()
    }
}

const fn flag(flags: c_int) -> libc::c_short {
    flags as libc::c_short
}

fn open_remedy(error: Errno) -> String {
    match error {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => {
            format!("{DEVICE}: no TAP driver, try `modprobe tun`")
        }
        Errno::ACCESS | Errno::PERM => {
            format!("{DEVICE}: the mode of the device node does not let this user in")
        }
        _ => DEVICE.to_owned(),
    }
}

fn attach_remedy(error: Errno) -> &'static str {
    match error {
        Errno::PERM => "needs CAP_NET_ADMIN in this network namespace",
        Errno::BUSY => "in use by another process",
        Errno::INVAL => "the name is not valid, or taken by a device of another kind",
        Errno::TOOBIG => "the device has as many queues as it can",
        _ => "attach",
    }
}

/// For the opcodes that take an `ifreq`: `TUNSETIFF`, `TUNGETIFF` and `TUNSETQUEUE`.
fn interface_ioctl<const OPCODE: Opcode>(
    fd: &OwnedFd,
    request: &mut InterfaceRequest,
) -> rustix::io::Result<()> {
    // SAFETY: private, and called with the opcodes above only; all of them read or write exactly
    // an `ifreq`, whose size the request has (asserted above) and whose bytes are all plain data.
    let operation = unsafe { Updater::<OPCODE, InterfaceRequest>::new(request) };
    // SAFETY: the file is an open `/dev/net/tun`, for which these opcodes mean what is said above.
    unsafe { ioctl(fd, operation) }
}

/// For the opcodes that take a number: `TUNSETOFFLOAD` and `TUNSETPERSIST`.
fn integer_ioctl<const OPCODE: Opcode>(fd: &OwnedFd, value: usize) -> rustix::io::Result<()> {
    // SAFETY: private, and called with the opcodes above only; both take the argument by value.
    let operation = unsafe { IntegerSetter::<OPCODE>::new_usize(value) };
    // SAFETY: as in `interface_ioctl`.
    unsafe { ioctl(fd, operation) }
}

/// For the opcode that takes a pointer to an `int`, `TUNSETVNETHDRSZ`.
fn int_ioctl<const OPCODE: Opcode>(fd: &OwnedFd, value: c_int) -> rustix::io::Result<()> {
    // SAFETY: private, and called with the opcode above only, which reads an `int`.
    let operation = unsafe { Setter::<OPCODE, c_int>::new(value) };
    // SAFETY: as in `interface_ioctl`.
    unsafe { ioctl(fd, operation) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_interface_names_are_refused_without_a_system_call() {
        for name in ["", "sixteen-bytes-xx", "nul\0"] {
            let error = TunFile::open(name, QueueMode::Single).expect_err("not a name");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        assert_eq!(InterfaceRequest::named("tap%d").expect("a name").name(), "tap%d");
    }

    #[test]
    fn an_inherited_descriptor_that_is_not_a_tap_is_refused() {
        let null = std::fs::File::open("/dev/null").expect("/dev/null is there");
        let error = TunFile::from_fd(null.into()).expect_err("not a TAP");
        assert!(error.to_string().contains("not an open /dev/net/tun"), "{error}");
    }

    #[test]
    fn every_error_at_opening_has_a_remedy() {
        assert!(open_remedy(Errno::NOENT).contains("modprobe tun"));
        assert!(open_remedy(Errno::ACCESS).contains("/dev/net/tun"));
        assert!(attach_remedy(Errno::PERM).contains("CAP_NET_ADMIN"));
        assert!(attach_remedy(Errno::BUSY).contains("in use"));
    }
}

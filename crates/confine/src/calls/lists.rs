//! The calls and arguments that are allowed. An entry that is added here needs a row of
//! `docs/confinement.md`, which says what an attacker could do with it at worst.

use libc::c_long;

/// A number with its name.
pub(super) type Named<T> = (&'static str, T);

/// Constants of the C library with their names.
macro_rules! named {
    ($($(#[$condition:meta])* libc::$name:ident),* $(,)?) => {
        &[$($(#[$condition])* (stringify!($name), libc::$name)),*]
    };
}

/// Allowed with any arguments.
pub(super) const ALWAYS: &[Named<c_long>] = named![
    // Frames, events, requests: descriptors that are open.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_fstat,
    // The page size of the files that hold guest memory.
    libc::SYS_fstatfs,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_eventfd2,
    // Sockets that are open, and connections that come in. sendto(2) and setsockopt(2) are limited.
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_getsockopt,
    // Files: Landlock and the file system decide which. Those who use paths without opening
    // anything serve a panic's backtrace, which looks for debug information.
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_unlinkat,
    // Memory. mmap(2) and mprotect(2) are limited.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Threads and signals.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Time and random numbers.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrandom,
    // The working directory, by which a panic's backtrace shortens paths.
    libc::SYS_getcwd,
];

/// More calls for the broker of the emulated hypervisor: it creates memory and sockets for each
/// domain, and removes what is left in its directory.
pub(super) const BROKER: &[Named<c_long>] = named![
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_sendmsg,
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_getdents64,
];

/// More calls for a process that serves vifs: on Xen it removes what is left in its directory when
/// it ends, and the directory.
pub(super) const VIFS: &[Named<c_long>] = named![
    libc::SYS_getdents64,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
];

/// More calls for a process that connects to the sockets of virtual machine monitors. The filter
/// cannot see which ones it connects to; the permissions of each socket decide.
pub(super) const CONNECT_CALLS: &[Named<c_long>] = named![
    libc::SYS_connect,
    libc::SYS_inotify_add_watch,
    // To see whose symbolic links are on the way.
    libc::SYS_geteuid,
];

/// More calls for the opener, which opens sockets for a backend, passes them to it, and keeps a
/// list of them and the last accepted description. It also makes memory for front-ends, which it
/// does not read.
pub(super) const OPENER_CALLS: &[Named<c_long>] = named![
    libc::SYS_fsync,
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_sendmsg,
    libc::SYS_inotify_init1,
    libc::SYS_umask,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
];

/// More calls for a process that makes memory and passes it over such a socket.
pub(super) const MEMFD_CALLS: &[Named<c_long>] =
    named![libc::SYS_memfd_create, libc::SYS_ftruncate, libc::SYS_sendmsg];

/// Calls that only this architecture has, always allowed.
#[cfg(target_arch = "x86_64")]
pub(super) const ALWAYS_THIS_ARCH: &[Named<c_long>] = named![
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_readlink,
    libc::SYS_unlink,
    libc::SYS_poll,
    libc::SYS_epoll_wait,
];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const ALWAYS_THIS_ARCH: &[Named<c_long>] = &[];

/// The commands of fcntl(2) besides F_SETFL. Not F_SETOWN and F_SETSIG, by which the kernel sends
/// any signal to any process of the user.
pub(super) const FCNTLS: &[Named<libc::c_int>] =
    named![libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_GET_SEALS,];

/// The options of setsockopt(2) at `SOL_SOCKET`. Not `SO_ATTACH_FILTER` and the like, which give
/// programs to the kernel.
pub(super) const SOCKET_OPTIONS: &[Named<libc::c_int>] =
    named![libc::SO_RCVTIMEO, libc::SO_SNDTIMEO, libc::SO_SNDBUF];

/// The request of ioctl(2) for any descriptor. The kernel's devices do not share numbers.
pub(super) const ANY_IOCTL: Named<u64> = ("FIONBIO", libc::FIONBIO);

/// Requests for a process that makes TAP devices.
pub(super) const NEW_TAP_IOCTLS: &[Named<u64>] = named![libc::TUNSETIFF, libc::TUNSETPERSIST];

/// Requests for TAP devices that are open.
pub(super) const TAP_IOCTLS: &[Named<u64>] =
    named![libc::TUNGETIFF, libc::TUNSETQUEUE, libc::TUNSETOFFLOAD, libc::TUNSETVNETHDRSZ,];

/// Requests for Xen's devices, by number. Not `BIND_VIRQ` and `RESET` of event channels, nor the
/// DMA buffers of grants.
pub(super) const XEN_IOCTLS: &[Named<u64>] = &[
    // /dev/xen/evtchn.
    ("EVTCHN_BIND_INTERDOMAIN", xen_ioctl(b'E', 1, 8)),
    ("EVTCHN_BIND_UNBOUND_PORT", xen_ioctl(b'E', 2, 4)),
    ("EVTCHN_NOTIFY", xen_ioctl(b'E', 4, 4)),
    // /dev/xen/gntdev.
    ("GNTDEV_MAP_GRANT_REF", xen_ioctl(b'G', 0, 24)),
    ("GNTDEV_UNMAP_GRANT_REF", xen_ioctl(b'G', 1, 16)),
    ("GNTDEV_GRANT_COPY", xen_ioctl(b'G', 8, 16)),
];

/// Requests for `/dev/xen/gntalloc`, which a frontend has.
pub(super) const XEN_GRANTING: &[Named<u64>] = &[
    ("GNTALLOC_ALLOC_GREF", xen_ioctl(b'G', 5, 24)),
    ("GNTALLOC_DEALLOC_GREF", xen_ioctl(b'G', 6, 16)),
];

/// `_IOC(_IOC_NONE, kind, number, size)`, as in the kernel's `xen/evtchn.h`, `xen/gntdev.h` and
/// `xen/gntalloc.h`.
const fn xen_ioctl(kind: u8, number: u8, size: u16) -> u64 {
    u64::from_be_bytes([0, 0, 0, 0, size.to_be_bytes()[0], size.to_be_bytes()[1], kind, number])
}

pub(super) use named;

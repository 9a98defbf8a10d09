//! System calls: those on the lists below, some of them only with certain arguments.
//!
//! A process that serves vifs creates and connects no sockets: its sockets are opened earlier, and
//! a process that serves no vif opens the sockets of virtio vifs.
//!
//! The lists come from the calls that a serving backend was seen to make, plus those that glibc and
//! the standard library may make instead on another machine: time without a vDSO clock (Xen's, in a
//! paravirtual domain 0), other ways to poll, sleep and allocate. A filter cannot check what
//! pointer arguments refer to, so a call that is dangerous because of that is on no list.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp,
    SeccompCondition, SeccompFilter, SeccompRule, TargetArch, apply_filter_all_threads,
};

use crate::role::Role;

/// Puts this thread, all others, and the threads that they start under the filter.
pub(crate) fn filter(role: Role) -> Result<(), Error> {
    // With two filters the stricter verdict counts, so their order does not matter.
    for program in [program_for_clone3()?, program(role)?] {
        apply_filter_all_threads(&program)?;
    }
    Ok(())
}

/// For each call, the allowed arguments; any if the list is empty.
type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// Allowed with any arguments.
const ALWAYS: &[c_long] = &[
    // Frames, events, requests: descriptors that are open.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fstat,
    // The page size of the files that hold guest memory.
    libc::SYS_fstatfs,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    // Sockets that are open, and connections that come in: sendto(2) is below.
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    // Files: Landlock and the file system decide which.
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_ftruncate,
    libc::SYS_unlinkat,
    // Memory: mmap(2) and mprotect(2) are below.
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
    libc::SYS_getcpu,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Time and random numbers.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    // User and group ids, and the kernel's version.
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_uname,
    // The working directory, by which a panic's backtrace shortens paths.
    libc::SYS_getcwd,
];

/// More calls for the broker of the emulated hypervisor: it creates memory and sockets for each
/// domain.
const BROKER: &[c_long] =
    &[libc::SYS_bind, libc::SYS_listen, libc::SYS_sendmsg, libc::SYS_memfd_create];

/// More calls for a process that connects to the sockets of virtual machine monitors. The filter
/// cannot see which ones it connects to; the permissions of each socket decide.
const CONNECT_CALLS: &[c_long] = &[libc::SYS_connect, libc::SYS_inotify_add_watch];

/// More calls for the opener, which opens sockets for a backend, passes them to it, and keeps a
/// list of them. It also makes memory for front-ends, which it does not read.
const OPENER_CALLS: &[c_long] = &[
    libc::SYS_memfd_create,
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
const MEMFD_CALLS: &[c_long] = &[libc::SYS_memfd_create, libc::SYS_sendmsg];

/// Calls that only this architecture has, always allowed.
#[cfg(target_arch = "x86_64")]
const ALWAYS_THIS_ARCH: &[c_long] = &[
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_unlink,
    libc::SYS_rmdir,
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const ALWAYS_THIS_ARCH: &[c_long] = &[];

/// The commands of fcntl(2) besides F_SETFL. Not F_SETOWN and F_SETSIG, by which the kernel sends
/// any signal to any process of the user.
const FCNTLS: [libc::c_int; 6] = [
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_GET_SEALS,
    libc::F_ADD_SEALS,
];

/// Modes that make a file run with the rights of its owner or group.
const SET_IDS: u64 = 0o7000;

/// The requests of ioctl(2), whatever the descriptor: the kernel's devices do not share numbers.
const IOCTLS: [u64; 18] = [
    libc::FIONBIO,
    // TAP devices that are open.
    libc::TUNGETIFF,
    libc::TUNSETQUEUE,
    libc::TUNSETOFFLOAD,
    libc::TUNSETSNDBUF,
    libc::TUNSETVNETHDRSZ,
    // /dev/xen/evtchn, by number: BIND_INTERDOMAIN, BIND_UNBOUND_PORT, UNBIND, NOTIFY,
    // RESTRICT_DOMID. Not BIND_VIRQ and not RESET.
    xen_ioctl(b'E', 1, 8),
    xen_ioctl(b'E', 2, 4),
    xen_ioctl(b'E', 3, 4),
    xen_ioctl(b'E', 4, 4),
    xen_ioctl(b'E', 6, 2),
    // /dev/xen/gntdev: MAP_GRANT_REF, UNMAP_GRANT_REF, SET_MAX_GRANTS, SET_UNMAP_NOTIFY,
    // GRANT_COPY. Not the DMA buffers.
    xen_ioctl(b'G', 0, 24),
    xen_ioctl(b'G', 1, 16),
    xen_ioctl(b'G', 3, 4),
    xen_ioctl(b'G', 7, 16),
    xen_ioctl(b'G', 8, 16),
    // /dev/xen/gntalloc: ALLOC_GREF, DEALLOC_GREF.
    xen_ioctl(b'G', 5, 24),
    xen_ioctl(b'G', 6, 16),
];

/// More for a process that makes TAP devices.
const TAP_IOCTLS: [u64; 2] = [libc::TUNSETIFF, libc::TUNSETPERSIST];

/// `_IOC(_IOC_NONE, kind, number, size)`, as in the kernel's `xen/evtchn.h`, `xen/gntdev.h` and
/// `xen/gntalloc.h`.
const fn xen_ioctl(kind: u8, number: u8, size: u16) -> u64 {
    u64::from_be_bytes([0, 0, 0, 0, size.to_be_bytes()[0], size.to_be_bytes()[1], kind, number])
}

/// `PR_SET_VMA`, with which newer C libraries name their memory; the libc crate lacks the number.
const SET_VMA: u64 = 0x5356_4d41;

/// The flags of clone(2) that create a new namespace.
const CLONE_NEW: u64 = bits(
    libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET,
);

/// The filter that allows the calls on the lists, and ends the process on any other call.
fn program(role: Role) -> Result<BpfProgram, BackendError> {
    build(allowed(role)?, SeccompAction::KillProcess, SeccompAction::Allow)
}

fn allowed(role: Role) -> Result<Rules, BackendError> {
    let mut rules = Rules::new();
    for call in ALWAYS.iter().chain(ALWAYS_THIS_ARCH) {
        rules.insert(*call, Vec::new());
    }
    let mut fcntls = any_of(1, &FCNTLS.map(bits))?;
    let signals = int(1, bits(libc::F_SETFL))?;
    fcntls.push(SeccompRule::new(vec![signals, masked(2, bits(libc::O_ASYNC), 0)?])?);
    rules.insert(libc::SYS_fcntl, fcntls);
    // No file gets such a mode: neither one that exists, as no call changes modes, nor a new one.
    rules.insert(libc::SYS_openat, vec![SeccompRule::new(vec![masked(3, SET_IDS, 0)?])?]);
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_open, vec![SeccompRule::new(vec![masked(2, SET_IDS, 0)?])?]);
    // Where the calling thread runs, and not where other processes do.
    rules.insert(libc::SYS_sched_setaffinity, any_of(0, &[0])?);
    // The C library tries this first: see `program_for_clone3`.
    rules.insert(libc::SYS_clone3, Vec::new());
    rules.insert(libc::SYS_clone, vec![is_thread()?]);
    // Only to the peer that a socket is connected to.
    rules.insert(libc::SYS_sendto, vec![SeccompRule::new(vec![long(4, Eq, 0)?])?]);
    match role {
        Role::Tenant => {
            rules.insert(libc::SYS_ioctl, any_of(1, &IOCTLS)?);
        }
        Role::Vifs | Role::EmulatedGuest => {
            rules.insert(libc::SYS_ioctl, with_tap_devices()?);
        }
        Role::VirtioGuest => {
            rules.insert(libc::SYS_ioctl, with_tap_devices()?);
            rules.extend(CONNECT_CALLS.iter().chain(MEMFD_CALLS).map(|call| (*call, Vec::new())));
            rules.insert(libc::SYS_socket, connections()?);
        }
        Role::Opener => {
            rules.insert(libc::SYS_ioctl, any_of(1, &[libc::FIONBIO])?);
            rules.extend(CONNECT_CALLS.iter().chain(OPENER_CALLS).map(|call| (*call, Vec::new())));
            rules.insert(libc::SYS_socket, connections()?);
            // Gives a file of its user to a group that it is in, and never to another user.
            let same_user = int(2, u64::from(u32::MAX))?;
            let of_file = int(4, bits(libc::AT_EMPTY_PATH))?;
            let given = SeccompRule::new(vec![same_user, of_file])?;
            rules.insert(libc::SYS_fchownat, vec![given]);
        }
        Role::Broker => {
            rules.extend(BROKER.iter().map(|call| (*call, Vec::new())));
            rules.insert(libc::SYS_ioctl, any_of(1, &[libc::FIONBIO])?);
            rules.insert(libc::SYS_socket, connections()?);
            rules.insert(libc::SYS_socketpair, connections()?);
        }
    }
    // Memory never becomes executable.
    rules.insert(libc::SYS_mmap, vec![without(2, bits(libc::PROT_EXEC))?]);
    rules.insert(libc::SYS_mprotect, vec![without(2, bits(libc::PROT_EXEC))?]);
    let names = [bits(libc::PR_SET_NAME), bits(libc::PR_GET_NAME), SET_VMA];
    rules.insert(libc::SYS_prctl, any_of(0, &names)?);
    // A signal to this process only, as abort(3) sends it.
    let ours = u64::from(std::process::id());
    rules.insert(libc::SYS_tgkill, any_of(0, &[ours])?);
    // Reads a descriptor whose flags a peer may change, without blocking.
    rules.insert(libc::SYS_preadv2, any_of(5, &[bits(libc::RWF_NOWAIT)])?);
    // Limits may be read and not changed.
    let unchanged = vec![int(0, 0)?, long(2, Eq, 0)?];
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(unchanged)?]);
    Ok(rules)
}

/// The requests of ioctl(2) for a process that makes TAP devices.
fn with_tap_devices() -> Result<Vec<SeccompRule>, BackendError> {
    any_of(1, &[&IOCTLS[..], &TAP_IOCTLS].concat())
}

/// Reports clone3(2) as missing, because its flags are in memory that a filter cannot read. The C
/// library then uses clone(2), whose flags are an argument.
fn program_for_clone3() -> Result<BpfProgram, BackendError> {
    let rules = Rules::from([(libc::SYS_clone3, Vec::new())]);
    let missing = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    build(rules, SeccompAction::Allow, missing)
}

fn build(
    rules: Rules,
    otherwise: SeccompAction,
    on_match: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, otherwise, on_match, arch)?.try_into()
}

/// clone(2) for a thread of this process; not for a process or a namespace.
fn is_thread() -> Result<SeccompRule, BackendError> {
    let thread = bits(libc::CLONE_THREAD);
    SeccompRule::new(vec![long(0, MaskedEq(thread | CLONE_NEW), thread)?])
}

/// Unix sockets of connection-oriented types only, so that no message carries a destination
/// address.
fn connections() -> Result<Vec<SeccompRule>, BackendError> {
    let one = |kind: libc::c_int| {
        let flags = bits(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let kind = masked(1, !flags & 0xffff_ffff, bits(kind))?;
        SeccompRule::new(vec![int(0, bits(libc::AF_UNIX))?, kind])
    };
    [libc::SOCK_STREAM, libc::SOCK_SEQPACKET].into_iter().map(one).collect()
}

/// One rule for each allowed value of a 32-bit argument.
fn any_of(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, BackendError> {
    let one = |value: &u64| SeccompRule::new(vec![int(argument, *value)?]);
    values.iter().map(one).collect()
}

/// Allows an argument without any of these bits.
fn without(argument: u8, bits: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![long(argument, MaskedEq(bits), 0)?])
}

/// A condition on an argument of which the kernel reads the lower half.
fn int(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, Eq, value)
}

/// A condition on bits of an argument of which the kernel reads the lower half.
fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, MaskedEq(mask), value)
}

fn long(
    argument: u8,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, operator, value)
}

/// A constant of the C library with the type of the kernel's argument.
const fn bits(constant: libc::c_int) -> u64 {
    let [a, b, c, d] = constant.to_be_bytes();
    u64::from_be_bytes([0, 0, 0, 0, a, b, c, d])
}

#[cfg(test)]
mod tests;

use super::*;

/// The kernel's verdict: interprets the program for one call.
fn verdict(program: &BpfProgram, call: c_long, arguments: &[(usize, u64)]) -> u32 {
    let mut data = [0_u8; 64];
    data[..4].copy_from_slice(&u32::try_from(call).expect("a number").to_ne_bytes());
    // AUDIT_ARCH_X86_64 and AUDIT_ARCH_AARCH64.
    let arch: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
    data[4..8].copy_from_slice(&arch.to_ne_bytes());
    for (argument, value) in arguments {
        let at = 16 + 8 * argument;
        data[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
    let (mut next, mut value) = (0, 0_u32);
    loop {
        let step = &program[next];
        next += 1;
        let jump = |holds: bool| usize::from(if holds { step.jt } else { step.jf });
        // linux/bpf_common.h: load a word, compare, mask, return.
        match step.code {
            0x20 => {
                let at = usize::try_from(step.k).expect("an offset");
                value = u32::from_ne_bytes(data[at..at + 4].try_into().expect("a word"));
            }
            0x05 => next += usize::try_from(step.k).expect("an offset"),
            0x15 => next += jump(value == step.k),
            0x25 => next += jump(value > step.k),
            0x35 => next += jump(value >= step.k),
            0x54 => value &= step.k,
            0x06 => return step.k,
            other => panic!("instruction {other:#x}"),
        }
    }
}

type Case = (c_long, &'static [(usize, u64)], u32);

/// Newer than the C library's names.
const SYS_FCHMODAT2: c_long = 452;

const SOL_SOCKET: u64 = bits(libc::SOL_SOCKET);
const SO_SNDTIMEO: u64 = bits(libc::SO_SNDTIMEO);

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

/// Calls by which a process could leave its confinement, or undo it.
const ESCAPES: [c_long; 53] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_keyctl,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_open_by_handle_at,
    libc::SYS_mknodat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_renameat2,
    libc::SYS_fchownat,
    libc::SYS_setuid,
    libc::SYS_capset,
    libc::SYS_seccomp,
    libc::SYS_kill,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_sethostname,
    libc::SYS_clock_settime,
    libc::SYS_personality,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    libc::SYS_ftruncate,
    libc::SYS_pwrite64,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
];

#[test]
fn no_list_allows_calls_that_escape_the_process() {
    let program = program(Role::Vifs).expect("it compiles");
    for call in ESCAPES {
        assert_eq!(verdict(&program, call, &[]), KILL, "call {call}");
    }
    for role in Role::ALL {
        let program = super::program(role).expect("it compiles");
        for call in [libc::SYS_fchmod, libc::SYS_fchmodat, SYS_FCHMODAT2, libc::SYS_execve] {
            assert_eq!(verdict(&program, call, &[]), KILL, "{role:?}: call {call}");
        }
    }
    assert_eq!(verdict(&program, libc::SYS_read, &[]), ALLOW);
    // That number in the x32 table.
    assert_eq!(verdict(&program, libc::SYS_read | 0x4000_0000, &[]), KILL);
}

#[test]
fn arguments_are_checked_where_the_filter_can_read_them() {
    let program = program(Role::Vifs).expect("it compiles");
    let cases: &[Case] = &[
        (libc::SYS_sendto, &[(0, 7), (2, 5), (4, 0)], ALLOW),
        (libc::SYS_sendto, &[(0, 7), (2, 5), (4, 0x7fff_0000)], KILL),
        (libc::SYS_mmap, &[(2, 3)], ALLOW),
        (libc::SYS_mmap, &[(2, 5)], KILL),
        (libc::SYS_mprotect, &[(2, 1)], ALLOW),
        (libc::SYS_mprotect, &[(2, 7)], KILL),
        // A thread as glibc creates it, a fork, and a thread in a network namespace.
        (libc::SYS_clone, &[(0, 0x3d_0f00)], ALLOW),
        (libc::SYS_clone, &[(0, 0x0120_0011)], KILL),
        (libc::SYS_clone, &[(0, 0x403d_0f00)], KILL),
        (libc::SYS_prctl, &[(0, 15)], ALLOW),
        (libc::SYS_prctl, &[(0, 4), (1, 1)], KILL),
        (libc::SYS_tgkill, &[(0, 1), (2, 9)], KILL),
        // F_SETFL with O_NONBLOCK and O_ASYNC; F_GETFL, F_SETOWN, F_SETSIG, F_DUPFD_CLOEXEC.
        (libc::SYS_fcntl, &[(1, 4), (2, 0x800)], ALLOW),
        (libc::SYS_fcntl, &[(1, 4), (2, 0x2800)], KILL),
        (libc::SYS_fcntl, &[(1, 3)], ALLOW),
        (libc::SYS_fcntl, &[(1, 8), (2, 1)], KILL),
        (libc::SYS_fcntl, &[(1, 10), (2, 9)], KILL),
        (libc::SYS_fcntl, &[(1, 1030)], ALLOW),
        // O_CREAT with mode 0666, and with 04755 and 02755.
        (libc::SYS_openat, &[(2, 0x8_0041), (3, 0o666)], ALLOW),
        (libc::SYS_openat, &[(2, 0x8_0041), (3, 0o4755)], KILL),
        (libc::SYS_openat, &[(2, 0x8_0041), (3, 0o2755)], KILL),
        (libc::SYS_sched_setaffinity, &[(0, 0)], ALLOW),
        (libc::SYS_sched_setaffinity, &[(0, 1)], KILL),
        // SCHED_OTHER, SCHED_BATCH and SCHED_FIFO; another process.
        (libc::SYS_sched_setscheduler, &[(0, 0), (1, 0)], ALLOW),
        (libc::SYS_sched_setscheduler, &[(0, 0), (1, 3)], ALLOW),
        (libc::SYS_sched_setscheduler, &[(0, 0), (1, 1)], KILL),
        (libc::SYS_sched_setscheduler, &[(0, 1), (1, 3)], KILL),
        (libc::SYS_preadv2, &[(0, 7), (2, 1), (3, u64::MAX), (5, 8)], ALLOW),
        (libc::SYS_preadv2, &[(0, 7), (2, 1), (3, u64::MAX), (5, 0)], KILL),
        // SO_SNDTIMEO; SO_ATTACH_FILTER; the number of SO_SNDTIMEO at the level of TCP.
        (libc::SYS_setsockopt, &[(0, 7), (1, SOL_SOCKET), (2, SO_SNDTIMEO)], ALLOW),
        (libc::SYS_setsockopt, &[(0, 7), (1, SOL_SOCKET), (2, 26)], KILL),
        (libc::SYS_setsockopt, &[(0, 7), (1, 6), (2, SO_SNDTIMEO)], KILL),
        // F_GET_SEALS and F_ADD_SEALS.
        (libc::SYS_fcntl, &[(0, 7), (1, 1034)], ALLOW),
        (libc::SYS_fcntl, &[(0, 7), (1, 1033)], KILL),
        (libc::SYS_prlimit64, &[(0, 0), (1, 3), (2, 0)], ALLOW),
        (libc::SYS_prlimit64, &[(0, 0), (1, 3), (2, 0x7fff_0000)], KILL),
    ];
    for (call, arguments, expected) in cases {
        assert_eq!(verdict(&program, *call, arguments), *expected, "{call} {arguments:?}");
    }
    let ourselves = [(0, std::process::id().into()), (2, 6)];
    assert_eq!(verdict(&program, libc::SYS_tgkill, &ourselves), ALLOW);
}

#[test]
fn an_opener_may_create_only_unix_sockets() {
    let program = program(Role::Opener).expect("it compiles");
    for (call, arguments, expected) in [
        (libc::SYS_socket, &[(0, 1), (1, 0x8_0801)][..], ALLOW),
        (libc::SYS_socket, &[(0, 2), (1, 1)], KILL),
        (libc::SYS_connect, &[], ALLOW),
        (libc::SYS_inotify_add_watch, &[], ALLOW),
        (libc::SYS_bind, &[], ALLOW),
        (libc::SYS_sendmsg, &[], ALLOW),
        (libc::SYS_memfd_create, &[], ALLOW),
        // AT_EMPTY_PATH and no new owner; the same by path; with a new owner.
        (libc::SYS_fchownat, &[(2, u64::MAX), (3, 36), (4, 0x1000)], ALLOW),
        (libc::SYS_fchownat, &[(2, u64::MAX), (3, 36)], KILL),
        (libc::SYS_fchownat, &[(2, 0), (3, 36), (4, 0x1000)], KILL),
        (libc::SYS_execve, &[], KILL),
        // TUNSETIFF.
        (libc::SYS_ioctl, &[(1, 0x4004_54ca)], KILL),
    ] {
        assert_eq!(verdict(&program, call, arguments), expected, "{call} {arguments:?}");
    }
}

#[test]
fn a_guest_behind_a_socket_may_pass_memory_but_not_open_listeners() {
    let program = program(Role::VirtioGuest).expect("it compiles");
    for (call, expected) in [
        (libc::SYS_memfd_create, ALLOW),
        (libc::SYS_sendmsg, ALLOW),
        (libc::SYS_connect, ALLOW),
        (libc::SYS_bind, KILL),
        (libc::SYS_listen, KILL),
    ] {
        assert_eq!(verdict(&program, call, &[]), expected, "{call}");
    }
}

#[test]
fn the_broker_listens_on_sockets_but_connects_to_none() {
    let program = program(Role::Broker).expect("it compiles");
    let cases: &[Case] = &[
        // AF_UNIX: streams and seqpackets, with SOCK_CLOEXEC and SOCK_NONBLOCK, but no
        // datagrams.
        (libc::SYS_socket, &[(0, 1), (1, 1)], ALLOW),
        (libc::SYS_socket, &[(0, 1), (1, 0x8_0805)], ALLOW),
        (libc::SYS_socket, &[(0, 1), (1, 0x8_0802)], KILL),
        (libc::SYS_socket, &[(0, 2), (1, 1)], KILL),
        (libc::SYS_socket, &[(0, 10), (1, 2)], KILL),
        (libc::SYS_socket, &[(0, 16), (1, 3), (2, 0)], KILL),
        (libc::SYS_socketpair, &[(0, 1), (1, 0x8_0801)], ALLOW),
        (libc::SYS_socketpair, &[(0, 1), (1, 2)], KILL),
        (libc::SYS_bind, &[], ALLOW),
        (libc::SYS_listen, &[], ALLOW),
        (libc::SYS_sendmsg, &[], ALLOW),
        (libc::SYS_connect, &[], KILL),
        (libc::SYS_sendto, &[(4, 1)], KILL),
        (libc::SYS_memfd_create, &[], ALLOW),
        // TUNSETIFF.
        (libc::SYS_ioctl, &[(1, 0x4004_54ca)], KILL),
        (libc::SYS_execve, &[], KILL),
    ];
    for (call, arguments, expected) in cases {
        assert_eq!(verdict(&program, *call, arguments), *expected, "{call} {arguments:?}");
    }
}

#[test]
fn only_known_ioctls_pass() {
    let program = program(Role::Vifs).expect("it compiles");
    // TUNSETIFF, IOCTL_EVTCHN_NOTIFY, IOCTL_GNTDEV_GRANT_COPY and IOCTL_GNTALLOC_ALLOC_GREF,
    // with the values of a C compiler.
    for request in [0x4004_54ca, 0x0004_4504, 0x0010_4708, 0x0018_4705] {
        assert_eq!(verdict(&program, libc::SYS_ioctl, &[(1, request)]), ALLOW, "{request:#x}");
    }
    // Those of Xen's devices only for who has them.
    for role in [Role::EmulatedGuest, Role::VirtioGuest] {
        let program = super::program(role).expect("it compiles");
        let verdict = |request| verdict(&program, libc::SYS_ioctl, &[(1, request)]);
        assert_eq!([0x4004_54ca, 0x0004_4504, 0x0010_4708].map(verdict), [ALLOW, KILL, KILL]);
    }
    // TIOCSTI, TUNATTACHFILTER, IOCTL_EVTCHN_BIND_VIRQ, IOCTL_EVTCHN_RESET, and DMA buffers.
    for request in [0x5412, 0x4010_54d5, 0x0004_4500, 0x0000_4505, 0x0010_4709] {
        assert_eq!(verdict(&program, libc::SYS_ioctl, &[(1, request)]), KILL, "{request:#x}");
    }
}

#[test]
fn an_entry_has_the_name_of_its_call_and_of_what_is_allowed_of_it() {
    let names = names(Role::Opener).expect("they are known");
    for name in ["read", "fcntl F_GETFL", "openat (no set-id mode)", "ioctl FIONBIO"] {
        assert!(names.iter().any(|found| found == name), "{name}: {names:?}");
    }
    let mut once = names.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), names.len(), "{names:?}");
}

#[test]
fn clone3_is_missing_rather_than_forbidden() {
    let program = program_for_clone3().expect("it compiles");
    let missing = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();
    assert_eq!(verdict(&program, libc::SYS_clone3, &[]), missing);
    assert_eq!(verdict(&program, libc::SYS_execve, &[]), ALLOW);
}

#[test]
fn a_tenant_uses_passed_tap_devices_and_makes_none() {
    let program = program(Role::Tenant).expect("it compiles");
    for (request, expected) in [
        (libc::TUNSETIFF, KILL),
        (libc::TUNSETPERSIST, KILL),
        (libc::TUNSETOWNER, KILL),
        (libc::TUNSETGROUP, KILL),
        (libc::TUNGETIFF, ALLOW),
        (libc::TUNSETQUEUE, ALLOW),
        (libc::TUNSETOFFLOAD, ALLOW),
        (libc::TUNSETSNDBUF, KILL),
        (libc::TUNSETVNETHDRSZ, ALLOW),
    ] {
        assert_eq!(verdict(&program, libc::SYS_ioctl, &[(1, request)]), expected, "{request:#x}");
    }
    assert!(Role::Tenant.capabilities().is_empty());
    assert!(!crate::TENANT_DEVICES.contains(&"/dev/net/tun"));
}

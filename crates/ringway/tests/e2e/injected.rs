//! Calls that are injected into the running, confined processes of a host, as an attacker who has
//! broken into one would make them. Each of them has to end the process.

use std::collections::BTreeSet;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use ringway_e2e::host::{Host, SOON, describe, pair, send, wait_for};
use ringway_e2e::shared_turn;

use ringway_e2e::virtio_guest::{Maker, guest_of};

use crate::devices::{index, tool, tool_ok};

/// The instruction `syscall`, as the low bytes of a word.
const SYSCALL: i64 = 0x050f;
/// Below what the x86-64 ABI lets a function use without moving its stack pointer.
const BELOW_STACK: u64 = 1024;

/// What has become of an injected call.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Returned(i64),
    Ended(Signal),
}

/// An argument that is a pointer to the bytes of an injected call.
const BYTES: u64 = u64::MAX - 1;

/// Makes the main thread of a process make a call, once it waits in one. `None` without the
/// permission.
fn inject(pid: u32, call: i64, bytes: &[u8], arguments: [u64; 4]) -> Option<Outcome> {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process has a number"));
    let address = |at: u64| std::ptr::without_provenance_mut(usize::try_from(at).expect("64 bits"));
    let before = wait_for("a call", SOON, || {
        match ptrace::attach(pid) {
            Err(Errno::EPERM) => {
                println!("SKIPPED: injecting a call needs CAP_SYS_PTRACE (run it as root)");
                return Some(None);
            }
            attached => attached.expect("it runs"),
        }
        let stopped = waitpid(pid, None).expect("it stops");
        assert!(matches!(stopped, WaitStatus::Stopped(..)), "{stopped:?}");
        let regs = ptrace::getregs(pid).expect("it is stopped");
        let instruction = ptrace::read(pid, address(regs.rip - 2)).expect("code");
        if instruction & 0xffff == SYSCALL {
            return Some(Some(regs));
        }
        ptrace::detach(pid, None).expect("it is stopped");
        None
    })?;
    let place = (before.rsp - BELOW_STACK) & !7;
    let bytes = [bytes, &[0; 8]].concat();
    for (index, word) in (0..).zip(bytes.chunks_exact(8)) {
        let word = i64::from_ne_bytes(word.try_into().expect("eight bytes"));
        ptrace::write(pid, address(place + 8 * index), word).expect("a stack");
    }
    let mut regs = before;
    let arguments = arguments.map(|argument| if argument == BYTES { place } else { argument });
    [regs.rdi, regs.rsi, regs.rdx, regs.r10] = arguments;
    (regs.r8, regs.r9) = (0, 0);
    regs.rax = u64::from_ne_bytes(call.to_ne_bytes());
    // The interrupted call is not made again in place of this one.
    (regs.rip, regs.orig_rax) = (before.rip - 2, u64::MAX);
    ptrace::setregs(pid, regs).expect("it is stopped");
    ptrace::step(pid, None).expect("it is stopped");
    Some(match waitpid(pid, None).expect("it stops or ends") {
        WaitStatus::Signaled(_, signal, _) => Outcome::Ended(signal),
        _ => {
            let after = ptrace::getregs(pid).expect("it is stopped");
            ptrace::setregs(pid, before).expect("it is stopped");
            ptrace::detach(pid, None).expect("it is stopped");
            Outcome::Returned(i64::from_ne_bytes(after.rax.to_ne_bytes()))
        }
    })
}

/// `EACCES`: a file that a process may not open.
const DENIED: Outcome = Outcome::Returned(-13);

/// The child of a backend that opens sockets.
fn opener(backend: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{backend}/task/{backend}/children"));
    let children = children.expect("the kernel lists children");
    children.split_whitespace().next().expect("it has one").parse().expect("a number")
}

/// A process of a host by its name.
fn process(host: &Host, name: &str) -> u32 {
    match name {
        "opener" => opener(host.pid_of("backend")),
        name => host.pid_of(name),
    }
}

#[test]
fn no_process_can_change_what_others_trust() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let plain = pair();
    let isolated = plain.replacen("[host]\n", "[host]\nisolate = true\n", 1);
    let hosts: [(&str, &[&str]); 2] = [
        (&plain, &["backend", "guest a", "broker", "opener"]),
        (&isolated, &["tenant domain-1", "switch"]),
    ];
    let write = u64::try_from(libc::O_CREAT | libc::O_WRONLY).expect("not negative");
    for (text_of_host, processes) in hosts {
        let host = Host::start(text_of_host);
        host.ping("a", "10.77.0.2");
        if host.log().contains("no Landlock") {
            println!("SKIPPED: this kernel has no Landlock, so files are not restricted");
            return;
        }
        for name in processes {
            let pid = process(&host, name);
            // What is to be killed, what is served, which sockets are opened, and a new file.
            for file in ["state.json", "host.json", "opener/vhosts.json", "other"] {
                let path = host.dir().join(file);
                let is_own = (*name, file) == ("opener", "opener/vhosts.json");
                if is_own || !path.parent().is_some_and(std::path::Path::exists) {
                    continue;
                }
                let path = path.to_str().expect("text");
                let outcome =
                    inject(pid, libc::SYS_open, path.as_bytes(), [BYTES, write, 0o600, 0]);
                let Some(outcome) = outcome else { return };
                assert_eq!(outcome, DENIED, "{name}: {file}");
            }
        }
        host.ping("a", "10.77.0.2");
    }
}

#[test]
fn processes_of_root_that_serve_guests_are_other_users() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: another user: only root's processes become other users");
        return;
    }
    let plain = pair();
    let isolated = plain.replacen("[host]\n", "[host]\nisolate = true\n", 1);
    let hosts: [(&str, &[&str]); 2] = [
        (&plain, &["backend", "guest a", "guest b"]),
        (&isolated, &["tenant domain-1", "tenant domain-2", "switch"]),
    ];
    for (text_of_host, processes) in hosts {
        let host = Host::start(text_of_host);
        let users: Vec<String> = processes.iter().map(|name| user(host.pid_of(name))).collect();
        if users.iter().all(|user| user == ROOT) {
            println!("SKIPPED: another user: this system has too few, or closes /dev/net/tun");
            return;
        }
        let different: BTreeSet<&String> = users.iter().filter(|user| *user != ROOT).collect();
        assert_eq!(different.len(), processes.len(), "{users:?}");
        // A successor is the user that its predecessor's files belong to.
        let before = host.pid_of(processes[0]);
        send(before, rustix::process::Signal::KILL);
        host.wait("the successor", SOON, |host| {
            let mut members = host.members().into_iter();
            let next = members.find(|it| it.name == processes[0] && it.pid != before)?;
            (user(next.pid) == users[0]).then_some(())
        });
        host.ping("a", "10.77.0.2");
    }
}

/// The real, effective, saved and file system user of a process; empty if it has ended.
fn user(pid: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let user = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    user.trim().to_owned()
}

/// All four are root.
const ROOT: &str = "0\t0\t0\t0";

#[test]
fn no_process_can_harm_others_by_a_call() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("a-program");
    std::fs::write(&file, "").expect("written");
    let file = file.to_str().expect("text");
    let ours = u64::from(std::process::id());
    let number = |value: libc::c_int| u64::try_from(value).expect("not negative");
    let create = number(libc::O_CREAT | libc::O_WRONLY);
    let cases: [(&str, i64, &str, [u64; 4]); 14] = [
        ("chmod", libc::SYS_chmod, file, [BYTES, 0o4755, 0, 0]),
        ("fchmod", libc::SYS_fchmod, "", [0, 0o777, 0, 0]),
        ("fchmodat", libc::SYS_fchmodat, "", [0; 4]),
        ("a set-uid file", libc::SYS_open, file, [BYTES, create, 0o4755, 0]),
        ("F_SETOWN", libc::SYS_fcntl, "", [0, number(libc::F_SETOWN), ours, 0]),
        ("F_SETSIG", libc::SYS_fcntl, "", [0, 10, number(libc::SIGKILL), 0]),
        ("O_ASYNC", libc::SYS_fcntl, "", [0, number(libc::F_SETFL), number(libc::O_ASYNC), 0]),
        ("another's CPU", libc::SYS_sched_setaffinity, "", [ours, 0, 0, 0]),
        ("kill", libc::SYS_kill, "", [ours, number(libc::SIGTERM), 0, 0]),
        ("a signal to another's thread", libc::SYS_tgkill, "", [ours, ours, 15, 0]),
        ("another's limits", libc::SYS_prlimit64, "", [ours, 7, 0, 0]),
        ("a filter program", libc::SYS_setsockopt, "", [0, number(libc::SOL_SOCKET), 26, 0]),
        ("a positioned write", libc::SYS_pwrite64, "", [0; 4]),
        ("execve", libc::SYS_execve, "/bin/true", [BYTES, 0, 0, 0]),
    ];
    let plain = pair();
    let isolated = plain.replacen("[host]\n", "[host]\nisolate = true\n", 1);
    for (what, call, text, arguments) in cases {
        // A broker ends with its host, and a backend with its opener.
        let hosts: [(&str, &[&str]); 3] = [
            (&plain, &["backend", "guest a", "broker"]),
            (&plain, &["opener"]),
            (&isolated, &["tenant domain-1", "switch"]),
        ];
        for (text_of_host, processes) in hosts {
            let host = Host::start(text_of_host);
            host.ping("a", "10.77.0.2");
            for name in processes {
                let pid = process(&host, name);
                let fine = inject(pid, libc::SYS_getpid, b"", [0; 4]);
                let Some(fine) = fine else { return };
                assert_eq!(fine, Outcome::Returned(pid.into()), "{name}: {what}");
                let outcome = inject(pid, call, text.as_bytes(), arguments);
                assert_eq!(outcome, Some(Outcome::Ended(Signal::SIGSYS)), "{name}: {what}");
            }
        }
    }
}

/// The descriptors of a process that are routing netlink.
fn netlink_sockets(pid: u32) -> Vec<u64> {
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/netlink")).expect("readable");
    let inodes: Vec<&str> =
        table.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("ours").flatten();
    let is_netlink = |path: &std::path::Path| {
        let target = std::fs::read_link(path).unwrap_or_default();
        let target = target.to_string_lossy();
        let inode = target.strip_prefix("socket:[").and_then(|it| it.strip_suffix(']'));
        inode.is_some_and(|inode| inodes.contains(&inode))
    };
    let found = files.map(|file| file.path()).filter(|path| is_netlink(path));
    found
        .map(|path| path.file_name().expect("a number").to_string_lossy().parse().expect("one"))
        .collect()
}

/// RTM_NEWLINK that sets a link down: a header, then `struct ifinfomsg`.
fn set_down(index: i32) -> Vec<u8> {
    const RTM_NEWLINK: u16 = 16;
    const IFF_UP: u32 = 1;
    let header = [&32_u32.to_ne_bytes()[..], &RTM_NEWLINK.to_ne_bytes(), &1_u16.to_ne_bytes()];
    let link = [&[0; 12][..], &index.to_ne_bytes(), &[0; 4], &IFF_UP.to_ne_bytes()];
    header.into_iter().chain(link).flatten().copied().collect()
}

#[test]
fn a_tenant_has_no_power_over_network_devices() {
    let Some(_turn) = shared_turn(&["ping", "nsenter", "ip", "unshare", "socat"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let socket = place.path().join("vm1").display().to_string();
    let text = describe("isolate = true", &[("a", "", "bridge = 'br7'"), ("b", "", "")])
        + "[[bridge]]\nname = 'br7'\naddresses = ['10.77.0.254/24']\n[uplink]\nname = 'up0'\n"
        + &format!(
            "[[vhost]]\nname = 'vm1'\nsocket = '{socket}'\nmode = 'server'\nbridge = 'br7'\n"
        );
    let host = Host::start(&text);
    let _guest = guest_of(1, "10.77.0.9", place.path(), "vm1", Maker::Backend, "");
    for (tenant, address) in [("domain-1", "10.77.0.1"), ("vhost-vm1", "10.77.0.9")] {
        assert_powerless(&host, &format!("tenant {tenant}"), address);
    }
}

/// Asserts that the process of a tenant has no power over network devices, apart from the queues by
/// which it serves a guest with this address.
fn assert_powerless(host: &Host, name: &str, address: &str) {
    let (whole, tenant) = (host.pid_of("ringway run"), host.pid_of(name));
    let reach = || {
        host.wait("a reply of its guest", SOON, |_| {
            // waits: then it asks again.
            tool(whole, &format!("ping -n -c 1 -W 1 {address}"))
        })
    };
    reach();
    if inject(tenant, libc::SYS_getpid, b"", [0; 4]).is_none() {
        return;
    }
    let index = index(whole, "up0").parse().expect("a number");
    let message = set_down(index);
    let sockets = netlink_sockets(tenant);
    for socket in &sockets {
        let len = u64::try_from(message.len()).expect("short");
        let sent = inject(tenant, libc::SYS_sendto, &message, [*socket, BYTES, len, 0]);
        println!("a message that sets the uplink down: {sent:?}");
    }
    let uplink = tool_ok(whole, "ip -o link show dev up0");
    assert!(uplink.contains(",UP"), "{uplink}");
    assert!(sockets.is_empty(), "it has netlink: {sockets:?}");
    let status = std::fs::read_to_string(format!("/proc/{tenant}/status")).expect("readable");
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
    }
    if !host.log().contains("no Landlock") {
        let opened = inject(tenant, libc::SYS_open, b"/dev/net/tun", [BYTES, 2, 0, 0]);
        let refused = i64::from(libc::EACCES);
        assert_eq!(opened, Some(Outcome::Returned(-refused)));
    }
    // The queues of its guest's device stay usable, and make no other one.
    reach();
    for request in [libc::TUNSETIFF, libc::TUNSETPERSIST] {
        let tenant = host.pid_of(name);
        let outcome = inject(tenant, libc::SYS_ioctl, b"", [0, request, 0, 0]);
        assert_eq!(outcome, Some(Outcome::Ended(Signal::SIGSYS)));
        host.wait("its successor", SOON, |host| {
            let mut members = host.members().into_iter();
            members.find(|member| member.name == name && member.pid != tenant)
        });
        reach();
    }
}

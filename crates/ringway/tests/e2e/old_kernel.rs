//! A kernel as old as that of XCP-ng's domain 0: Linux 4.19.
//!
//! It is imitated: a filter of this kernel's reports each system call that 4.19 lacks as missing,
//! and arguments that it lacks as it would. What netlink and devices did then is not imitated.

use std::collections::BTreeMap;
use std::thread;

use libc::{c_int, c_long};
use ringway_e2e::host::{Host, SOON, pair, ringway, send};
use ringway_e2e::shared_turn;
use rustix::process::Signal;
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

/// Above the number of any call that exists.
const CALL_MAX: c_long = 600; // not a limit: of this test

/// Does something on a thread, for which the kernel is that old, as for all that it starts.
fn on_old_kernel<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    let filtered = || {
        for program in filters() {
            apply_filter(&program).expect("any kernel since 4.14 has filters");
        }
        what()
    };
    let outcome = thread::scope(|scope| scope.spawn(filtered).join());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn filters() -> [BpfProgram; 3] {
    // rseq(2) was the last new call of 4.18, and 4.19 has none.
    let missing = (libc::SYS_rseq + 1..CALL_MAX).map(|call| (call, Vec::new()));
    // Both namespaces of a process at once: Linux 5.8.
    let namespaces = bits(libc::CLONE_NEWNET | libc::CLONE_NEWUSER);
    let by_pidfd = when(1, MaskedEq(namespaces), namespaces);
    // UDP segmentation of a TAP device: Linux 6.2.
    let uso = u64::from(libc::TUN_F_USO4);
    let offloads = [(1, Eq, libc::TUNSETOFFLOAD), (2, MaskedEq(uso), uso)];
    let offloads = offloads.map(|(argument, operator, value)| {
        SeccompCondition::new(argument, Qword, operator, value).expect("few arguments")
    });
    let offloads = SeccompRule::new(offloads.into()).expect("a condition");
    // Of an eventfd: Linux 5.8.
    let no_wait = when(5, Eq, bits(libc::RWF_NOWAIT));
    [
        filter(missing.collect(), libc::ENOSYS),
        filter(
            [(libc::SYS_setns, vec![by_pidfd]), (libc::SYS_ioctl, vec![offloads])].into(),
            libc::EINVAL,
        ),
        filter([(libc::SYS_preadv2, vec![no_wait])].into(), libc::EOPNOTSUPP),
    ]
}

fn filter(rules: BTreeMap<c_long, Vec<SeccompRule>>, error: c_int) -> BpfProgram {
    let arch = std::env::consts::ARCH.try_into().expect("one that ringway is built for");
    let refused = SeccompAction::Errno(error.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch);
    filter.expect("rules").try_into().expect("a program")
}

/// A rule for one argument.
fn when(argument: u8, operator: SeccompCmpOp, value: u64) -> SeccompRule {
    let condition = SeccompCondition::new(argument, Dword, operator, value).expect("an argument");
    SeccompRule::new(vec![condition]).expect("a condition")
}

fn bits(flags: c_int) -> u64 {
    flags.unsigned_abs().into()
}

/// What its log says of files.
const FILES: &str = "this kernel has no Landlock";

#[test]
fn a_host_on_linux_4_19_serves_if_its_administrator_wants_less_confinement() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    on_old_kernel(|| {
        let place = tempfile::tempdir().expect("a directory");
        let mut command = ringway();
        command.env("RINGWAY_CONFINE", "").arg("run").arg("--dir").arg(place.path());
        let refused = command.output().expect("the program can be started");
        let why = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && why.contains("without-landlock = true"), "{why}");
        for isolate in [false, true] {
            let key = format!("[host]\nisolate = {isolate}\nwithout-landlock = true\n");
            let text = pair().replacen("[host]\n", &key, 1);
            let place = tempfile::tempdir().expect("a directory");
            let host = Host::start_with(place, &text, &[("RINGWAY_CONFINE", "".as_ref())]);
            host.ping("a", "10.77.0.2");
            assert_eq!(host.log_count(FILES), 1, "{}", host.log());
            assert!(host.log().contains("older than Linux 5.8"), "{}", host.log());
            assert!(host.text(&["vif", "list"]).contains("without Landlock"));
            // Its end is noticed without a descriptor of the kernel's.
            let name = if isolate { "tenant domain-1" } else { "backend" };
            let before = host.pid_of(name);
            send(before, Signal::KILL);
            host.wait("the successor", SOON, |host| {
                let mut members = host.members().into_iter();
                members.find(|member| member.name == name && member.pid != before)
            });
            host.ping("a", "10.77.0.2");
            host.text(&["stop"]);
            let (status, ..) = host.ended();
            assert!(status.success(), "{status}");
        }
    });
}

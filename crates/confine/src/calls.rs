//! System calls: those on the [`lists`], some of them only with certain arguments.
//!
//! A process that serves vifs creates and connects no sockets: its sockets are opened earlier, and
//! a process that serves no vif opens the sockets of virtio vifs.
//!
//! The lists come from the calls that a serving backend was seen to make, plus those that glibc and
//! the standard library may make instead on another machine: time without a vDSO clock (Xen's, in a
//! paravirtual domain 0), other ways to poll, sleep and allocate. A filter cannot check what
//! pointer arguments refer to, so a call that is dangerous because of that is on no list.
//!
//! Each entry has its name in a row of `docs/confinement.md`, which says what an attacker could do
//! with it at worst. `cargo xtask spec` compares the two.

mod lists;

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp,
    SeccompCondition, SeccompFilter, SeccompRule, TargetArch, apply_filter_all_threads,
};

use crate::role::Role;
use lists::{
    ALWAYS, ALWAYS_THIS_ARCH, ANY_IOCTL, BROKER, CONNECT_CALLS, FCNTLS, MEMFD_CALLS,
    NEW_TAP_IOCTLS, Named, OPENER_CALLS, SOCKET_OPTIONS, TAP_IOCTLS, VIFS, XEN_GRANTING,
    XEN_IOCTLS, named,
};

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

/// Modes that make a file run with the rights of its owner or group.
const SET_IDS: u64 = 0o7000;

const FCNTL: &[Named<c_long>] = named![libc::SYS_fcntl];
const IOCTL: &[Named<c_long>] = named![libc::SYS_ioctl];

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
    build(allowed(role)?.rules, SeccompAction::KillProcess, SeccompAction::Allow)
}

/// The names of all that a role may call: `read`, or `fcntl F_GETFL`, or `openat (no set-id mode)`.
pub(crate) fn names(role: Role) -> Result<Vec<String>, BackendError> {
    Ok(allowed(role)?.names)
}

/// What a role may call.
#[derive(Default)]
struct Allowed {
    rules: Rules,
    names: Vec<String>,
}

impl Allowed {
    /// These calls with any arguments.
    fn calls(&mut self, calls: &[Named<c_long>]) {
        for (name, call) in calls {
            self.names.push(short(name));
            self.rules.insert(*call, Vec::new());
        }
    }

    /// A call only with arguments that match a rule, and what that means.
    fn limited(&mut self, call: &[Named<c_long>], limit: &str, rules: &[SeccompRule]) {
        for (name, call) in call {
            self.names.push(format!("{} ({limit})", short(name)));
            self.rules.entry(*call).or_default().extend_from_slice(rules);
        }
    }

    /// A call only with one of these values of an argument.
    fn values(
        &mut self,
        call: &[Named<c_long>],
        argument: u8,
        values: impl IntoIterator<Item = Named<u64>>,
    ) -> Result<(), BackendError> {
        for (value_name, value) in values {
            let rule = SeccompRule::new(vec![int(argument, value)?])?;
            for (name, call) in call {
                self.names.push(format!("{} {value_name}", short(name)));
                self.rules.entry(*call).or_default().push(rule.clone());
            }
        }
        Ok(())
    }

    /// What every role may call.
    fn of_all(&mut self) -> Result<(), BackendError> {
        self.calls(ALWAYS);
        self.calls(ALWAYS_THIS_ARCH);
        self.values(FCNTL, 1, with_bits(FCNTLS))?;
        let flags = vec![int(1, bits(libc::F_SETFL))?, masked(2, bits(libc::O_ASYNC), 0)?];
        self.limited(FCNTL, "F_SETFL without O_ASYNC", &[SeccompRule::new(flags)?]);
        for (name, option) in with_bits(SOCKET_OPTIONS) {
            let of_socket = vec![int(1, bits(libc::SOL_SOCKET))?, int(2, option)?];
            self.limited(named![libc::SYS_setsockopt], name, &[SeccompRule::new(of_socket)?]);
        }
        // No file gets such a mode: neither one that exists, as no call changes modes, nor a new
        // one.
        let no_set_id = |mode: u8| SeccompRule::new(vec![masked(mode, SET_IDS, 0)?]);
        self.limited(named![libc::SYS_openat], "no set-id mode", &[no_set_id(3)?]);
        #[cfg(target_arch = "x86_64")]
        self.limited(named![libc::SYS_open], "no set-id mode", &[no_set_id(2)?]);
        // Where the calling thread runs, and not where other processes do.
        let own_thread = SeccompRule::new(vec![int(0, 0)?])?;
        self.limited(named![libc::SYS_sched_setaffinity], "of its own threads", &[own_thread]);
        let policy = |policy| SeccompRule::new(vec![int(0, 0)?, int(1, bits(policy))?]);
        let policies = [policy(libc::SCHED_OTHER)?, policy(libc::SCHED_BATCH)?];
        self.limited(named![libc::SYS_sched_setscheduler], "of its own threads", &policies);
        // The C library tries this first: see `program_for_clone3`.
        self.limited(named![libc::SYS_clone3], "reported as missing", &[]);
        self.limited(named![libc::SYS_clone], "a thread", &[is_thread()?]);
        // Only to the peer that a socket is connected to.
        let no_address = SeccompRule::new(vec![long(4, Eq, 0)?])?;
        self.limited(named![libc::SYS_sendto], "no address", &[no_address]);
        self.values(IOCTL, 1, [ANY_IOCTL])?;
        // Memory never becomes executable.
        let no_code = without(2, bits(libc::PROT_EXEC))?;
        self.limited(named![libc::SYS_mmap, libc::SYS_mprotect], "not executable", &[no_code]);
        let names = with_bits(named![libc::PR_SET_NAME, libc::PR_GET_NAME]);
        self.values(named![libc::SYS_prctl], 0, names.chain([("PR_SET_VMA", SET_VMA)]))?;
        // A signal to this process only, as abort(3) sends it.
        let ours = SeccompRule::new(vec![int(0, u64::from(std::process::id()))?])?;
        self.limited(named![libc::SYS_tgkill], "this process", &[ours]);
        // Reads a descriptor whose flags a peer may change, without blocking.
        let no_wait = with_bits(named![libc::RWF_NOWAIT]);
        self.values(named![libc::SYS_preadv2], 5, no_wait)?;
        // Limits may be read and not changed.
        let unchanged = SeccompRule::new(vec![int(0, 0)?, long(2, Eq, 0)?])?;
        self.limited(named![libc::SYS_prlimit64], "to read", &[unchanged]);
        Ok(())
    }

    /// What only this role may call, beside that.
    fn of_role(&mut self, role: Role) -> Result<(), BackendError> {
        let (socket, socketpair) = (named![libc::SYS_socket], named![libc::SYS_socketpair]);
        let tap_devices = TAP_IOCTLS.iter().chain(NEW_TAP_IOCTLS);
        let new_memory = with_bits(named![libc::F_ADD_SEALS]);
        match role {
            Role::Vifs => {
                self.calls(VIFS);
                self.values(IOCTL, 1, tap_devices.chain(XEN_IOCTLS).chain(XEN_GRANTING).copied())?;
            }
            Role::Tenant => {
                self.values(IOCTL, 1, TAP_IOCTLS.iter().chain(XEN_IOCTLS).copied())?;
            }
            Role::EmulatedGuest => self.values(IOCTL, 1, tap_devices.copied())?,
            Role::VirtioGuest => {
                self.values(IOCTL, 1, tap_devices.copied())?;
                self.calls(CONNECT_CALLS);
                self.calls(MEMFD_CALLS);
                self.values(FCNTL, 1, new_memory)?;
                self.limited(socket, "AF_UNIX, with connections", &connections()?);
            }
            Role::Opener => {
                self.calls(CONNECT_CALLS);
                self.calls(OPENER_CALLS);
                self.values(FCNTL, 1, new_memory)?;
                self.limited(socket, "AF_UNIX, with connections", &connections()?);
                // Gives a file of its user to a group that it is in, and never to another user.
                let same_user = int(2, u64::from(u32::MAX))?;
                let of_file = int(4, bits(libc::AT_EMPTY_PATH))?;
                let given = SeccompRule::new(vec![same_user, of_file])?;
                self.limited(named![libc::SYS_fchownat], "the group of an open file", &[given]);
            }
            Role::Broker => {
                self.calls(BROKER);
                self.values(FCNTL, 1, new_memory)?;
                self.limited(socket, "AF_UNIX, with connections", &connections()?);
                self.limited(socketpair, "AF_UNIX, with connections", &connections()?);
            }
        }
        Ok(())
    }
}

/// The name of a call without the prefix of its number.
fn short(name: &str) -> String {
    name.trim_start_matches("SYS_").to_owned()
}

fn allowed(role: Role) -> Result<Allowed, BackendError> {
    let mut allowed = Allowed::default();
    allowed.of_all()?;
    allowed.of_role(role)?;
    Ok(allowed)
}

/// Constants with the type of the kernel's argument.
fn with_bits(constants: &[Named<libc::c_int>]) -> impl Iterator<Item = Named<u64>> {
    constants.iter().map(|(name, constant)| (*name, bits(*constant)))
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

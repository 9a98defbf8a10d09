//! Definitions with which an interface does not work at all, or its machine does not start.

use super::{Definition, Judged, QEMU_QUEUES_MAX, TAP_QUEUES_MAX, When, numbers};
use crate::finding::{Advice, Finding, Severity, shell_word};
use ringway_evidence::Quote;
use ringway_evidence::parse::ringway::Vif;

/// One such fault.
struct Fault {
    /// How serious it is while the machine runs.
    severity: Severity,
    /// What is wrong, with the verb first.
    said: String,
    cause: &'static str,
    quotes: Vec<Quote>,
    /// What to change.
    advice: String,
}

/// How a fault is found.
type Finder = fn(&Definition<'_>) -> Option<Fault>;

const ALL: [Finder; 3] = [private_memory, same_ends, too_many_queues];

/// Finds the faults of an interface, as it is now and as it starts the next time.
pub(super) fn find(judged: &Judged<'_>) -> Vec<Finding> {
    ALL.into_iter().filter_map(|finder| find_one(judged, finder)).collect()
}

fn find_one(Judged { name, now, next }: &Judged<'_>, finder: Finder) -> Option<Finding> {
    let of_next = next.as_ref().and_then(finder);
    let (at, fault) = match finder(now) {
        Some(fault) => (now, fault),
        None => (next.as_ref()?, of_next?),
    };
    // The machine was edited, and has not been stopped since.
    let is_fixed = at.when == When::Running && next.as_ref().is_some_and(|it| finder(it).is_none());
    let severity = if at.when == When::Running { fault.severity } else { Severity::Warning };
    let when = match at.when {
        When::Running => "",
        When::Stopped => "; it does not run now",
        When::Next => ", when the machine starts the next time",
    };
    let summary = format!("{} of machine {name} {}{when}", at.label(), fault.said);
    let advice = if is_fixed {
        let then = if next.as_ref().is_some_and(starts_well) {
            at.apply(name)
        } else {
            "It has another one, so edit it before the machine is stopped.".to_owned()
        };
        Advice::by_hand(
            format!("Its stored definition does not have this fault any more. {then}"),
            &[],
        )
    } else {
        let command = format!("virsh edit {}", shell_word(name));
        Advice::by_hand(format!("{} {}", fault.advice, at.apply(name)), &[&command])
    };
    let finding = Finding::new(severity, *name, summary).cause(fault.cause);
    Some(finding.quote(fault.quotes).advise(advice))
}

/// Whether a machine that starts with a definition gets what it asks for.
pub(super) fn starts_well(at: &Definition<'_>) -> bool {
    let is_offered = at.vif.is_none_or(|(vif, _)| at.asked() <= vif.max_queues_next());
    is_offered && ALL.into_iter().all(|finder| finder(at).is_none())
}

/// Whether a guest uses a vif now, so that all that it needs is there.
fn is_in_use(at: &Definition<'_>) -> bool {
    at.when == When::Running && at.vif.is_some_and(|(vif, _)| !vif.queues.is_empty())
}

fn private_memory(at: &Definition<'_>) -> Option<Fault> {
    let (is_shared, line) = at.guest.is_shared?;
    if is_shared || !at.is_vhost_user() || is_in_use(at) {
        return None;
    }
    Some(Fault {
        severity: Severity::Problem,
        said: "has no data path: the memory of the machine is not shared".to_owned(),
        cause: "A vhost-user back-end is another process, and reads and writes frames in the \
                machine's memory. QEMU can only give it memory that is mapped as shared.",
        quotes: vec![at.text.quote(at.nic.socket_line), at.text.quote(line)],
        advice: "In the <domain>: <access mode='shared'/> in <memoryBacking>, and <source \
                 type='memfd'/> in it, too, if it has neither <source> nor <hugepages>. A NUMA \
                 <cell> with memAccess='private' needs memAccess='shared'."
            .to_owned(),
    })
}

/// One end of a socket must create it, and the other one connect.
fn same_ends(at: &Definition<'_>) -> Option<Fault> {
    let (vif, text) = at.vif?;
    let mode = at.nic.mode.as_str();
    if vif.virtio.as_ref().is_none_or(|virtio| virtio.mode != mode) || is_in_use(at) {
        return None;
    }
    let Vif { name, .. } = vif;
    let (said, advice) = match mode {
        "client" => (
            "connects to its socket",
            format!(
                "In the <source> of the <interface>: mode='server', and QEMU creates the socket, \
                 in a directory where it may do so; or in the description of ringway's host: mode \
                 = \"server\" in the [[vhost]] of {name}."
            ),
        ),
        "server" => (
            "creates its socket",
            format!(
                "In the description of ringway's host: mode = \"client\" in the [[vhost]] of \
                 {name}; or in the <source> of the <interface>: mode='client', with <reconnect \
                 enabled='yes' timeout='1'/> in it."
            ),
        ),
        _ => return None,
    };
    let of_vif = Quote { text: format!("{name}: mode {mode}"), ..numbers(vif, text) };
    Some(Fault {
        severity: Severity::Problem,
        said: format!("has no back-end: QEMU {said}, and so does ringway ({name})"),
        cause: "One end of a vhost-user socket creates it, and the other one connects. libvirt's \
                mode is QEMU's, so mode='server' of the machine goes with mode = \"client\" of \
                ringway, and mode='client' with mode = \"server\".",
        quotes: vec![of_vif, at.text.quote(at.nic.socket_line)],
        advice,
    })
}

/// More queues than what serves it can have. What ringway offers is compared elsewhere.
fn too_many_queues(at: &Definition<'_>) -> Option<Fault> {
    let (asked, limit) = (at.asked(), at.limit());
    if asked <= limit || at.vif.is_some() {
        return None;
    }
    let most = at.most();
    let (whose, advice) = if at.is_vhost_user() {
        (
            "QEMU's device has",
            format!(
                "In the <interface>: <driver queues='{most}'/>, with the other attributes that \
                 <driver> has: QEMU's device has up to {QEMU_QUEUES_MAX} queues."
            ),
        )
    } else {
        (
            "the kernel's devices have",
            format!(
                "In the <interface>: <driver name='vhost' queues='{most}'/>, with the other \
                 attributes that <driver> has: the kernel's devices have up to {TAP_QUEUES_MAX} \
                 queues."
            ),
        )
    };
    Some(Fault {
        severity: Severity::Warning,
        said: format!("asks for {asked} queues, and {whose} up to {limit}"),
        cause: "A machine does not start with an interface that asks for more queues than its \
                device can have.",
        quotes: at.quotes(),
        advice,
    })
}

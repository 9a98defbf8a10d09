//! Queues of ringway's vifs, by ringway's own numbers.

use crate::finding::{Advice, Change, Finding, Knob, Severity};
use ringway_evidence::parse::ringway::Vif;
use ringway_evidence::{Quote, Text};

/// The kind of a vif behind a vhost-user socket.
const VIRTIO: &str = "virtio";
/// The kind of a network namespace, and the most queues of one.
const NAMESPACE: (&str, u64) = ("namespace", 32);
/// The feature of a guest that can use several queues.
const MULTI_QUEUE: &str = "mq";

/// Queues that a vif of ringway can offer: `QUEUES_MAX` of the crate `ringway-description`, which
/// this crate may not use. ringway does not start with a description that has more.
pub(super) const RINGWAY_QUEUES_MAX: u64 = 64;

/// A vif of whose guest nothing else is known; `cpus` are those of this host. No more than a note:
/// who runs many guests may want it so.
pub(super) fn judge(vif: &Vif, cpus: u64, text: &Text) -> Option<Finding> {
    let (used, most) = (u64::try_from(vif.queues.len()).ok()?, vif.max_queues);
    let wanted = cpus.min(RINGWAY_QUEUES_MAX);
    if used == most && used > 0 && most < wanted {
        let all =
            if most == 1 { "the only queue".to_owned() } else { format!("all {most} queues") };
        let summary = format!("the guest of {} uses {all} that ringway offers", vif.name);
        return Some(offered(vif, text, summary, wanted));
    }
    if vif.kind != VIRTIO || used == 0 || used >= most {
        return None;
    }
    let summary =
        format!("the guest of {} uses {used} of {most} queues that ringway offers", vif.name);
    let (cause, advice) = if is_multi_queue(vif).unwrap_or(true) {
        (
            "One CPU at a time serves a queue. The guest may have no more CPUs: ringway does not \
             know their number.",
            format!(
                "If the guest has more CPUs than queues in use, run in it: ethtool -L eth0 \
                 combined {most}, or the number of its CPUs if that is less. `ethtool -l eth0` \
                 shows how many there can be; if these are fewer, <driver queues='N'/> in libvirt \
                 or queues=N and mq=on for QEMU, N at most {most}, gives it more when it is \
                 stopped and started."
            ),
        )
    } else {
        (
            "One CPU at a time serves a queue. The guest does not use the feature `mq`: its \
             front-end has set up one queue, or its driver uses no more. It may also have one CPU \
             only: ringway does not know their number.",
            format!(
                "If the guest has several CPUs: <driver queues='N'/> in the <interface \
                 type='vhostuser'> of libvirt, or queues=N and mq=on for QEMU, where N is the \
                 number of its CPUs and at most {most}, which is what ringway offers; then stop \
                 and start the machine. Then in the guest: ethtool -L eth0 combined N, if it does \
                 not use them by itself."
            ),
        )
    };
    Some(
        Finding::new(Severity::Note, &vif.name, summary)
            .cause(cause)
            .quote([numbers(vif, text)])
            .advise(Advice::by_hand(advice, &[])),
    )
}

/// A vif that offers fewer queues than would be of use.
pub(super) fn offered(vif: &Vif, text: &Text, summary: String, wanted: u64) -> Finding {
    let advice = match vif.kind.as_str() {
        // Its front-end says how many there are, when it is started.
        VIRTIO => Advice::by_hand(
            format!(
                "In the description of ringway's host: queues = {wanted} in the [[vhost]] of \
                 {name}. Then at its front-end: <driver queues='{wanted}'/> in the <interface \
                 type='vhostuser'> of libvirt, or queues={wanted} and mq=on for QEMU; then start \
                 the guest again. In the guest: ethtool -L eth0 combined {wanted}, if it does not \
                 use them by itself.",
                name = vif.name
            ),
            &[],
        ),
        // Its queues are those of its network device.
        kind if kind == NAMESPACE.0 => Advice::by_hand(
            format!(
                "In the description of ringway's host: queues = {wanted} in the [[namespace]] of \
                 {name}; then restart the host.",
                wanted = wanted.min(NAMESPACE.1),
                name = vif.name
            ),
            &[],
        ),
        _ => {
            let knob = Knob::MaxQueues { vif: vif.name.clone() };
            let change = Change::raise(knob, vif.max_queues, wanted);
            Advice::by_change(
                "Let it ask for a queue for each CPU; it reconnects for that. ringway needs as \
                 many workers, and the guest as many CPUs.",
                change,
            )
        }
    };
    Finding::new(Severity::Note, &vif.name, summary)
        .cause("One worker at a time serves a queue, and this host has more CPUs.")
        .quote([numbers(vif, text)])
        .advise(advice)
}

/// A guest that has more queues, and CPUs for them, than it uses.
pub(super) fn idle(vif: &Vif, text: &Text, summary: String, usable: u64) -> Finding {
    // Its driver cannot use them, and no command changes that.
    let is_old = is_multi_queue(vif) == Some(false);
    let severity = if is_old { Severity::Note } else { Severity::Warning };
    let (cause, advice) = if is_old {
        (
            "One CPU at a time serves a queue. The guest does not use the feature `mq`, which the \
             machine's card has with several queues: its driver uses one queue only.",
            "In the guest: a driver of virtio-net that uses several queues.".to_owned(),
        )
    } else {
        (
            super::UNUSED_CAUSE,
            format!(
                "In the guest: ethtool -L eth0 combined {usable}, while traffic flows if you \
                 like. Also set it in the interface's configuration, because it lasts until the \
                 next boot only."
            ),
        )
    };
    let finding = Finding::new(severity, &vif.name, summary)
        .cause(cause)
        .quote([numbers(vif, text)])
        .advise(Advice::by_hand(advice, &[]))
        .gain(super::GAIN);
    super::more(finding, u64::try_from(vif.queues.len()).unwrap_or(1), usable)
}

/// Whether the guest of a virtio vif uses the feature for several queues; `None` if unknown.
fn is_multi_queue(vif: &Vif) -> Option<bool> {
    let features = &vif.virtio.as_ref()?.features;
    Some(vif.queues.len() > 1 || features.iter().any(|feature| feature == MULTI_QUEUE))
}

/// What ringway says of a vif's queues.
pub(super) fn numbers(vif: &Vif, text: &Text) -> Quote {
    let Vif { name, max_queues, queues, .. } = vif;
    let said = format!("{name}: max_queues {max_queues}, {} in use", queues.len());
    Quote { file: text.origin().to_owned(), line: None, text: said }
}

//! Queues of ringway's vifs, by ringway's own numbers.

use super::text;
use crate::finding::{Advice, Change, Finding, Knob, Severity};
use ringway_evidence::parse::ringway::Vif;
use ringway_evidence::{Quote, Text};

/// The kind of a vif behind a vhost-user socket.
const VIRTIO: &str = "virtio";
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
        (text::partial_cause(), text::partial_advice(&most))
    } else {
        (text::one_queue_cause(), text::one_queue_advice(&most))
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
        VIRTIO => Advice::by_hand(text::vhostuser_advice(&wanted, &vif.name), &[]),
        _ => {
            let knob = Knob::MaxQueues { vif: vif.name.clone() };
            let change = Change::raise(knob, vif.max_queues, wanted);
            Advice::by_change(text::worker_advice(), change)
        }
    };
    Finding::new(Severity::Note, &vif.name, summary)
        .cause(text::worker_cause())
        .quote([numbers(vif, text)])
        .advise(advice)
}

/// A guest that has more queues, and CPUs for them, than it uses.
pub(super) fn idle(vif: &Vif, text: &Text, summary: String, usable: u64) -> Finding {
    // Its driver cannot use them, and no command changes that.
    let is_old = is_multi_queue(vif) == Some(false);
    let severity = if is_old { Severity::Note } else { Severity::Warning };
    let (cause, advice) = if is_old {
        (text::old_driver_cause(), text::old_driver_advice().to_owned())
    } else {
        (text::unused_cause(), text::idle_advice(&usable))
    };
    Finding::new(severity, &vif.name, summary)
        .cause(cause)
        .quote([numbers(vif, text)])
        .advise(Advice::by_hand(advice, &[]))
        .gain(text::gain())
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

//! D07: one interface has more traffic than its backend thread can handle, while others have
//! little.

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity, shell_word};
use ringway_evidence::fact::{
    BackendThread, BackendThreads, Basis, FULL, Interfaces, NicRole, Served, Span, Tried, float,
    share,
};
use ringway_evidence::facts;
use ringway_evidence::parse::nic::{Moved, NicCounters};

pub(crate) const CHECK: Check = Check {
    id: "D07",
    slug: "hot-interface",
    title: "one interface overloads its thread",
    group: Group::Queues,
    sources: &["throughput-guide:add-vif"],
    explanation: include_str!("hot_interface.txt"),
    absent: "no kernel backend thread",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        backend: BackendThreads,
        moved: Tried<Span<NicCounters>>,
        nics: Interfaces,
    }
}

/// Share of all guests' bytes from which one interface has them.
const SHARE_MIN: f64 = 0.8;
/// Packets per second below which something else saturates the thread.
const PACKETS_MIN: f64 = 1000.0;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let BackendThreads { basis, threads } = &facts.backend;
    let Some(fullest) = threads.first() else { return Ok(()) };
    if fullest.busy < FULL {
        let quote = Some(fullest.quote.clone());
        out.well("no interface overloads its thread", quote);
        return Ok(());
    }
    let span = facts.moved.get()?;
    if span.before.nics.len() != span.after.nics.len() && *basis == Basis::Samples {
        return Err(span.text.unreadable(None, "other interfaces than in the first sample"));
    }
    let moved = guests_nics(facts, span);
    let total = moved.iter().fold(0, |sum: u64, (_, moved)| sum.saturating_add(bytes(moved)));
    let Some((nic, most)) = moved.iter().max_by_key(|(_, moved)| bytes(moved)) else {
        return not_here("no interface of a guest");
    };
    let part = share(bytes(most), total);
    let is_its_own = |one: &&BackendThread| one.busy >= FULL && may_serve(&one.of, nic);
    let Some(thread) = threads.iter().find(is_its_own) else {
        let quote = Some(span.text.quote(most.line));
        out.well(format!("{nic} has the most traffic, and its threads have time left"), quote);
        return Ok(());
    };
    if part <= SHARE_MIN || float(most.packets()) / span.seconds < PACKETS_MIN {
        let summary = format!("{nic} has {:.0} % of all guests' bytes", part * 100.0);
        out.well(summary, Some(span.text.quote(most.line)));
        return Ok(());
    }
    let summary = format!(
        "{nic} has {:.0} % of all guests' bytes, and {} is full",
        part * 100.0,
        thread.thread.name
    );
    let idle = threads.iter().filter(|one| one.busy < FULL / 2.0).count();
    let finding = Finding::new(Severity::Problem, nic.clone(), summary)
        .cause(format!(
            "An interface stays on its threads at any load; {idle} of {threads} backend threads \
             are less than half full.",
            threads = threads.len()
        ))
        .quote([thread.quote.clone(), span.text.quote(most.line)])
        .confidence(match (basis, &thread.of) {
            (Basis::SinceBoot, _) => Confidence::Low,
            (Basis::Samples, Served::Vif(_)) => Confidence::High,
            // Which interface such a thread serves cannot be seen from outside.
            (Basis::Samples, Served::Group | Served::Vhost) => Confidence::Medium,
        });
    let are_all_full = threads.iter().all(|one| one.busy >= FULL) && threads.len() > 1;
    out.add([advise(finding, facts, nic, &thread.of, are_all_full)]);
    Ok(())
}

/// What each guest's interface moved.
fn guests_nics(facts: &Facts, span: &Span<NicCounters>) -> Vec<(String, Moved)> {
    let mut moved = Vec::new();
    for (nic, after) in &span.after.nics {
        let Some(before) = span.past(span.before.nics.get(nic)) else { continue };
        if facts.nics.role(nic) == NicRole::Backend {
            moved.push((nic.clone(), after.since(&before)));
        }
    }
    moved
}

fn bytes(moved: &Moved) -> u64 {
    moved.rx_bytes.saturating_add(moved.tx_bytes)
}

fn may_serve(of: &Served, nic: &str) -> bool {
    match of {
        Served::Vif(vif) => vif == nic,
        Served::Group => nic.starts_with("vif"),
        Served::Vhost => !nic.starts_with("vif"),
    }
}

fn advise(finding: Finding, facts: &Facts, nic: &str, of: &Served, are_all_full: bool) -> Finding {
    if are_all_full {
        return finding.advise(Advice::by_hand(
            "Every backend thread is full, so first add CPUs for domain 0 and threads (D24); \
             another interface would only wait for the same threads.",
            &["ringway doctor explain D24"],
        ));
    }
    let finding = match of {
        Served::Vif(_) | Served::Vhost => finding.advise(Advice::by_hand(
            "Queues spread one interface over several threads: use more of them. If it already \
             has several and one is full, spread the streams (D06).",
            &["ringway doctor explain D14", "ringway doctor explain D06"],
        )),
        Served::Group => finding,
    };
    let vif = nic.strip_prefix("vif").and_then(|rest| rest.split_once('.'));
    let bridge = bridge_of(facts, nic).unwrap_or_else(|| "xenbr0".to_owned());
    let text = "Or give the guest another interface, with its own threads, and divide its traffic \
                between both. On XCP: xe vif-create vm-uuid=... network-uuid=... device=1";
    let bridge = shell_word(&bridge);
    finding.advise(match vif {
        Some((domain, _)) => {
            Advice::by_hand(text, &[&format!("xl network-attach {domain} bridge={bridge}")])
        }
        None => Advice::by_hand(
            format!(
                "{text}. With libvirt: virsh attach-interface GUEST bridge {bridge} --model \
                 virtio --live"
            ),
            &[],
        ),
    })
}

/// What the interface is a port of.
fn bridge_of(facts: &Facts, nic: &str) -> Option<String> {
    let master = facts.nics.master(nic)?.quote(1);
    master.text.rsplit('/').next().filter(|name| *name != "ovs-system").map(str::to_owned)
}

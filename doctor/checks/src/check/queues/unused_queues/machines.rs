//! Queues of libvirt's machines: what a definition asks for, what ringway offers if it serves the
//! interface, and what the guest uses.

mod faults;
mod unjudged;

use std::collections::BTreeSet;

use super::vifs::{RINGWAY_QUEUES_MAX, idle, numbers, offered};
use super::{Facts, TAP_QUEUES_MAX};
use crate::check::Verdicts;
use crate::finding::{Advice, Finding, Severity, shell_word};
use ringway_evidence::fact::{Defined, Machine};
use ringway_evidence::parse::libvirt::{Guest, Interface, VHOST_USER};
use ringway_evidence::parse::ringway::{Vif, socket_names};
use ringway_evidence::{Gap, Quote, Text, squeezed};
use unjudged::Unjudged;

/// Queues of QEMU's virtio-net: two of `VIRTIO_QUEUE_MAX` for each, and one for control.
const QEMU_QUEUES_MAX: u64 = 511;
/// Machines that are named where all have enough queues.
const NAMED_MAX: usize = 3;

/// What is known of all machines together.
#[derive(Default)]
pub(super) struct Outcome<'a> {
    /// The vifs that belong to them.
    pub(super) vifs: BTreeSet<&'a str>,
    /// Whether any interface was judged, or could not be read.
    pub(super) is_any: bool,
    /// Those of which an interface was judged, each with its CPUs.
    judged: Vec<(&'a str, u64)>,
    unjudged: Unjudged<'a>,
}

impl Outcome<'_> {
    /// The machines that were judged, each with the number of its CPUs; `None` if there are no
    /// such machines.
    pub(super) fn judged(&self) -> Option<String> {
        let more = self.judged.len().saturating_sub(NAMED_MAX);
        let named = self.judged.iter().take(NAMED_MAX).map(|(name, vcpus)| {
            let s = if *vcpus == 1 { "" } else { "s" };
            format!("{} ({vcpus} CPU{s})", squeezed(name))
        });
        let named = named.collect::<Vec<_>>().join(", ");
        match (self.judged.len(), more) {
            (0, _) => None,
            (1, _) => Some(format!("machine {named}")),
            (_, 0) => Some(format!("machines {named}")),
            (_, more) => Some(format!("machines {named} and {more} more")),
        }
    }

    /// How many interfaces were not judged, and why.
    pub(super) fn unjudged(&self) -> Option<(String, Vec<Quote>)> {
        self.unjudged.said(!self.judged.is_empty())
    }
}

/// When a definition applies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// The machine runs with it.
    Running,
    /// The machine does not run, and starts with it.
    Stopped,
    /// The machine runs with another one, and starts with this one the next time.
    Next,
}

/// An interface as a definition has it.
#[derive(Clone, Copy)]
struct Definition<'a> {
    when: When,
    guest: &'a Guest,
    nic: &'a Interface,
    text: &'a Text,
    /// The vif of ringway at its socket.
    vif: Option<(&'a Vif, &'a Text)>,
}

/// An interface, with what belongs to it.
struct Judged<'a> {
    name: &'a str,
    now: Definition<'a>,
    /// How it starts the next time, if it runs and that is known.
    next: Option<Definition<'a>>,
}

/// Judges all machines.
pub(super) fn judge<'a>(
    facts: &'a Facts,
    vifs: Option<(&'a [Vif], &'a Text)>,
    out: &mut Verdicts,
) -> Outcome<'a> {
    let mut outcome = Outcome::default();
    let mut missing: Vec<(&str, &Gap)> =
        facts.machines.gaps.iter().map(|gap| ("libvirt", gap)).collect();
    for (name, Machine { running, stored }) in &facts.machines.all {
        for gap in [running, stored].into_iter().flatten().filter_map(|read| read.as_ref().err()) {
            outcome.is_any = true;
            match gap {
                Gap::Missing { .. } => missing.push((name, gap)),
                gap => out.unread(name, gap),
            }
        }
        // The stored definition is not that of a machine that runs.
        let Some(Ok(defined)) = running.as_ref().or(stored.as_ref()) else { continue };
        let when = if running.is_some() { When::Running } else { When::Stopped };
        let next = stored.as_ref().filter(|_| running.is_some());
        let next = next.and_then(|next| next.as_ref().ok());
        let mut is_judged = false;
        for nic in &defined.guest.interfaces {
            if let Some(why) = unjudged::reason(nic) {
                outcome.unjudged.add(name, why, defined.text.quote(nic.line));
                continue;
            }
            is_judged = true;
            let of = |when, defined: &'a Defined, nic: &'a Interface| {
                let vif = vifs.and_then(|(all, text)| Some((of_socket(all, &nic.socket)?, text)));
                Definition { when, guest: &defined.guest, nic, text: &defined.text, vif }
            };
            let of_next = |next: &'a Defined| Some(of(When::Next, next, of_mac(next, &nic.mac)?));
            let now = of(when, defined, nic);
            let judged = Judged { name, now, next: next.and_then(of_next) };
            let vif = now.vif.filter(|_| when == When::Running);
            outcome.vifs.extend(vif.map(|(vif, _)| vif.name.as_str()));
            out.add(judged.findings());
        }
        if is_judged {
            outcome.is_any = true;
            outcome.judged.push((name, u64::from(defined.guest.vcpus_online)));
        }
    }
    // Without rights, that is one thing to know and not one for each machine.
    if let Some((name, gap)) = missing.first() {
        outcome.is_any = true;
        let subject = if missing.len() == 1 { name } else { "libvirt" };
        let more = missing.len() - 1;
        let mut finding = Finding::gap(subject, gap);
        if more > 0 {
            finding.summary += &format!("; and {more} more of libvirt's definitions");
        }
        out.add([finding]);
    }
    outcome
}

fn count(queues: u64) -> String {
    if queues == 1 { "1 queue".to_owned() } else { format!("{queues} queues") }
}

fn of_socket<'a>(all: &'a [Vif], socket: &str) -> Option<&'a Vif> {
    let socket = socket_names(socket);
    let is_it = |vif: &&Vif| {
        vif.virtio.as_ref().is_some_and(|virtio| socket_names(&virtio.socket) == socket)
    };
    all.iter().find(is_it).filter(|_| !socket.is_empty())
}

/// The interface with this address in another definition.
fn of_mac<'a>(next: &'a Defined, mac: &str) -> Option<&'a Interface> {
    let nic = next.guest.interfaces.iter().find(|nic| nic.mac == mac && !mac.is_empty())?;
    unjudged::reason(nic).is_none().then_some(nic)
}

impl Definition<'_> {
    fn asked(&self) -> u64 {
        u64::from(self.nic.queues)
    }

    fn is_vhost_user(&self) -> bool {
        self.nic.kind == VHOST_USER
    }

    /// Queues that what serves it can have.
    fn limit(&self) -> u64 {
        match (self.vif, self.is_vhost_user()) {
            (Some(_), _) => RINGWAY_QUEUES_MAX,
            (None, true) => QEMU_QUEUES_MAX,
            (None, false) => TAP_QUEUES_MAX,
        }
    }

    /// Queues that would be useful and possible.
    fn most(&self) -> u64 {
        u64::from(self.guest.vcpus_online).min(self.limit())
    }

    /// The subject of a sentence on it.
    fn label(&self) -> String {
        let names = [&self.nic.target, &self.nic.mac, &self.nic.socket];
        let name = names.into_iter().find(|name| !name.is_empty());
        name.map_or_else(
            || "an interface".to_owned(),
            |name| format!("interface {}", squeezed(name)),
        )
    }

    /// What to do after an edit.
    fn apply(&self, name: &str) -> String {
        match self.when {
            When::Running => format!(
                "Then stop and start the machine (virsh shutdown {name}, virsh start {name}); \
                 virsh reboot keeps the old definition.",
                name = shell_word(name)
            ),
            When::Stopped | When::Next => "It applies at the next start.".to_owned(),
        }
    }

    fn quotes(&self) -> Vec<Quote> {
        let lines = self.guest.vcpus_line.into_iter().chain([self.nic.queues_line]);
        lines.map(|line| self.text.quote(line)).collect()
    }
}

impl Judged<'_> {
    fn findings(&self) -> Vec<Finding> {
        let mut found = faults::find(self);
        found.extend(match self.now.vif {
            Some((vif, text)) => self.of_ringway(vif, text),
            None => self.refused_next().into_iter().chain(self.few(self.now.most())).collect(),
        });
        found
    }

    /// What its vif offers, what its definition asks for, and what its guest uses.
    fn of_ringway(&self, vif: &Vif, text: &Text) -> Vec<Finding> {
        let asked = self.now.asked();
        let offers = if self.is_running() { vif.max_queues } else { vif.max_queues_next() };
        let used = u64::try_from(vif.queues.len()).unwrap_or(u64::MAX);
        if asked > offers && used == 0 {
            return vec![self.refused(vif, text, offers)];
        }
        let mut found: Vec<Finding> = self.refused_next().into_iter().collect();
        let usable = asked.min(offers).min(self.vcpus());
        if self.is_running() && used > 0 && used < usable {
            let summary = format!(
                "the guest of {} uses {used} of {usable} queues; machine {} has {} CPUs, asks for \
                 {asked} queues, and ringway offers {offers}",
                vif.name,
                self.name,
                self.vcpus()
            );
            found.push(idle(vif, text, summary, usable).quote(self.now.quotes()));
        }
        let most = self.now.most();
        // A machine gets more queues when it starts the next time.
        let possible = most.min(vif.max_queues_next());
        if asked < possible {
            found.extend(self.few(possible));
        } else if offers < most && asked == offers {
            let summary = format!(
                "ringway offers {} ({}), and machine {} has {} CPUs",
                count(offers),
                vif.name,
                self.name,
                self.vcpus()
            );
            found.push(offered(vif, text, summary, most).quote(self.now.quotes()));
        }
        found
    }

    /// Fewer queues than virtual CPUs. A note: who runs many machines may want it so.
    fn few(&self, most: u64) -> Option<Finding> {
        let asked = self.now.asked();
        if asked >= most {
            return None;
        }
        let queues = match self.now.vif {
            Some((vif, _)) => {
                let offers = vif.max_queues_next();
                format!("{asked} of {offers} queues that ringway offers ({})", vif.name)
            }
            None => count(asked),
        };
        let (label, name, vcpus) = (self.now.label(), self.name, self.vcpus());
        let mut summary = format!("{label} of machine {name} has {queues}");
        summary += &format!(", and the machine has {vcpus} CPUs{}", self.not_running());
        let finding = Finding::new(Severity::Note, self.name, summary)
            .cause(super::SINGLE_CAUSE)
            .quote(self.now.quotes())
            .quote(self.now.vif.map(|(vif, text)| numbers(vif, text)))
            .gain(super::GAIN);
        let finding = super::more(finding, asked, most);
        let is_useful = |next: &Definition<'_>| {
            let limit = next.vif.map_or(next.limit(), |(vif, _)| vif.max_queues_next());
            (most..=limit).contains(&next.asked()) && faults::starts_well(next)
        };
        let next = self.next.filter(is_useful);
        let name = shell_word(self.name);
        Some(match next {
            Some(Definition { nic, text, .. }) => {
                finding.quote([text.quote(nic.queues_line)]).advise(Advice::by_hand(
                    format!(
                        "Its stored definition has {queues} queues already. Stop and start the \
                         machine (virsh shutdown {name}, virsh start {name}); virsh reboot keeps \
                         the old number.",
                        queues = nic.queues
                    ),
                    &[],
                ))
            }
            None => {
                finding.advise(Advice::by_hand(self.advice(most), &[&format!("virsh edit {name}")]))
            }
        })
    }

    fn advice(&self, most: u64) -> String {
        let apply = self.now.apply(self.name);
        match (self.now.vif, self.now.is_vhost_user()) {
            (Some((vif, _)), _) => {
                format!(
                    "In the <interface>: <driver queues='{most}'/>, with the other attributes \
                     that <driver> has. {apply} Then in the guest, if it does not use them by \
                     itself: ethtool -L eth0 combined {most}. No more than {offered}: that is \
                     what ringway offers, and `queues` in the [[vhost]] of {vif} changes it.",
                    offered = vif.max_queues_next(),
                    vif = vif.name
                )
            }
            (None, true) => format!(
                "In the <interface>: <driver queues='{most}'/>, with the other attributes that \
                 <driver> has, if the switch behind the socket offers as many. {apply} Then in \
                 the guest, if it does not use them by itself: ethtool -L eth0 combined {most}. \
                 QEMU's device has up to {QEMU_QUEUES_MAX} queues."
            ),
            (None, false) => format!(
                "In the <interface>: <driver name='vhost' queues='{most}'/>, with the other \
                 attributes that <driver> has. {apply} Then in the guest, if it does not use them \
                 by itself: ethtool -L eth0 combined {most}. The kernel's devices have up to \
                 {TAP_QUEUES_MAX} queues."
            ),
        }
    }

    /// A front-end that asks for more than there is disconnects before the guest runs.
    fn refused(&self, vif: &Vif, text: &Text, offers: u64) -> Finding {
        let severity = if self.is_running() { Severity::Problem } else { Severity::Warning };
        let (name, asked) = (self.name, self.now.asked());
        let summary = format!(
            "machine {name} asks for {asked} queues, and ringway offers {offers} ({}){}",
            vif.name,
            self.not_running()
        );
        self.more(vif, text, severity, summary, [asked, offers]).quote(self.now.quotes())
    }

    /// The finding for a machine that runs, and that asks for too many queues when it starts the
    /// next time: its definition or that of the vif has changed.
    fn refused_next(&self) -> Option<Finding> {
        let next = self.next?;
        let (vif, text) = next.vif?;
        let (name, asked, offers) = (self.name, next.asked(), vif.max_queues_next());
        if asked <= offers {
            return None;
        }
        let summary = format!(
            "machine {name} asks for {asked} queues when it starts the next time, and ringway \
             offers {offers} ({})",
            vif.name
        );
        let quote = next.text.quote(next.nic.queues_line);
        Some(self.more(vif, text, Severity::Warning, summary, [asked, offers]).quote([quote]))
    }

    fn more(
        &self,
        vif: &Vif,
        text: &Text,
        severity: Severity,
        summary: String,
        [asked, offers]: [u64; 2],
    ) -> Finding {
        let name = shell_word(self.name);
        let when = if self.is_running() {
            "when the machine is stopped and started"
        } else {
            "at the next start"
        };
        // ringway does not start with a description that has more than its limit.
        let advice = if asked > RINGWAY_QUEUES_MAX {
            format!(
                "<driver queues='{offers}'/> in the definition (virsh edit {name}), which applies \
                 {when}. A [[vhost]] of ringway has at most {RINGWAY_QUEUES_MAX} queues."
            )
        } else {
            format!(
                "In the description of ringway's host: queues = {asked} in the [[vhost]] of \
                 {vif}; or <driver queues='{offers}'/> in the definition (virsh edit {name}), \
                 which applies {when}.",
                vif = vif.name
            )
        };
        Finding::new(severity, &vif.name, summary)
            .cause(
                "A front-end that needs more queues than the back-end has disconnects before the \
                 guest runs.",
            )
            .quote([numbers(vif, text)])
            .advise(Advice::by_hand(advice, &[]))
    }

    fn is_running(&self) -> bool {
        self.now.when == When::Running
    }

    fn not_running(&self) -> &'static str {
        if self.is_running() { "" } else { "; it does not run now" }
    }

    fn vcpus(&self) -> u64 {
        u64::from(self.now.guest.vcpus_online)
    }
}

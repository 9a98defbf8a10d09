//! Queues of libvirt's machines: what a definition asks for, what ringway offers if it serves the
//! interface, and what the guest uses.

use std::collections::BTreeSet;

use super::vifs::{idle, numbers, offered};
use super::{Facts, text};
use crate::check::Verdicts;
use crate::finding::{Advice, Finding, Severity, shell_word};
use ringway_evidence::fact::{Defined, Machine};
use ringway_evidence::parse::libvirt::{Guest, Interface};
use ringway_evidence::parse::ringway::Vif;
use ringway_evidence::{Gap, Quote, Text, squeezed};

/// Models of virtio-net.
const MODELS: [&str; 3] = ["virtio", "virtio-transitional", "virtio-non-transitional"];
/// Kinds of interfaces that can have several queues.
const KINDS: [&str; 5] = ["bridge", "direct", "ethernet", "network", VHOST_USER];
const VHOST_USER: &str = "vhostuser";
/// Queues of the kernel's tap and macvtap devices: `MAX_TAP_QUEUES` of both drivers.
const TAP_QUEUES_MAX: u64 = 256;
/// Queues of QEMU's virtio-net: two of `VIRTIO_QUEUE_MAX` for each, and one for control.
const QEMU_QUEUES_MAX: u64 = 511;
/// Queues that a vif of ringway can offer, by its description.
const RINGWAY_QUEUES_MAX: u64 = 64;

/// An interface, with what belongs to it.
struct Judged<'a> {
    name: &'a str,
    is_running: bool,
    guest: &'a Guest,
    nic: &'a Interface,
    text: &'a Text,
    /// How it starts the next time, if that is known.
    stored: Option<(&'a Interface, &'a Text)>,
    /// The vif of ringway that it is connected to.
    vif: Option<(&'a Vif, &'a Text)>,
    /// The vif that it will be connected to then.
    next_vif: Option<(&'a Vif, &'a Text)>,
}

/// Judges all machines. Returns the vifs that belong to them, and whether there is any interface.
pub(super) fn judge<'a>(
    facts: &Facts,
    vifs: Option<(&'a [Vif], &'a Text)>,
    out: &mut Verdicts,
) -> (BTreeSet<&'a str>, bool) {
    let mut known = BTreeSet::new();
    let mut is_any = false;
    let mut missing: Vec<(&str, &Gap)> =
        facts.machines.gaps.iter().map(|gap| ("libvirt", gap)).collect();
    for (name, machine) in &facts.machines.all {
        let Machine { running, stored } = machine;
        let defined = match running.as_ref().or(stored.as_ref()) {
            Some(Ok(defined)) => defined,
            Some(Err(gap @ Gap::Missing { .. })) => {
                missing.push((name, gap));
                continue;
            }
            Some(Err(gap)) => {
                is_any = true;
                out.unread(name, gap);
                continue;
            }
            None => continue,
        };
        let next = stored.as_ref().filter(|_| running.is_some());
        let next = next.and_then(|next| next.as_ref().ok());
        for nic in defined.guest.interfaces.iter().filter(|nic| is_judged(nic)) {
            is_any = true;
            let vif_of = |nic: &Interface| {
                vifs.and_then(|(all, text)| Some((of_socket(all, &nic.socket)?, text)))
            };
            let vif = vif_of(nic);
            let stored = next.and_then(|next| of_mac(next, &nic.mac));
            let judged = Judged {
                name,
                is_running: running.is_some(),
                guest: &defined.guest,
                nic,
                text: &defined.text,
                stored,
                vif,
                next_vif: stored.and_then(|(next, _)| vif_of(next)),
            };
            known.extend(vif.filter(|_| running.is_some()).map(|(vif, _)| vif.name.as_str()));
            out.add(judged.findings());
        }
    }
    // Without rights, that is one thing to know and not one for each machine.
    if let Some((name, gap)) = missing.first() {
        is_any = true;
        let subject = if missing.len() == 1 { name } else { "libvirt" };
        let more = missing.len() - 1;
        let mut finding = Finding::gap(subject, gap);
        if more > 0 {
            finding.summary += &format!("; and {more} more of libvirt's definitions");
        }
        out.add([finding]);
    }
    (known, is_any)
}

fn is_judged(nic: &Interface) -> bool {
    let is_kernel_or_user = nic.driver.is_empty() || nic.driver == "vhost";
    MODELS.contains(&nic.model.as_str()) && KINDS.contains(&nic.kind.as_str()) && is_kernel_or_user
}

fn count(queues: u64) -> String {
    if queues == 1 { "1 queue".to_owned() } else { format!("{queues} queues") }
}

fn of_socket<'a>(all: &'a [Vif], socket: &str) -> Option<&'a Vif> {
    let is_it = |vif: &&Vif| vif.virtio.as_ref().is_some_and(|virtio| virtio.socket == socket);
    all.iter().find(is_it).filter(|_| !socket.is_empty())
}

fn of_mac<'a>(next: &'a Defined, mac: &str) -> Option<(&'a Interface, &'a Text)> {
    let nic = next.guest.interfaces.iter().find(|nic| nic.mac == mac && !mac.is_empty())?;
    Some((nic, &next.text))
}

impl Judged<'_> {
    fn findings(&self) -> Vec<Finding> {
        match self.vif {
            Some((vif, text)) => self.of_ringway(vif, text),
            None => self.refused_next().into_iter().chain(self.few(self.most())).collect(),
        }
    }

    /// Queues that would be useful and possible.
    fn most(&self) -> u64 {
        let limit = match (self.vif, self.is_vhost_user()) {
            (Some(_), _) => RINGWAY_QUEUES_MAX,
            (None, true) => QEMU_QUEUES_MAX,
            (None, false) => TAP_QUEUES_MAX,
        };
        self.vcpus().min(limit)
    }

    /// What its vif offers, what its definition asks for, and what its guest uses.
    fn of_ringway(&self, vif: &Vif, text: &Text) -> Vec<Finding> {
        let asked = u64::from(self.nic.queues);
        let offers = if self.is_running { vif.max_queues } else { vif.max_queues_next() };
        let used = u64::try_from(vif.queues.len()).unwrap_or(u64::MAX);
        if asked > offers && used == 0 {
            return vec![self.refused(vif, text, offers)];
        }
        let mut found: Vec<Finding> = self.refused_next().into_iter().collect();
        let usable = asked.min(offers).min(self.vcpus());
        if self.is_running && used > 0 && used < usable {
            let summary = format!(
                "the guest of {} uses {used} of {usable} queues; machine {} has {} CPUs, asks for \
                 {asked} queues, and ringway offers {offers}",
                vif.name,
                self.name,
                self.vcpus()
            );
            found.push(idle(vif, text, summary, usable).quote(self.quotes()));
        }
        let most = self.most();
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
            found.push(offered(vif, text, summary, most).quote(self.quotes()));
        }
        found
    }

    /// Fewer queues than virtual CPUs. A note: who runs many machines may want it so.
    fn few(&self, most: u64) -> Option<Finding> {
        let asked = u64::from(self.nic.queues);
        if asked >= most {
            return None;
        }
        let queues = match self.vif {
            Some((vif, _)) => {
                let offers = vif.max_queues_next();
                format!("{asked} of {offers} queues that ringway offers ({})", vif.name)
            }
            None => count(asked),
        };
        let (label, name, vcpus) = (self.label(), self.name, self.vcpus());
        let mut summary = format!("interface {label} of machine {name} has {queues}");
        summary += &format!(", and the machine has {vcpus} CPUs{}", self.not_running());
        let finding = Finding::new(Severity::Note, self.name, summary)
            .cause(text::single_cause())
            .quote(self.quotes())
            .quote(self.vif.map(|(vif, text)| numbers(vif, text)))
            .gain(text::gain());
        let limit = self.next_vif.map_or(u64::MAX, |(vif, _)| vif.max_queues_next());
        let is_useful = |nic: &Interface| (most..=limit).contains(&u64::from(nic.queues));
        let next = self.stored.filter(|(nic, _)| is_useful(nic));
        let name = shell_word(self.name);
        Some(match next {
            Some((nic, text)) => finding
                .quote([text.quote(nic.queues_line)])
                .advise(Advice::by_hand(text::start_advice(&nic.queues, &name), &[])),
            None => {
                finding.advise(Advice::by_hand(self.advice(most), &[&format!("virsh edit {name}")]))
            }
        })
    }

    fn advice(&self, most: u64) -> String {
        let name = shell_word(self.name);
        match (self.vif, self.is_vhost_user()) {
            (Some((vif, _)), _) => {
                text::machine_at_ringway_advice(&most, &name, &vif.max_queues_next(), &vif.name)
            }
            (None, true) => text::machine_vhostuser_advice(&most, &name, &QEMU_QUEUES_MAX),
            (None, false) => text::machine_vhost_advice(&most, &name, &TAP_QUEUES_MAX),
        }
    }

    /// A front-end that asks for more than there is disconnects before the guest runs.
    fn refused(&self, vif: &Vif, text: &Text, offers: u64) -> Finding {
        let severity = if self.is_running { Severity::Problem } else { Severity::Warning };
        let (name, asked) = (self.name, self.nic.queues);
        let summary = format!(
            "machine {name} asks for {asked} queues, and ringway offers {offers} ({}){}",
            vif.name,
            self.not_running()
        );
        self.more(vif, text, severity, summary, [asked.into(), offers]).quote(self.quotes())
    }

    /// The same, for a machine that runs, and that asks for too many when it starts the next time:
    /// its definition or that of the vif has changed.
    fn refused_next(&self) -> Option<Finding> {
        let ((next, stored), (vif, text)) = (self.stored?, self.next_vif?);
        let (name, asked, offers) = (self.name, u64::from(next.queues), vif.max_queues_next());
        if asked <= offers {
            return None;
        }
        let summary = format!(
            "machine {name} asks for {asked} queues when it starts the next time, and ringway \
             offers {offers} ({})",
            vif.name
        );
        let quote = stored.quote(next.queues_line);
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
        let advice = text::refused_advice(&asked, &vif.name, &offers, &shell_word(self.name));
        Finding::new(severity, &vif.name, summary)
            .cause(text::refused_cause())
            .quote([numbers(vif, text)])
            .advise(Advice::by_hand(advice, &[]))
    }

    fn not_running(&self) -> &'static str {
        if self.is_running { "" } else { "; it does not run now" }
    }

    fn vcpus(&self) -> u64 {
        u64::from(self.guest.vcpus_online)
    }

    fn is_vhost_user(&self) -> bool {
        self.nic.kind == VHOST_USER
    }

    fn label(&self) -> String {
        let names = [&self.nic.target, &self.nic.mac, &self.nic.socket];
        names
            .into_iter()
            .find(|name| !name.is_empty())
            .map_or_else(String::new, |name| squeezed(name))
    }

    fn quotes(&self) -> Vec<Quote> {
        let lines = self.guest.vcpus_line.into_iter().chain([self.nic.queues_line]);
        lines.map(|line| self.text.quote(line)).collect()
    }
}

//! D52: a bond has fewer links than it should, or uses one of several.

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{Basis, Bonds, Span, Tried, float};
use ringway_evidence::parse::bonds::Bond;
use ringway_evidence::parse::nic::NicCounters;
use ringway_evidence::{Text, facts};

pub(crate) const CHECK: Check = Check {
    id: "D52",
    slug: "bonds",
    title: "a bond has links down, or uses one of several",
    group: Group::Links,
    sources: &["bonding-hash:policies"],
    explanation: include_str!("bonds.txt"),
    absent: "no bond",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        bonds: Bonds,
        moved: Tried<Span<NicCounters>>,
    }
}

/// Fraction of a bond's bytes from which one link carries all of them.
const ALL: f64 = 0.95;
/// Bit/s from which that matters, and fraction of the link's speed from which it is a limit.
const TRAFFIC_MIN: f64 = 50e6;
const NEARLY_FULL: f64 = 0.7;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let names = facts.bonds.names();
    if names.is_empty() {
        return not_here(CHECK.absent);
    }
    for name in &names {
        let file = facts.bonds.of(name)?;
        let bond = Bond::parse(&file)?;
        out.add(links(name, &bond, &file));
        out.add(watch(name, &bond, &file));
        out.add(partner(name, &bond, &file));
        out.add(one_of_several(facts, name, &bond, &file));
    }
    out.well("bonds have all their links and use them", None);
    Ok(())
}

fn links(name: &str, bond: &Bond, file: &Text) -> Option<Finding> {
    let down: Vec<_> = bond.links.iter().filter(|link| !link.is_up).collect();
    if down.is_empty() {
        return None;
    }
    let names: Vec<&str> = down.iter().map(|link| link.name.as_str()).collect();
    let up = bond.links.len() - down.len();
    let summary = format!("{name} has {up} of {} links: {} down", bond.links.len(), are(&names));
    let severity = if up == 0 || !bond.is_up { Severity::Problem } else { Severity::Warning };
    Some(
        Finding::new(severity, name, summary)
            .cause(
                "The other links must carry all traffic, and nothing takes over when they fail as \
                 well.",
            )
            .quote(down.iter().map(|link| file.quote(link.line)))
            .advise(Advice::by_hand(
                "Check the cable, the transceiver, the port of the switch, and the kernel's \
                 messages.",
                &["ip -s link"],
            )),
    )
}

fn are(names: &[&str]) -> String {
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", names.join(", "))
}

fn watch(name: &str, bond: &Bond, file: &Text) -> Option<Finding> {
    if bond.is_watched {
        return None;
    }
    let summary = format!("{name} does not monitor its links");
    Some(
        Finding::new(Severity::Warning, name, summary)
            .cause(
                "Neither miimon nor arp_interval is set, so the bond goes on sending on a dead \
                 link, and these packets are lost.",
            )
            .quote([file.quote(bond.watched_line)])
            .advise(Advice::by_hand(
                format!(
                    "Check the carrier ten times a second (ip link set {name} type bond miimon \
                     100), and set this in the network configuration as well."
                ),
                &[],
            )),
    )
}

/// Links that are up but not used by 802.3ad.
fn partner(name: &str, bond: &Bond, file: &Text) -> Option<Finding> {
    let active = bond.aggregator?;
    let apart = |link: &&ringway_evidence::parse::bonds::BondLink| {
        link.is_up && link.aggregator.is_some_and(|own| own != active)
    };
    let apart: Vec<_> = bond.links.iter().filter(apart).collect();
    let no_partner = bond.no_partner_line.filter(|_| bond.links.iter().any(|link| link.is_up));
    let summary = match (no_partner, apart.as_slice()) {
        (Some(_), _) => format!("the other end of {name} does not run LACP"),
        (None, []) => return None,
        (None, apart) => {
            let names: Vec<&str> = apart.iter().map(|link| link.name.as_str()).collect();
            format!("{} up and not used by {name}", are(&names))
        }
    };
    Some(
        Finding::new(Severity::Warning, name, summary)
            .cause(
                "The other end does not put these links into one group: LACP is off there, or the \
                 links go to different switches or have different speeds.",
            )
            .quote(no_partner.map(|line| file.quote(line)))
            .quote(apart.iter().map(|link| file.quote(link.line)))
            .advise(Advice::by_hand(
                "Configure the ports at the other end as one group with LACP. Two switches must \
                 act as one for this (MLAG).",
                &[],
            )),
    )
}

/// The hash sends everything over one link.
fn one_of_several(facts: &Facts, name: &str, bond: &Bond, file: &Text) -> Option<Finding> {
    let span = facts.moved.ok().filter(|span| span.basis == Basis::Samples)?;
    let up: Vec<_> = bond.links.iter().filter(|link| link.is_up).collect();
    if !bond.is_hashing() || up.len() < 2 {
        return None;
    }
    let mut sent = Vec::new();
    for link in up {
        let after = span.after.nics.get(&link.name)?;
        let moved = after.since(&span.past(span.before.nics.get(&link.name))?);
        sent.push((float(moved.tx_bytes) * 8.0 / span.seconds, link, moved.line));
    }
    let all: f64 = sent.iter().map(|(bits, ..)| bits).sum();
    let (most, link, line) = sent.into_iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    if all < TRAFFIC_MIN || most < ALL * all {
        return None;
    }
    let hash = bond.hash.as_deref().unwrap_or("unknown");
    let is_full = link.mbit.is_some_and(|mbit| most >= NEARLY_FULL * float(mbit) * 1e6);
    let severity = if is_full { Severity::Warning } else { Severity::Note };
    let summary = format!(
        "{name} sends {:.0} % of {:.0} Mbit/s by {}, chosen by {hash}",
        most / all * 100.0,
        all / 1e6,
        link.name
    );
    let by_port = hash.contains("3+4");
    let cause = if by_port {
        "One connection uses one link with any policy."
    } else {
        "All packets that it sends have the same hash: the hash does not use ports, and there is \
         one peer or router."
    };
    let advice = if by_port {
        "Use more connections. A single connection is never faster than one link.".to_owned()
    } else {
        format!(
            "Include ports in the hash: xmit_hash_policy layer3+4 in the configuration of {name}. \
             This keeps the order within a connection, but not between fragments."
        )
    };
    Some(
        Finding::new(severity, name, summary)
            .cause(cause)
            .quote([file.quote(bond.hash_line), span.text.quote(line)])
            .confidence(Confidence::Medium)
            .advise(Advice::by_hand(advice, &[])),
    )
}

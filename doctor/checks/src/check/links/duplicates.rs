//! D53: two hosts have the same address.

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{KernelMessages, Moved, OwnAddresses, Tried, float};
use ringway_evidence::facts;
use ringway_evidence::parse::moves::{Kind, Move};
use ringway_evidence::{Gap, Text};

pub(crate) const CHECK: Check = Check {
    id: "D53",
    slug: "duplicates",
    title: "two hosts have the same address",
    group: Group::Links,
    sources: &["kernel-bridge:forwarding", "rfc-4862", "rfc-5227"],
    explanation: include_str!("duplicates.txt"),
    absent: "there is no data on addresses that move, or on IPv6 addresses of its own",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        own: Tried<OwnAddresses>,
        moved: Tried<Moved>,
        messages: Tried<KernelMessages>,
    }
}

const MAC_CAUSE: &str = "Two hosts have this Ethernet address, or frames come back through a \
                         loop, or a host sends over two links that this end does not know as one \
                         (a bond without LACP here). Each frame for it goes to the place from \
                         which it sent last, so the other one loses it.";

/// Moves from which an address that also returned belongs to two hosts. A failover or a migration
/// is one move, and a port that fails and comes back makes two. IP addresses move rarely even
/// between two hosts, because the kernel accepts no other Ethernet address within a second.
const PORT_MOVES_MIN: u64 = 3;
const NEIGHBOUR_MOVES_MIN: u64 = 2;
/// Addresses for which there is a finding each.
const SHOWN_MAX: usize = 5;
/// A message of the kernel: the part in which it reports a duplicate.
const MESSAGES: [&str; 2] = ["IPv6 duplicate address", "with own address as source address"];

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let mut checked = Vec::new();
    if let Some(OwnAddresses { addresses, text }) = facts.own.ok() {
        checked.push(format!("{} own IPv6 addresses are unique", addresses.all.len()));
        for own in addresses.all.iter().filter(|own| own.is_duplicate) {
            let subject = format!("{} {}", own.nic, own.address);
            let summary = format!("another host has {} of {}", own.address, own.nic);
            let command = "ip -6 address show dadfailed";
            out.add([Finding::new(Severity::Problem, subject, summary)
                .cause(
                    "Duplicate address detection got a reply from another host, so the kernel \
                     does not use this address: nothing is sent from it, and packets to it go to \
                     the other host.",
                )
                .quote([text.quote(own.line)])
                .advise(Advice::by_hand(
                    "Give one of the two another address, or remove it and add it again if the \
                     other host is gone: it stays unused until then.",
                    &[command],
                ))]);
        }
    }
    match facts.moved.get() {
        Ok(moved) => {
            let watched = moved.moves.watched;
            checked.push(format!("none of {watched} learned addresses moves back and forth"));
            of_moves(moved, out);
        }
        Err(Gap::NotHere(_)) => {}
        Err(gap) => out.unread("addresses that move", &gap),
    }
    if let Some(KernelMessages(log)) = facts.messages.ok() {
        checked.push("no message of the kernel reports a duplicate".to_owned());
        out.add(of_messages(log));
    }
    match checked.as_slice() {
        [] => not_here(CHECK.absent),
        checked => {
            out.well(checked.join("; "), None);
            Ok(())
        }
    }
}

fn of_moves(moved: &Moved, out: &mut Verdicts) {
    let is_twice = |one: &&Move| {
        let least = match one.kind {
            Kind::Neighbour => NEIGHBOUR_MOVES_MIN,
            Kind::Port | Kind::TunnelEnd => PORT_MOVES_MIN,
        };
        one.moves >= least && one.returns.saturating_mul(2) >= one.moves
    };
    let (twice, once): (Vec<&Move>, Vec<&Move>) = moved.moves.all.iter().partition(is_twice);
    out.add(twice.iter().take(SHOWN_MAX).map(|one| by_turns(moved, one)));
    // Roaming clients and moved guests; for a few addresses it is worth a look.
    for one in once.iter().filter(|one| one.kind == Kind::Neighbour).take(SHOWN_MAX) {
        let summary =
            format!("{} on {} was at {}", one.address, one.nic, one.places.join(", then at "));
        out.add([Finding::new(Severity::Note, format!("{} {}", one.nic, one.address), summary)
            .cause(
                "This is normal after a failover, a migration or a change of a card. If it \
                 happens again without these, two hosts have this address.",
            )
            .quote([moved.text.quote(one.line)])]);
    }
    if twice.len() > SHOWN_MAX {
        out.add([many_by_turns(moved, &twice)]);
    }
    if moved.moves.lost > 0 {
        let summary = "the kernel announced more changes of addresses than could be read";
        out.add([Finding::new(Severity::Note, "addresses", summary)
            .cause(
                "Addresses that moved in that time may be missing here. So many changes are \
                 unusual: a loop, or a scan of the network.",
            )
            .quote([moved.text.quote(1)])]);
    }
}

/// An address that is at two places by turns.
fn by_turns(moved: &Moved, one: &Move) -> Finding {
    let Move { address, nic, moves, .. } = one;
    let places = one.places.join(" and ");
    let network = one.network.map(|id| format!(" in network {id}")).unwrap_or_default();
    let summary = match one.kind {
        Kind::Neighbour => format!("{address} on {nic} is at {places} by turns"),
        Kind::Port => format!("{address} moves between ports {places} of {nic}{network}"),
        Kind::TunnelEnd => {
            format!("{address} moves between the ends {places} of {nic}{network}")
        }
    };
    let (cause, advice) = match one.kind {
        Kind::Neighbour => (
            "Two hosts reply for this address, or one host replies on two of its interfaces \
             (arp_ignore), or a program moves it back and forth. Connections break each time it \
             changes.",
            "Find both hosts by these Ethernet addresses. Give one of them another IP address, or \
             set net.ipv4.conf.all.arp_ignore to 1 on a host with two interfaces in this network.",
        ),
        Kind::Port | Kind::TunnelEnd => (
            MAC_CAUSE,
            "Find what is behind both. Of two guests, give one another Ethernet address; of two \
             links to one switch, make a bond on both ends or turn on STP.",
        ),
    };
    let rate = format!("{moves} times in {:.0} s", moved.moves.seconds);
    Finding::new(Severity::Warning, format!("{nic} {address}"), format!("{summary}: {rate}"))
        .cause(cause)
        .quote([moved.text.quote(one.line)])
        .confidence(Confidence::Medium)
        .advise(Advice::by_hand(advice, &command(one)))
}

/// More such addresses than are shown.
fn many_by_turns(moved: &Moved, twice: &[&Move]) -> Finding {
    let summary = format!("{} more addresses move back and forth", twice.len() - SHOWN_MAX);
    let rate: f64 = float(twice.iter().map(|one| one.moves).sum::<u64>()) / moved.moves.seconds;
    Finding::new(Severity::Warning, "addresses", format!("{summary}: {rate:.0} moves a second"))
        .cause(MAC_CAUSE)
        .quote([moved.text.quote(twice[SHOWN_MAX].line)])
        .confidence(Confidence::Medium)
        .advise(Advice::by_hand(
            "So many addresses at once are a loop rather than duplicates: look for two links \
             between the same two bridges or switches.",
            &[],
        ))
}

/// The command that shows both places.
fn command(one: &Move) -> Vec<&'static str> {
    match one.kind {
        Kind::Neighbour => vec!["ip -s neigh show"],
        Kind::Port | Kind::TunnelEnd => vec!["bridge -s fdb show"],
    }
}

/// What the kernel reported at some time since it was started.
fn of_messages(log: &Text) -> Option<Finding> {
    let is_one = |line: &str| MESSAGES.iter().any(|message| line.contains(message));
    let lines: Vec<usize> =
        log.lines().filter(|(_, line)| is_one(line)).map(|(line, _)| line).collect();
    let last = *lines.last()?;
    let often = match lines.len() {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    };
    let summary = format!("the kernel has reported a duplicate address {often}");
    Some(
        Finding::new(Severity::Note, "addresses", summary)
            .cause("A time is in the line, if the kernel writes it. It may be solved since then.")
            .quote([log.quote(last)]),
    )
}

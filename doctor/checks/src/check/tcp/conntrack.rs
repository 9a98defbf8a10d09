//! D31: the table of tracked connections is full, or nearly.

use crate::check::{Check, Group, Judged, Verdicts, all_well, not_here, rule};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use ringway_evidence::fact::{
    Basis, ConntrackCount, ConntrackMax, NatPorts, Release, Span, Tried, share,
};
use ringway_evidence::facts;
use ringway_evidence::parse::conntrack::{Conntrack, Translation};
use ringway_evidence::{Gap, Quote};

pub(crate) const CHECK: Check = Check {
    id: "D31",
    slug: "conntrack",
    title: "connection tracking is full, or loses packets",
    group: Group::Tcp,
    sources: &["network-node-blog:node"],
    explanation: include_str!("conntrack.txt"),
    absent: "no connections are tracked",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        max: Tried<ConntrackMax>,
        count: Tried<ConntrackCount>,
        stat: Tried<Span<Conntrack>>,
        release: Tried<Release>,
        ports: Tried<NatPorts>,
    }
}

/// Share of the table from which it is nearly full.
const NEARLY: f64 = 0.8;
/// Share of the table below which it was not full a moment ago: entries last 30 seconds and more.
const ROOMY: f64 = 0.5;
/// Packets per second that lost a race for an entry, from which it is more than chance.
const CLASHES_MIN: f64 = 1.0;
/// The first kernel that settles a race where it can; before, the later packet was always dropped.
const SETTLED_SINCE: (u32, u32) = (4, 7);
/// Part of the ports of a range from which the kernel may find no free one: it tries at most 128 in
/// a row from one place, then 64 from another, and so on.
const USED_UP: f64 = 0.95;
/// Ports that are used densely: fewer may be neighbours by chance.
const PORTS_MIN: u64 = 16;
/// That many are enough if no packet found a port.
const PORTS_FEW: u64 = 4;
const KNOB: &str = "net.netfilter.nf_conntrack_max";

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let max_text = match facts.max.get() {
        Err(Gap::Missing { why, .. }) if why == "not there" => {
            return not_here(CHECK.absent);
        }
        other => other?,
    };
    let count_text = facts.count.get()?;
    let (count, max) = (count_text.number()?, max_text.number()?);
    let lost = Lost::of(facts)?;
    let full = if max == 0 { 0.0 } else { share(count, max) };
    let table = Table { count, max, quotes: [count_text.quote(1), max_text.quote(1)] };
    let is_refused = lost.dropped > 0 && lost.clashed == 0;
    let has_room = max > 0 && full < ROOMY && lost.evicted == 0;
    if is_refused && has_room {
        out.add([table.refused(&lost)]);
        return Ok(());
    }
    if full > NEARLY || lost.evicted > 0 || is_refused {
        out.add([table.judge(&lost)]);
        return Ok(());
    }
    if let Some(finding) = lost.judge(facts)? {
        out.add([finding]);
        return Ok(());
    }
    if max == 0 {
        // 0 means no limit.
        out.well("tracked connections have no limit", Some(max_text.quote(1)));
        return Ok(());
    }
    let summary = format!("{count} of {max} connections are tracked");
    out.well(summary, Some(count_text.quote(1)));
    Ok(())
}

/// How many entries there are.
struct Table {
    count: u64,
    max: u64,
    quotes: [Quote; 2],
}

impl Table {
    fn judge(self, lost: &Lost) -> Finding {
        let Table { count, max, quotes } = self;
        let packets = lost.dropped.wrapping_add(lost.evicted);
        let (severity, summary) = if packets > 0 {
            let summary = format!(
                "{} packets were dropped and {} connections evicted for lack of entries; {count} \
                 of {max} are tracked",
                lost.dropped, lost.evicted
            );
            (Severity::Problem, summary)
        } else {
            (Severity::Warning, format!("{count} of {max} connections are tracked"))
        };
        let finding = Finding::new(severity, "conntrack", summary)
            .cause(
                "When the table is full, the kernel evicts a connection that is not established \
                 yet, and drops packets of new connections if it finds none. Others continue. The \
                 limit is that of the machine, for each network namespace alone.",
            )
            .quote(quotes)
            .quote(lost.quote.clone().filter(|_| packets > 0));
        if max == 0 {
            return finding.advise(Advice::by_hand(
                "The table has no limit, so memory may be short, or a helper dropped them.",
                &["dmesg | grep conntrack"],
            ));
        }
        let knob = Knob::Sysctl { name: KNOB.to_owned() };
        let change = Change::raise(knob, max, max.saturating_mul(2));
        finding.advise(Advice::by_change(
            "Make it larger; /proc/slabinfo shows the size of an entry (nf_conntrack). Raise \
             net.netfilter.nf_conntrack_buckets to the same number, or lookups get slow. Do not \
             track traffic that does not need it (notrack).",
            change,
        ))
    }

    /// What was dropped although there was room for an entry.
    fn refused(self, lost: &Lost) -> Finding {
        let Table { count, max, quotes } = self;
        let summary = format!(
            "connection tracking dropped {} packets although its table has room: {count} of {max} \
             are tracked",
            lost.dropped
        );
        let is_much = f64::from(lost.dropped) / lost.seconds.max(1e-9) >= CLASHES_MIN;
        let severity = if is_much { Severity::Warning } else { Severity::Note };
        Finding::new(severity, "conntrack", summary)
            .cause(
                "A helper rejected them, they did not fit their connection, or memory was short. A \
                 larger table does not help.",
            )
            .quote(lost.quote.clone())
            .quote(quotes)
            .confidence(Confidence::Medium)
            .advise(Advice::by_hand(
                "The kernel's log says which ones, after sysctl \
                 net.netfilter.nf_conntrack_log_invalid=255 for a moment.",
                &["dmesg | grep nf_ct"],
            ))
    }
}

/// Packets and entries lost between the samples.
#[derive(Default)]
struct Lost {
    /// Packets dropped for lack of an entry, or because a race could not be resolved.
    dropped: u32,
    /// Entries that were removed early to make room.
    evicted: u32,
    /// Entries that another CPU had created meanwhile.
    clashed: u32,
    seconds: f64,
    quote: Option<Quote>,
}

impl Lost {
    fn of(facts: &Facts) -> Result<Lost, Gap> {
        let span = match facts.stat.get() {
            // Kernels may be built without this file.
            Err(Gap::Missing { .. }) => return Ok(Lost::default()),
            other => other?,
        };
        // Losses since boot may be long over.
        if span.basis == Basis::SinceBoot {
            return Ok(Lost::default());
        }
        if span.before.lines != span.after.lines {
            return Err(span.text.unreadable(None, "other CPUs than in the first sample"));
        }
        let since = |of: fn(&Conntrack) -> u32| of(&span.after).wrapping_sub(of(&span.before));
        Ok(Lost {
            dropped: since(|stat| stat.drop),
            evicted: since(|stat| stat.early_drop),
            clashed: since(|stat| stat.insert_failed),
            seconds: span.seconds,
            quote: Some(span.text.quote(2)),
        })
    }

    /// Packets that raced for the entry of a new connection.
    fn judge(&self, facts: &Facts) -> Result<Option<Finding>, Gap> {
        let rate = f64::from(self.clashed) / self.seconds.max(1e-9);
        if rate < CLASHES_MIN {
            return Ok(None);
        }
        let is_settled =
            facts.release.ok().and_then(Release::version).is_none_or(|one| one >= SETTLED_SINCE);
        if let Some(finding) = self.exhausted(facts)? {
            return Ok(Some(finding));
        }
        if is_settled && self.dropped == 0 {
            let summary = format!("{rate:.1} packets/s raced for an entry, and none was lost");
            return Ok(Some(all_well(summary, self.quote.clone())));
        }
        let lost = if is_settled { self.dropped } else { self.clashed };
        let summary =
            format!("{lost} packets were dropped: another packet had inserted their entry");
        let unknown = match facts.ports.get() {
            Ok(_) => "",
            Err(_) => " Which ports a NAT uses could not be read: if it has none left, that is it.",
        };
        let finding = Finding::new(Severity::Warning, "conntrack", summary)
            .cause(format!(
                "The first two packets of a connection, on two CPUs at once, each create an \
                 entry, and the second cannot be inserted. DNS queries for IPv4 and IPv6 at once \
                 from one port cause this; a resolver waits 5 s for the reply to a lost query \
                 (resolv.conf(5)). The table is not too small.{unknown}"
            ))
            .quote(self.quote.clone())
            .confidence(Confidence::Medium)
            .advise(Advice::by_hand(
                "Do not track such packets (notrack for UDP port 53), or let resolvers send one \
                 query after the other, with the option single-request-reopen of resolv.conf(5) \
                 where they run. Linux 4.7 and later drop them only if the two entries' \
                 translated addresses differ.",
                &[],
            ));
        Ok(Some(finding))
    }

    /// A NAT without a free port for a destination: new connections get one that is used, and
    /// their entries cannot be inserted.
    fn exhausted(&self, facts: &Facts) -> Result<Option<Finding>, Gap> {
        let NatPorts { translations, text } = match facts.ports.get() {
            // Only root may read them. What was read and is invalid may have been the cause.
            Err(Gap::Missing { .. }) => return Ok(None),
            ports => ports?,
        };
        let range = |one: &Translation| one.last.saturating_sub(one.first).saturating_add(1);
        // A race is mostly resolved, and loses few packets.
        let is_all_lost = self.dropped >= self.clashed;
        let is_full = |one: &&Translation| {
            let least = if is_all_lost { PORTS_FEW } else { PORTS_MIN };
            one.count >= least && share(one.count, range(one)) >= USED_UP
        };
        let Some(one) = translations.all.iter().find(is_full) else { return Ok(None) };
        let Translation { source, destination, first, last, count, line, .. } = one;
        let used = match range(one) {
            all if *count < all => format!("{count} of {all}"),
            _ => format!("all {count}"),
        };
        let summary = format!(
            "{} packets were dropped: the NAT to {source} uses {used} ports from {first} to {last} \
             for {destination}",
            self.clashed.max(self.dropped)
        );
        let is_sure = *count >= PORTS_MIN;
        let finding = Finding::new(Severity::Problem, destination.clone(), summary)
            .cause(
                "Each translated connection to a destination needs a port of its own. None is \
                 free, so new ones are dropped, while the table of connections has room.",
            )
            .quote([text.quote(*line)])
            .quote(self.quote.clone())
            .confidence(if is_sure { Confidence::High } else { Confidence::Medium })
            .advise(Advice::by_hand(
                "Let the rule translate to more ports or to several addresses, let clients keep \
                 connections instead of opening new ones, or find the client that opens so many.",
                &[],
            ));
        Ok(Some(finding))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::host;

    /// What is found where 50 entries could not be inserted in a second and as many packets as
    /// given were dropped, while a NAT used these ports.
    fn found(dropped: u32, translation: &str) -> Finding {
        lost(50, dropped, translation)
    }

    fn lost(failed: u32, dropped: u32, translation: &str) -> Finding {
        let stat = |failed: u32, dropped: u32| {
            format!("insert_failed drop early_drop\n{failed:08x} {dropped:08x} 00000000\n")
        };
        let pieces = [
            ("netlink/translations", format!("translations: 1\n{translation}\n")),
            ("proc/sys/net/netfilter/nf_conntrack_max", "262144\n".to_owned()),
            ("sample-1/monotonic", "1.0\n".to_owned()),
            ("sample-2/monotonic", "2.0\n".to_owned()),
            ("sample-2/proc/sys/net/netfilter/nf_conntrack_count", "9\n".to_owned()),
            ("sample-1/proc/net/stat/nf_conntrack", stat(0, 0)),
            ("sample-2/proc/net/stat/nf_conntrack", stat(failed, dropped)),
        ];
        let found = CHECK.run(&host(pieces));
        found.into_iter().next().expect("entries were lost")
    }

    #[test]
    fn a_nat_without_free_ports_is_no_race_whatever_its_range() {
        for (ports, said) in [
            ("63900 1024 65535", "uses 63900 of 64512 ports from 1024 to 65535"),
            ("8 61000 61007", "uses all 8 ports from 61000 to 61007"),
        ] {
            let full = found(50, &format!("6 198.51.100.1 192.0.2.9:443 {ports}"));
            assert_eq!(full.severity, Severity::Problem, "{full:#?}");
            assert!(full.summary.contains(said), "{full:#?}");
        }
        // Much of a range, neighbours while most races are resolved, and a single connection.
        for (dropped, ports) in
            [(50, "40000 1024 65535"), (5, "8 61000 61007"), (50, "1 61000 61000")]
        {
            let race = found(dropped, &format!("17 198.51.100.1 192.0.2.9:53 {ports}"));
            assert_eq!(race.severity, Severity::Warning, "{race:#?}");
            assert!(race.summary.contains("another packet had inserted"), "{race:#?}");
        }
    }

    #[test]
    fn a_table_with_room_is_not_too_small() {
        let refused = lost(0, 7, "6 198.51.100.1 192.0.2.9:443 8 61000 61007");
        assert_eq!(refused.severity, Severity::Warning, "{refused:#?}");
        assert!(refused.summary.contains("has room: 9 of 262144"), "{refused:#?}");
        assert!(refused.advice.iter().all(|one| one.changes.is_empty()), "{refused:#?}");
    }
}

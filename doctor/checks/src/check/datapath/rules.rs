//! D43: filter rules drop packets, or are so many that each packet takes long.

use std::collections::BTreeMap;

use crate::check::{Check, FEW, Group, Judged, MOST, Verdicts, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::Gap;
use ringway_evidence::fact::{
    Basis, LegacyRules, LinkDetails, ProgramOwners, Span, Tried, float, sum,
};
use ringway_evidence::facts;
use ringway_evidence::parse::links::{Link, Program};
use ringway_evidence::parse::nic::NicCounters;
use ringway_evidence::parse::rules::{Chain, Dropping, Rules};

pub(crate) const CHECK: Check = Check {
    id: "D43",
    slug: "rules",
    title: "rules drop packets, or there are too many",
    group: Group::Datapath,
    sources: &["man-nft:counter", "man-nft:verdict"],
    explanation: include_str!("rules.txt"),
    absent: "no filter rules, or no right to see them",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        rules: Tried<Span<Rules>>,
        legacy: LegacyRules,
        moved: Span<NicCounters>,
        details: Tried<LinkDetails>,
        owners: Tried<ProgramOwners>,
    }
}

/// Drops per second of one rule, and their fraction of all packets, from which they may be the
/// missing ones. A few are enough if they are most of what interfaces move.
const DROPS_MIN: f64 = 5.0;
const DROPS_PART: f64 = 0.01;
/// Drops per second of a rule that limits a rate: few, because TCP adapts to it.
const LIMITED_MIN: f64 = 0.5;
/// Words of such rules, and of those that only protect from floods.
const LIMITS: [&str; 2] = ["limit rate over", "--hashlimit-above"];
const PROTECTS: [&str; 4] = ["icmp", "syn", "ct state", "--ctstate"];
/// Rules in one chain, and packets per second times these rules, from which they take some percent
/// of a CPU: a comparison takes 5 to 20 ns.
const CHAIN_LONG: u64 = 250;
const COMPARISONS_MIN: f64 = 5e6;
/// Rules without a counter that are quoted.
const QUOTED_MAX: usize = 4;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let all: Vec<&Span<Rules>> = facts.rules.ok().into_iter().chain(&facts.legacy.0).collect();
    let programs: Vec<Finding> =
        facts.details.ok().map(|details| programs(details, facts.owners.ok())).unwrap_or_default();
    // What is not understood is there.
    let unread = facts.rules.get().err().filter(|gap| matches!(gap, Gap::Unreadable { .. }));
    let has_none = all.iter().all(|span| span.after.chains.is_empty());
    if has_none && programs.is_empty() && unread.is_none() {
        return not_here(CHECK.absent);
    }
    if let Some(gap) = unread {
        out.unread("filter rules", &gap);
    }
    out.add(programs);
    for span in &all {
        out.add(dropping(span, &facts.moved));
        out.add(longest(span, &facts.moved));
        out.add(uncounted(span));
    }
    let counts: Vec<u64> = all.iter().map(|span| span.after.count()).collect();
    out.well(format!("none of {} rules drops many packets", sum(&counts)), None);
    Ok(())
}

/// XDP programs, and whose they are: what they drop never reaches the kernel's counters.
fn programs(details: &LinkDetails, owners: Option<&ProgramOwners>) -> Vec<Finding> {
    let of_one = |link: &Link| {
        let Program { id, name } = link.program()?;
        let name = name.as_deref().unwrap_or("without a name");
        let owner = owners.and_then(|owners| owners.of(*id));
        let whose = owner.as_ref().map_or(String::new(), |owner| format!("; it is {}", owner.text));
        let summary = format!(
            "cannot tell what an XDP program drops on {}: {name} (id {id}) sees packets \
             first{whose}",
            link.ifname
        );
        let finding = Finding::new(Severity::Unknown, link.ifname.clone(), summary)
            .cause(
                "It decides about each packet that comes in before filter rules and counters do. \
                 Some drivers count its drops (xdp in ethtool -S); bpftool -f prog and bpftool -f \
                 link show whose it is.",
            )
            .quote(owner)
            .quote([details.quote(&link.ifname, format_args!("xdp prog {id} {name}"))]);
        Some(finding)
    };
    details.links.all.iter().filter_map(of_one).collect()
}

/// Rules and policies whose drops are not known.
fn uncounted(span: &Span<Rules>) -> Vec<Finding> {
    let finding = |subject: &str, what: &str, cause: &str, all: &BTreeMap<String, usize>| {
        let (first, _) = all.first_key_value()?;
        let more = match all.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more such rules"),
        };
        let summary = format!("cannot tell what {what}: {first}{more}");
        let quotes = all.values().take(QUOTED_MAX).map(|line| span.text.quote(*line));
        Some(Finding::new(Severity::Unknown, subject, summary).cause(cause).quote(quotes))
    };
    let without_counter = finding(
        "uncounted",
        "is dropped without a counter",
        "A rule counts only where it says so (counter, before its verdict), and a policy of \
         nftables never does: a last rule \"counter\" counts in its place.",
        &span.after.uncounted,
    );
    let by_program = finding(
        "queued",
        "the program behind a queue drops",
        "Packets wait in a queue for the program's verdict, and are dropped if no program reads \
         it, unless the rule says bypass. /proc/net/netfilter/nfnetlink_queue has a line for each \
         queue that is read, with what was dropped in columns 6 and 7.",
        &span.after.queued,
    );
    without_counter.into_iter().chain(by_program).collect()
}

fn dropping(span: &Span<Rules>, moved: &Span<NicCounters>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (rule, after) in &span.after.dropping {
        let Some(before) = span.past(span.before.dropping.get(rule)) else { continue };
        let drops = after.packets.saturating_sub(before.packets);
        let rate = float(drops) / span.seconds;
        let limits = |words: &[&str]| words.iter().any(|word| rule.contains(word));
        let is_limit = limits(&LIMITS) && !limits(&PROTECTS);
        let name = rule.split_once(": ").map_or("", |(chain, _)| chain);
        let chain = span.after.chains.get(name);
        let entered = chain.map_or(rate, |one| {
            // What it drops has entered, whatever the counters of interfaces say.
            through(span, moved, name, one).max(rate)
        });
        // Other chains may get only what they are to drop, and since the boot everything is rare.
        let is_called = chain.is_some_and(|one| one.hook.is_some());
        let is_called = is_called && span.basis == Basis::Samples;
        let is_most = is_called && drops >= FEW && rate >= MOST * entered;
        let is_much = is_most || (rate >= DROPS_MIN && rate >= DROPS_PART * entered);
        let is_limited = is_limit && rate >= LIMITED_MIN;
        if !is_much && !is_limited {
            continue;
        }
        if let Some(unasked) = unasked(rule, rate, after) {
            found.push(unasked.quote([span.text.quote(after.line)]));
            continue;
        }
        let (summary, cause) = match is_limit {
            true => (
                format!("a rule limits packets, and drops {rate:.1} a second: {rule}"),
                "It allows only so many packets or bytes a second and drops the rest, which TCP \
                 takes for loss: it stays below the limit, so that few packets are dropped.",
            ),
            false => (
                format!("a rule drops {rate:.0} packets a second: {rule}"),
                "Its counter grows by more than one in a hundred of the packets that enter its \
                 chain. It may be intended; if traffic does not get through, this is where it \
                 ends.",
            ),
        };
        found.push(
            Finding::new(Severity::Warning, rule.clone(), summary)
                .cause(cause)
                .quote([span.text.quote(after.line)])
                .confidence(confidence(span))
                .advise(Advice::by_hand(
                    "Find out what it drops (nft monitor trace, or a log rule before it), and \
                     change it if those packets are wanted.",
                    &[],
                )),
        );
    }
    found
}

/// What a firewall drops because no rule allows it, or because it fits no connection: on a host
/// that others scan, that is its work.
fn unasked(rule: &str, rate: f64, drops: &Dropping) -> Option<Finding> {
    let (summary, loss, cause) = if drops.is_default {
        (
            format!("a firewall drops by default {rate:.0} packets a second: {rule}"),
            format!("{rate:.0} packets a second die in a firewall's default, {rule}"),
            "No rule allows these packets, as meant for what strangers send. If something does \
             not get through, this is where it ends: a rule for it is missing.",
        )
    } else if drops.is_of_invalid {
        (
            format!("a firewall drops {rate:.0} packets a second that fit no connection: {rule}"),
            format!("{rate:.0} packets a second die as they fit no connection, {rule}"),
            "Scans of ports send such packets, and connections that have ended. If connections \
             stall, their packets may take another way out than in: this host then sees only \
             half of them.",
        )
    } else if is_of_list(rule) {
        (
            format!("a firewall drops {rate:.0} packets a second of senders on a list: {rule}"),
            format!("{rate:.0} packets a second die as their senders are on a list, {rule}"),
            "The set has senders that are to reach nothing here, as fail2ban makes after failed \
             logins. If one of them should, remove it from the set.",
        )
    } else {
        return None;
    };
    Some(Finding::new(Severity::Note, rule, summary).loses(loss).cause(cause))
}

/// Whether a rule takes all packets whose senders are in a set of nft or ipset.
fn is_of_list(rule: &str) -> bool {
    let words: Vec<&str> = rule.split(' ').collect();
    let is_set = |three: &[&str]| match three {
        ["saddr", set, _] => set.starts_with('@'),
        [matches, _, end] => matches.ends_with("match-set") && end.starts_with("src"),
        _ => false,
    };
    let found = words.windows(3).position(is_set);
    let is_other = |at: usize| at > 0 && words[at - 1] == "!";
    found.is_some_and(|at| !is_other(at)) && !LIMITS.iter().any(|word| rule.contains(word))
}

/// A mean since boot may hide that it is over, or that the rules are newer.
fn confidence(span: &Span<Rules>) -> Confidence {
    match span.basis {
        Basis::Samples => Confidence::Medium,
        Basis::SinceBoot => Confidence::Low,
    }
}

/// The chain whose rules take the most time.
fn longest(span: &Span<Rules>, moved: &Span<NicCounters>) -> Option<Finding> {
    let costs = span.after.chains.iter().filter(|(_, chain)| chain.rules >= CHAIN_LONG);
    let costs = costs.map(|(name, chain)| (name, chain, through(span, moved, name, chain)));
    let (name, chain, rate) =
        costs.max_by(|a, b| (float(a.1.rules) * a.2).total_cmp(&(float(b.1.rules) * b.2)))?;
    if float(chain.rules) * rate < COMPARISONS_MIN {
        return None;
    }
    let summary =
        format!("chain {name} has {} rules, and {rate:.0} packets a second enter it", chain.rules);
    let short = name.rsplit(' ').next().unwrap_or(name);
    let quote = span.text.quote_where(|line| line.split_whitespace().any(|one| one == short));
    let finding = Finding::new(Severity::Warning, name.clone(), summary)
        .cause(
            "The kernel compares each packet with its rules one by one until one decides: some \
             microseconds of CPU time for each packet that no early rule matches.",
        )
        .quote(quote)
        .confidence(confidence(span))
        .advise(Advice::by_hand(
            "Turn them into a set or map (nft, ipset), and accept established connections in the \
             first rule.",
            &[],
        ));
    Some(finding)
}

/// Packets per second that enter a chain: by the counters of rules that send them there, or at most
/// as many as interfaces move in the direction of its hook.
fn through(span: &Span<Rules>, moved: &Span<NicCounters>, name: &str, chain: &Chain) -> f64 {
    let all = moved.after.nics.iter().filter_map(|(nic, after)| {
        let moved = after.since(&moved.past(moved.before.nics.get(nic))?);
        Some((moved.rx_packets, moved.tx_packets))
    });
    let (received, sent): (Vec<u64>, Vec<u64>) = all.unzip();
    let rate = |packets: &[u64]| float(sum(packets)) / moved.seconds;
    match chain.hook.as_deref() {
        Some("output" | "postrouting" | "egress") => rate(&sent),
        Some(_) => rate(&received),
        None if chain.uncounted > 0 => rate(&received).max(rate(&sent)),
        None => {
            let before = span.before.chains.get(name).map_or(0, |chain| chain.jumped);
            float(chain.jumped.saturating_sub(before)) / span.seconds
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::{host, net_dev, sampled};

    /// `/proc/net/dev` where so many packets were received.
    fn eth0(received: u64) -> String {
        net_dev(&format!("  eth0: 0 {received} 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"))
    }

    /// The findings for a host with a thousand rules in a chain, which receives 20000 packets a
    /// second, of which a rule of INPUT sends some to that chain.
    fn found(jumped: u64) -> Vec<Finding> {
        CHECK.run(&host(sampled(|sample| {
            let (received, jumped) = if sample == 1 { (0, 0) } else { (20_000, jumped) };
            let mut rules = format!(
                "*filter\n:INPUT ACCEPT [5:300]\n:long - [0:0]\n[{jumped}:1] -A INPUT -i eth9 -j \
                 long\n"
            );
            for rule in 0..1000 {
                rules += &format!("[0:0] -A long -s 10.0.0.{rule}/32 -j DROP\n");
            }
            [("proc/net/dev", eth0(received)), ("commands/iptables-save_-c", rules + "COMMIT\n")]
        })))
    }

    #[test]
    fn a_rule_that_limits_need_not_drop_many() {
        let found = |rule: &str| {
            CHECK.run(&host(sampled(|sample| {
                let drops = sample - 1;
                let rules = format!(
                    "*filter\n:INPUT ACCEPT [5:300]\n[{drops}:1] -A INPUT {rule} -j DROP\nCOMMIT\n"
                );
                let nft = "table inet t {\n\tchain c {\n\t\taccept\n\t}\n}\n".to_owned();
                [
                    ("proc/net/dev", eth0(900)),
                    ("commands/nft_-a_list_ruleset", nft),
                    ("commands/iptables-legacy-save_-c", rules),
                ]
            })))
        };
        let held = found("-p tcp -m hashlimit --hashlimit-above 200/sec");
        assert!(held[0].summary.contains("limits packets, and drops 1.0"), "{held:#?}");
        assert_eq!(found("-p tcp -m tcp --dport 9")[0].severity, Severity::Ok);
        assert_eq!(found("-p icmp -m hashlimit --hashlimit-above 2/sec")[0].severity, Severity::Ok);
    }

    /// The findings for a host that receives 900 packets a second, and drops of them as many as
    /// `ruleset` says, whose text is for the packets so far.
    fn of_nft(ruleset: fn(u64) -> String) -> Vec<Finding> {
        CHECK.run(&host(sampled(|sample| {
            let count = 300 * (sample - 1);
            [("proc/net/dev", eth0(count * 3)), ("commands/nft_-a_list_ruleset", ruleset(count))]
        })))
    }

    #[test]
    fn a_rule_that_drops_most_of_little_is_found() {
        let drops = |received: u64| {
            let files = sampled(|sample| {
                let (all, dropped) = (received * sample, 4 * sample);
                let nft = format!(
                    "table inet t {{\n\tchain c {{\n\t\ttype filter hook input priority 0; policy \
                     accept;\n\t\ttcp dport 9 counter packets {dropped} bytes 9 drop\n\t}}\n}}\n"
                );
                [("proc/net/dev", eth0(all)), ("commands/nft_-a_list_ruleset", nft)]
            });
            CHECK.run(&host(files)).remove(0)
        };
        let most = drops(4);
        assert!(most.summary.starts_with("a rule drops 4 packets a second"), "{most:#?}");
        assert_eq!(most.severity, Severity::Warning);
        assert_eq!(drops(900).severity, Severity::Ok);
    }

    #[test]
    fn what_a_firewall_drops_by_default_is_no_alarm() {
        let found = of_nft(|count| {
            format!(
                "table inet t {{\n\tchain c {{\n\t\ttype filter hook input priority 0; policy \
                 accept;\n\t\ttcp dport 22 accept\n\t\tcounter packets {count} bytes 9 drop\n\
                 \t}}\n}}\n"
            )
        });
        assert_eq!((found.len(), found[0].severity), (1, Severity::Note), "{found:#?}");
        let loss = found[0].loss.as_deref();
        let said = "300 packets a second die in a firewall's default, inet t c: drop";
        assert_eq!(loss, Some(said), "{found:#?}");
    }

    #[test]
    fn what_a_list_of_senders_drops_is_no_alarm() {
        let severity = |rule: &str| {
            let files = sampled(|sample| {
                let drops = 6 * sample;
                let rules = format!(
                    "*filter\n:INPUT ACCEPT [5:300]\n[{drops}:1] -A INPUT {rule} -j DROP\nCOMMIT\n"
                );
                [("proc/net/dev", eth0(9 * sample)), ("commands/iptables-save_-c", rules)]
            });
            CHECK.run(&host(files)).remove(0).severity
        };
        assert_eq!(severity("-p tcp -m set --match-set f2b-sshd src"), Severity::Note);
        assert_eq!(severity("-m set ! --match-set friends src"), Severity::Warning);
        assert_eq!(severity("-m set --match-set servers dst"), Severity::Warning);
        let found = of_nft(|count| {
            format!(
                "table inet t {{\n\tchain c {{\n\t\ttype filter hook input priority 0; policy \
                 accept;\n\t\ttcp dport 22 ip saddr @banned counter packets {count} bytes 9 drop\n\
                 \t\ttcp dport 22 accept\n\t}}\n}}\n"
            )
        });
        assert_eq!((found.len(), found[0].severity), (1, Severity::Note), "{found:#?}");
        let loss = found[0].loss.as_deref().unwrap_or_default();
        assert!(loss.contains("senders are on a list, inet t c: tcp dport 22"), "{found:#?}");
    }

    #[test]
    fn an_xdp_program_is_not_judged_and_has_an_owner() {
        let links = r#"[{"ifname":"eth0","xdp":{"mode":2,"prog":{"id":9,"name":"guard"}}}]"#;
        let links = format!("{links}\n");
        let dev = eth0(0);
        let owners = r#"[{"id":9,"uid":0,"pinned":["/sys/fs/bpf/g"]}]"#;
        let attached = r#"[{"id":5,"prog_id":9,"pids":[{"pid":812,"comm":"xdpd"}]}]"#;
        let (owners, attached) = (format!("{owners}\n"), format!("{attached}\n"));
        let pieces = [
            ("commands/bpftool_-f_-j_prog_show", owners.as_str()),
            ("commands/bpftool_-f_-j_link_show", attached.as_str()),
            ("sample-1/monotonic", "1.0\n"),
            ("sample-2/monotonic", "2.0\n"),
            ("sample-1/proc/net/dev", dev.as_str()),
            ("sample-2/proc/net/dev", dev.as_str()),
            ("commands/ip_-d_-j_link_show", links.as_str()),
        ];
        let found = CHECK.run(&host(pieces));
        assert_eq!((found.len(), found[0].severity), (1, Severity::Unknown), "{found:#?}");
        let owner = "guard (id 9) sees packets first; it is loaded by user 0, pinned as \
                     /sys/fs/bpf/g, attached by link 5, held by xdpd (process 812)";
        assert!(found[0].summary.ends_with(owner), "{found:#?}");
        let without = pieces.iter().filter(|(path, _)| !path.contains("bpftool")).copied();
        let found = CHECK.run(&host(without));
        assert!(found[0].summary.ends_with("(id 9) sees packets first"), "{found:#?}");
    }

    #[test]
    fn a_rule_without_a_counter_is_not_judged() {
        let found =
            of_nft(|_| "table inet t {\n\tchain c {\n\t\tudp dport 9 drop\n\t}\n}\n".to_owned());
        assert_eq!((found.len(), found[0].severity), (1, Severity::Unknown), "{found:#?}");
        assert!(found[0].summary.starts_with("cannot tell"), "{found:#?}");
        let found = of_nft(|count| {
            format!(
                "table inet t {{\n\tchain c {{\n\t\tcounter packets {count} bytes 9 queue to 0\n\
                 \t}}\n}}\n"
            )
        });
        assert_eq!((found.len(), found[0].severity), (1, Severity::Unknown), "{found:#?}");
        assert!(found[0].summary.contains("behind a queue"), "{found:#?}");
    }

    #[test]
    fn rules_for_ipv6_are_judged_where_iptables_has_one_form() {
        let found = CHECK.run(&host(sampled(|sample| {
            let drops = 90 * (sample - 1);
            let rules = |rule| {
                format!("*filter\n:INPUT ACCEPT [5:3]\n[{drops}:1] -A INPUT {rule}\nCOMMIT\n")
            };
            [
                ("proc/net/dev", eth0(drops * 10)),
                ("commands/iptables-save_-c", rules("-j ACCEPT")),
                ("commands/ip6tables-save_-c", rules("-p tcp -j DROP")),
            ]
        })));
        assert_eq!((found.len(), found[0].severity), (1, Severity::Warning), "{found:#?}");
        assert_eq!(found[0].evidence[0].file, "ip6tables-save -c", "{found:#?}");
    }

    #[test]
    fn rules_that_are_not_understood_are_not_absent() {
        let found = of_nft(|_| "table inet t {\n\tchain c {\n".to_owned());
        assert_eq!((found.len(), found[0].severity), (1, Severity::Unknown), "{found:#?}");
        assert!(found[0].summary.contains("expected the end of a table"), "{found:#?}");
    }

    #[test]
    fn a_long_chain_costs_what_enters_it() {
        let held = found(20_000);
        assert!(held[0].summary.contains("20000 packets a second enter it"), "{held:#?}");
        let passed = found(100);
        assert_eq!(passed[0].severity, Severity::Ok, "{passed:#?}");
    }
}

//! D42: a bridge floods what it could deliver.

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{
    Basis, BridgeSettings, Interfaces, LegacyRules, Span, Stack, Switches, Tried, float, share, sum,
};
use ringway_evidence::parse::nic::{Moved, NicCounters};
use ringway_evidence::parse::rules::{Chain, Rules};
use ringway_evidence::{Text, facts};

pub(crate) const CHECK: Check = Check {
    id: "D42",
    slug: "bridges",
    title: "a bridge floods frames, or passes them through IP rules",
    group: Group::Datapath,
    sources: &["kernel-bridge:forwarding", "man-ip-link:ageing-time", "man-ip-link:nf-call"],
    explanation: include_str!("bridges.txt"),
    absent: "no bridge",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        bridges: BridgeSettings,
        nics: Interfaces,
        stack: Stack,
        switches: Switches,
        moved: Span<NicCounters>,
        rules: Tried<Span<Rules>>,
        legacy: LegacyRules,
    }
}

/// Packets per second from which flooding matters.
const PACKETS_MIN: f64 = 100.0;
/// Packets per second from which even a small cost per packet matters.
const PACKETS_MANY: f64 = 5000.0;
/// Number of rules from which passing frames through them is worth a note.
const RULES_MIN: u64 = 100;
/// Part of all ports but one that get what one sends, from which a bridge floods most of it.
const FLOODED: f64 = 0.7;
/// Part of what ports send to each other that gets lost, from which the rules drop it.
const LOST: f64 = 0.5;
/// Packets per second between ports from which that shows.
const FORWARDED_MIN: f64 = 5.0;
/// The switches of `br_netfilter` for all bridges, and their names on each.
const SWITCHES: [(&str, &str); 2] = [
    ("net.bridge.bridge-nf-call-iptables", "nf_call_iptables"),
    ("net.bridge.bridge-nf-call-ip6tables", "nf_call_ip6tables"),
];
/// The beginning of the names of chains for bridged frames.
const OF_BRIDGES: &str = "bridge ";
/// Parts of the names of chains that programs for containers make.
const CONTAINERS: [&str; 9] =
    ["antrea", "cali-", "cilium", "cni-", "docker", "flannel", "kube-", "netavark", "weave"];

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = &facts.moved;
    let mut is_any = false;
    for nic in facts.nics.names() {
        let Some((ageing, ageing_text)) = facts.bridges.bridge(&nic, "ageing_time") else {
            continue;
        };
        is_any = true;
        let ports: Vec<&String> = facts.stack.below(&nic).collect();
        let moved = |nic: &String| Some(float(grown(span, nic)?.packets()) / span.seconds);
        let rate: f64 = ports.iter().filter_map(|port| moved(port)).sum();
        out.add(isolated(facts, &nic, &ports));
        if span.basis == Basis::SinceBoot {
            continue;
        }
        if ageing == 0 && ports.len() > 2 && rate >= PACKETS_MIN {
            let summary = format!("{nic} sends each frame to all of its {} ports", ports.len());
            let command = format!("cat /sys/class/net/{nic}/bridge/ageing_time");
            out.add([Finding::new(Severity::Warning, nic.clone(), summary)
                .cause(
                    "Its ageing time is 0, so it forgets each address as soon as it has learned \
                     it. It acts as a hub, as one does to capture traffic or for a migration.",
                )
                .quote([ageing_text.quote(1)])
                .advise(Advice::by_hand(
                    "Turn learning on again: set ageing_time with ip link set type bridge. The \
                     default is 30000 (hundredths of a second).",
                    &plain(&nic, &command),
                ))]);
        }
        let mut is_known = ageing == 0;
        let busy = ports.iter().filter(|port| moved(port).is_some_and(|rate| rate >= PACKETS_MIN));
        if ports.len() > 2 {
            let found: Vec<Finding> =
                busy.filter_map(|port| without_learning(facts, &nic, port)).collect();
            is_known |= !found.is_empty();
            out.add(found);
        }
        if let Some(through) = Through::of(span, &nic, &ports) {
            out.add(floods(facts, &nic, &through).filter(|_| !is_known));
            // One port has no other to send to.
            out.add(dropped(facts, &nic, &through).filter(|_| ports.len() > 1));
        }
        out.add(through_rules(facts, &nic, rate));
    }
    if !is_any {
        return not_here(CHECK.absent);
    }
    if span.basis == Basis::SinceBoot {
        return out.one_sample("what bridges flood and drop is");
    }
    out.well("bridges send frames to the right ports", None);
    Ok(())
}

/// A port behind which no addresses are learned, so that their frames go to all ports.
fn without_learning(facts: &Facts, nic: &str, port: &str) -> Option<Finding> {
    let (_, quoted) = facts.bridges.port(port, "learning").filter(|(is_on, _)| *is_on == 0)?;
    facts.bridges.port(port, "unicast_flood").filter(|(is_on, _)| *is_on == 1)?;
    let summary =
        format!("{nic} does not learn addresses behind {port}, and floods frames for them");
    let command = format!("bridge -d link show dev {port}");
    Some(
        Finding::new(Severity::Warning, port, summary)
            .cause(
                "Learning is off on this port, so frames for addresses behind it go to all ports.",
            )
            .quote([quoted.quote(1)])
            .advise(Advice::by_hand(
                "Turn learning on (bridge link set), or add static entries for the addresses \
                 behind the port and turn flooding off, as virtual networks do.",
                &plain(port, &command),
            )),
    )
}

/// Ports between which a bridge forwards nothing.
fn isolated(facts: &Facts, nic: &str, ports: &[&String]) -> Option<Finding> {
    let of =
        |port: &&&String| facts.bridges.port(port, "isolated").filter(|(is_on, _)| *is_on == 1);
    let apart: Vec<&str> =
        ports.iter().filter(|port| of(port).is_some()).map(|port| port.as_str()).collect();
    if apart.len() < 2 {
        return None;
    }
    let quotes = ports.iter().filter_map(|port| of(&port)).take(2);
    let summary = format!("{nic} forwards nothing between isolated ports: {}", apart.join(", "));
    Some(
        Finding::new(Severity::Note, nic, summary)
            .cause("What is behind one of them reaches the other ports and the host, not these.")
            .quote(quotes.map(|(_, text)| text.quote(1))),
    )
}

/// The command, if the name has no special meaning in a shell.
fn plain<'a>(nic: &str, command: &'a str) -> Vec<&'a str> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_plain = nic.bytes().all(is_letter) && !nic.starts_with('-');
    if is_plain { vec![command] } else { Vec::new() }
}

fn grown(span: &Span<NicCounters>, nic: &str) -> Option<Moved> {
    Some(span.after.nics.get(nic)?.since(&span.past(span.before.nics.get(nic))?))
}

/// What passed a bridge between both samples, in bytes: a long packet of one port may leave another
/// as many.
struct Through {
    /// From ports and from the host.
    came: u64,
    /// To ports and to the host.
    left: u64,
    /// From ports, not for the host.
    forwarded: u64,
    /// To ports, not from the host.
    delivered: u64,
    /// Packets a second of `forwarded`.
    rate: f64,
    /// Those of them that are for groups, as far as ports count them.
    groups: f64,
    /// Ports that sent something out.
    ports: u64,
}

impl Through {
    fn of(span: &Span<NicCounters>, bridge: &str, ports: &[&String]) -> Option<Through> {
        let own = grown(span, bridge)?;
        let all: Vec<Moved> = ports.iter().filter_map(|port| grown(span, port)).collect();
        let of = |of: fn(&Moved) -> u64| sum(&all.iter().map(of).collect::<Vec<_>>());
        let (came, left) = (of(|one| one.rx_bytes), of(|one| one.tx_bytes));
        let packets = of(|one| one.rx_packets).saturating_sub(own.rx_packets);
        let groups = of(|one| one.rx_multicast).saturating_sub(own.rx_multicast).min(packets);
        Some(Through {
            came: came.saturating_add(own.tx_bytes),
            left: left.saturating_add(own.rx_bytes),
            forwarded: came.saturating_sub(own.rx_bytes),
            delivered: left.saturating_sub(own.tx_bytes),
            rate: float(packets) / span.seconds,
            groups: float(groups) / span.seconds,
            ports: u64::try_from(all.iter().filter(|one| one.tx_bytes > 0).count()).unwrap_or(0),
        })
    }
}

/// Most of what comes in leaves by all ports.
fn floods(facts: &Facts, nic: &str, through: &Through) -> Option<Finding> {
    let Through { came, left, rate, ports, .. } = *through;
    let copies = float(left) / float(came.max(1));
    if ports < 3 || rate < PACKETS_MIN || copies < FLOODED * float(ports - 1) {
        return None;
    }
    let summary = format!(
        "{nic} sends most frames to all of its {ports} ports: {rate:.0} a second come in, and \
         {copies:.1} times their bytes leave"
    );
    let set = |name| facts.bridges.bridge(nic, name);
    let groups = match (set("multicast_snooping"), set("multicast_querier")) {
        (Some((0, _)), _) => " For groups, its multicast snooping is off.",
        (Some(_), Some((0, _))) => {
            " For groups, it snoops but sends no queries itself: without another querier in the \
             network it floods them as well."
        }
        _ => "",
    };
    let quotes = ["multicast_snooping", "multicast_querier"].into_iter().filter_map(set);
    let command = format!("bridge fdb show br {nic}");
    let groups_command = format!("bridge mdb show dev {nic}");
    let commands = [plain(nic, &command), plain(nic, &groups_command)].concat();
    Some(
        Finding::new(Severity::Warning, nic, summary)
            .cause(format!(
                "It does not know behind which port the destinations are: they never send, their \
                 entries have expired, or the frames are for all or for a group.{groups} Each \
                 guest takes and drops what others get."
            ))
            .quote(quotes.map(|(_, text)| text.quote(1)))
            .confidence(Confidence::Medium)
            .advise(Advice::by_hand(
                "Find the destinations (tcpdump -e on a port that should not get them). For a \
                 silent host add a static entry (bridge fdb add); for groups let one host of the \
                 network send queries.",
                &commands,
            )),
    )
}

/// The rules drop what ports send to each other.
fn dropped(facts: &Facts, nic: &str, through: &Through) -> Option<Finding> {
    let Through { forwarded, delivered, rate, groups, .. } = *through;
    let lost = share(forwarded.saturating_sub(delivered), forwarded) * rate;
    // What is for groups that no port has asked for rightly goes nowhere.
    let (to_one, rate) = (rate - groups, lost - groups);
    if to_one < FORWARDED_MIN || rate < LOST * to_one {
        return None;
    }
    let switches = switched_on(facts, nic);
    let mut rules = facts.rules.ok().into_iter().chain(&facts.legacy.0);
    let found = rules.find_map(|span| {
        let is_it = |name: &str, chain: &Chain| {
            let is_hook = chain.hook.as_deref() == Some("forward");
            is_hook && chain.drops_rest.is_some() && sees(span, name, &switches)
        };
        let (name, chain) = span.after.chains.iter().find(|(name, chain)| is_it(name, chain))?;
        Some((span, name, chain))
    });
    let Some((span, name, chain)) = found else {
        let gap = facts.rules.get().err().filter(|gap| !gap.is_not_there())?;
        let summary = format!(
            "about {rate:.0} packets a second between ports of {nic} do not arrive; what drops \
             them may be in what could not be read: {gap}"
        );
        return Some(Finding::new(Severity::Unknown, nic, summary));
    };
    let what = if chain.has_drop_policy { "policy" } else { "last rule" };
    let is_of_bridges = name.starts_with(OF_BRIDGES);
    let summary = format!(
        "about {rate:.0} packets a second between ports of {nic} do not arrive, and the {what} of \
         {name} drops"
    );
    let finding = Finding::new(Severity::Note, nic, summary)
        .loses(format!(
            "about {rate:.0} packets a second between ports of {nic} die in the {what} of {name}"
        ))
        .quote(switches.iter().flatten().filter(|_| !is_of_bridges).map(|text| text.quote(1)))
        .quote(chain.drops_rest.map(|line| span.text.quote(line)))
        .confidence(Confidence::Medium);
    if is_of_bridges {
        return Some(finding.cause("No rule of this table for bridged frames allows these."));
    }
    Some(
        finding
            .cause(
                "br_netfilter passes bridged frames to the IP rules, where no rule allows these. \
                 Programs for containers set that policy, and guests on the same bridge get no \
                 rule of theirs.",
            )
            .advise(Advice::by_hand(
                "If they are meant to pass, allow frames of this bridge in the forward chain, for \
                 containers in that for users (DOCKER-USER).",
                &[],
            )),
    )
}

/// Whether a chain sees bridged frames: those of the table for bridges always, others if a switch
/// is on for IPv4 or IPv6.
fn sees(span: &Span<Rules>, chain: &str, [ipv4, ipv6]: &[Option<Text>; 2]) -> bool {
    match chain.split(' ').next() {
        Some("bridge") => true,
        Some("inet") => ipv4.is_some() || ipv6.is_some(),
        Some("ip6") => ipv6.is_some(),
        Some("ip") => ipv4.is_some(),
        // Those of iptables begin with the table; there is a command for each family.
        _ if span.text.origin().starts_with("ip6") => ipv6.is_some(),
        _ => ipv4.is_some(),
    }
}

/// The switches that pass frames of a bridge to the rules of IPv4 and of IPv6, if they are on.
fn switched_on(facts: &Facts, nic: &str) -> [Option<Text>; 2] {
    let is_on = |text: &Text| text.number().is_ok_and(|it| it > 0);
    SWITCHES.map(|(all, own)| {
        let all = facts.switches.get(all).filter(is_on);
        all.or_else(|| Some(facts.bridges.bridge(nic, own)?.1).filter(is_on))
    })
}

fn through_rules(facts: &Facts, nic: &str, rate: f64) -> Option<Finding> {
    let switches = switched_on(facts, nic);
    let rules: Vec<&Rules> =
        facts.rules.ok().into_iter().chain(&facts.legacy.0).map(|span| &span.after).collect();
    let count = sum(&rules.iter().map(|rules| rules.count()).collect::<Vec<_>>());
    if switches.iter().all(Option::is_none) || rate < PACKETS_MANY || count == 0 {
        return None;
    }
    let chains = rules.iter().flat_map(|rules| rules.chains.keys());
    let is_theirs = |name: &str| CONTAINERS.iter().any(|part| name.contains(part));
    let mut chains = chains.filter(|name| is_theirs(&name.to_lowercase()));
    let summary = format!("frames of {nic} pass through {count} IP rules: {rate:.0} a second");
    let cause = "br_netfilter passes bridged frames to the IP rules. Each frame is matched against \
                 them and tracked, although it is only forwarded.";
    let quotes = switches.iter().flatten().map(|text| text.quote(1));
    if let Some(chain) = chains.next() {
        let cause =
            format!("{cause} The rules of containers need it (chain {chain}): leave it on.");
        return Some(Finding::new(Severity::Note, nic, summary).cause(cause).quote(quotes));
    }
    let severity = if count >= RULES_MIN { Severity::Warning } else { Severity::Note };
    Some(Finding::new(severity, nic, summary).cause(cause).quote(quotes).advise(Advice::by_hand(
        "If no container and no rule on this host needs to see bridged frames, turn this off. \
         Kubernetes and Docker need it; leave it on for them.",
        &[],
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::{host, net_dev, sampled};

    /// Bytes that each interface received and sent, 1000 a packet, and more pieces.
    fn found(moved: &[(&str, u64, u64)], more: &[(&str, &str)]) -> Vec<Finding> {
        of_groups(moved, 0, more)
    }

    /// Likewise, where this percentage of what ports received is for groups.
    fn of_groups(moved: &[(&str, u64, u64)], percent: u64, more: &[(&str, &str)]) -> Vec<Finding> {
        let mut pieces: Vec<(String, String)> = vec![
            ("sys/class/net/br0/bridge/ageing_time".to_owned(), "30000\n".to_owned()),
            ("sys/class/net/br0/bridge/multicast_snooping".to_owned(), "1\n".to_owned()),
            ("sys/class/net/br0/bridge/multicast_querier".to_owned(), "0\n".to_owned()),
        ];
        pieces.extend(more.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())));
        for (nic, ..) in moved.iter().filter(|one| one.0 != "br0") {
            pieces.push((format!("sys/class/net/{nic}/master.link"), "../br0\n".to_owned()));
        }
        pieces.extend(sampled(|sample| {
            let mut rows = String::new();
            for (nic, rx, tx) in moved {
                let [rx, tx] = [rx, tx].map(|bytes| bytes * (sample - 1));
                let (in_packets, out_packets) = (rx / 1000, tx / 1000);
                let groups = in_packets * percent / 100;
                rows += &format!(
                    "{nic}: {rx} {in_packets} 0 0 0 0 0 {groups} {tx} {out_packets} 0 0 0 0 0 0\n"
                );
            }
            [("proc/net/dev", net_dev(&rows))]
        }));
        CHECK.run(&host(pieces))
    }

    const MUCH: u64 = 9_000_000;

    #[test]
    fn a_bridge_that_sends_each_frame_to_all_ports_is_found_by_that() {
        let flood = [("br0", 0, 0), ("a", MUCH, 0), ("b", 0, MUCH), ("c", 0, MUCH), ("d", 0, MUCH)];
        let flooding = found(&flood, &[]);
        assert_eq!(flooding[0].severity, Severity::Warning, "{flooding:#?}");
        assert!(flooding[0].summary.contains("all of its 3 ports"), "{flooding:#?}");
        assert!(flooding[0].cause.contains("sends no queries itself"), "{flooding:#?}");
        let calm = [("br0", 0, 0), ("a", MUCH, 0), ("b", 0, MUCH), ("c", 0, 900), ("d", 0, 900)];
        assert_eq!(found(&calm, &[])[0].severity, Severity::Ok);
    }

    #[test]
    fn ports_that_are_kept_apart_are_said() {
        let calm = [("br0", 0, 0), ("a", 0, 0), ("b", 0, 0)];
        let [a, b] = ["a", "b"].map(|nic| format!("sys/class/net/{nic}/brport/isolated"));
        let both = found(&calm, &[(&a, "1\n"), (&b, "1\n")]);
        assert!(both[0].summary.ends_with("isolated ports: a, b"), "{both:#?}");
        assert_eq!(found(&calm, &[(&a, "1\n"), (&b, "0\n")])[0].severity, Severity::Ok);
    }

    fn rules(chains: &str, sample: u32) -> (String, String) {
        let text = format!("*filter\n:INPUT ACCEPT [0:0]\n{chains}COMMIT\n");
        (format!("sample-{sample}/commands/iptables-save_-c"), text)
    }

    #[test]
    fn frames_that_the_forward_policy_drops_are_said() {
        let rules = [1, 2].map(|sample| rules(":FORWARD DROP [0:0]\n", sample));
        let mut more = vec![("proc/sys/net/bridge/bridge-nf-call-iptables", "1\n")];
        more.extend(rules.iter().map(|(path, text)| (path.as_str(), text.as_str())));
        let lost = [("br0", 100, 0), ("a", MUCH, 100), ("b", 0, 100)];
        let found_lost = found(&lost, &more);
        let loss = found_lost[0].loss.as_deref().unwrap_or_default();
        assert!(loss.contains("9000 packets a second between ports of br0 die"), "{found_lost:#?}");
        assert_eq!(found_lost[0].severity, Severity::Note);
        assert_eq!(found(&lost, &more[1..])[0].severity, Severity::Ok, "the switches are off");
        let passed = [("br0", 100, 0), ("a", MUCH, 100), ("b", 0, MUCH)];
        assert_eq!(found(&passed, &more)[0].severity, Severity::Ok);
    }

    #[test]
    fn what_goes_nowhere_without_rules_is_not_their_doing() {
        let rules = [1, 2].map(|sample| rules(":FORWARD DROP [0:0]\n", sample));
        let mut more = vec![("proc/sys/net/bridge/bridge-nf-call-iptables", "1\n")];
        more.extend(rules.iter().map(|(path, text)| (path.as_str(), text.as_str())));
        let severity = |moved: &[(&str, u64, u64)], groups: u64| {
            of_groups(moved, groups, &more).remove(0).severity
        };
        // For the only port, or for groups of which no port has a member.
        let alone = [("br0", 100, 0), ("a", MUCH, 100)];
        assert_eq!(severity(&alone, 0), Severity::Ok);
        let unwanted = [("br0", 100, 0), ("a", MUCH, 100), ("b", 0, 100)];
        assert_eq!(severity(&unwanted, 100), Severity::Ok);
        assert_eq!(severity(&unwanted, 50), Severity::Note);
    }

    #[test]
    fn what_drops_is_in_the_rules_that_see_the_frames() {
        let lost = [("br0", 100, 0), ("a", MUCH, 100), ("b", 0, 100)];
        let found = |table: &str, rules: &str, switch: Option<&str>| {
            let nft = format!(
                "table {table} {{\n\tchain f {{\n\t\ttype filter hook forward priority 0; \
                 {rules}\n\t}}\n}}\n"
            );
            let switch = switch.map(|one| format!("proc/sys/net/bridge/bridge-nf-call-{one}"));
            let mut more = vec![
                ("sample-1/commands/nft_-a_list_ruleset", nft.as_str()),
                ("sample-2/commands/nft_-a_list_ruleset", nft.as_str()),
            ];
            more.extend(switch.iter().map(|path| (path.as_str(), "1\n")));
            found(&lost, &more).remove(0).loss.unwrap_or_default()
        };
        let policy = "policy drop;";
        let last = "policy accept;\n\t\ttcp dport 22 accept\n\t\treject";
        let some = "policy accept;\n\t\ttcp dport 22 reject";
        for (table, rules, switch, said) in [
            ("ip t", policy, Some("iptables"), "the policy of ip t f"),
            ("inet t", last, Some("ip6tables"), "the last rule of inet t f"),
            ("bridge t", policy, None, "the policy of bridge t f"),
            // Those frames do not get there.
            ("ip6 t", policy, Some("iptables"), ""),
            ("ip t", policy, Some("ip6tables"), ""),
            ("ip t", policy, None, ""),
            ("ip t", some, Some("iptables"), ""),
        ] {
            let loss = found(table, rules, switch);
            assert!(loss.ends_with(said), "{table} {rules} {switch:?}: {loss}");
            assert_eq!(loss.is_empty(), said.is_empty(), "{table} {rules} {switch:?}: {loss}");
        }
    }

    #[test]
    fn frames_that_get_lost_beside_rules_that_were_not_read_have_no_check_mark() {
        let refused = "commands/nft_-a_list_ruleset\tOperation not permitted\n\
                       commands/iptables-save_-c\tPermission denied\n";
        let lost = [("br0", 100, 0), ("a", MUCH, 100), ("b", 0, 100)];
        let lost = found(&lost, &[("refused", refused)]);
        assert_eq!(lost[0].severity, Severity::Unknown, "{lost:#?}");
        let passed = [("br0", 100, 0), ("a", MUCH, 100), ("b", 0, MUCH)];
        assert_eq!(found(&passed, &[("refused", refused)])[0].severity, Severity::Ok);
    }

    #[test]
    fn a_container_host_needs_its_frames_in_the_rules() {
        let severity = |file: &str, rules: &str| {
            let [first, second] = [1, 2].map(|sample| format!("sample-{sample}/commands/{file}"));
            let switch = "proc/sys/net/bridge/bridge-nf-call-iptables";
            let more = [(switch, "1\n"), (first.as_str(), rules), (second.as_str(), rules)];
            found(&[("br0", 0, 0), ("a", MUCH, 0), ("b", 0, MUCH)], &more)[0].severity
        };
        for (chain, expected) in [
            ("DOCKER-USER", Severity::Note),
            ("CILIUM_FORWARD", Severity::Note),
            ("other", Severity::Warning),
        ] {
            let all = format!("[0:0] -A {chain} -j RETURN\n").repeat(200);
            let (_, rules) = rules(&format!(":{chain} - [0:0]\n{all}"), 1);
            assert_eq!(severity("iptables-save_-c", &rules), expected, "{chain}");
        }
        for (table, expected) in [
            ("ip docker-bridges", Severity::Note),
            ("ip kube-proxy", Severity::Note),
            ("inet filter", Severity::Warning),
        ] {
            let all = "\t\treturn\n".repeat(200);
            let rules = format!("table {table} {{\n\tchain forward {{\n{all}\t}}\n}}\n");
            assert_eq!(severity("nft_-a_list_ruleset", &rules), expected, "{table}");
        }
    }
}

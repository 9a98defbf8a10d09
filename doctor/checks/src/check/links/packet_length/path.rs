//! Judges the probed paths to hosts that the user named.

use super::stack::overhead;
use super::{Facts, mtu, narrow, widen};
use crate::check::{CheckResult, all_well};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use ringway_evidence::parse::path::{Means, Path, Step};
use ringway_evidence::{Gap, Quote, Text};

const PROBING: &str = "net.ipv4.tcp_mtu_probing";
/// Lines of a path that a finding quotes, and interfaces that it quotes beside them.
const QUOTES_MAX: usize = 6;

pub(super) fn inspect(facts: &Facts) -> CheckResult {
    let mut findings = Vec::new();
    for text in facts.paths.all()? {
        // Its name in a record is not a file of the host.
        let text = Text::new("ringway doctor --path", text.body());
        match Path::parse(&text) {
            Ok(path) => findings.push(Seen { facts, text: &text, path: &path }.judge()?),
            Err(gap) => findings.push(Finding::gap("path", &gap)),
        }
    }
    Ok(findings)
}

/// A path, and the host that it was probed from.
struct Seen<'a> {
    facts: &'a Facts,
    text: &'a Text,
    path: &'a Path,
}

impl Seen<'_> {
    fn judge(&self) -> Result<Finding, Gap> {
        let Path { host, address, .. } = self.path;
        let target =
            if *host == address.to_string() { host.clone() } else { format!("{host} ({address})") };
        let Some((limit, line)) = self.path.longest() else {
            return Ok(self.no_reply(&target));
        };
        let local = self.path.find(|step| match step {
            Step::Local(mtu) => Some(*mtu),
            _ => None,
        });
        let Some((local, local_line)) = local else {
            return Err(self.text.unreadable(None, "expected a line local MTU"));
        };
        if limit >= local {
            let summary =
                format!("{target} receives packets of {limit} bytes, which is the interface's MTU");
            return Ok(all_well(summary, Some(self.text.quote(line))));
        }
        let stopped = self.path.find(|step| matches!(step, Step::Stopped(_)).then_some(()));
        let quotes = [local_line, line].into_iter().chain(self.telling_lines(limit));
        let quotes: Vec<Quote> =
            quotes.take(QUOTES_MAX).map(|line| self.text.quote(line)).collect();
        let least = if stopped.is_some() { " at least" } else { "" };
        let finding = if self.is_silent(limit) {
            self.vanishing(&target, limit, local, least)
        } else {
            self.refused(&target, limit, local)
        };
        let others = self.others(limit);
        let finding = finding.quote(quotes).quote(others.iter().map(|(_, _, quote)| quote.clone()));
        let is_sure = !self.is_silent(limit) || self.is_located();
        let finding = finding.confidence(if is_sure && stopped.is_none() {
            Confidence::High
        } else {
            Confidence::Medium
        });
        Ok(self.advise(finding, u64::from(limit), u64::from(local), &others))
    }

    /// Long packets are lost, and no router reports it.
    fn vanishing(&self, target: &str, limit: u32, local: u32, least: &str) -> Finding {
        let summary = format!(
            "packets to {target} of more than {limit} bytes{least} vanish{}; {} sends up to \
             {local}",
            self.place(),
            self.nic().unwrap_or("the interface")
        );
        let known = self.path.find(|step| match step {
            Step::Known(mtu) => Some(*mtu <= limit),
            _ => None,
        });
        let is_kept = known.is_some_and(|(is_kept, _)| is_kept);
        // The route's own MTU, or an earlier report, already keeps packets below the limit.
        let severity = if is_kept { Severity::Note } else { Severity::Problem };
        Finding::new(severity, self.subject(), summary).cause(
            "A hop drops packets that are too long and does not report it, or its report is \
             dropped: a filter of ICMP, a bridge, a switch. Logins work, transfers hang.",
        )
    }

    /// A router reports that they are too long.
    fn refused(&self, target: &str, limit: u32, local: u32) -> Finding {
        let by = self.path.find(|step| match step {
            Step::Refused { by, mtu, .. } if *mtu == limit => Some(by.to_string()),
            _ => None,
        });
        let by = by.map_or_else(|| "a hop".to_owned(), |(by, _)| by);
        let summary = format!("{by} on the path to {target} passes {limit} bytes, not {local}");
        Finding::new(Severity::Warning, self.subject(), summary).cause(
            "Each connection learns the limit from a lost packet and then sends shorter ones, so \
             long packets save nothing on this path. A sender that ignores these reports loses \
             every long packet.",
        )
    }

    fn no_reply(&self, target: &str) -> Finding {
        let means = self.path.find(|step| match step {
            Step::Asked(means) => Some(*means),
            _ => None,
        });
        let by = match means {
            Some((Means::Echo, _)) => "echo requests",
            _ => "datagrams to a closed port",
        };
        let stopped = self.path.find(|step| match step {
            Step::Stopped(why) => Some(format!(": {why}")),
            _ => None,
        });
        let (why, line) = stopped.unwrap_or_default();
        let summary = format!("{target} does not reply to {by}, so the path is unknown{why}");
        let quote = (line > 0).then(|| self.text.quote(line));
        Finding::new(Severity::Unknown, self.subject(), summary).quote(quote)
    }

    fn nic(&self) -> Option<&str> {
        self.path.steps.iter().find_map(|(_, step)| match step {
            Step::Through(nic) => Some(nic.as_str()),
            _ => None,
        })
    }

    fn subject(&self) -> String {
        self.nic().map_or_else(|| self.path.address.to_string(), str::to_owned)
    }

    /// Whether the next longer packets were lost without a report.
    fn is_silent(&self, limit: u32) -> bool {
        let lost = self.path.steps.iter().filter_map(|(_, step)| match step {
            Step::Lost { len } => Some(*len),
            _ => None,
        });
        lost.min().is_some_and(|lost| lost > limit)
    }

    fn is_located(&self) -> bool {
        self.path.steps.iter().any(|(_, step)| matches!(step, Step::Missed { .. }))
    }

    /// The place where they are lost.
    fn place(&self) -> String {
        let reached = self.path.steps.iter().rev().find_map(|(_, step)| match step {
            Step::Reached { hops, by } => Some(format!(" behind {by} (router {hops})")),
            _ => None,
        });
        let missed = self.path.steps.iter().find_map(|(_, step)| match step {
            Step::Missed { hops, by } => Some(format!(" before {by} (router {hops})")),
            _ => None,
        });
        match (reached, missed) {
            (Some(reached), Some(missed)) => format!("{reached} and{missed}"),
            (reached, missed) => reached.or(missed).unwrap_or_default(),
        }
    }

    /// The lines of refusals, of the first loss above the limit, and of its place.
    fn telling_lines(&self, limit: u32) -> Vec<usize> {
        let is_lost = |step: &Step| matches!(step, Step::Lost { len } if *len > limit);
        let lost = self.path.steps.iter().rev().find(|(_, step)| is_lost(step));
        let refused = self.path.steps.iter().filter(|(_, step)| {
            matches!(step, Step::Refused { .. } | Step::Reached { .. } | Step::Missed { .. })
        });
        refused.chain(lost).map(|(line, _)| *line).collect()
    }

    /// Interfaces above, below and beside that of the path that send longer packets than pass, or
    /// accept no longer ones.
    fn others(&self, limit: u32) -> Vec<(String, u64, Quote)> {
        let Some(nic) = self.nic() else { return Vec::new() };
        let limit = u64::from(limit);
        let mtus = self.facts.stack.around(nic).into_iter().filter_map(|other| {
            let (mtu, quote) = mtu(self.facts, &other).ok()?;
            let sent = mtu.saturating_add(overhead(self.facts, &other));
            (sent > limit || mtu == limit).then_some((other, mtu, quote))
        });
        mtus.take(QUOTES_MAX).collect()
    }

    fn advise(
        &self,
        mut finding: Finding,
        limit: u64,
        local: u64,
        others: &[(String, u64, Quote)],
    ) -> Finding {
        // A hop of this host with the path's MTU is the one that limits it.
        let under = self.nic().map(|nic| self.facts.stack.all_below(nic)).unwrap_or_default();
        let below: Vec<Change> = others
            .iter()
            .filter(|(nic, mtu, _)| *mtu == limit && under.contains(nic))
            .filter_map(|(nic, mtu, _)| widen(nic, *mtu, local))
            .collect();
        if !below.is_empty() {
            finding = finding.advise(Advice::by_change(
                "These hops of this host have a smaller MTU: raise it.",
                below,
            ));
        }
        finding = finding.advise(Advice::by_hand(
            format!(
                "Raise the MTU of the hop that limits the path to {local}, on the interface that \
                 `ip route get {address}` names there. Or let its reports pass: ICMP type 3 code \
                 4, ICMPv6 type 2.",
                address = self.path.address
            ),
            &[],
        ));
        let Some(nic) = self.nic() else { return finding };
        let own = mtu(self.facts, nic).ok().and_then(|(own, _)| narrow(nic, own, limit));
        let mut lower: Vec<Change> = own.into_iter().collect();
        // VXLAN and other interfaces on top of this one alone must fit as well; a bridge's other
        // ports need not.
        let is_above = |other: &str| self.facts.stack.below(other).eq([nic]);
        for (other, mtu, _) in others.iter().filter(|(other, _, _)| is_above(other)) {
            let room = limit.saturating_sub(overhead(self.facts, other));
            lower.extend(narrow(other, *mtu, room));
        }
        finding = finding.advise(Advice::by_change(
            "Or send no longer packets from this host, to any other; the other end must do the \
             same for what it sends.",
            lower,
        ));
        if !self.is_silent(u32::try_from(limit).unwrap_or(u32::MAX)) {
            return finding;
        }
        let probing = self.facts.probing.ok();
        let current = probing.map(|text| text.value().to_owned());
        if current.as_deref() != Some("0") {
            return finding;
        }
        let knob = Knob::Sysctl { name: PROBING.to_owned() };
        finding.quote(probing.map(|text| text.quote(1))).advise(Advice::by_change(
            "Or let TCP detect the limit by itself, after some timeouts of each connection:",
            Change::raise(knob, 0, 1),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_evidence::Source;
    use ringway_evidence::fact::Host;

    /// D08's proposals for a path through an interface of a host with these files.
    fn proposed(nic: &str, files: &[(&str, &str)]) -> Vec<String> {
        let path = format!(
            "path to a at 192.0.2.1\nasked by echo\nthrough {nic}\nlocal 9000\nknown 9000\npassed \
             576 in 9 us\nlost 9000\npassed 1500 in 9 us\nlost 1501\nend\n"
        );
        let own =
            |(path, text): &(&str, &str)| (format!("sys/class/net/{path}"), format!("{text}\n"));
        let probe = ("probes/192.0.2.1".to_owned(), path);
        let pieces = files.iter().map(own).chain([probe]).collect();
        let host = Host::new(Source::Memory(pieces));
        let findings = inspect(&host.fact().expect("sound")).expect("sound");
        assert_eq!(findings.len(), 1);
        findings[0].advice.iter().flat_map(|advice| &advice.changes).map(Change::command).collect()
    }

    #[test]
    fn a_hop_of_this_host_that_narrows_the_path_is_raised() {
        let files = [
            ("br0/mtu", "9000"),
            ("eth0/mtu", "1500"),
            ("eth0/master.link", "../br0"),
            ("vif1.0/mtu", "9000"),
            ("vif1.0/master.link", "../br0"),
            // It has the path's MTU but is above the interface, so it does not limit the path.
            ("br0.7/mtu", "1500"),
            ("br0.7/lower_br0.link", "../br0"),
        ];
        let commands = proposed("br0", &files);
        let expected = ["ip link set dev eth0 mtu 9000", "ip link set dev br0 mtu 1500"];
        assert_eq!(commands, expected);
    }

    #[test]
    fn a_tunnel_is_lowered_with_what_it_stands_on() {
        let files = [
            ("eth0/mtu", "9000"),
            ("vxlan7/mtu", "8950"),
            ("vxlan7/uevent", "DEVTYPE=vxlan"),
            ("vxlan7/lower_eth0.link", "../eth0"),
        ];
        let expected = ["ip link set dev eth0 mtu 1500", "ip link set dev vxlan7 mtu 1450"];
        assert_eq!(proposed("eth0", &files), expected);
    }
}

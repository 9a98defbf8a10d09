//! D33: packets that protocols lose or refuse, by the kernel's counters.

use crate::check::{Check, Group, Judged, Verdicts, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
use crate::text::losses as text;
use ringway_evidence::Quote;
use ringway_evidence::fact::{Basis, NetCounters, float, share};
use ringway_evidence::facts;

pub(crate) const CHECK: Check = Check {
    id: "D33",
    slug: "losses",
    title: "packets are lost or refused",
    group: Group::Tcp,
    sources: &[
        "kernel-snmp-counters:listen",
        "kernel-snmp-counters:reordering",
        "ip-sysctl:rp-filter",
        "rfc-2883:needless",
    ],
    explanation: text::EXPLANATION,
    absent: "no protocol counters",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        counters: NetCounters,
    }
}

/// Something that the kernel counts when it drops or refuses.
struct Reason {
    /// Its counters, such as `Tcp.RetransSegs`; together they are what is lost.
    counters: &'static [&'static str],
    /// Events per second from which it is more than chance.
    rate_min: f64,
    /// The counters of the whole, and the fraction of it that matters.
    part: Option<(&'static [&'static str], f64)>,
    /// The confidence that the counter alone gives.
    confidence: Confidence,
    /// What happens, before a rate.
    what: &'static str,
    cause: &'static str,
    advice: &'static str,
    /// Commands that show more; none changes anything.
    commands: &'static [&'static str],
}

/// In the order in which to investigate: an earlier reason may cause a later one.
const REASONS: [Reason; 16] = [
    Reason {
        counters: &["TcpExt.ListenOverflows"],
        rate_min: 1.0,
        part: None,
        confidence: Confidence::High,
        what: "connections are refused, because the queue of a program is full",
        cause: text::listen_cause(),
        advice: text::listen_advice(),
        commands: &["ss -ltn"],
    },
    Reason {
        counters: &["TcpExt.TCPReqQFullDrop"],
        rate_min: 1.0,
        part: None,
        confidence: Confidence::High,
        what: "connections are refused, because too many are half open",
        cause: text::half_open_cause(),
        advice: text::half_open_advice(),
        commands: &["ss -tn state syn-recv"],
    },
    Reason {
        counters: &["TcpExt.TCPSynRetrans"],
        rate_min: 1.0,
        part: None,
        confidence: Confidence::Medium,
        what: "connections are tried again, because they get no reply",
        cause: text::syn_cause(),
        advice: text::syn_advice(),
        commands: &["ss -tn state syn-sent"],
    },
    Reason {
        counters: &["Tcp.AttemptFails"],
        rate_min: 10.0,
        part: None,
        confidence: Confidence::Medium,
        what: "connections fail before they are established",
        cause: text::attempts_cause(),
        advice: text::attempts_advice(),
        commands: &["ss -tn state syn-sent", "ss -ltn"],
    },
    Reason {
        counters: &[
            "TcpExt.TCPMemoryPressures",
            "TcpExt.TCPAbortOnMemory",
            "Udp.MemErrors",
            "Udp6.MemErrors",
        ],
        rate_min: 0.1,
        part: None,
        confidence: Confidence::High,
        what: "socket memory is used up",
        cause: text::memory_cause(),
        advice: text::memory_advice(),
        commands: &["cat /proc/net/sockstat", "ss -tanm"],
    },
    Reason {
        counters: &["Udp.RcvbufErrors", "Udp6.RcvbufErrors"],
        rate_min: 10.0,
        part: Some((
            &["Udp.InDatagrams", "Udp6.InDatagrams", "Udp.RcvbufErrors", "Udp6.RcvbufErrors"],
            0.001,
        )),
        confidence: Confidence::High,
        what: "datagrams are dropped, because the buffer of their program is full",
        cause: text::udp_receive_cause(),
        advice: text::udp_receive_advice(),
        commands: &["ss -uanm"],
    },
    Reason {
        counters: &["Udp.SndbufErrors", "Udp6.SndbufErrors"],
        rate_min: 10.0,
        part: Some((
            &["Udp.OutDatagrams", "Udp6.OutDatagrams", "Udp.SndbufErrors", "Udp6.SndbufErrors"],
            0.001,
        )),
        confidence: Confidence::Medium,
        what: "datagrams cannot be sent, because a buffer or a queue is full",
        cause: text::udp_send_cause(),
        advice: text::udp_send_advice(),
        commands: &["tc -s qdisc show"],
    },
    Reason {
        counters: &[
            "Tcp.InCsumErrors",
            "Udp.InCsumErrors",
            "Icmp.InCsumErrors",
            "Udp6.InCsumErrors",
            "Icmp6.InCsumErrors",
        ],
        rate_min: 1.0,
        part: None,
        confidence: Confidence::High,
        what: "packets arrive with wrong checksums",
        cause: text::checksums_cause(),
        advice: text::checksums_advice(),
        commands: &[],
    },
    Reason {
        counters: &["Ip.ReasmFails", "Ip6.ReasmFails"],
        rate_min: 1.0,
        part: None,
        confidence: Confidence::High,
        what: "packets cannot be reassembled, because fragments are missing",
        cause: text::fragments_cause(),
        advice: text::fragments_advice(),
        commands: &[],
    },
    Reason {
        counters: &["TcpExt.IPReversePathFilter"],
        rate_min: 1.0,
        part: None,
        confidence: Confidence::High,
        what: "packets are dropped, because replies to them would leave by another interface",
        cause: text::rp_filter_cause(),
        advice: text::rp_filter_advice(),
        commands: &["ip route"],
    },
    Reason {
        counters: &["Ip.InAddrErrors", "Ip6.InAddrErrors"],
        rate_min: 10.0,
        part: None,
        confidence: Confidence::High,
        what: "packets for other hosts arrive, and this host does not forward them",
        cause: text::not_forwarded_cause(),
        advice: text::not_forwarded_advice(),
        commands: &["ip netconf show", "ip route show"],
    },
    Reason {
        counters: &["IpExt.InNoRoutes", "Ip.OutNoRoutes", "Ip6.InNoRoutes", "Ip6.OutNoRoutes"],
        rate_min: 10.0,
        part: None,
        confidence: Confidence::High,
        what: "packets are dropped, because there is no route to their destination",
        cause: text::no_route_cause(),
        advice: text::no_route_advice(),
        commands: &["ip route show", "ip rule show"],
    },
    Reason {
        counters: &["Ip.InHdrErrors", "Ip6.InHdrErrors"],
        rate_min: 10.0,
        part: None,
        confidence: Confidence::High,
        what: "packets are dropped, because they passed too many routers or have a bad header",
        cause: text::hops_cause(),
        advice: text::hops_advice(),
        commands: &["ip route show"],
    },
    Reason {
        counters: &["Ip.FragFails", "Ip6.FragFails"],
        rate_min: 10.0,
        part: None,
        confidence: Confidence::High,
        what: "packets are longer than the next link allows, and may not be fragmented",
        cause: text::too_long_cause(),
        advice: text::too_long_advice(),
        commands: &["ip link show", "ip route show"],
    },
    Reason {
        counters: &["TcpExt.TCPSACKReorder", "TcpExt.TCPTSReorder", "TcpExt.TCPRenoReorder"],
        rate_min: 5.0,
        part: Some((&["Tcp.OutSegs", "Tcp.RetransSegs"], 0.001)),
        confidence: Confidence::High,
        what: "segments arrive out of order",
        cause: text::reordered_cause(),
        advice: text::reordered_advice(),
        commands: &["ss -ti state established"],
    },
    Reason {
        counters: &[RESENT],
        rate_min: 5.0,
        part: Some((&["Tcp.OutSegs", "Tcp.RetransSegs"], 0.01)),
        confidence: Confidence::Medium,
        what: "segments are sent again",
        cause: text::resent_cause(),
        advice: text::resent_advice(),
        commands: &["ss -ti state established", "tc -s qdisc show"],
    },
];

/// Segments that TCP sends again.
const RESENT: &str = "Tcp.RetransSegs";
/// Of those, first tries of connections, which are a reason of their own.
const FIRST_TRIES: &str = "TcpExt.TCPSynRetrans";
/// Of those, segments that the other end already had: only late, not lost (`rfc-2883:needless`).
const NEEDLESS: &str = "TcpExt.TCPDSACKRecvSegs";

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let counters = &facts.counters;
    if counters.basis == Basis::SinceBoot {
        // What was lost since the boot may be long over, and rates of days say little.
        out.well("protocol losses are only known since the boot", None);
        return Ok(());
    }
    for reason in &REASONS {
        out.add(reason.judge(counters));
    }
    out.well("protocols lose and refuse almost nothing", counters.quote("Tcp"));
    Ok(())
}

impl Reason {
    fn judge(&self, counters: &NetCounters) -> Option<Finding> {
        let count = |names: &[&str]| {
            names.iter().fold(0, |sum: u64, name| sum.saturating_add(counters.since(name)))
        };
        let mut lost = count(self.counters);
        if self.counters == [RESENT] {
            lost = lost.saturating_sub(count(&[FIRST_TRIES, NEEDLESS]));
        }
        let rate = float(lost) / counters.seconds;
        if rate < self.rate_min {
            return None;
        }
        let mut summary = format!("{}: {rate:.1} a second", self.what);
        if let Some((whole, least)) = self.part {
            let part = share(lost, count(whole));
            if part < least {
                return None;
            }
            summary += &format!(", {:.1} %", part * 100.0);
        }
        let counted = self.counters.iter().filter(|name| counters.since(name) > 0);
        let subject = counted.clone().next().copied().unwrap_or_default();
        let quotes = counted.map(|name| self.quote(counters, name));
        let finding = Finding::new(Severity::Warning, subject, summary)
            .cause(self.cause)
            .quote(quotes)
            .confidence(self.confidence)
            .advise(Advice::by_hand(self.advice, self.commands));
        Some(finding)
    }

    /// The counter alone: its line has a hundred others.
    fn quote(&self, counters: &NetCounters, name: &str) -> Quote {
        let (protocol, short) = name.split_once('.').unwrap_or((name, name));
        let text =
            format!("{protocol}: {short} +{} in {:.1} s", counters.since(name), counters.seconds);
        let line = counters.quote(name).or_else(|| counters.quote(protocol));
        let file = line.as_ref().map(|quote| quote.file.clone()).unwrap_or_default();
        Quote { file, line: line.and_then(|quote| quote.line), text }
    }
}

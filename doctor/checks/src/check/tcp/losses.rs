//! D33: packets that protocols lose or refuse, by the kernel's counters.

use crate::check::{Check, Group, Judged, Verdicts, rule};
use crate::finding::{Advice, Confidence, Finding, Severity};
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
    explanation: include_str!("losses.txt"),
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
        cause: "A program accepts connections more slowly than they arrive. Those that do not fit \
                into its queue are dropped silently, and the client tries again after 1, 2 and 4 \
                s.",
        advice: "Find the program whose queue it is: Recv-Q at or above Send-Q. Let it accept \
                 sooner, with more threads or a CPU that has time. Then give it a longer queue; \
                 net.core.somaxconn is the maximum.",
        commands: &["ss -ltn"],
    },
    Reason {
        counters: &["TcpExt.TCPReqQFullDrop"],
        rate_min: 1.0,
        part: None,
        confidence: Confidence::High,
        what: "connections are refused, because too many are half open",
        cause: "More connections are started than completed, and SYN cookies are off: a flood, or \
                clients whose acknowledgements are lost.",
        advice: "Turn SYN cookies on (net.ipv4.tcp_syncookies), and find out where the SYNs come \
                 from.",
        commands: &["ss -tn state syn-recv"],
    },
    Reason {
        counters: &["TcpExt.TCPSynRetrans"],
        rate_min: 1.0,
        part: None,
        confidence: Confidence::Medium,
        what: "connections are tried again, because they get no reply",
        cause: "The other end drops them silently: a filter, a host that does not exist, or the \
                full queue of a program. Each try waits twice as long as the one before.",
        advice: "Find out where they are sent, and what is on the path: filter rules at both \
                 ends, and D31 and this check at the other end.",
        commands: &["ss -tn state syn-sent"],
    },
    Reason {
        counters: &["Tcp.AttemptFails"],
        rate_min: 10.0,
        part: None,
        confidence: Confidence::Medium,
        what: "connections fail before they are established",
        cause: "No program listens on the port, or a filter rejects the connection. A failed try \
                on either end counts.",
        advice: "Find the programs that connect (ss, above, several times) and where to. If the \
                 tries come from another host, check that the program that should accept them \
                 runs.",
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
        cause: "All sockets together use as much memory as net.ipv4.tcp_mem or udp_mem allows, in \
                pages: buffers shrink, and connections are reset or packets dropped.",
        advice: "Find out what uses it (mem, in pages; Recv-Q of programs that do not read), and \
                 whether the machine has memory to allow more.",
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
        cause: "A program reads UDP more slowly than it arrives, on average or during a burst.",
        advice: "Find the program (Recv-Q, and d in skmem), and check whether its CPU is full. \
                 For bursts: a larger SO_RCVBUF of the program, whose maximum is \
                 net.core.rmem_max, and net.core.rmem_default for programs that set none.",
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
        cause: "A program sends UDP faster than its socket or the queue of the interface accepts \
                it.",
        advice: "Let it send more slowly; for bursts a larger SO_SNDBUF. Find out which queue is \
                 full.",
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
        cause: "Packets were changed on the path, or sent before their checksums were computed: a \
                bad cable or card, or a device or tunnel that mishandles checksum offload.",
        advice: "Find out where they come from, and turn checksum offload off at that end as a \
                 test (tx of ethtool -K there, and back). ip -s -s link shows errors of a link.",
        commands: &[],
    },
    Reason {
        counters: &["Ip.ReasmFails", "Ip6.ReasmFails"],
        rate_min: 1.0,
        part: None,
        confidence: Confidence::High,
        what: "packets cannot be reassembled, because fragments are missing",
        cause: "A fragment was lost or dropped by a filter, and the others were dropped after 30 \
                s, or there was no more room for fragments. One lost fragment loses a whole \
                packet.",
        advice: "Send packets that need no fragments: find the hop that fragments them (D08), or \
                 let the program send less at once.",
        commands: &[],
    },
    Reason {
        counters: &["TcpExt.IPReversePathFilter"],
        rate_min: 1.0,
        part: None,
        confidence: Confidence::High,
        what: "packets are dropped, because replies to them would leave by another interface",
        cause: "rp_filter is strict, and the route back to the sender does not use the interface \
                that the packets arrive on: asymmetric routes, two links to one network, or \
                forged addresses.",
        advice: "Find out which senders they are (log_martians writes them to the kernel's log). \
                 If the routes are intended, make the filter loose on that interface: rp_filter=2 \
                 there. The greater of that value and conf.all counts.",
        commands: &["ip route"],
    },
    Reason {
        counters: &["Ip.InAddrErrors", "Ip6.InAddrErrors"],
        rate_min: 10.0,
        part: None,
        confidence: Confidence::High,
        what: "packets for other hosts arrive, and this host does not forward them",
        cause: "Another host uses this one as its next hop, or has an address of it that is out \
                of date. Forwarding is off here, so the kernel drops the packets.",
        advice: "If this host is a router, turn forwarding on for the interfaces that packets \
                 arrive on (net.ipv4.conf.INTERFACE.forwarding), and check its filter rules \
                 first. If not, find the senders and correct their routes.",
        commands: &["ip netconf show", "ip route show"],
    },
    Reason {
        counters: &["IpExt.InNoRoutes", "Ip.OutNoRoutes", "Ip6.InNoRoutes", "Ip6.OutNoRoutes"],
        rate_min: 10.0,
        part: None,
        confidence: Confidence::High,
        what: "packets are dropped, because there is no route to their destination",
        cause: "No route matches their destination, or the route that matches says unreachable.",
        advice: "Find out where they are sent (ip route get ADDRESS), and add the route or a \
                 default route, or correct the program or host that sends them.",
        commands: &["ip route show", "ip rule show"],
    },
    Reason {
        counters: &["Ip.InHdrErrors", "Ip6.InHdrErrors"],
        rate_min: 10.0,
        part: None,
        confidence: Confidence::High,
        what: "packets are dropped, because they passed too many routers or have a bad header",
        cause: "A route leads in a circle, so packets pass the same routers until their TTL or \
                hop limit is used up; or a header is damaged.",
        advice: "Find out where the packets are sent (tcpdump, traceroute), and correct the route \
                 that sends them back, here or on the next router.",
        commands: &["ip route show"],
    },
    Reason {
        counters: &["Ip.FragFails", "Ip6.FragFails"],
        rate_min: 10.0,
        part: None,
        confidence: Confidence::High,
        what: "packets are longer than the next link allows, and may not be fragmented",
        cause: "This host forwards them to a link with a smaller MTU. It tells the sender, but \
                the sender keeps sending them: it may not get these ICMP messages, because a \
                filter drops them.",
        advice: "Let the ICMP messages pass to the sender, and use the same MTU on both sides \
                 (D08).",
        commands: &["ip link show", "ip route show"],
    },
    Reason {
        counters: &["TcpExt.TCPSACKReorder", "TcpExt.TCPTSReorder", "TcpExt.TCPRenoReorder"],
        rate_min: 5.0,
        part: Some((&["Tcp.OutSegs", "Tcp.RetransSegs"], 0.001)),
        confidence: Confidence::High,
        what: "segments arrive out of order",
        cause: "They take more than one path, or more than one queue. TCP takes segments that \
                arrive late for lost, sends them again without need and slows down.",
        advice: "Find out which connections these are (reordering), and what spreads one stream: \
                 a bond in round robin, routes with several next hops by packet, RPS or several \
                 queues for one flow, here or on the path. Send each stream on one of them, by \
                 its hash.",
        commands: &["ss -ti state established"],
    },
    Reason {
        counters: &[RESENT],
        rate_min: 5.0,
        part: Some((&["Tcp.OutSegs", "Tcp.RetransSegs"], 0.01)),
        confidence: Confidence::Medium,
        what: "segments are sent again",
        cause: "They or their acknowledgements were lost on the path: in a full queue, by a \
                limit, or on a link with errors. Each loss makes TCP slower.",
        advice: "Find out which connections these are (retrans), and then where packets are lost: \
                 drops here (D18, D29, D30), limits at either end, and the same at the other end.",
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

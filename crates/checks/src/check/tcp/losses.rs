//! D33: what protocols lose or refuse, by the reason that the kernel counts.

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
    sources: &[],
    explanation: include_str!("losses.md"),
    absent: "no counters of protocols",
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
    /// A second, from which it is more than chance.
    rate_min: f64,
    /// What it is a part of, and the part from which it matters.
    part: Option<(&'static [&'static str], f64)>,
    /// How sure the counter alone makes it.
    confidence: Confidence,
    /// What happens, before a rate.
    what: &'static str,
    cause: &'static str,
    advice: &'static str,
    /// Commands that show more; none changes anything.
    commands: &'static [&'static str],
}

/// In the order in which one should look: a reason may be why another one is seen.
const REASONS: [Reason; 10] = [
    Reason {
        counters: &["TcpExt.ListenOverflows"],
        rate_min: 1.0,
        part: None,
        confidence: Confidence::High,
        what: "connections are refused, because the queue of a program is full",
        cause: "A program accepts connections slower than they come. What does not fit into its \
                queue is dropped without a word, and its client tries again after 1, 2 and 4 s.",
        advice: "See whose queue it is: Recv-Q at or above Send-Q. Let that program accept \
                sooner, by more threads or a CPU that has time; then let it listen with a longer \
                queue, of which net.core.somaxconn is the maximum.",
        commands: &["ss -ltn"],
    },
    Reason {
        counters: &["TcpExt.TCPReqQFullDrop"],
        rate_min: 1.0,
        part: None,
        confidence: Confidence::High,
        what: "connections are refused, because too many are half open",
        cause: "More connections begin than are completed, and SYN cookies are off: a flood, or \
                clients whose answers are lost.",
        advice: "Turn SYN cookies on (net.ipv4.tcp_syncookies), and see from where they come.",
        commands: &["ss -tn state syn-recv"],
    },
    Reason {
        counters: &["TcpExt.TCPSynRetrans"],
        rate_min: 1.0,
        part: None,
        confidence: Confidence::Medium,
        what: "connections are tried again, because they get no answer",
        cause: "The other end drops them without a word: a filter, a host that is not there, or \
                the full queue of a program. Each try waits twice as long as the one before.",
        advice: "See whom they are for, and what is on the way: rules of filters at both ends, \
                and D31 and this check at the other end.",
        commands: &["ss -tn state syn-sent"],
    },
    Reason {
        counters: &["TcpExt.TCPMemoryPressures", "TcpExt.TCPAbortOnMemory", "Udp.MemErrors"],
        rate_min: 0.1,
        part: None,
        confidence: Confidence::High,
        what: "memory for sockets runs out",
        cause: "All sockets together have as much as net.ipv4.tcp_mem or udp_mem allows, in \
                pages: buffers shrink, and connections are reset or packets dropped.",
        advice: "See who holds it (mem, in pages; Recv-Q of programs that do not read), and \
                whether the machine has memory to allow more.",
        commands: &["cat /proc/net/sockstat", "ss -tanm"],
    },
    Reason {
        counters: &["Udp.RcvbufErrors"],
        rate_min: 10.0,
        part: Some((&["Udp.InDatagrams", "Udp.RcvbufErrors"], 0.001)),
        confidence: Confidence::High,
        what: "datagrams are dropped, because the buffer of their program is full",
        cause: "A program reads UDP slower than it comes, on average or while a burst lasts.",
        advice: "See whose it is (Recv-Q, and d in skmem), and whether its CPU is full. For \
                bursts: a larger SO_RCVBUF of the program, of which net.core.rmem_max is the \
                maximum, and net.core.rmem_default for those that set none.",
        commands: &["ss -uanm"],
    },
    Reason {
        counters: &["Udp.SndbufErrors"],
        rate_min: 10.0,
        part: Some((&["Udp.OutDatagrams", "Udp.SndbufErrors"], 0.001)),
        confidence: Confidence::Medium,
        what: "datagrams cannot be sent, because a buffer or a queue is full",
        cause: "A program sends UDP faster than its socket or the queue of the interface takes \
                it.",
        advice: "Let it send slower; for bursts a larger SO_SNDBUF. See which queue is full.",
        commands: &["tc -s qdisc show"],
    },
    Reason {
        counters: &["Tcp.InCsumErrors", "Udp.InCsumErrors", "Icmp.InCsumErrors"],
        rate_min: 1.0,
        part: None,
        confidence: Confidence::High,
        what: "packets come with wrong checksums",
        cause: "Something on the way changed them, or sent them before they were summed: a cable \
                or card that errs, a device or tunnel that mishandles checksum offload.",
        advice: "See from where they come, and turn checksum offload off at that end to find out \
                whether it is that (tx of ethtool -K there, and back). Errors of a link are in ip \
                -s -s link.",
        commands: &[],
    },
    Reason {
        counters: &["Ip.ReasmFails"],
        rate_min: 1.0,
        part: None,
        confidence: Confidence::High,
        what: "packets cannot be put together again, because fragments are missing",
        cause: "A fragment was lost or dropped by a filter, and the rest waited in vain for 30 s, \
                or there was no more room for fragments. One lost fragment loses a whole packet.",
        advice: "Send packets that need no fragments: find the hop that cuts them (D08), or let \
                the program send less at once.",
        commands: &[],
    },
    Reason {
        counters: &["TcpExt.IPReversePathFilter"],
        rate_min: 1.0,
        part: None,
        confidence: Confidence::High,
        what: "packets are dropped, because answers to them would leave by another interface",
        cause: "rp_filter is strict, and routes back to the sender are not by the interface that \
                the packets come in on: asymmetric routes, two links to one network, or forged \
                addresses.",
        advice: "See which senders they are (log_martians writes them to the kernel's log). If \
                the routes are meant to be so, make it loose on that interface: rp_filter=2 \
                there, of which the greater of it and conf.all counts.",
        commands: &["ip route"],
    },
    Reason {
        counters: &["Tcp.RetransSegs"],
        rate_min: 5.0,
        part: Some((&["Tcp.OutSegs", "Tcp.RetransSegs"], 0.02)),
        confidence: Confidence::Medium,
        what: "segments are sent again",
        cause: "They, or what acknowledged them, were lost on the way: in a queue that is full, \
                by a limit, on a link that errs. Each loss makes TCP slower.",
        advice: "See which connections they are of (retrans), and then where it is lost: drops \
                here (D18, D29, D30), limits at either end, and the same at the other end.",
        commands: &["ss -ti state established", "tc -s qdisc show"],
    },
];

/// Of resent segments that were first tries of connections: those are said on their own.
const FIRST_TRIES: &str = "TcpExt.TCPSynRetrans";

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let counters = &facts.counters;
    if counters.basis == Basis::SinceBoot {
        // What was lost since the boot may be long over, and rates of days say little.
        out.well("what protocols lost is only known since the boot", None);
        return Ok(());
    }
    for reason in &REASONS {
        out.add(reason.judge(counters));
    }
    out.well("protocols lose and refuse next to nothing", counters.quote("Tcp"));
    Ok(())
}

impl Reason {
    fn judge(&self, counters: &NetCounters) -> Option<Finding> {
        let count = |names: &[&str]| {
            names.iter().fold(0, |sum: u64, name| sum.saturating_add(counters.since(name)))
        };
        let mut lost = count(self.counters);
        if self.counters == ["Tcp.RetransSegs"] {
            lost = lost.saturating_sub(counters.since(FIRST_TRIES));
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
        let line = counters.quote(protocol);
        let file = line.as_ref().map(|quote| quote.file.clone()).unwrap_or_default();
        Quote { file, line: line.and_then(|quote| quote.line), text }
    }
}

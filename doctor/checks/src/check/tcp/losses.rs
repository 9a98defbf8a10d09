//! D33: packets that protocols lose or refuse, by the kernel's counters.

#[path = "losses/held.rs"]
mod held;

use crate::check::{Check, FEW, Group, Judged, MOST, Verdicts, rule};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use ringway_evidence::Quote;
use ringway_evidence::fact::{
    Basis, NetCounters, Span, TcpSynBacklog, TcpSynCookies, Tried, float, share,
};
use ringway_evidence::facts;
use ringway_evidence::parse::sockets::Sockets;

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
        cookies: Tried<TcpSynCookies>,
        backlog: Tried<TcpSynBacklog>,
        sockets: Tried<Span<Sockets>>,
    }
}

/// Something that the kernel counts when it drops or refuses.
struct Reason {
    /// Its counters, such as `Tcp.RetransSegs`; together they are what is lost.
    counters: &'static [&'static str],
    /// Counters of events that are among these, and are reasons of their own or no loss.
    except: &'static [&'static str],
    /// Events per second from which it is more than chance, if they are not most of the whole.
    rate_min: f64,
    /// The counters of the whole, and the fraction of it that matters from that rate on.
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
const REASONS: [Reason; 19] = [
    Reason {
        counters: &["TcpExt.ListenOverflows"],
        except: &[],
        rate_min: 0.5,
        part: Some((&TAKEN, 0.01)),
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
        except: &[],
        rate_min: 0.5,
        part: Some((&TAKEN, 0.01)),
        confidence: Confidence::High,
        what: "connections are refused, because too many are half open",
        cause: "More connections are started than completed, and SYN cookies are off: a flood, or \
                clients whose acknowledgements are lost.",
        advice: "Find out where the SYNs come from.",
        commands: &["ss -tn state syn-recv"],
    },
    Reason {
        counters: &[REFUSED],
        except: &["TcpExt.ListenOverflows", "TcpExt.TCPReqQFullDrop"],
        rate_min: 0.5,
        part: Some((&TAKEN, 0.01)),
        confidence: Confidence::Medium,
        what: "connections are refused here, before a program sees them",
        cause: "Most likely too many are half open: without SYN cookies, three quarters of \
                net.ipv4.tcp_max_syn_backlog are for clients that the host does not know yet. Or \
                there was no memory for them.",
        advice: "Find out whose handshakes stay half open: clients whose acknowledgements are \
                 lost, or a flood. A longer backlog (net.ipv4.tcp_max_syn_backlog, and that of \
                 the program) helps against bursts.",
        commands: &["ss -tn state syn-recv"],
    },
    Reason {
        counters: &[FIRST_TRIES],
        // The other ends of connections that this host refuses try again, and so do its own.
        except: &[REFUSED],
        rate_min: 0.5,
        part: Some((&["Tcp.ActiveOpens", "Tcp.PassiveOpens", FIRST_TRIES], 0.05)),
        confidence: Confidence::Medium,
        what: "connections are tried again, because they get no reply",
        cause: "The counter has first packets of this host (SYN) and its replies to those of \
                others (SYN-ACK). Something drops these or what comes back: a filter, a host that \
                does not exist, or the full queue of a program. Each try waits twice as long as \
                the one before.",
        advice: "Find out which they are: syn-sent are own tries, syn-recv replies to others. \
                 Then check what is on the path: filter rules at both ends, and D31 and this \
                 check at the other end.",
        commands: &["ss -tn state syn-sent", "ss -tn state syn-recv"],
    },
    Reason {
        counters: &[FAILED],
        // A scan for open ports resets what it has begun, and so do checks of load balancers.
        except: &["TcpExt.EmbryonicRsts"],
        rate_min: 2.0,
        part: Some((&["Tcp.ActiveOpens", "Tcp.PassiveOpens"], 0.1)),
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
        counters: &["TcpExt.TCPTimeWaitOverflow"],
        except: &[],
        rate_min: 0.5,
        part: Some((&["Tcp.ActiveOpens", "Tcp.PassiveOpens"], 0.01)),
        confidence: Confidence::High,
        what: "connections end without TIME_WAIT, because there are too many",
        cause: "As many as net.ipv4.tcp_max_tw_buckets allows wait already. A late segment of one \
                that did not wait may reach the next connection with its ports, or end it.",
        advice: "Let clients keep connections instead of opening new ones, or allow more \
                 (net.ipv4.tcp_max_tw_buckets); each takes some hundred bytes.",
        commands: &["ss -s"],
    },
    Reason {
        counters: &[
            "TcpExt.TCPMemoryPressures",
            "TcpExt.TCPAbortOnMemory",
            "Udp.MemErrors",
            "Udp6.MemErrors",
        ],
        except: &[],
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
        except: &[],
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
        except: &[],
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
        except: &[],
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
        except: &[],
        rate_min: 1.0,
        part: Some((&["Ip.ReasmReqds", "Ip6.ReasmReqds"], 0.001)),
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
        except: &[],
        rate_min: 1.0,
        part: Some((&["Ip.InReceives"], 0.001)),
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
        except: &[],
        rate_min: 10.0,
        part: Some((&RECEIVED, 0.001)),
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
        counters: &["IpExt.InNoRoutes", "Ip.OutNoRoutes", "Ip6.InNoRoutes"],
        except: &[],
        rate_min: 10.0,
        part: Some((
            &["Ip.InReceives", "Ip6.InReceives", "Ip.OutRequests", "Ip.OutNoRoutes"],
            0.001,
        )),
        confidence: Confidence::High,
        what: NO_ROUTE,
        cause: NO_ROUTE_CAUSE,
        advice: NO_ROUTE_ADVICE,
        commands: &["ip route show", "ip rule show"],
    },
    Reason {
        // A host without IPv6 has some whenever a program resolves a name.
        counters: &["Ip6.OutNoRoutes"],
        except: &[],
        rate_min: 10.0,
        part: None,
        confidence: Confidence::High,
        what: NO_ROUTE,
        cause: NO_ROUTE_CAUSE,
        advice: NO_ROUTE_ADVICE,
        commands: &["ip -6 route show", "ip -6 rule show"],
    },
    Reason {
        counters: &["Ip.InHdrErrors", "Ip6.InHdrErrors"],
        except: &[],
        rate_min: 10.0,
        part: Some((&RECEIVED, 0.001)),
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
        except: &[],
        rate_min: 10.0,
        part: Some((
            &["Ip.ForwDatagrams", "Ip6.OutForwDatagrams", "Ip.FragFails", "Ip6.FragFails"],
            0.001,
        )),
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
        except: &[],
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
        except: &[FIRST_TRIES, NEEDLESS],
        rate_min: 2.0,
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

const NO_ROUTE: &str = "packets are dropped, because there is no route to their destination";
const NO_ROUTE_CAUSE: &str =
    "No route matches their destination, or the route that matches says unreachable.";
const NO_ROUTE_ADVICE: &str = "Find out where they are sent (ip route get ADDRESS), and add the \
                               route or a default route, or correct the program or host that \
                               sends them.";
/// Packets that arrived.
const RECEIVED: [&str; 2] = ["Ip.InReceives", "Ip6.InReceives"];
/// Connections that failed: a scan makes some on any host, and may have no others beside them.
const FAILED: &str = "Tcp.AttemptFails";
/// Connections that others begin, accepted or refused here.
const TAKEN: [&str; 2] = ["Tcp.PassiveOpens", REFUSED];
/// Those that were refused, for whatever reason.
const REFUSED: &str = "TcpExt.ListenDrops";
/// Segments that TCP sends again.
const RESENT: &str = "Tcp.RetransSegs";
/// Of those, first packets of connections, in either direction.
const FIRST_TRIES: &str = "TcpExt.TCPSynRetrans";
/// Of those, segments that the other end already had: only late, not lost (`rfc-2883:needless`).
const NEEDLESS: &str = "TcpExt.TCPDSACKRecvSegs";

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let counters = &facts.counters;
    if counters.basis == Basis::SinceBoot {
        // What was lost since the boot may be long over, and rates of days say little.
        return out.one_sample("what protocols lose is");
    }
    for reason in &REASONS {
        let found = reason.judge(counters).map(|found| half_open(facts, found));
        let is_loss = reason.counters == [RESENT];
        out.add(found.or_else(|| is_loss.then(|| held::by_loss(facts)).flatten()));
    }
    out.well("protocols lose and refuse almost nothing", counters.quote("Tcp"));
    Ok(())
}

/// With the settings of half-open connections, if it is about these.
fn half_open(facts: &Facts, finding: Finding) -> Finding {
    if ![REFUSED, "TcpExt.TCPReqQFullDrop"].contains(&finding.subject.as_str()) {
        return finding;
    }
    let finding = finding.quote(facts.backlog.ok().map(|text| text.quote(1)));
    let Some(off) = facts.cookies.ok().filter(|text| text.number() == Ok(0)) else {
        return finding;
    };
    let knob = Knob::Sysctl { name: "net.ipv4.tcp_syncookies".to_owned() };
    finding.quote([off.quote(1)]).advise(Advice::by_change(
        "Until then turn SYN cookies on, as they are by default: connections that do not fit are \
         accepted without an entry.",
        Change::raise(knob, 0, 1),
    ))
}

impl Reason {
    fn judge(&self, counters: &NetCounters) -> Option<Finding> {
        let count = |names: &[&str]| {
            names.iter().fold(0, |sum: u64, name| sum.saturating_add(counters.since(name)))
        };
        let lost = count(self.counters).saturating_sub(count(self.except));
        let rate = float(lost) / counters.seconds;
        // Connections that fail here before they are established are not among those opened.
        let part = self.part.map(|(whole, least)| (share(lost, count(whole)).min(1.0), least));
        let is_much = rate >= self.rate_min && part.is_none_or(|(part, least)| part >= least);
        let is_most = lost >= FEW && part.is_some_and(|(part, _)| part >= MOST);
        if !is_much && (!is_most || self.counters == [FAILED]) {
            return None;
        }
        let mut summary = format!("{}: {rate:.1} a second", self.what);
        if let Some((part, _)) = part {
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

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_evidence::Source;
    use ringway_evidence::fact::Host;

    /// What is found where these counters grew by so much in five seconds, with more pieces.
    fn found(grown: &[(&str, u64)], more: &[(&str, &str)]) -> Vec<Finding> {
        let mut pieces: Vec<(String, String)> =
            more.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        for (sample, seconds) in [(1, "1.0\n"), (2, "6.0\n")] {
            let table = |start: &str| {
                let of =
                    grown.iter().filter_map(|(name, by)| Some((name.strip_prefix(start)?, by)));
                let (names, numbers): (Vec<&str>, Vec<String>) =
                    of.map(|(name, by)| (name, (by * (sample - 1)).to_string())).unzip();
                let start = start.trim_end_matches('.');
                format!("{start}: {}\n{start}: {}\n", names.join(" "), numbers.join(" "))
            };
            let path = format!("sample-{sample}");
            pieces.push((format!("{path}/monotonic"), seconds.to_owned()));
            pieces.push((format!("{path}/proc/net/snmp"), table("Ip.") + &table("Tcp.")));
            pieces.push((format!("{path}/proc/net/netstat"), table("TcpExt.")));
        }
        let found = CHECK.run(&Host::new(Source::Memory(pieces.into_iter().collect())));
        found.into_iter().filter(|one| one.severity >= Severity::Warning).collect()
    }

    #[test]
    fn a_server_that_refuses_blames_no_other_end() {
        let counters = [
            ("Tcp.ActiveOpens", 0),
            ("Tcp.PassiveOpens", 3),
            ("TcpExt.ListenOverflows", 0),
            ("TcpExt.ListenDrops", 200),
            ("TcpExt.TCPSynRetrans", 60),
        ];
        let cookies = [("proc/sys/net/ipv4/tcp_syncookies", "0\n")];
        let found = found(&counters, &cookies);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(found[0].subject, REFUSED, "{found:#?}");
        assert_eq!(found[0].advice[1].commands, ["sysctl -w net.ipv4.tcp_syncookies=1"]);
    }

    #[test]
    fn a_limit_of_what_waits_is_found() {
        let counters = [("Tcp.ActiveOpens", 300), ("TcpExt.TCPTimeWaitOverflow", 200)];
        assert!(found(&counters, &[])[0].summary.contains("without TIME_WAIT"));
        assert!(found(&[("Tcp.ActiveOpens", 300)], &[]).is_empty());
    }

    #[test]
    fn tries_count_by_their_part() {
        let tries = |opens, retried| {
            found(&[("Tcp.ActiveOpens", opens), ("TcpExt.TCPSynRetrans", retried)], &[]).len()
        };
        // One in five, though not one a second; and one in a thousand of many.
        assert_eq!((tries(20, 4), tries(50_000, 50)), (1, 0));
        // A program that tries a host that does not exist: 0.4 a second, and all of them.
        assert_eq!((tries(1, 2), tries(9, 2), tries(1, 1)), (1, 0, 0));
    }

    #[test]
    fn what_is_lost_as_a_whole_need_not_be_much() {
        let lost = |counter: &str, many: u64, beside: u64| {
            let grown = [(counter, many), ("Ip.InReceives", beside), ("Tcp.OutSegs", 0)];
            found(&grown, &[]).len()
        };
        // A ping of one packet a second without a route, and the same beside other packets.
        assert_eq!((lost("Ip.OutNoRoutes", 5, 0), lost("Ip.OutNoRoutes", 5, 900)), (1, 0));
        assert_eq!((lost("Ip.InHdrErrors", 5, 6), lost("Ip.InHdrErrors", 5, 900)), (1, 0));
        // Many, but almost none of all.
        let many = |beside| lost("Ip.InHdrErrors", 500, beside);
        assert_eq!((many(9000), many(900_000)), (1, 0));
        // Strangers who scan a host, which opens no connection itself.
        assert_eq!(found(&[("Tcp.AttemptFails", 2), ("Tcp.ActiveOpens", 2)], &[]).len(), 0);
    }

    #[test]
    fn what_others_begin_and_reset_is_no_failure_here() {
        let of_resets = |resets: u64| {
            let failed = [("Tcp.AttemptFails", 50), ("Tcp.PassiveOpens", 15)];
            found(&[&failed[..], &[("TcpExt.EmbryonicRsts", resets)]].concat(), &[])
        };
        assert!(of_resets(50).is_empty(), "a check of a load balancer");
        let failed = of_resets(0);
        assert!(failed[0].summary.ends_with("10.0 a second, 100.0 %"), "{failed:#?}");
    }

    /// A connection with one lost segment in two hundred, and so many times its shortest round
    /// trip of 10 ms.
    fn lossy(rtt: u64, congestion: &str) -> Vec<Finding> {
        let row = |busy: u64, segments: u64, resent: u64| {
            format!(
                "connections: 1 of 1\n10.0.0.1:5001 10.0.0.2:4000 {congestion} rtt={rtt}000 \
                 min_rtt=10000 snd_mss=1448 busy_time={busy} total_retrans={resent} \
                 data_segs_out={segments} bytes_acked={}\n",
                segments * 1448
            )
        };
        let (before, after) = (row(1_000_000, 2000, 10), row(6_000_000, 13_600, 68));
        found(
            &[("Tcp.OutSegs", 11_600), ("Tcp.RetransSegs", 58)],
            &[("sample-1/netlink/connections", &before), ("sample-2/netlink/connections", &after)],
        )
    }

    #[test]
    fn loss_counts_by_what_it_does_to_a_connection() {
        let held = lossy(11, "cubic");
        assert_eq!(held.len(), 1, "{held:#?}");
        assert!(held[0].summary.contains("10.0.0.2:4000 at 26.9 Mbit/s: 0.50 %"), "{held:#?}");
        assert!(lossy(30, "cubic").is_empty(), "a full queue is how TCP finds its rate");
        assert!(lossy(11, "bbr").is_empty(), "BBR does not slow down for it");
    }
}

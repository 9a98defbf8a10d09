//! Connections as `ss -timn` prints them, also with their states, owners and on two lines each, as
//! in a sos report.

use std::collections::BTreeMap;

use super::{SCALED, Socket, connection_of, percent, rate};
use crate::{Gap, Text};

/// Words about a connection that are not its congestion control.
const OPTIONS: [&str; 8] =
    ["ts", "sack", "ecn", "ecnseen", "fastopen", "send", "app_limited", "bpf_iter"];

/// All established connections of the output.
pub(super) fn connections(text: &Text) -> Result<Vec<Socket>, Gap> {
    let mut rows: Vec<(usize, Vec<&str>)> = Vec::new();
    for (line, row) in text.lines().filter(|(_, row)| !row.trim().is_empty()) {
        let words = row.split_whitespace();
        // What ss knows of a connection follows on its own line, unless -O asks otherwise.
        match rows.last_mut().filter(|_| row.starts_with([' ', '\t'])) {
            Some((_, last)) => last.extend(words),
            None => rows.push((line, words.collect())),
        }
    }
    let mut all = Vec::new();
    for (line, words) in rows {
        match words.as_slice() {
            ["Netid" | "State" | "Recv-Q", ..] => {}
            ["tcp", "ESTAB", rest @ ..] | ["ESTAB", rest @ ..] => {
                all.push(connection(text, line, rest)?);
            }
            // Another protocol or state: `-a` prints all.
            [first, ..] if first.parse::<u64>().is_err() && has_state(&words) => {}
            rest => all.push(connection(text, line, rest)?),
        }
    }
    Ok(all)
}

/// Whether a line begins with a state, perhaps after a protocol, and two queues follow.
fn has_state(words: &[&str]) -> bool {
    let is_number = |at: usize| words.get(at).is_some_and(|word| word.parse::<u64>().is_ok());
    (is_number(1) && is_number(2)) || (is_number(2) && is_number(3))
}

fn connection(text: &Text, line: usize, words: &[&str]) -> Result<Socket, Gap> {
    let [received, queued, local, peer, info @ ..] = words else {
        return Err(text.unreadable(Some(line), "expected a connection"));
    };
    let (Ok(received), Ok(queued)) = (received.parse::<u64>(), queued.parse::<u64>()) else {
        return Err(text.unreadable(Some(line), "expected two queues and two addresses"));
    };
    let value = |key: &str| info.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix(':'));
    let after = |key: &str| info.windows(2).find(|two| two[0] == key).map(|two| two[1]);
    let mut known = values(info);
    known.insert("recv_queue", received);
    known.insert("send_queue", queued);
    let is_name = |word: &&&str| word.bytes().all(|byte| byte.is_ascii_lowercase());
    let congestion = info.iter().filter(is_name).find(|word| !OPTIONS.contains(word));
    let bytes = |bits: f64| whole(bits / 8.0);
    if let Some(pacing) = after("pacing_rate") {
        let (now, most) = pacing.split_once('/').unwrap_or((pacing, ""));
        known.extend(rate(now).map(|bits| ("pacing_rate", bytes(bits))));
        known.extend(rate(most).map(|bits| ("max_pacing_rate", bytes(bits))));
    }
    Ok(Socket {
        rtt_ms: value("rtt").and_then(|rtt| rtt.split('/').next()?.parse().ok()),
        min_rtt_ms: value("minrtt").and_then(|rtt| rtt.parse().ok()),
        delivery_bits: after("delivery_rate").and_then(rate),
        rwnd_limited: percent(value("rwnd_limited")),
        sndbuf_limited: percent(value("sndbuf_limited")),
        ..connection_of(local, peer, congestion.copied().unwrap_or_default(), &known, line)
    })
}

/// What the tool calls otherwise than `struct tcp_info`; the rest has its names.
const NAMES: [(&str, &str); 5] = [
    ("mss", "snd_mss"),
    ("cwnd", "snd_cwnd"),
    ("ssthresh", "snd_ssthresh"),
    ("notsent", "notsent_bytes"),
    ("ino", "inode"),
];
/// Times in milliseconds, with fractions, that the kernel has in microseconds.
const MILLISECONDS: [(&str, &str); 2] = [("busy", "busy_time"), ("rto", "rto")];
/// Times that both have in milliseconds.
const LAST: [(&str, &str); 3] =
    [("lastsnd", "last_data_sent"), ("lastrcv", "last_data_recv"), ("lastack", "last_ack_recv")];
/// The letters of `skmem:(...)`, longest first.
const MEMORY: [(&str, &str); 9] = [
    ("rb", "rcvbuf"),
    ("tb", "sndbuf"),
    ("bl", "sk_backlog"),
    ("r", "rmem_alloc"),
    ("t", "wmem_alloc"),
    ("f", "fwd_alloc"),
    ("w", "wmem_queued"),
    ("o", "optmem"),
    ("d", "sk_drops"),
];

/// The numbers of a connection under the names and in the units of `struct tcp_info`.
fn values<'a>(info: &[&'a str]) -> BTreeMap<&'a str, u64> {
    let mut known = BTreeMap::new();
    // Without `-i` it prints nothing of this.
    if info.iter().any(|word| word.starts_with("rtt:")) {
        let is_scaled = info.iter().any(|word| word.starts_with("wscale:"));
        known.insert("options", if is_scaled { SCALED } else { 0 });
    }
    for word in info {
        if *word == "app_limited" {
            known.insert("app_limited", 1);
        }
        let Some((name, value)) = word.split_once(':') else { continue };
        let named = |names: &[(&str, &'static str)]| {
            names.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| *ours)
        };
        let ms = || value.trim_end_matches("ms").parse::<f64>().ok();
        match name {
            "skmem" => known.extend(memory(value).collect::<Vec<(&str, u64)>>()),
            // What is on its way again now, and all ever.
            "retrans" => {
                let (now, ever) = value.split_once('/').unwrap_or((value, ""));
                known.extend(now.parse().map(|count| ("retrans", count)));
                known.extend(ever.parse().map(|count| ("total_retrans", count)));
            }
            // The tool prints no `retransmits`; both count timeouts in a row.
            "backoff" => {
                known.insert("retransmits", value.parse().unwrap_or(0));
            }
            _ => match (named(&MILLISECONDS), named(&LAST), named(&NAMES)) {
                (Some(ours), ..) => known.extend(ms().map(|ms| (ours, whole(ms * 1000.0)))),
                (_, Some(ours), _) => known.extend(ms().map(|ms| (ours, whole(ms)))),
                (.., ours) => {
                    known.extend(value.parse().map(|value| (ours.unwrap_or(name), value)));
                }
            },
        }
    }
    known
}

/// The numbers in `(r0,rb131072,t0,...)`.
fn memory(value: &str) -> impl Iterator<Item = (&'static str, u64)> {
    let inside = value.trim_matches(['(', ')']);
    inside.split(',').filter_map(|word| {
        MEMORY
            .iter()
            .find_map(|(letters, name)| Some((*name, word.strip_prefix(letters)?.parse().ok()?)))
    })
}

/// A positive number without its fraction.
fn whole(number: f64) -> u64 {
    format!("{:.0}", number.max(0.0)).parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::{Counters, Sockets};
    use crate::Text;

    fn read(text: &str) -> Sockets {
        Sockets::parse(&Text::new("ss", text)).expect("sound")
    }

    #[test]
    fn both_windows_and_the_memory_of_a_connection_are_read() {
        let sockets = read(
            "0 2896 10.0.0.1:5001 10.0.0.2:4000 ino:77 sk:1 <-> \
             skmem:(r10,rb131072,t20,tb87040,f1,w2,o0,bl3,d4) ts sack ecn bbr wscale:7,7 rto:204 \
             backoff:5 rtt:0.321/0.1 ato:40 mss:1448 pmtu:1500 rcvmss:536 advmss:1448 cwnd:10 \
             ssthresh:20 bytes_acked:5 segs_out:9 send 1.2Mbps lastsnd:4 lastack:7 pacing_rate \
             2.4Mbps/8Mbps delivery_rate 3Mbps delivered:8 delivered_ce:1 app_limited busy:9ms \
             unacked:4 retrans:1/3 reord_seen:6 rcv_rtt:1.5 rcv_space:14480 rcv_ssthresh:64088 \
             snd_wnd:65536 rcv_wnd:64512\n",
        );
        let socket = &sockets.all[0];
        let more = &socket.more;
        assert_eq!(socket.congestion, "bbr");
        assert_eq!((more.snd_wnd, more.rcv_wnd, more.rcv_ssthresh), (65536, 64512, 64088));
        assert_eq!((more.rcvbuf, more.sndbuf, more.rmem_alloc), (131_072, 87040, 10));
        assert_eq!((more.retransmits, more.rto, more.last_ack_recv), (5, 204_000, 7));
        assert_eq!((more.pacing_rate, more.max_pacing_rate), (300_000, 1_000_000));
        assert_eq!((more.total_retrans, more.reord_seen, more.delivered_ce), (3, 6, 1));
        assert_eq!((more.advmss, more.pmtu, more.inode), (1448, 1500, 77));
        assert!(more.is_app_limited && socket.gets_no_acknowledgement());
    }

    #[test]
    fn connections_on_two_lines_among_other_sockets_are_read() {
        let sockets = read(
            "Netid State Recv-Q Send-Q Local Address:Port Peer Address:PortProcess\n\
             udp   UNCONN 0 0 127.0.0.1:323 0.0.0.0:* users:((\"chronyd\",pid=7,fd=5))\n\
             \t skmem:(r0,rb212992,t0,tb212992,f0,w0,o0,bl0,d0)\n\
             tcp   LISTEN 0 128 0.0.0.0:22 0.0.0.0:* users:((\"sshd\",pid=8,fd=3)) ino:9 sk:1 <->\n\
             \t skmem:(r0,rb131072,t0,tb16384,f0,w0,o0,bl0,d0) cubic cwnd:10\n\
             tcp   ESTAB 0 36 10.0.0.1:22 10.0.0.2:55 timer:(on,204ms,0) ino:12 sk:2 <->\n\
             \t skmem:(r0,rb131072,t0,tb87040,f0,w0,o0,bl0,d0) ts sack cubic mss:1448 rcv_wnd:3\n",
        );
        let [socket] = sockets.all.as_slice() else { panic!("{sockets:?}") };
        assert_eq!((socket.peer.as_str(), socket.line, socket.mss), ("10.0.0.2:55", 6, 1448));
        assert_eq!((socket.more.rcv_wnd, socket.more.inode), (3, 12));
        assert_eq!(socket.congestion, "cubic");
    }
}

//! TCP connections and what holds them up, a line each: as the kernel says them over netlink, and
//! as `ss -tinHO` prints them.

use std::collections::BTreeMap;

use super::{Counters, reply_lines};
use crate::number::{float, share};
use crate::{Gap, Text};

/// All established connections.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sockets {
    /// In the order of the text.
    pub all: Vec<Socket>,
}

/// One connection.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Socket {
    /// This end, address and port.
    pub local: String,
    /// The other end, address and port.
    pub peer: String,
    /// Its congestion control, such as `bbr`.
    pub congestion: String,
    /// The smoothed round trip in milliseconds.
    pub rtt_ms: Option<f64>,
    /// The shortest round trip of the last minutes, in milliseconds: without what waited.
    pub min_rtt_ms: Option<f64>,
    /// How fast what was sent arrived of late, in bit/s.
    pub delivery_bits: Option<f64>,
    /// How long there was something to send, in milliseconds.
    pub busy_ms: f64,
    /// Part of that in which the receiver's window was full.
    pub rwnd_limited: f64,
    /// Part of that in which the send buffer was full.
    pub sndbuf_limited: f64,
    /// Bytes that the other end acknowledged, and those that came from it.
    pub moved_bytes: u64,
    /// Bytes in a packet.
    pub mss: u64,
    /// Packets that congestion control lets travel at a time.
    pub cwnd: u64,
    /// Packets that travel.
    pub unacked: u64,
    /// Bytes that wait to be sent for the first time.
    pub notsent_bytes: u64,
    /// What more the kernel says of it, by the names of `struct tcp_info`; nothing in what `ss`
    /// printed.
    pub more: More,
    /// In the output.
    pub line: usize,
}

/// What the kernel says of a connection over netlink, and no other record has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct More {
    /// Timeouts in a row.
    pub retransmits: u64,
    /// Segments that were sent again, all in all.
    pub total_retrans: u64,
    /// Segments that were sent, all in all.
    pub segs_out: u64,
    /// Bytes a second that its program or congestion control lets it send.
    pub pacing_rate: u64,
    /// The same by its program alone; the largest number stands for no limit.
    pub max_pacing_rate: u64,
    /// Times that segments overtook one another.
    pub reord_seen: u64,
    /// Segments that arrived.
    pub delivered: u64,
    /// Segments of which a queue on the way said that it gets full.
    pub delivered_ce: u64,
    /// The longest packet that the path takes, as far as it is known.
    pub pmtu: u64,
    /// Bytes that wait for the program here.
    pub recv_queue: u64,
    /// Bytes that were acknowledged.
    pub bytes_acked: u64,
    /// Bytes that came.
    pub bytes_received: u64,
    /// The window that the other end offers; 0 as well if the kernel does not say it.
    pub snd_wnd: u64,
    /// Whether its program gave it less to send than could have been on its way, of late.
    pub is_app_limited: bool,
    /// The number of the socket.
    pub inode: u64,
}

/// Timeouts in a row from which it is not a loss: half a minute without a reply follows.
const TIMEOUTS_MIN: u64 = 3;

impl Socket {
    /// Whether it sends the same again and again, and nothing acknowledges it.
    pub fn gets_no_acknowledgement(&self) -> bool {
        self.more.retransmits >= TIMEOUTS_MIN && self.unacked > 0
    }

    /// Bytes a second that its program lets it send, if that set a limit.
    pub fn program_limit(&self) -> Option<u64> {
        // The largest numbers of 32 and 64 bits stand for none.
        Some(self.more.max_pacing_rate).filter(|limit| (1..u64::from(u32::MAX)).contains(limit))
    }

    /// Whether its other end is this host.
    pub fn is_local(&self) -> bool {
        ["127.", "[::1]", "[::ffff:127."].iter().any(|start| self.peer.starts_with(start))
    }
}

impl Sockets {
    /// The same connection in another sample.
    pub fn same(&self, socket: &Socket) -> Option<&Socket> {
        self.all.iter().find(|one| one.local == socket.local && one.peer == socket.peer)
    }
}

impl Counters for Sockets {
    fn parse(text: &Text) -> Result<Sockets, Gap> {
        if let Some(rows) = reply_lines(text, "connections")? {
            let all = rows.iter().map(|(line, row)| connection(text, *line, row));
            return Ok(Sockets { all: all.collect::<Result<_, _>>()? });
        }
        let mut all = Vec::new();
        for (line, row) in text.lines().filter(|(_, row)| !row.trim().is_empty()) {
            let words: Vec<&str> = row.split_whitespace().collect();
            let [received, queued, local, peer, info @ ..] = words.as_slice() else {
                return Err(text.unreadable(Some(line), "expected a connection"));
            };
            if received.parse::<u64>().is_err() || queued.parse::<u64>().is_err() {
                return Err(text.unreadable(Some(line), "expected two queues and two addresses"));
            }
            let value = |key: &str| info.iter().find_map(|word| word.strip_prefix(key));
            let rtt = value("rtt:").and_then(|rtt| rtt.split('/').next()?.parse().ok());
            let min_rtt = value("minrtt:").and_then(|rtt| rtt.parse().ok());
            let delivered = info.windows(2).find(|two| two[0] == "delivery_rate");
            let busy = value("busy:").and_then(|busy| busy.trim_end_matches("ms").parse().ok());
            let number = |key| value(key).and_then(|value| value.parse().ok()).unwrap_or(0_u64);
            let is_name = |word: &&&str| word.bytes().all(|byte| byte.is_ascii_lowercase());
            all.push(Socket {
                local: (*local).to_owned(),
                peer: (*peer).to_owned(),
                // The first word without a value, but for options of the connection.
                congestion: info
                    .iter()
                    .filter(is_name)
                    .find(|word| !["ts", "sack", "ecn", "ecnseen", "fastopen"].contains(word))
                    .map(|word| (*word).to_owned())
                    .unwrap_or_default(),
                rtt_ms: rtt,
                min_rtt_ms: min_rtt,
                delivery_bits: delivered.and_then(|two| rate(two[1])),
                busy_ms: busy.unwrap_or(0.0),
                rwnd_limited: percent(value("rwnd_limited:")),
                sndbuf_limited: percent(value("sndbuf_limited:")),
                moved_bytes: number("bytes_acked:").saturating_add(number("bytes_received:")),
                mss: number("mss:"),
                cwnd: number("cwnd:"),
                unacked: number("unacked:"),
                notsent_bytes: number("notsent:"),
                more: More::default(),
                line,
            });
        }
        Ok(Sockets { all })
    }
}

/// The bits a second of `9.41Gbps`, or of `9410000000bps`.
fn rate(word: &str) -> Option<f64> {
    let number = word.strip_suffix("bps")?;
    let (number, factor) = match number.char_indices().next_back()? {
        (at, 'K') => (&number[..at], 1e3),
        (at, 'M') => (&number[..at], 1e6),
        (at, 'G') => (&number[..at], 1e9),
        _ => (number, 1.0),
    };
    let rate = number.parse::<f64>().ok()? * factor;
    (rate.is_finite() && rate >= 0.0).then_some(rate)
}

/// A connection as the kernel says it; what an old kernel does not know counts as 0.
fn connection(text: &Text, line: usize, row: &str) -> Result<Socket, Gap> {
    let words: Vec<&str> = row.split_whitespace().collect();
    let [local, peer, congestion, info @ ..] = words.as_slice() else {
        return Err(text.unreadable(Some(line), "expected a connection"));
    };
    let mut known = BTreeMap::new();
    for word in info {
        let pair = word.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
        let (name, value): (&str, u64) =
            pair.ok_or_else(|| text.unreadable(Some(line), "expected names and numbers"))?;
        known.insert(name, value);
    }
    let number = |name: &str| known.get(name).copied().unwrap_or(0);
    let known_us = |name| Some(number(name)).filter(|us| *us > 0 && *us < u64::from(u32::MAX));
    let (rtt_us, busy_us) = (number("rtt"), number("busy_time"));
    Ok(Socket {
        local: (*local).to_owned(),
        peer: (*peer).to_owned(),
        congestion: (*congestion).to_owned(),
        rtt_ms: (rtt_us > 0).then(|| float(rtt_us) / 1000.0),
        // The kernel says the largest number where it has none.
        min_rtt_ms: known_us("min_rtt").map(|us| float(us) / 1000.0),
        delivery_bits: known.get("delivery_rate").map(|bytes| float(*bytes) * 8.0),
        busy_ms: float(busy_us) / 1000.0,
        rwnd_limited: share(number("rwnd_limited"), busy_us).min(1.0),
        sndbuf_limited: share(number("sndbuf_limited"), busy_us).min(1.0),
        moved_bytes: number("bytes_acked").saturating_add(number("bytes_received")),
        mss: number("snd_mss"),
        cwnd: number("snd_cwnd"),
        unacked: number("unacked"),
        notsent_bytes: number("notsent_bytes"),
        more: More {
            retransmits: number("retransmits"),
            total_retrans: number("total_retrans"),
            segs_out: number("segs_out"),
            pacing_rate: number("pacing_rate"),
            max_pacing_rate: number("max_pacing_rate"),
            reord_seen: number("reord_seen"),
            delivered: number("delivered"),
            delivered_ce: number("delivered_ce"),
            pmtu: number("pmtu"),
            recv_queue: number("recv_queue"),
            bytes_acked: number("bytes_acked"),
            bytes_received: number("bytes_received"),
            snd_wnd: number("snd_wnd"),
            is_app_limited: number("app_limited") == 1,
            inode: number("inode"),
        },
        line,
    })
}

/// The percentage in `1234ms(56.7%)`, as a part of 1.
fn percent(value: Option<&str>) -> f64 {
    let inside = value.and_then(|value| value.split_once('(')).map(|(_, rest)| rest);
    let number = inside.and_then(|rest| rest.trim_end_matches([')', '%']).parse::<f64>().ok());
    number.filter(|number| (0.0..=100.0).contains(number)).unwrap_or(0.0) / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_and_the_tool_say_the_same() {
        let kernel = "connections: 1 of 1\n10.0.0.1:5001 10.0.0.2:4000 bbr rtt=321 snd_mss=1448 \
                      unacked=4 snd_cwnd=10 bytes_acked=5 bytes_received=6 busy_time=9000000 \
                      rwnd_limited=4500000\n";
        let tool = "0 2896 10.0.0.1:5001 10.0.0.2:4000 ts sack bbr rtt:0.321/0.1 mss:1448 \
                    cwnd:10 bytes_acked:5 bytes_received:6 unacked:4 busy:9000ms \
                    rwnd_limited:4500ms(50.0%)\n";
        let read = |text| Sockets::parse(&Text::new("t", text)).expect("sound").all.remove(0);
        let Socket { more, .. } = read(kernel);
        assert_eq!(read(kernel), Socket { line: 2, more, ..read(tool) });
    }

    #[test]
    fn what_limits_a_connection_is_read() {
        let text = "0 2896 10.0.0.1:5001 10.0.0.2:4000 ts sack bbr wscale:7,7 rto:204 \
                    rtt:0.321/0.1 busy:9000ms rwnd_limited:4500ms(50.0%)\n";
        let read = Sockets::parse(&Text::new("ss", text)).expect("sound");
        let socket = &read.all[0];
        assert_eq!((socket.peer.as_str(), socket.congestion.as_str()), ("10.0.0.2:4000", "bbr"));
        assert_eq!(socket.rtt_ms, Some(0.321));
        assert!((socket.rwnd_limited - 0.5).abs() < 1e-9);
        assert_eq!(socket.sndbuf_limited, 0.0);
    }

    #[test]
    fn rates_have_units() {
        assert_eq!(rate("941.5Mbps"), Some(941.5e6));
        assert_eq!(rate("9410000000bps"), Some(9.41e9));
        for word in ["", "bps", "Gbps", "-1bps", "infbps", "1Gbit"] {
            assert_eq!(rate(word), None, "{word}");
        }
        let text = "0 0 10.0.0.1:1 10.0.0.2:2 cubic rtt:20.5/1 send 4Mbps delivery_rate 3.9Mbps \
                    busy:1ms minrtt:20.1\n";
        let read = Sockets::parse(&Text::new("ss", text)).expect("sound");
        assert_eq!((read.all[0].min_rtt_ms, read.all[0].delivery_bits), (Some(20.1), Some(3.9e6)));
    }
}

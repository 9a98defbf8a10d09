//! TCP connections and what limits them: from netlink, or as `ss` prints them.

mod ss;

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
    /// The shortest round trip of the last minutes, in milliseconds: without queueing.
    pub min_rtt_ms: Option<f64>,
    /// The most recent delivery rate, in bit/s.
    pub delivery_bits: Option<f64>,
    /// Time with data to send, in milliseconds.
    pub busy_ms: f64,
    /// Fraction of that time limited by the receiver's window.
    pub rwnd_limited: f64,
    /// Fraction of that time limited by the send buffer.
    pub sndbuf_limited: f64,
    /// Bytes that the other end acknowledged, plus bytes received from it.
    pub moved_bytes: u64,
    /// Bytes in a packet.
    pub mss: u64,
    /// The congestion window, in packets.
    pub cwnd: u64,
    /// Packets in flight.
    pub unacked: u64,
    /// Bytes that have not been sent yet.
    pub notsent_bytes: u64,
    /// Further fields of `struct tcp_info` and of `ss -m`, under the same names; 0 if missing.
    pub more: More,
    /// Its line in the output.
    pub line: usize,
}

/// Further fields of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct More {
    /// Consecutive timeouts.
    pub retransmits: u64,
    /// Microseconds from one retransmission to the next.
    pub rto: u64,
    /// Milliseconds since the last acknowledgement.
    pub last_ack_recv: u64,
    /// Segments that arrived although one before them did not.
    pub sacked: u64,
    /// Retransmitted segments in total.
    pub total_retrans: u64,
    /// The pacing rate in bytes per second, set by its program or by congestion control.
    pub pacing_rate: u64,
    /// The program's limit of the pacing rate; the largest number means no limit.
    pub max_pacing_rate: u64,
    /// Reordering events.
    pub reord_seen: u64,
    /// Segments delivered.
    pub delivered: u64,
    /// Segments delivered with an ECN congestion mark.
    pub delivered_ce: u64,
    /// The known path MTU.
    pub pmtu: u64,
    /// Bytes in a packet that this end announced to be able to receive.
    pub advmss: u64,
    /// Bytes that the program here has not read yet.
    pub recv_queue: u64,
    /// Bytes that were not acknowledged yet, sent or not.
    pub send_queue: u64,
    /// Bytes that were acknowledged.
    pub bytes_acked: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Segments with data sent, also those that were sent again.
    pub data_segs_out: u64,
    /// The window that the other end offers; also 0 if the kernel does not report it.
    pub snd_wnd: u64,
    /// The window that this end offers; also 0 if the kernel does not report it (before Linux 6.2).
    pub rcv_wnd: u64,
    /// The largest window that this end would offer now.
    pub rcv_ssthresh: u64,
    /// Memory of what has arrived and was not read.
    pub rmem_alloc: u64,
    /// The size of the receive buffer; 0 if it was not recorded.
    pub rcvbuf: u64,
    /// The size of the send buffer; 0 if it was not recorded.
    pub sndbuf: u64,
    /// Whether both ends agreed to scale their windows; `None` if nothing says so.
    pub is_scaled: Option<bool>,
    /// Whether the program recently supplied less data than the connection could have sent.
    pub is_app_limited: bool,
    /// The inode of the socket.
    pub inode: u64,
}

/// With this many consecutive timeouts it is not just packet loss: the next one comes after half a
/// minute without a reply.
const TIMEOUTS_MIN: u64 = 3;

impl Socket {
    /// Whether it keeps retransmitting without any acknowledgement.
    pub fn gets_no_acknowledgement(&self) -> bool {
        self.more.retransmits >= TIMEOUTS_MIN && self.unacked > 0
    }

    /// The program's rate limit in bytes per second, if it set one.
    pub fn program_limit(&self) -> Option<u64> {
        // The largest 32-bit and 64-bit numbers mean no limit.
        Some(self.more.max_pacing_rate).filter(|limit| (1..u64::from(u32::MAX)).contains(limit))
    }

    /// Whether its other end is this host, as far as the addresses show it.
    pub fn is_local(&self) -> bool {
        let host = |end: &str| end.rsplit_once(':').map(|(host, _)| host.to_owned());
        let is_same = host(&self.local).is_some_and(|own| host(&self.peer) == Some(own));
        let loopback = ["127.", "[::1]", "[::ffff:127."];
        is_same || loopback.iter().any(|start| self.peer.starts_with(start))
    }
}

impl Sockets {
    /// This connection in another sample.
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
        ss::connections(text).map(|all| Sockets { all })
    }
}

/// Parses `9.41Gbps` or `9410000000bps` to bit/s.
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

/// Parses a connection from netlink; fields that an old kernel lacks are 0.
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
    Ok(connection_of(local, peer, congestion, &known, line))
}

/// A connection from the fields of its `struct tcp_info` and its memory; missing ones are 0.
fn connection_of(
    local: &str,
    peer: &str,
    congestion: &str,
    known: &BTreeMap<&str, u64>,
    line: usize,
) -> Socket {
    let number = |name: &str| known.get(name).copied().unwrap_or(0);
    let known_us = |name| Some(number(name)).filter(|us| *us > 0 && *us < u64::from(u32::MAX));
    let (rtt_us, busy_us) = (number("rtt"), number("busy_time"));
    Socket {
        local: local.to_owned(),
        peer: peer.to_owned(),
        congestion: congestion.to_owned(),
        rtt_ms: (rtt_us > 0).then(|| float(rtt_us) / 1000.0),
        // The kernel reports the largest number if it has no value.
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
        more: more_of(number, known.get("options").map(|options| options & SCALED > 0)),
        line,
    }
}

/// What is known of a connection beside that.
fn more_of(number: impl Fn(&str) -> u64, is_scaled: Option<bool>) -> More {
    More {
        retransmits: number("retransmits"),
        rto: number("rto"),
        last_ack_recv: number("last_ack_recv"),
        sacked: number("sacked"),
        total_retrans: number("total_retrans"),
        pacing_rate: number("pacing_rate"),
        max_pacing_rate: number("max_pacing_rate"),
        reord_seen: number("reord_seen"),
        delivered: number("delivered"),
        delivered_ce: number("delivered_ce"),
        pmtu: number("pmtu"),
        advmss: number("advmss"),
        recv_queue: number("recv_queue"),
        send_queue: number("send_queue"),
        bytes_acked: number("bytes_acked"),
        bytes_received: number("bytes_received"),
        data_segs_out: number("data_segs_out"),
        snd_wnd: number("snd_wnd"),
        rcv_wnd: number("rcv_wnd"),
        rcv_ssthresh: number("rcv_ssthresh"),
        rmem_alloc: number("rmem_alloc"),
        rcvbuf: number("rcvbuf"),
        sndbuf: number("sndbuf"),
        is_scaled,
        is_app_limited: number("app_limited") == 1,
        inode: number("inode"),
    }
}

/// `TCPI_OPT_WSCALE` of `linux/tcp.h`.
const SCALED: u64 = 4;

/// The percentage in `1234ms(56.7%)`, from 0 to 1.
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
                      rwnd_limited=4500000 options=4\n";
        let tool = "0 2896 10.0.0.1:5001 10.0.0.2:4000 ts sack bbr wscale:7,7 \
                    rtt:0.321/0.1 mss:1448 cwnd:10 bytes_acked:5 bytes_received:6 unacked:4 \
                    busy:9000ms rwnd_limited:4500ms(50.0%)\n";
        let read = |text: &str| Sockets::parse(&Text::new("t", text)).expect("sound").all.remove(0);
        let more = More { send_queue: 0, ..read(tool).more };
        assert_eq!(read(kernel), Socket { line: 2, more, ..read(tool) });
        assert_eq!(read(tool).more.is_scaled, Some(true));
        let scaled = |text: &str| read(text).more.is_scaled;
        assert_eq!(scaled(&tool.replace("wscale:7,7", "rto:204")), Some(false));
        assert_eq!(scaled(&kernel.replace("options=4", "options=11")), Some(false));
        assert_eq!(scaled(&kernel.replace(" options=4", "")), None);
        assert_eq!(scaled("0 0 10.0.0.1:1 10.0.0.2:2 cubic\n"), None, "the tool was not asked");
    }

    #[test]
    fn a_connection_from_an_address_to_itself_stays_on_the_host() {
        let is_local = |local: &str, peer: &str| {
            Socket { local: local.to_owned(), peer: peer.to_owned(), ..Socket::default() }
                .is_local()
        };
        for (local, peer) in [
            ("127.0.0.1:4000", "127.0.0.53:53"),
            ("192.0.2.1:4000", "192.0.2.1:80"),
            ("[2001:db8::1]:4000", "[2001:db8::1]:80"),
        ] {
            assert!(is_local(local, peer), "{local} {peer}");
        }
        assert!(!is_local("192.0.2.1:4000", "192.0.2.10:4000"));
        assert!(!is_local("[2001:db8::1]:4000", "[2001:db8::1:1]:80"));
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

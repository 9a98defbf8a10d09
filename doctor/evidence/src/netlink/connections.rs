//! TCP connections, over sock_diag: the same source and data as `ss -ti`.
//!
//! `struct tcp_info` is read from its bytes, because it has grown with the kernel: fields that an
//! older kernel lacks are left out.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::net::{IpAddr, SocketAddr};

use super::file;
use super::sock_diag::{
    ALL, CLOSE, CONGESTION, ESTABLISHED, INFO, LISTEN, MEMORY, TcpSocket, each, number,
};

/// Connections that are recorded: those that were busy the longest. A proxy may have a million.
const CONNECTIONS_MAX: usize = 4096;
/// Destinations that are recorded: those with the most connections.
const DESTINATIONS_MAX: usize = 16;

/// All established connections, as a file of the record.
///
/// # Errors
/// The kernel's error: `NotFound` if it was built without sock_diag.
pub(crate) fn connections() -> io::Result<String> {
    let mut kept = Kept::default();
    kept.is_late = each(ESTABLISHED, &[INFO, CONGESTION, MEMORY], |socket| kept.take(socket))?;
    Ok(kept.finish())
}

/// Listening sockets, as a file of the record: how many connections wait for the program, how many
/// may, and the inode of the socket.
///
/// # Errors
/// The kernel's error.
pub(crate) fn listeners() -> io::Result<String> {
    let mut lines = Vec::new();
    each(LISTEN, &[], |socket| {
        let TcpSocket { local, recv_queue, send_queue, inode, .. } = socket;
        if lines.len() < CONNECTIONS_MAX {
            lines.push(format!("{local} {recv_queue} {send_queue} {inode}"));
        }
    })?;
    Ok(file(format_args!("listeners: {}", lines.len()), &lines))
}

/// The destinations of most connections in any state, as a file of the record: this end without its
/// port, the other end, and how many ports they use.
///
/// # Errors
/// The kernel's error.
pub(crate) fn destinations() -> io::Result<String> {
    let mut counts: BTreeMap<(IpAddr, SocketAddr), u64> = BTreeMap::new();
    each(ALL & !LISTEN & !CLOSE, &[], |socket| {
        *counts.entry((socket.local.ip(), socket.peer)).or_default() += 1;
    })?;
    let mut counts: Vec<(u64, (IpAddr, SocketAddr))> =
        counts.into_iter().map(|(ends, count)| (count, ends)).collect();
    counts.sort_by(|a, b| b.cmp(a));
    counts.truncate(DESTINATIONS_MAX);
    let line =
        |(count, (local, peer)): &(u64, (IpAddr, SocketAddr))| format!("{local} {peer} {count}");
    let lines: Vec<String> = counts.iter().map(line).collect();
    Ok(file(format_args!("destinations: {}", lines.len()), &lines))
}

/// The busiest connections so far.
#[derive(Debug, Default)]
struct Kept {
    /// For each: its busy time in microseconds, the bytes that it moved, and its line.
    lines: Vec<(u64, u64, String)>,
    seen: usize,
    is_late: bool,
}

impl Kept {
    fn take(&mut self, socket: &TcpSocket) {
        let info = socket.attribute(INFO);
        let value = |wanted| {
            let field = FIELDS.iter().find(|(name, ..)| *name == wanted);
            field.and_then(|(_, at, len)| number(info, *at, *len)).unwrap_or(0)
        };
        let moved = value("bytes_acked").saturating_add(value("bytes_received"));
        self.lines.push((value("busy_time"), moved, line(socket, info)));
        self.seen += 1;
        if self.lines.len() >= 2 * CONNECTIONS_MAX {
            self.shrink();
        }
    }

    /// Drops all but the busiest.
    fn shrink(&mut self) {
        self.lines.sort_by_key(|(busy, moved, _)| Reverse((*busy, *moved)));
        self.lines.truncate(CONNECTIONS_MAX);
    }

    fn finish(mut self) -> String {
        self.shrink();
        let (count, seen) = (self.lines.len(), self.seen);
        let more = if self.is_late { " or more" } else { "" };
        let lines: Vec<String> = self.lines.into_iter().map(|(_, _, line)| line).collect();
        file(format_args!("connections: {count} of {seen}{more}"), &lines)
    }
}

/// Both ends, the congestion control, and all known fields by name.
fn line(socket: &TcpSocket, info: &[u8]) -> String {
    let TcpSocket { local, peer, recv_queue, send_queue, inode, .. } = socket;
    let congestion = String::from_utf8_lossy(socket.attribute(CONGESTION));
    let congestion = congestion.trim_end_matches('\0');
    let congestion = if congestion.is_empty() { "-" } else { congestion };
    let mut line = format!("{local} {peer} {congestion}");
    for (name, at, len) in FIELDS {
        if let Some(number) = number(info, at, len) {
            write!(line, " {name}={number}").expect("a String takes all");
        }
    }
    write!(line, " recv_queue={recv_queue} send_queue={send_queue} inode={inode}")
        .expect("a String takes all");
    let memory = socket.attribute(MEMORY).chunks_exact(4);
    // Before Linux 4.10 there are fewer, and readers expect all.
    if memory.len() >= MEMORY_FIELDS.len() {
        for (name, word) in MEMORY_FIELDS.iter().zip(memory) {
            let number = number(word, 0, 4).unwrap_or_default();
            write!(line, " {name}={number}").expect("a String takes all");
        }
    }
    // Two bit fields in a byte; the first is in the low half on the machines that we support.
    if let Some(scales) = number(info, WSCALES_AT, 1) {
        write!(line, " snd_wscale={} rcv_wscale={}", scales & 15, scales >> 4)
            .expect("a String takes all");
    }
    if let Some(bits) = number(info, APP_LIMITED_AT, 1) {
        write!(line, " app_limited={}", bits & 1).expect("a String takes all");
    }
    line
}

const WSCALES_AT: usize = 6;
/// `delivery_rate_app_limited`, a bit of this byte.
const APP_LIMITED_AT: usize = 7;

/// The array of `SK_MEMINFO_VARS` numbers of `linux/sock_diag.h`.
const MEMORY_FIELDS: [&str; 9] = [
    "rmem_alloc",
    "rcvbuf",
    "wmem_alloc",
    "sndbuf",
    "fwd_alloc",
    "wmem_queued",
    "optmem",
    "sk_backlog",
    "sk_drops",
];

/// `struct tcp_info` of `linux/tcp.h`: names without their prefix, offsets and lengths in bytes.
/// Times are in microseconds (`last_*` in milliseconds), rates in bytes a second.
const FIELDS: [(&str, usize, usize); 46] = [
    ("ca_state", 1, 1),
    ("retransmits", 2, 1),
    ("backoff", 4, 1),
    ("options", 5, 1),
    ("rto", 8, 4),
    ("snd_mss", 16, 4),
    ("rcv_mss", 20, 4),
    ("unacked", 24, 4),
    ("sacked", 28, 4),
    ("lost", 32, 4),
    ("retrans", 36, 4),
    ("last_data_sent", 44, 4),
    ("last_data_recv", 52, 4),
    ("last_ack_recv", 56, 4),
    ("pmtu", 60, 4),
    ("rcv_ssthresh", 64, 4),
    ("rtt", 68, 4),
    ("rttvar", 72, 4),
    ("snd_ssthresh", 76, 4),
    ("snd_cwnd", 80, 4),
    ("advmss", 84, 4),
    ("reordering", 88, 4),
    ("rcv_rtt", 92, 4),
    ("rcv_space", 96, 4),
    ("total_retrans", 100, 4),
    ("pacing_rate", 104, 8),
    ("max_pacing_rate", 112, 8),
    ("bytes_acked", 120, 8),
    ("bytes_received", 128, 8),
    ("segs_out", 136, 4),
    ("segs_in", 140, 4),
    ("notsent_bytes", 144, 4),
    ("min_rtt", 148, 4),
    ("data_segs_in", 152, 4),
    ("data_segs_out", 156, 4),
    ("delivery_rate", 160, 8),
    ("busy_time", 168, 8),
    ("rwnd_limited", 176, 8),
    ("sndbuf_limited", 184, 8),
    ("delivered", 192, 4),
    ("delivered_ce", 196, 4),
    ("bytes_sent", 200, 8),
    ("bytes_retrans", 208, 8),
    ("reord_seen", 220, 4),
    ("snd_wnd", 228, 4),
    ("rcv_wnd", 232, 4),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_kernel_knows_less() {
        let mut info = vec![0; 104];
        info[68..72].copy_from_slice(&321_u32.to_le_bytes());
        info[WSCALES_AT] = 0x97;
        assert_eq!(number(&info, 68, 4), Some(321));
        assert_eq!(number(&info, 168, 8), None);
        assert_eq!(number(&info, 100, 8), None, "not half of it");
        let last = FIELDS.iter().map(|(_, at, len)| at + len).max();
        assert_eq!(last, Some(236));
        let is_apart = |pair: &[(&str, usize, usize)]| pair[0].1 + pair[0].2 <= pair[1].1;
        assert!(FIELDS.windows(2).all(is_apart), "no field covers another");
    }

    #[test]
    fn the_busiest_are_kept() {
        let mut kept = Kept::default();
        for busy in 0..3 * u64::try_from(CONNECTIONS_MAX).expect("small") {
            kept.lines.push((busy, 0, format!("line {busy}")));
            kept.seen += 1;
        }
        let text = kept.finish();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("connections: 4096 of 12288"));
        assert_eq!(lines.next(), Some("line 12287"));
        assert_eq!(lines.last(), Some("line 8192"));
    }
}

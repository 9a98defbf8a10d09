//! D11: connections that wait for a window or a buffer instead of the network.

use super::{Check, Group, Looked, all_well};
use crate::evidence::Text;
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity};
use crate::host::{Host, float};
use crate::parse::Counters;
use crate::parse::sockets::{Socket, Sockets};

pub(super) const CHECK: Check = Check {
    id: "D11",
    title: "the TCP window is too small for the path",
    group: Group::Tcp,
    rows: &["G40", "G54", "G56", "G57", "G58", "G59", "G60"],
    explanation: include_str!("../../explain/D11.md"),
    look: Some(look),
};

/// Part of its busy time from which a connection is held up.
const HELD_UP: f64 = 0.2;
/// Shorter transfers say nothing of a path.
const BUSY_MS_MIN: f64 = 1000.0;
/// What a path is taken for if no card says its speed: 10 Gbit/s, in Mbit/s.
const SPEED_DEFAULT: u64 = 10_000;
const WMEM: &str = "net.ipv4.tcp_wmem";

fn look(host: &Host) -> Looked {
    let text = host.connections()?;
    let sockets = Sockets::parse(&text)?;
    let busy = sockets.all.iter().filter(|socket| socket.busy_ms >= BUSY_MS_MIN);
    let (mut by_window, mut by_buffer) = (Vec::new(), Vec::new());
    for socket in busy {
        if socket.rwnd_limited > HELD_UP {
            by_window.push(socket);
        } else if socket.sndbuf_limited > HELD_UP {
            by_buffer.push(socket);
        }
    }
    let mut findings = Vec::new();
    let worse = |a: &&Socket, b: &&Socket| a.busy_ms.total_cmp(&b.busy_ms);
    if let Some(socket) = by_window.into_iter().max_by(worse) {
        findings.push(window(host, &text, socket));
    }
    if let Some(socket) = by_buffer.into_iter().max_by(worse) {
        findings.push(buffer(host, &text, socket));
    }
    if findings.is_empty() {
        let summary = format!("none of {} connections waits for a window", sockets.all.len());
        findings.push(all_well(summary, None));
    }
    Ok(findings)
}

/// The other end's window.
fn window(host: &Host, text: &Text, socket: &Socket) -> Finding {
    let summary = format!(
        "the connection to {} waits {:.0} % of its time for the receiver's window",
        socket.peer,
        socket.rwnd_limited * 100.0
    );
    let need =
        bdp(host, socket).map_or_else(String::new, |bytes| format!(" It needs {bytes} bytes."));
    Finding::new(Severity::Warning, socket.peer.clone(), summary)
        .cause("A window carries one round trip; what is on its way is less than the path takes.")
        .quote([text.quote(socket.line)])
        .confidence(Confidence::Medium)
        .advise(Advice::by_hand(
            format!(
                "At the other end: a larger third number of net.ipv4.tcp_rmem, and no small \
                 SO_RCVBUF in the application; or the application there reads too slowly.{need}"
            ),
            &["sysctl net.ipv4.tcp_rmem net.core.rmem_max"],
        ))
}

/// Our own buffer.
fn buffer(host: &Host, text: &Text, socket: &Socket) -> Finding {
    let summary = format!(
        "the connection to {} waits {:.0} % of its time for its send buffer",
        socket.peer,
        socket.sndbuf_limited * 100.0
    );
    let finding = Finding::new(Severity::Warning, socket.peer.clone(), summary)
        .cause("The buffer holds less than a round trip's worth of what the path takes.")
        .quote([text.quote(socket.line)])
        .confidence(Confidence::Medium);
    let setting = host.file("proc/sys/net/ipv4/tcp_wmem").ok();
    let current =
        setting.as_ref().map(|text| text.value().split_whitespace().collect::<Vec<_>>().join(" "));
    let finding = finding.quote(setting.map(|text| text.quote(1)));
    let change = current.zip(bdp(host, socket)).and_then(|(current, need)| larger(&current, need));
    finding.advise(match change {
        Some(change) => Advice::by_change(
            "Let the buffer grow to twice the bandwidth times the delay of this path (row G58).",
            vec![change],
        ),
        None => Advice::by_hand(
            "The limit of the system is large enough: the application sets a small SO_SNDBUF.",
            &["sysctl net.ipv4.tcp_wmem net.core.wmem_max"],
        ),
    })
}

/// `tcp_wmem` with room for twice what is on its way; none if it has that already.
fn larger(current: &str, need: u64) -> Option<Change> {
    let numbers: Option<Vec<u64>> = current.split(' ').map(|word| word.parse().ok()).collect();
    let [min, default, max] = numbers?.try_into().ok()?;
    let need = need.saturating_mul(2);
    (need > max).then(|| {
        let knob = Knob::Sysctl { name: WMEM.to_owned() };
        Change::new(knob, Some(current.to_owned()), format!("{min} {default} {need}"))
    })
}

/// Bandwidth times delay in bytes (row G58), for the fastest card of the host.
fn bdp(host: &Host, socket: &Socket) -> Option<u64> {
    let speed = |nic: String| host.file(&format!("sys/class/net/{nic}/speed")).ok()?.number().ok();
    let fastest = host.nics().into_iter().filter_map(speed).max().filter(|speed| *speed > 0);
    let bits_per_ms = float(fastest.unwrap_or(SPEED_DEFAULT)) * 1000.0;
    let bytes = bits_per_ms / 8.0 * socket.rtt_ms?;
    whole(bytes)
}

/// A positive number without its fraction.
fn whole(number: f64) -> Option<u64> {
    format!("{:.0}", number.max(0.0)).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_grows_only_if_it_is_too_small() {
        assert_eq!(larger("4096 16384 4194304", 100), None);
        let change = larger("4096 16384 4194304", 125_000_000).expect("too small");
        assert_eq!(change.command(), "sysctl -w net.ipv4.tcp_wmem='4096 16384 250000000'");
        assert_eq!(larger("4096 16384", 125), None);
    }
}

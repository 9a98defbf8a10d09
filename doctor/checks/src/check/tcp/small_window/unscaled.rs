//! A connection without window scaling: no setting makes its window larger than 64 KiB.

use super::{Facts, WINDOW_ALWAYS};
use crate::finding::{Advice, Change, Finding, Knob};
use ringway_evidence::parse::sockets::Socket;

const SCALING: &str = "net.ipv4.tcp_window_scaling";
/// Part of the largest window without scaling from which the other end offers all that it can.
const NEARLY: u64 = WINDOW_ALWAYS / 4 * 3;

/// Whether a window is as large as it can be without scaling.
pub(super) fn is_what_limits(socket: &Socket, window: u64) -> bool {
    socket.more.is_scaled == Some(false) && window >= NEARLY
}

/// With the cause and what to do.
pub(super) fn explain(facts: &Facts, finding: Finding) -> Finding {
    let finding = finding.cause(
        "Window scaling is off for this connection, so its window cannot exceed 64 KiB, whatever \
         the buffers are. Both ends must offer it when the connection begins.",
    );
    let off = facts.scaling.ok().filter(|text| text.number() == Ok(0));
    if let Some(text) = off {
        let change = Change::raise(Knob::Sysctl { name: SCALING.to_owned() }, 0, 1);
        return finding
            .quote([text.quote(1)])
            .advise(Advice::by_change("Turn it on here; new connections have it.", change));
    }
    let here = match facts.scaling.ok() {
        Some(_) => "It is on here, so check the other end",
        None => "Check both ends",
    };
    finding.advise(Advice::by_hand(
        format!(
            "{here} ({SCALING}). A firewall or proxy on the path may remove the option, and so do \
             SYN cookies without timestamps."
        ),
        &[],
    ))
}

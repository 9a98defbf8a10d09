//! Interfaces that stand on others: VLANs, bonds, bridges, tunnels.

use std::collections::BTreeSet;

use super::{Looked, mtu, narrow, widen};
use crate::evidence::Gap;
use crate::finding::{Advice, Confidence, Finding, Severity};
use crate::host::{Host, Stack};

/// What VXLAN puts around a frame of IPv4: Ethernet inside 14, VXLAN 8, UDP 8, IP 20. Around IPv6
/// it is 20 more.
const VXLAN: u64 = 50;

/// Those that send longer packets than what is below them takes. What is known already is left out.
pub(super) fn look(host: &Host, stack: &Stack, known: &[String]) -> Looked {
    let uppers: BTreeSet<&String> = stack.links.iter().map(|(upper, _)| upper).collect();
    let mut findings = Vec::new();
    for nic in uppers.into_iter().filter(|nic| !known.contains(*nic)) {
        // Of a bridge's members the narrowest tells of all. One may have been taken away meanwhile.
        let taken = |lower: &&String| mtu(host, lower).map(|(mtu, _)| mtu).unwrap_or(u64::MAX);
        let narrowest = stack.below(nic).min_by_key(taken);
        if let (Some(lower), Ok(_)) =
            (narrowest.filter(|nic| mtu(host, nic).is_ok()), mtu(host, nic))
        {
            findings.extend(judge(host, nic, lower)?);
        }
    }
    Ok(findings)
}

/// Bytes that an interface adds to each packet.
pub(super) fn overhead(host: &Host, nic: &str) -> u64 {
    if host.device_type(nic).as_deref() == Some("vxlan") { VXLAN } else { 0 }
}

fn judge(host: &Host, nic: &str, lower: &str) -> Result<Option<Finding>, Gap> {
    let ((own, own_quote), (below, below_quote)) = (mtu(host, nic)?, mtu(host, lower)?);
    let overhead = overhead(host, nic);
    let need = own.saturating_add(overhead);
    if need <= below || below <= overhead {
        return Ok(None);
    }
    let (summary, cause) = if overhead == 0 {
        let summary = format!("{nic} sends packets of {own} bytes, {lower} below it takes {below}");
        (summary, "What is longer than the interface below takes is dropped there.")
    } else {
        let summary =
            format!("{nic} needs {need} bytes with its headers, {lower} below it takes {below}");
        let cause = "A tunnel wraps each frame: VXLAN takes 50 bytes, 70 over IPv6. What does not \
                     fit is cut into two packets, which costs both ends, or dropped.";
        (summary, cause)
    };
    let finding = Finding::new(Severity::Warning, nic, summary)
        .cause(cause)
        .quote([own_quote, below_quote])
        .confidence(Confidence::High)
        .advise(Advice::by_change(
            "Let it send what fits, and its guests as well:",
            narrow(nic, own, below - overhead),
        ))
        .advise(Advice::by_change(
            "Or raise what is below it, if its whole network takes that:",
            widen(lower, below, need),
        ));
    Ok(Some(finding))
}

//! Files of systemd: `.link` for the card, `.network` for its queueing discipline, `sysctl.d` for
//! the rest.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{one_line, sysctl};
use crate::journal::Entry;
use ringway_checks::finding::Knob;

/// All files, each after a comment with its name.
pub(super) fn files(entries: &[Entry]) -> String {
    let mut links: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut networks: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let (mut sysctls, mut others) = (Vec::new(), Vec::new());
    for entry in entries {
        let nic = entry.knob.nic().filter(|nic| is_plain(nic));
        if let Some(line) = sysctl(entry) {
            sysctls.push(line);
        } else if let (Some(nic), Some(line)) = (nic, link(&entry.knob, &entry.new)) {
            links.entry(nic).or_default().push(line);
        } else if let (Some(nic), Some(lines)) = (nic, network(&entry.knob, &entry.new)) {
            networks.entry(nic).or_default().push(lines);
        } else {
            others.push(entry);
        }
    }
    let mut text = String::new();
    for (nic, lines) in links {
        let _ = write!(
            text,
            "# /etc/systemd/network/10-ringway-{nic}.link\n# systemd uses the first matching link \
             file: if another one matches {nic}, add these lines to it.\n\
             [Match]\nOriginalName={nic}\n\n[Link]\n{}\n\n",
            lines.join("\n")
        );
    }
    for (nic, lines) in networks {
        let _ = write!(
            text,
            "# /etc/systemd/network/10-ringway-{nic}.network\n# systemd uses the first matching \
             network file: if another one matches {nic}, add these lines to it.\n\
             [Match]\nName={nic}\n\n{}\n\n",
            lines.join("\n")
        );
    }
    if !sysctls.is_empty() {
        let _ = write!(text, "# /etc/sysctl.d/90-ringway-doctor.conf\n{}\n", sysctls.join("\n"));
    }
    for entry in others {
        let command = one_line(&entry.knob.command(&entry.new));
        let _ = writeln!(text, "# systemd cannot set {}: {command}", entry.check);
    }
    text
}

/// A line of systemd.link(5).
fn link(knob: &Knob, new: &str) -> Option<String> {
    let switch = || if new == "on" { "yes" } else { "no" };
    Some(match knob {
        Knob::Mtu { .. } => format!("MTUBytes={new}"),
        Knob::TxQueueLen { .. } => format!("TransmitQueueLength={new}"),
        Knob::Channels { which, .. } => {
            let name = match which.as_str() {
                "rx" => "RxChannels",
                "tx" => "TxChannels",
                _ => "CombinedChannels",
            };
            format!("{name}={new}")
        }
        Knob::Ring { which, .. } if which == "rx" => format!("RxBufferSize={new}"),
        Knob::Ring { .. } => format!("TxBufferSize={new}"),
        Knob::Offload { feature, .. } => {
            let name = match feature.as_str() {
                "rx" => "ReceiveChecksumOffload",
                "tx" => "TransmitChecksumOffload",
                "tso" => "TCPSegmentationOffload",
                "gso" => "GenericSegmentationOffload",
                "gro" => "GenericReceiveOffload",
                "lro" => "LargeReceiveOffload",
                _ => return None,
            };
            format!("{name}={}", switch())
        }
        _ => return None,
    })
}

/// Sections of systemd.network(5).
fn network(knob: &Knob, new: &str) -> Option<String> {
    let Knob::Qdisc { .. } = knob else { return None };
    let section = match new.trim() {
        "fq_codel" => "FairQueueingControlledDelay",
        "fq" => "FairQueueing",
        "pfifo_fast" => "PFIFOFast",
        "cake" => "CAKE",
        _ => return None,
    };
    Some(format!("[{section}]\nParent=root"))
}

/// Whether a name contains no pattern, so that it matches only itself.
fn is_plain(nic: &str) -> bool {
    nic.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.:@-".contains(&byte))
}

//! Ports of Open vSwitch's userspace datapath, which does not fill in checksums.

use std::collections::BTreeMap;

use super::Facts;
use crate::finding::{Advice, Confidence, Finding, Severity};
use ringway_evidence::fact::{NicRole, SwitchDatabase};
use ringway_evidence::parse::Counters;
use ringway_evidence::parse::ovsdb::Port;
use ringway_evidence::parse::ringway::Vifs;
use ringway_evidence::{Gap, Quote, squeezed};

/// Devices that this datapath reads through packet sockets, without offloads, by their names.
pub(super) fn ports(facts: &Facts) -> Result<BTreeMap<&str, &Port>, Gap> {
    let is_read = |port: &&Port| port.is_userspace && port.kind == "system";
    let all = SwitchDatabase::ports(&facts.database)?.iter().filter(is_read);
    let mut ports: BTreeMap<&str, &Port> = all.map(|port| (port.name.as_str(), port)).collect();
    if !ports.is_empty() && facts.settings.get()?.settings.has_userspace_tso {
        ports.clear();
    }
    Ok(ports)
}

/// A finding if frames from this port may have blank checksums. That its own offloads are off is
/// as it should be.
pub(super) fn inspect(facts: &Facts, port: &Port) -> Result<Option<Finding>, Gap> {
    let nic = port.name.as_str();
    let vifs = match facts.vifs.get() {
        Ok(text) => Some((Vifs::parse(text)?, text.origin())),
        Err(gap @ Gap::Unreadable { .. }) => return Err(gap),
        Err(_) => None,
    };
    let vif = vifs
        .as_ref()
        .and_then(|(vifs, origin)| Some((vifs.all.iter().find(|vif| vif.name == nic)?, *origin)));
    if let Some((vif, origin)) = vif {
        if !vif.offloads.iter().any(|offload| offload.starts_with("csum")) {
            return Ok(None);
        }
        let summary = format!(
            "the guest of {nic} leaves checksums blank, and Open vSwitch's userspace datapath does \
             not fill them in"
        );
        let text = format!("{nic}: offloads {}", squeezed(&vif.offloads.join(", ")));
        let quote = Quote { file: origin.to_owned(), line: None, text };
        let finding = Finding::new(Severity::Problem, nic, summary).quote([quote]);
        return Ok(Some(explained(finding, port)));
    }
    // Guests of other programs use offloads by default, if the program has them.
    let driver = facts.nics.driver(nic).filter(|driver| NETBACK.contains(&driver.as_str()));
    let quote = match (facts.nics.has_offload_headers(nic), driver) {
        (Some(true), _) => {
            let file = format!("/sys/class/net/{nic}/tun_flags");
            Quote { file, line: None, text: "IFF_VNET_HDR".to_owned() }
        }
        (None, Some(driver)) => facts.nics.driver_quote(nic, &driver),
        (None, None) if facts.nics.role(nic) != NicRole::Physical => return Ok(Some(unknown(nic))),
        _ => return Ok(None),
    };
    let summary = format!(
        "{nic} may bring blank checksums, which Open vSwitch's userspace datapath does not fill in"
    );
    let finding = Finding::new(Severity::Warning, nic, summary).quote([quote]);
    Ok(Some(explained(finding.confidence(Confidence::Medium), port)))
}

/// Names of Linux' driver for vifs, as `Interfaces::role` knows them.
const NETBACK: [&str; 3] = ["vif-backend", "xen-netback", "xen_netback"];

fn unknown(nic: &str) -> Finding {
    let summary = format!(
        "cannot tell whether {nic} brings blank checksums, which Open vSwitch's userspace datapath \
         does not fill in"
    );
    Finding::new(Severity::Unknown, nic, summary)
        .cause("Its other end decides, by tx-checksumming (ethtool -k), in a container perhaps.")
}

fn explained(finding: Finding, port: &Port) -> Finding {
    let file = format!("ovs-vsctl list bridge {}", squeezed(&port.bridge));
    finding
        .quote([Quote { file, line: None, text: "datapath_type: netdev".to_owned() }])
        .cause(
            "A guest with checksum offload leaves checksums to what sends its frames on. This \
             datapath reads them from a packet socket and forwards them as they are, unless \
             userspace-tso-enable is set, so receivers drop them: ping works, TCP does not.",
        )
        .advise(Advice::by_hand(
            "Turn checksums and segmentation off for this guest: offloads = \"none\" of a vif of \
             ringway, <host csum='off' gso='off' tso4='off' tso6='off'/> of <driver> in libvirt, \
             or ethtool -K eth0 tx off in the guest.",
            &[],
        ))
        .advise(Advice::by_hand(
            "Or set other_config:userspace-tso-enable=true of open_vswitch and restart \
             ovs-vswitchd, which interrupts all its ports. Over tunnels it needs version 3.5.",
            &["ovs-appctl version"],
        ))
}

#[cfg(test)]
mod tests {
    use super::super::CHECK;
    use super::*;
    use ringway_evidence::fact::Host;
    use ringway_evidence::{Piece, Source, command_path};

    /// What the check says of one port of a userspace datapath.
    fn found(tso: &str, offloads: Option<&str>, more: &[(&str, &str)]) -> Vec<(Severity, String)> {
        let of = |word: &str| {
            let pieces = Piece::each(CHECK.rule.pieces);
            let words = pieces.iter().find_map(|piece| match piece {
                Piece::Command(words) | Piece::Sampled(words) => {
                    words.contains(&word).then(|| command_path(words))
                }
                _ => None,
            });
            words.expect("it is read")
        };
        let tables = r#"{"headings":["name","datapath_type","ports"],
            "data":[["b","netdev",["uuid","p"]]]}
            {"data":[[["uuid","p"],["uuid","i"]]],"headings":["_uuid","interfaces"]}
            {"data":[[["uuid","i"],"a","",1500,["set",[]],["map",[]],["map",[]]]],
            "headings":["_uuid","name","type","mtu","error","external_ids","status"]}"#;
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        let mut pieces: Vec<(String, String)> = more.iter().map(own).collect();
        pieces.push(("proc/uptime".to_owned(), "9.0 9\n".to_owned()));
        pieces.push(("sys/class/net/a/mtu".to_owned(), "1500\n".to_owned()));
        pieces.push(("sys/class/net/a/type".to_owned(), "1\n".to_owned()));
        pieces.push((of("interface"), format!("{tables}\n")));
        pieces.push((of("open_vswitch"), format!("\n\n\n\n{tso}\n")));
        if let Some(offloads) = offloads {
            let vifs = r#"[{"name":"a","max_queues":1,"queues":[],"offloads":["#;
            pieces.push((of("vif"), format!("{vifs}{offloads}]}}]\n")));
        }
        let found = CHECK.run(&Host::new(Source::Memory(pieces.into_iter().collect())));
        found.into_iter().map(|one| (one.severity, one.summary)).collect()
    }

    #[test]
    fn a_guest_of_ringway_is_judged_by_what_it_uses() {
        let used = found("", Some(r#""sg","csum-v4""#), &[]);
        assert!(used[0].0 == Severity::Problem && used[0].1.contains("guest of a leaves"));
        let fits = found("", Some(r#""sg""#), &[]);
        let said = "the userspace datapath of Open vSwitch gets whole checksums: a";
        assert_eq!(fits, [(Severity::Ok, said.to_owned())]);
        assert_eq!(found("", Some("?"), &[])[0].0, Severity::Unknown);
        // With that setting the datapath handles offloads, and the check is as for any device.
        let said = found("\"true\"", Some(r#""csum-v4""#), &[]);
        assert!(said.iter().all(|(severity, _)| *severity == Severity::Unknown), "{said:?}");
    }

    #[test]
    fn another_program_or_netback_may_leave_checksums_blank() {
        let device = ("sys/class/net/a/device/uevent", "DRIVER=vif-backend\n");
        assert_eq!(found("", None, &[device])[0].0, Severity::Warning);
        // The other end of a veth is not seen.
        assert_eq!(found("", None, &[])[0].0, Severity::Unknown);
    }
}

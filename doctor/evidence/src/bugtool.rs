//! Archives of `xen-bugtool`, which XenServer and XCP-ng call a status report: the host's files
//! under their own paths, the output of each tool in a file of the top folder, and an inventory.

/// The file that such an archive has, and others have not.
pub(crate) const INVENTORY: &str = "inventory.xml";
/// Commands that it runs with other options than the doctor; the parsers know both forms.
const OTHERS: [(&str, &str); 6] = [
    ("iptables-save -c", "iptables -nvL"),
    ("ovs-vsctl --columns=name,ingress_policing_rate list interface", "ovs-vsctl list interface"),
    ("ss -tinHO state established", "ss -nampi"),
    ("sysctl -a", "sysctl -A"),
    ("tc -s -j qdisc show", "tc -s qdisc"),
    // Each line has the full path of a node.
    ("xenstore-ls -f /local/domain/0/backend/vif", "xenstore-ls -f"),
];

/// The file with the output of a command, and the command that made it.
pub(crate) fn output(words: &[&str]) -> (String, String) {
    let own = words.join(" ");
    let other = OTHERS.iter().find(|(name, _)| *name == own).map(|(_, other)| (*other).to_owned());
    let command = other.unwrap_or(own);
    let mut file = command.replace(' ', "-").replace("--", "-").replace('/', "%");
    if !file.contains('.') {
        file += ".out";
    }
    (file, command)
}

/// What the inventory says that `uptime` printed.
pub(crate) fn uptime(inventory: &str) -> Option<String> {
    let (_, rest) = inventory.split_once(" uptime=\"")?;
    Some(format!("{}\n", rest.split_once('"')?.0))
}

#[cfg(test)]
mod tests {
    use crate::Source;
    use crate::fact::{Host, Interfaces, Mtus, Offloads, Span, SwitchBridges};
    use crate::parse::qdisc::Qdiscs;
    use crate::parse::rules::Rules;

    #[test]
    fn a_status_report_is_a_host() {
        let qdisc = "qdisc fq 0: dev eth0 root\n Sent 9 bytes 1 pkt (dropped 3, overlimits 0 \
                     requeues 0)\n backlog 0b 0p requeues 0\n";
        let rules = "Chain INPUT (policy ACCEPT 4092K packets, 11G bytes)\n pkts bytes target     \
                     prot opt in     out     source               destination         \n 173K   \
                     10M DROP       udp  --  *      *       0.0.0.0/0            0.0.0.0/0    \
                     udp dpt:9\n";
        let pieces = [
            ("iptables-nvL.out", rules),
            ("inventory.xml", "<system-summary date=\"x\" uptime=\" 11:58 up 2 days, 1 user\"/>\n"),
            ("ifconfig-a.out", "eth0: flags=4163<UP>  mtu 1500\n        ether 0a:0b\n"),
            ("ethtool-k-eth0.out", "Features for eth0:\n"),
            ("ovs-appctl-dpif%show.out", "system@ovs-system: hit:1 missed:1\n"),
            ("tc-s-qdisc.out", qdisc),
        ];
        let own = |(path, text): (&str, &str)| (path.to_owned(), text.to_owned());
        let host = Host::new(Source::Memory(pieces.map(own).into()));
        assert_eq!(host.fact::<Interfaces>().expect("any").names(), ["eth0"]);
        assert_eq!(host.fact::<Mtus>().expect("any").of("eth0").expect("known").number(), Ok(1500));
        assert!(host.fact::<Offloads>().expect("any").of("eth0").is_ok());
        assert!(host.fact::<SwitchBridges>().is_ok());
        let span: Span<Qdiscs> = host.fact().expect("sound");
        assert_eq!((span.after.all[0].drops, span.seconds), (3, 172_800.0));
        assert_eq!(span.text.origin(), "tc -s qdisc");
        let rules: Span<Rules> = host.fact().expect("sound");
        let dropped: Vec<u64> = rules.after.dropping.values().map(|rule| rule.packets).collect();
        assert_eq!((dropped, rules.text.origin()), (vec![173_000], "iptables -nvL"));
    }
}

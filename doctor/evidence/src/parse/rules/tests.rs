use super::*;

#[test]
fn rules_of_nft_are_counted() {
    let text = "table inet t { # handle 1\n\tset s { # handle 4\n\t\ttype ipv4_addr\n\t\t\
                elements = { 10.98.0.1, 10.98.0.2 }\n\t}\n\tchain c { # handle 1\n\t\ttype \
                filter hook input priority filter; policy accept;\n\t\tip protocol icmp \
                counter packets 3 bytes 200 drop # handle 2\n\t\t\
                tcp dport { 1, 2 } accept # handle 3\n\
                \t}\n}\n";
    let read = Rules::parse(&Text::new("nft", text)).expect("sound");
    assert_eq!(read.count(), 2);
    let dropping = &read.dropping["inet t c: ip protocol icmp drop"];
    assert_eq!((dropping.packets, dropping.line), (3, 8));
    assert!(Rules::parse(&Text::new("nft", "table inet t {\n")).is_err());
    assert_eq!(Rules::parse(&Text::new("nft", "")).expect("none").count(), 0);
}

#[test]
fn what_drops_and_does_not_count_is_known() {
    let text = "table inet t {\n\tchain c {\n\t\ttype filter hook forward priority filter; \
                policy drop;\n\t\tudp dport 9 drop\n\t\tcounter packets 3 bytes 1 tcp \
                dport vmap { 1 : drop, 2 : accept }\n\t\ttcp dport 7 accept comment \"we \
                drop no mail\"\n\t\tiifname \"eth0\" counter packets 5 bytes 1 log prefix \
                \"no way \" drop\n\t\tudp dport 7 counter packets 5 bytes 1 drop\n\t}\n}\n";
    let read = Rules::parse(&Text::new("nft", text)).expect("sound");
    let uncounted: Vec<&str> = read.uncounted.keys().map(String::as_str).collect();
    let map = "inet t c: counter packets 3 bytes 1 tcp dport vmap { 1 : drop, 2 : accept }";
    assert_eq!(uncounted, [map, "inet t c: policy drop", "inet t c: udp dport 9 drop"]);
    let counted = text.replace("iifname \"eth0\" counter", "counter");
    let counted = Rules::parse(&Text::new("nft", counted)).expect("sound");
    assert!(!counted.uncounted.contains_key("inet t c: policy drop"), "{counted:?}");
    let default =
        |read: &Rules| -> Vec<bool> { read.dropping.values().map(|one| one.is_default).collect() };
    assert_eq!(default(&read), [true, true], "{read:?}");
    let text = "*filter\n:INPUT DROP [5:300]\n[1:1] -A INPUT -i a -m comment --comment \"at \
                last\" -j DROP\n[1:1] -A INPUT -j REJECT --reject-with x\n[1:1] -A INPUT -p \
                tcp -j DROP\n[1:1] -A INPUT -m limit --limit 5/min -j DROP\nCOMMIT\n";
    let read = Rules::parse(&Text::new("iptables-save", text)).expect("sound");
    assert_eq!(default(&read), [true; 5], "{read:?}");
    let open = Text::new("iptables-save", text.replace("INPUT DROP", "INPUT ACCEPT"));
    let read = Rules::parse(&open).expect("sound");
    assert_eq!(default(&read), [true, true, false, false], "{read:?}");
}

#[test]
fn a_row_of_drops_at_the_end_of_a_chain_is_its_default() {
    let default = |text: &str| -> Vec<String> {
        let read = Rules::parse(&Text::new("rules", text)).expect("sound");
        let rules = read.dropping.iter().filter(|(_, one)| one.is_default);
        rules.map(|(rule, _)| rule.split_once(": ").expect("a chain").1.to_owned()).collect()
    };
    let text = "*filter\n:INPUT ACCEPT [5:300]\n[1:1] -A INPUT -p tcp --dport 25 -j DROP\n\
                [9:9] -A INPUT -p tcp --dport 22 -j ACCEPT\n[1:1] -A INPUT -p tcp -j REJECT \
                --reject-with tcp-reset\n[1:1] -A INPUT -j LOG\n[1:1] -A INPUT -p udp -j \
                REJECT\n[1:1] -A INPUT -j REJECT\nCOMMIT\n";
    let row = ["-j REJECT", "-p tcp -j REJECT --reject-with tcp-reset", "-p udp -j REJECT"];
    assert_eq!(default(text), row);
    // Others may still get in behind them.
    let open = text.replace("[1:1] -A INPUT -j REJECT\n", "");
    assert!(default(&open).is_empty());
    assert_eq!(default(&open.replace("INPUT ACCEPT [5", "INPUT DROP [5")).len(), 3);
    let nft = "table inet t {\n\tchain c {\n\t\ttype filter hook input priority 0; policy \
               accept;\n\t\ttcp dport 25 counter packets 1 bytes 1 drop\n\t\ttcp dport 22 \
               accept\n\t\ttcp dport 7 counter packets 1 bytes 1 reject\n\t\tcounter packets \
               5 bytes 1 log prefix \"no \" level info flags all drop\n\t}\n}\n";
    let row = ["log prefix \"no \" level info flags all drop", "tcp dport 7 reject"];
    assert_eq!(default(nft), row);
    let shown = "Chain INPUT (policy DROP 5 packets, 300 bytes)\n \
                 1 1 ACCEPT tcp -- * * 0.0.0.0/0 0.0.0.0/0 tcp dpt:22\n \
                 1 1 REJECT tcp -- * * 0.0.0.0/0 0.0.0.0/0 reject-with tcp-reset\n";
    assert_eq!(default(shown).len(), 2);
}

#[test]
fn rules_of_iptables_are_counted() {
    let text = "# x\n*filter\n:INPUT ACCEPT [5:300]\n:FORWARD DROP [7:1]\n[9:1] -A INPUT -p \
                tcp -j DROP\n[1:1] -A INPUT -j ACCEPT\nCOMMIT\n";
    let read = Rules::parse(&Text::new("iptables-save", text)).expect("sound");
    assert_eq!(read.dropping["filter INPUT: -p tcp -j DROP"].packets, 9);
    assert_eq!(read.dropping["filter FORWARD: policy drop"].packets, 7);
    assert_eq!(read.chains["filter INPUT"].rules, 2);
    assert!(Rules::parse(&Text::new("iptables-save", "*filter\n:A DROP [1:1]\n")).is_err());
}

#[test]
fn rules_that_iptables_shows_are_counted() {
    let text = "Chain INPUT (policy ACCEPT 5 packets, 300 bytes)\n \
                pkts bytes target prot opt in out source destination\n \
                9 540 DROP 6 -- * * 10.98.9.0/24 0.0.0.0/0 tcp dpt:80\n \
                7 1 long 0 -- eth0 * 0.0.0.0/0 0.0.0.0/0\n\n\
                Chain FORWARD (policy DROP 3 packets, 1 bytes)\n \
                pkts bytes target prot opt in out source destination\n \
                0 0 0 -- * * 0.0.0.0/0 0.0.0.0/0\n\n\
                Chain long (1 references)\n \
                2 0 REJECT all -- * * 0.0.0.0/0 0.0.0.0/0\n";
    let read = Rules::parse(&Text::new("iptables -vnxL", text)).expect("sound");
    let rule = "filter INPUT: DROP 6 -- * * 10.98.9.0/24 0.0.0.0/0 tcp dpt:80";
    assert_eq!(read.dropping[rule].packets, 9, "{read:?}");
    assert_eq!(read.dropping["filter FORWARD: policy drop"].packets, 3);
    assert!(!read.dropping[rule].is_default);
    let last = "filter long: REJECT all -- * * 0.0.0.0/0 0.0.0.0/0";
    assert!(read.dropping[last].is_default, "{read:?}");
    assert_eq!(read.chains["filter FORWARD"].rules, 1);
    assert_eq!(read.chains["filter INPUT"].hook.as_deref(), Some("input"));
    let long = &read.chains["filter long"];
    assert_eq!((long.rules, long.jumped, &long.hook), (1, 7, &None));
    for torn in ["Chain INPUT (policy ACCEPT\n x 1 DROP all -- * *\n", "Chain A\n1\n"] {
        assert!(Rules::parse(&Text::new("iptables -vnxL", torn)).is_err(), "{torn}");
    }
}

#[test]
fn the_way_into_a_chain_is_known() {
    let text = "table inet t {\n\tchain in {\n\t\ttype filter hook input priority filter; \
                policy accept;\n\t\tcounter packets 7 bytes 1 jump a\n\t\ttcp dport vmap { 1 : \
                jump b, 2 : goto c }\n\t}\n\tchain a {\n\t}\n\tchain b {\n\t}\n\tchain c \
                {\n\t}\n\tchain d {\n\t}\n}\n";
    let read = Rules::parse(&Text::new("nft", text)).expect("sound");
    let chain = |name: &str| read.chains[&format!("inet t {name}")].clone();
    assert_eq!(chain("in").hook.as_deref(), Some("input"));
    assert_eq!((chain("a").jumps, chain("a").jumped, chain("a").uncounted), (1, 7, 0));
    assert_eq!((chain("b").uncounted, chain("c").uncounted, chain("d").jumps), (1, 1, 0));
    let text = "*filter\n:INPUT ACCEPT [5:300]\n:long - [0:0]\n[9:1] -A INPUT -i eth9 -j long\n\
                [0:0] -A long -s 10.0.0.1/32 -j DROP\nCOMMIT\n";
    let read = Rules::parse(&Text::new("iptables-save", text)).expect("sound");
    assert_eq!(read.chains["filter INPUT"].hook.as_deref(), Some("input"));
    let long = &read.chains["filter long"];
    assert_eq!((long.rules, long.jumped, long.uncounted, &long.hook), (1, 9, 0, &None));
}

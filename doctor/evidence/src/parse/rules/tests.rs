//! What the parsers of rules read.

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
    let shown = "Chain INPUT (policy ACCEPT 5 packets, 300 bytes)\n \
                 1 1 DROP all -- !lo * 0.0.0.0/0 0.0.0.0/0 /* at last */ ctstate NEW\n \
                 1 1 DROP all -- * * 0.0.0.0/0 0.0.0.0/0 ADDRTYPE match dst-type BROADCAST\n \
                 1 1 DROP all -- * * 0.0.0.0/0 0.0.0.0/0 /* x */ ctstate INVALID\n";
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
    let last = "filter INPUT: long 0 -- eth0 * 0.0.0.0/0 0.0.0.0/0";
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

/// The texts of rules that drop by default, without their table.
fn defaults(text: &str) -> Vec<String> {
    let read = Rules::parse(&Text::new("rules", text)).expect("sound");
    let rules = read.dropping.iter().filter(|(_, one)| one.is_default);
    rules.map(|(rule, _)| rule.split_once(' ').expect("a table").1.to_owned()).collect()
}

/// Rules of `INPUT`, which accepts the rest.
fn input(rules: &str) -> String {
    let rules: String = rules.lines().map(|rule| format!("[1:1] -A INPUT {rule}\n")).collect();
    format!("*filter\n:INPUT ACCEPT [5:300]\n{rules}COMMIT\n")
}

/// Rules of a chain that accepts the rest.
fn chain(rules: &str) -> String {
    let rules: String = rules.lines().map(|rule| format!("\t\t{rule}\n")).collect();
    let hook = "type filter hook input priority 0; policy accept;";
    format!("table inet t {{\n\tchain c {{\n\t\t{hook}\n{rules}\t}}\n}}\n")
}

#[test]
fn what_takes_all_of_an_interface_or_of_new_connections_is_a_default() {
    for (rule, is_default) in [
        ("! -i lo -j DROP", true),
        ("-m conntrack --ctstate NEW -j DROP", true),
        ("-m state --state INVALID,NEW -j REJECT", true),
        ("-m conntrack ! --ctstate RELATED,ESTABLISHED -j DROP", true),
        ("-m comment --comment \"once -j ACCEPT\" -j DROP", true),
        ("-j TARPIT", true),
        ("-m addrtype --dst-type BROADCAST -j DROP", true),
        ("-m pkttype --pkt-type multicast -j DROP", true),
        ("-m addrtype --dst-type LOCAL -j DROP", false),
        ("-m conntrack --ctstate INVALID -j DROP", false),
        ("-s 10.0.0.0/8 -j DROP", false),
        ("-m limit --limit 5/min -j DROP", false),
    ] {
        assert_eq!(defaults(&input(rule)).len(), usize::from(is_default), "{rule}");
    }
    for (rule, is_default) in [
        ("iifname != \"lo\" X", true),
        ("iifname { \"eth0\", \"eth1\" } X", true),
        ("ct state new X", true),
        ("ct state invalid,new X", true),
        ("ct state { new, untracked } X", true),
        ("ct state != { established, related } X", true),
        ("add @scanners { ip saddr } X", true),
        ("fib daddr type { broadcast, anycast, multicast } X", true),
        ("meta pkttype broadcast X", true),
        ("meta pkttype host X", false),
        ("meta nfproto ipv6 log flags tcp options X", true),
        ("xt match \"comment\" X", true),
        ("add @flood { ip saddr limit rate over 9/second } X", false),
        ("ct state invalid X", false),
        ("icmp type redirect X", false),
        ("meta l4proto tcp X", false),
    ] {
        let rule = rule.replace('X', "counter packets 3 bytes 1 drop");
        assert_eq!(defaults(&chain(&rule)).len(), usize::from(is_default), "{rule}");
    }
}

#[test]
fn what_takes_only_packets_of_no_connection_is_known() {
    let is_of_invalid = |text: String| {
        let read = Rules::parse(&Text::new("rules", text)).expect("sound");
        read.dropping.values().next().expect("it drops").is_of_invalid
    };
    for (rule, is_it) in [
        ("-m conntrack --ctstate INVALID -j DROP", true),
        ("-p tcp -m state --state INVALID -m comment --comment \"a b\" -j REJECT", true),
        ("-m conntrack ! --ctstate INVALID -j DROP", false),
        ("-m conntrack --ctstate INVALID,NEW -j DROP", false),
        ("-m comment --comment \"--ctstate INVALID\" -j DROP", false),
    ] {
        assert_eq!(is_of_invalid(input(rule)), is_it, "{rule}");
    }
    for (rule, is_it) in [
        ("ct state invalid X", true),
        ("iifname \"eth0\" ct state invalid log X", true),
        ("ct state != invalid X", false),
        ("ct state invalid,untracked X", false),
    ] {
        let rule = rule.replace('X', "counter packets 3 bytes 1 drop");
        assert_eq!(is_of_invalid(chain(&rule)), is_it, "{rule}");
    }
    let shown = "Chain INPUT (policy ACCEPT 9 packets, 9 bytes)\n pkts bytes target prot opt in \
                 out source destination\n 9 9 DROP all -- * * 0.0.0.0/0 0.0.0.0/0 ctstate \
                 INVALID\n";
    assert!(is_of_invalid(shown.to_owned()));
}

#[test]
fn a_row_of_drops_goes_on_over_rules_that_let_nothing_pass() {
    for between in ["-j MARK --set-xmark 0x1/0xffffffff", "-j SET --add-set s src", "-j ULOG"] {
        let all = defaults(&input(&format!("-p udp -j REJECT\n{between}\n-j DROP")));
        assert_eq!(all, ["INPUT: -j DROP", "INPUT: -p udp -j REJECT"], "{between}");
    }
    for between in ["-p tcp -j ACCEPT", "-p tcp -j RETURN", "-j NFQUEUE --queue-num 0"] {
        let all = defaults(&input(&format!("-p udp -j REJECT\n{between}\n-j DROP")));
        assert_eq!(all, ["INPUT: -j DROP"], "{between}");
    }
}

#[test]
fn a_chain_that_drops_all_is_judged_by_the_rules_that_send_to_it() {
    let text = |sends: &str| {
        input(sends).replace("[5:300]\n", "[5:300]\n:LOGDROP - [0:0]\n").replace(
            "COMMIT",
            "[9:1] -A LOGDROP -m limit --limit 5/min -j LOG\n[9:1] -A LOGDROP -j DROP\nCOMMIT",
        )
    };
    let some = text("-p tcp --dport 25 -j LOGDROP\n-p tcp --dport 22 -j ACCEPT");
    let read = Rules::parse(&Text::new("rules", some.as_str())).expect("sound");
    let names: Vec<&str> = read.dropping.keys().map(String::as_str).collect();
    assert_eq!(names, ["filter INPUT: -p tcp --dport 25 -j LOGDROP"]);
    assert!(defaults(&some).is_empty());
    let all = text("-p tcp --dport 22 -j ACCEPT\n-p udp -j LOGDROP\n-j LOGDROP");
    assert_eq!(defaults(&all), ["INPUT: -j LOGDROP", "INPUT: -p udp -j LOGDROP"]);
    // Without counters where packets are sent, those of the chain are left.
    let nft = |sends: &str| {
        let more = "\tchain deny {\n\t\tlog\n\t\tcounter packets 3 bytes 1 drop\n\t}\n}\n";
        chain(sends).strip_suffix("}\n").expect("a table").to_owned() + more
    };
    let read = |text: String| Rules::parse(&Text::new("nft", text)).expect("sound").dropping;
    assert!(
        !read(nft("tcp dport 25 jump deny\ntcp dport 22 accept"))["inet t deny: drop"].is_default
    );
    assert!(read(nft("tcp dport 22 accept\ngoto deny"))["inet t deny: drop"].is_default);
}

#[test]
fn what_follows_a_chain_decides_about_its_last_rules() {
    // As ufw does: what it drops without a word is dropped by its policy, too.
    let text = "*filter\n:INPUT DROP [5:300]\n:after - [0:0]\n:before - [0:0]\n:skip - [0:0]\n\
                [9:1] -A INPUT -j before\n[9:1] -A INPUT -j after\n\
                [3:1] -A after -p udp --dport 137 -j skip\n[2:1] -A before -p tcp -j ACCEPT\n\
                [2:1] -A before -p udp -j DROP\n[3:1] -A skip -j DROP\nCOMMIT\n";
    let all = ["INPUT: policy drop", "after: -p udp --dport 137 -j skip", "before: -p udp -j DROP"];
    assert_eq!(defaults(text), all);
    let open = text.replace("INPUT DROP", "INPUT ACCEPT");
    assert!(defaults(&open).is_empty(), "{:?}", defaults(&open));
}

#[test]
fn counters_of_nft_count_wherever_they_are() {
    let text = "table inet t {\n\tcounter lost { # handle 3\n\t\tpackets 7 bytes 1\n\t}\n\tchain \
                c {\n\t\ttype filter hook input priority 0; policy drop;\n\t\ttcp dport 22 \
                accept\n\t\tudp dport 9 counter name \"lost\" drop comment \"a } brace\"\n\t\t\
                counter packets 5 bytes 1 comment \"the rest\"\n\t}\n}\n";
    let read = Rules::parse(&Text::new("nft", text)).expect("sound");
    assert!(read.uncounted.is_empty(), "{read:?}");
    let rule = "inet t c: udp dport 9 drop comment \"a } brace\"";
    let packets = |rule: &str| read.dropping.get(rule).map(|one| (one.packets, one.is_default));
    assert_eq!(packets(rule), Some((7, true)));
    assert_eq!(packets("inet t c: policy drop"), Some((5, true)));
}

#[test]
fn what_drops_unseen_is_known() {
    let text = "table inet t {\n\tmap ports {\n\t\ttype ifname : verdict\n\t\telements = { \
                \"a\" : accept, \"b\" : drop,\n\t\t\t     80 : jump web }\n\t}\n\tchain web \
                {\n\t}\n\tchain c {\n\t\ttype filter hook input priority 0; policy accept;\n\t\t\
                counter packets 3 bytes 1 queue flags bypass to 0\n\t\tiifname vmap @ports\n\t}\n\
                }\n";
    let read = Rules::parse(&Text::new("nft", text)).expect("sound");
    let names = |all: &BTreeMap<String, usize>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&read.queued), ["inet t c: queue flags bypass to 0"]);
    assert_eq!(names(&read.uncounted), ["inet t c: iifname vmap @ports"]);
    assert_eq!(read.chains["inet t web"].uncounted, 1);
    let read = Rules::parse(&Text::new("iptables-save", input("-j NFQUEUE --queue-num 3")));
    assert_eq!(names(&read.expect("sound").queued), ["filter INPUT: -j NFQUEUE --queue-num 3"]);
}

#[test]
fn chains_that_send_to_each_other_come_to_an_end() {
    let text = "*filter\n:a - [0:0]\n:b - [0:0]\n[1:1] -A a -j b\n[1:1] -A b -j a\nCOMMIT\n";
    assert_eq!(Rules::parse(&Text::new("iptables-save", text)).expect("sound").count(), 2);
}

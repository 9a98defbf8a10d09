//! No parser panics on any text, nor on any part of a valid one.

use proptest::prelude::*;

use super::*;
use crate::links::Derived;
use crate::{Gap, Source, Text};

type Reader = fn(&Text) -> Result<(), Gap>;

macro_rules! read {
    ($parser:ty) => {
        |text| <$parser>::parse(text).map(drop)
    };
}

const READERS: [(&str, Reader); 41] = [
    ("drops: 1 seconds=5.0 lost=0\n7 NO_SOCKET udp_rcv\n", read!(drops::Drops)),
    (
        "moves: 1 watched=7 seconds=3.0 lost=0\nport 02:00 br0 - moves=9 returns=8 q1 q2\n",
        read!(moves::Moves),
    ),
    ("fe8000000000000000e0f9fffe000002 02 40 20 c8 eth0\n", read!(inet6::Inet6)),
    (
        "default via 10.98.0.9 dev a mtu lock 9\n10.98/16\n\tnexthop via fe80::1 dev a dead\n",
        read!(routes::Routes),
    ),
    (
        "10.98.0.9 dev eth0 lladdr 02:00 ref 1 used 0/0/0 probes 1 REACHABLE\n",
        read!(routes::Neighbours),
    ),
    (
        "2: a@b: <UP> mtu 9 master c\n inet 10.98.0.1 peer 10.98.0.2/32\n inet6 ::1/64\n",
        read!(routes::Addresses),
    ),
    (
        "Chain A (policy DROP 3 packets, 1 bytes)\n 9 540 DROP 6 -- * * ::/0 ::/0 dpt:80\n",
        read!(rules::Rules),
    ),
    (
        "2: a@b: <UP> mtu 9 qdisc mq master c state UP qlen 9\n link/ether 02:00 parentdev x\n \
         vlan id 7\n bridge_slave learning on\n3: t: <UP> mtu 9\n tun type tap vnet_hdr on\n",
        |text| {
            let path = "commands/ip_-s_-d_link".to_owned();
            let source = Source::Memory([(path, text.body().to_owned())].into());
            drop(Derived::of(&source));
            Ok(())
        },
    ),
    (
        "Ethernet Channel Bonding Driver: v6\nBonding Mode: x\nMII Status: up\nMII Polling \
         Interval (ms): 100\nSlave Interface: a\nMII Status: down\nSpeed: 10 Mbps\n",
        read!(bonds::Bond),
    ),
    ("  CPU0 CPU1\n 24: 1 2 IO-APIC 5-edge eth0-q0-tx\nERR: 0\n", |text| {
        let read = interrupts::Interrupts::parse(text)?;
        for row in read.rows.values() {
            let _ = interrupts::queue_irq(row.name(), &["eth0".to_owned()]);
        }
        Ok(())
    }),
    ("00414509 00000000 00000000\n0042cd3c 00000000 00000001\n", read!(softnet::Softnet)),
    ("cpu  5 4 3 2\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\n", read!(cpu::CpuTimes)),
    ("Inter-| R\n face |b\n lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n", read!(nic::NicCounters)),
    ("Features for eth0:\nrx-checksumming: on [fixed]\n\ttx: off\n", read!(ethtool::Features)),
    ("Channel parameters for eth0:\nPre-set maximums:\nCombined:\t8\n", read!(ethtool::Settings)),
    ("features of eth0: 2\ntx-scatter-gather: on\nrx-gro: off [fixed]\n", read!(ethtool::Features)),
    ("channels of eth0: 2\ncombined: 2\ncombined max: 8\n", read!(ethtool::Settings)),
    (
        "connections: 1 of 1\n10.0.0.1:1 [::1]:2 bbr rtt=321 busy_time=9 rwnd_limited=4\n",
        read!(sockets::Sockets),
    ),
    ("qstats of eth0: 2\nrx-0 packets: 5\nrx-0 bytes: 300\n", read!(ethtool::Statistics)),
    ("NIC statistics:\n rx_queue_0_bytes: 5\n", |text| {
        let read = ethtool::Statistics::parse(text)?;
        for name in read.counters.keys() {
            let _ = ethtool::queue_counter(name);
        }
        Ok(())
    }),
    (
        "[{\"name\":\"vif1.0\",\"max_queues\":4,\"queues\":[{\"index\":0,\"tx_packets\":1,\
         \"tx_bytes\":60,\"rx_packets\":0,\"rx_bytes\":0}]}]\n",
        |text| ringway::Vifs::parse(text).map(|read| drop(read.queue("vif1.0", 0).cloned())),
    ),
    (
        "[{\"kind\":\"mq\",\"dev\":\"e\"},{\"kind\":\"x\",\"dev\":\"e\",\"parent\":\":1\"}]",
        |text| qdisc::Qdiscs::parse(text).map(|read| drop((read.queue_bytes("e"), read.hooks()))),
    ),
    (
        "filter protocol ip pref 5 u32 chain 0 fh 800::800 order 2048\n police 0x1 rate 5Mbit mtu \
         2Kb action drop \n Sent 9 bytes 1 pkt (dropped 1, overlimits 1 requeues 0) \n",
        read!(police::Policers),
    ),
    ("12 (vif1.0-q0-guest) S 2 0 0 0 -1 1 0 0 0 0 5 6 0\n", read!(threads::Threads)),
    (
        "entries insert_failed drop early_drop\n00000001 00000002 00000003 0000000a\n",
        read!(conntrack::Conntrack),
    ),
    (
        "0 0 10.0.0.1:1 10.0.0.2:2 ts bbr rtt:0.3/0.1 busy:9ms rwnd_limited:4ms(50.0%)\n",
        read!(sockets::Sockets),
    ),
    ("system@ovs-system:\n  lookups: hit:10 missed:2 lost:0\n", read!(ovs::Lookups)),
    (
        r#"{"data":[["br0","netdev",["uuid","p"]]],"headings":["name","datapath_type","ports"]}
{"data":[[["uuid","p"],["uuid","i"]]],"headings":["_uuid","interfaces"]}
{"data":[[["uuid","i"],"a","",1500,["set",[]],["map",[["iface-id","x"]]],["map",[]]]],
"headings":["_uuid","name","type","mtu","error","external_ids","status"]}
"#,
        read!(ovsdb::Database),
    ),
    ("hv1\n\"tcp:192.0.2.1:6642\"\n\n\n\"true\"\n", read!(ovsdb::Settings)),
    ("2026-01-31T23:59:07.8Z|9|binding|INFO|Changing chassis for lport a from b to c.\n", |text| {
        drop(claims::Claims::parse(text));
        Ok(())
    }),
    ("Name ID VCPU CPU State Time(s) Affinity\nmy guest 7 3 - -b- 0.1 0-3 / all\n", |text| {
        domains::VcpuTimes::parse(text)
            .map(|read| assert!(read.of_domain(7) >= 0.0, "time runs forward"))
    }),
    ("Name ID Mem VCPUs State Time(s)\nmy guest 7 512 4 -b---- 3.0\n", read!(domains::Domains)),
    ("NAME STATE CPU(sec) CPU(%)\nmy guest --b--- 95 0.0 no limit\n", read!(domains::Xentop)),
    ("xen_major : 4\nxen_minor : 17\n", |text| {
        domains::XlInfo::parse(text).map(|read| {
            let _ = read.version();
        })
    }),
    (" 98.77%|vif1.0-q0-guest|[k] xen_hypercall_sched_op\n", read!(profile::Profile)),
    (
        "<domain><vcpu cpuset='0-3'>2</vcpu><cputune><vcpupin vcpu='1' cpuset='2,4'/></cputune>\n\
         <numatune><memory mode='strict' nodeset='0'/></numatune><name>a</name><devices>\n\
         <interface><model type='e1000'/></interface></devices>\n</domain>\n",
        read!(libvirt::Guest),
    ),
    (
        "<domstatus state='running'><domain><name>a</name><vcpu current='2'>4</vcpu><devices>\n\
         <interface type='vhostuser'><source path='/run/a'/><model type='virtio'/>\n\
         <driver queues='2'/></interface></devices></domain></domstatus>\n",
        |text| libvirt::cut(text).map(drop),
    ),
    ("uuid ( RO)   : 7d1a\n name-label ( RW): a: b\n", read!(xapi::Records)),
    ("uuid ( RO) : 5a\n MTU ( RW): 9000\n bridge ( RO): xenbr6\n", |text| {
        xapi::Network::all(text).map(drop)
    }),
    (
        "uuid ( RO) : 1\n device ( RO): eth6\n currently-attached ( RO): true\n MTU ( RO): 9000\n\
         VLAN ( RO): 7\n network-uuid ( RO): 5a\n host-uuid ( RO): 2c\n",
        |text| xapi::Plug::all(text).map(drop),
    ),
    ("/local/domain/0/backend/vif/1/0/state = \"4\"   (n0,r1)\n", read!(xenstore::Nodes)),
];

#[test]
fn sound_texts_are_read() {
    for (sound, read) in READERS {
        let read = read(&Text::new("x", sound));
        assert!(read.is_ok(), "{sound}: {read:?}");
    }
}

#[test]
fn a_reply_of_the_kernel_that_lost_lines_is_refused() {
    let is_reply =
        |(sound, _): &&(&str, Reader)| sound.contains(": 2\n") || sound.contains(" of 1\n");
    let replies: Vec<_> = READERS.iter().filter(is_reply).collect();
    assert_eq!(replies.len(), 4);
    for (sound, read) in replies {
        let ends = sound.match_indices('\n').map(|(at, _)| at + 1);
        for end in ends.filter(|end| *end < sound.len()) {
            let torn = Text::new("x", &sound[..end]);
            assert!(read(&torn).is_err(), "{}", torn.body());
        }
    }
}

proptest! {
    #[test]
    fn no_text_makes_a_reader_panic(text in "(?s).{0,200}") {
        for (_, read) in READERS {
            let _ = read(&Text::new("x", text.clone()));
        }
    }

    #[test]
    fn a_torn_or_altered_text_is_read_or_refused(
        reader in 0..READERS.len(),
        cut in 0_usize..400,
        at in 0_usize..400,
        with in "[ -~\n\t(){}:.\"]{0,3}",
    ) {
        let (sound, read) = READERS[reader];
        let _ = read(&Text::new("x", sound.get(..cut).unwrap_or(sound)));
        let at = at % (sound.len() + 1);
        let altered = format!("{}{with}{}", &sound[..at], &sound[at..]);
        let _ = read(&Text::new("x", altered));
    }
}

/// Runs a parser on bytes from a disk: bytes that are not text never reach it.
fn read_bytes(read: Reader, bytes: Vec<u8>) {
    if let Ok(text) = String::from_utf8(bytes) {
        let _ = read(&Text::new("x", text));
    }
}

#[test]
fn each_byte_may_be_the_last_one_or_another_one() {
    for (sound, read) in READERS {
        let sound = sound.as_bytes();
        for at in 0..sound.len() {
            read_bytes(read, sound[..at].to_vec());
            read_bytes(read, [&sound[..at], &[0], &sound[at..]].concat());
            for bit in 0..8 {
                let mut altered = sound.to_vec();
                altered[at] ^= 1 << bit;
                read_bytes(read, altered);
            }
        }
    }
}

#[test]
fn each_number_may_be_any_other_one() {
    const NUMBERS: [&str; 8] = [
        "18446744073709551615",
        "18446744073709551616",
        "4294967296",
        "-1",
        "1e308",
        "nan",
        "inf",
        "",
    ];
    for (sound, read) in READERS {
        let is_digit = |at: usize| sound.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
        let starts = (0..sound.len()).filter(|at| is_digit(*at) && (*at == 0 || !is_digit(at - 1)));
        for start in starts {
            let end = (start..).find(|at| !is_digit(*at)).expect("the text ends");
            for number in NUMBERS {
                let altered = format!("{}{number}{}", &sound[..start], &sound[end..]);
                let _ = read(&Text::new("x", altered));
            }
        }
    }
}

#[test]
fn each_line_may_be_one_of_another_file_or_come_again() {
    for (sound, read) in READERS {
        let lines: Vec<&str> = sound.split_inclusive('\n').collect();
        for foreign in READERS.iter().flat_map(|(text, _)| text.split_inclusive('\n')) {
            for at in 0..lines.len() {
                let mut altered = lines.clone();
                altered[at] = foreign;
                let _ = read(&Text::new("x", altered.concat()));
                altered.insert(at, lines[at]);
                let _ = read(&Text::new("x", altered.concat()));
            }
        }
    }
}

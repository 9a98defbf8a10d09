//! The set-ups that are recorded.

use super::{Place, Scenario, State};
use crate::pair::Pair;

const IPERF: &[&str] = &["iperf3 -c 10.98.0.2 -t 60"];
/// Small packets of many connections, from one CPU.
const IPERF_SMALL: &[&str] = &["taskset -c 0 iperf3 -c 10.98.0.2 -u -b 0 -l 64 -P 64 -t 60"];
/// Of many ports: a hash of them chooses, so that each has a flow of its own.
const BY_PORTS: &str = "ovs-ofctl add-flow ovs0 \
     priority=5,udp,actions=multipath(symmetric_l3l4+udp,1024,hrw,2,0,NXM_NX_REG0[0]),normal";

/// A second guest, both served by threads, and what makes the first one's work.
const SECOND_GUEST: &[&str] = &[
    "ip link add vif2.0 type veth peer name eth1 netns GUEST",
    "ip addr add 10.98.1.1/24 dev vif2.0",
    "ip link set vif2.0 up",
    "+ip addr add 10.98.1.2/24 dev eth1",
    "+ip link set eth1 up",
    // Without these a veth hands frames over past NAPI.
    "+ethtool -K eth0 tso off",
    "+ethtool -K eth1 tso off",
    "ethtool -K vif1.0 gro on",
    "ethtool -K vif2.0 gro on",
    "sh -c echo,1,>,/sys/class/net/vif1.0/threaded",
    "sh -c echo,1,>,/sys/class/net/vif2.0/threaded",
    "tc qdisc add dev vif1.0 ingress",
    "RULES",
];

/// A second guest, both served by the backlog of one CPU.
const SECOND_GUEST_BY_BACKLOG: &[&str] = &[
    "ip link add vif2.0 type veth peer name eth1 netns GUEST",
    "ip addr add 10.98.1.1/24 dev vif2.0",
    "ip link set vif2.0 up",
    "+ip addr add 10.98.1.2/24 dev eth1",
    "+ip link set eth1 up",
    "sh -c echo,2,>,/sys/class/net/vif1.0/queues/rx-0/rps_cpus",
    "sh -c echo,2,>,/sys/class/net/vif2.0/queues/rx-0/rps_cpus",
    "tc qdisc add dev vif1.0 ingress",
    "RULES",
];

fn scenario<const N: usize>(
    check: &'static str,
    make: fn(&str) -> Option<Pair>,
    place: Place,
    states: [State; N],
) -> Scenario {
    Scenario { check, make, place, states: states.into() }
}

pub(super) fn all() -> Vec<Scenario> {
    let state = |name, from, load, lines| State { name, from, load, lines };
    vec![
        scenario(
            "d07",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick-host",
                    "Two veths, called as vifs are, with NAPI threads; one is flooded, with 30000 \
                     rules",
                    &[
                        "iperf3 -c 10.98.0.2 -u -R -b 0 -l 64 -P 8 -t 60",
                        "ping -q -i 0.02 10.98.1.2",
                    ],
                    SECOND_GUEST,
                ),
                state(
                    "healthy-host",
                    "The same veths and rules when nobody floods",
                    &["iperf3 -c 10.98.0.2 -u -R -b 100K -l 64 -t 60", "ping -q -i 0.02 10.98.1.2"],
                    &[],
                ),
            ],
        ),
        scenario(
            "d08",
            Pair::new,
            Place::Host,
            [
                state(
                    "sick",
                    "A bridge of a veth of MTU 9000 and another of 1500",
                    &[],
                    &[
                        "ip link add br0 type bridge",
                        "ip link add own type veth peer name own-port",
                        "ip link set own-port mtu 9000 master br0 up",
                        "ip link set vif1.0 master br0 up",
                        "ip link set br0 up",
                    ],
                ),
                state(
                    "healthy",
                    "The same bridge when all its members have MTU 9000",
                    &[],
                    &["ip link set vif1.0 mtu 9000", "ip link set br0 mtu 9000"],
                ),
            ],
        ),
        scenario(
            "d09",
            Pair::far,
            Place::Disguised("e1000e"),
            [
                state(
                    "sick-host",
                    "A TAP device, called a card, whose token bucket carries what a wire of 100 \
                     Mbit/s does",
                    &["iperf3 -c 10.98.0.2 -R -u -b 150M -t 60"],
                    &[
                        "+ip link set eth0 txqueuelen 5000",
                        "+ethtool -s eth0 speed 100 duplex full autoneg off",
                        "+tc qdisc replace dev eth0 root tbf rate 100mbit overhead 24 burst 64kb \
                         latency 50ms",
                    ],
                ),
                state(
                    "healthy-host",
                    "The same wire with 40 Mbit/s on it",
                    &["iperf3 -c 10.98.0.2 -R -b 40M -t 60"],
                    &[],
                ),
            ],
        ),
        scenario(
            "d10",
            Pair::linked,
            Place::Disguised("virtio_net"),
            [
                state(
                    "sick-host",
                    "A veth, its driver's name replaced, of two queues of 100 Mbit/s each, and one \
                     connection",
                    &["iperf3 -c 10.98.0.2 -R -t 60"],
                    &[
                        "+ethtool -L eth0 rx 2 tx 2",
                        "+tc qdisc replace dev eth0 root handle 1: mq",
                        "+tc qdisc replace dev eth0 parent 1:1 tbf rate 100mbit burst 64kb \
                         latency 50ms",
                        "+tc qdisc replace dev eth0 parent 1:2 tbf rate 100mbit burst 64kb \
                         latency 50ms",
                    ],
                ),
                state(
                    "healthy-host",
                    "The same queues and eight connections",
                    &["iperf3 -c 10.98.0.2 -R -P 8 -t 60"],
                    &[],
                ),
            ],
        ),
        scenario(
            "d11",
            Pair::far,
            Place::Host,
            [
                state(
                    "sick",
                    "A link of 10 ms and a send buffer of 64 KiB",
                    IPERF,
                    &[
                        "ethtool -s vif1.0 speed 10000 duplex full autoneg off",
                        "sysctl -qw net.ipv4.tcp_wmem=4096,16384,65536",
                    ],
                ),
                state(
                    "healthy",
                    "The same link and a send buffer of 32 MiB",
                    IPERF,
                    &["sysctl -qw net.ipv4.tcp_wmem=4096,16384,33554432"],
                ),
            ],
        ),
        scenario(
            "d12",
            Pair::linked,
            Place::Disguised("virtio_net"),
            [state(
                "healthy-host",
                "A veth, its driver's name replaced, which gives frames back at once",
                &["iperf3 -c 10.98.0.2 -R -C reno -b 100M -t 60"],
                &[],
            )],
        ),
        scenario(
            "d13",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick",
                    "A veth, called as a vif is, with its offloads off",
                    &[],
                    &["ethtool -K vif1.0 tso off gso off sg off tx off gro off"],
                ),
                state(
                    "healthy",
                    "The same veth with its offloads on",
                    &[],
                    &["ethtool -K vif1.0 tx on sg on tso on gso on gro on"],
                ),
            ],
        ),
        scenario(
            "d14",
            Pair::new,
            Place::Disguised("virtio_net"),
            [
                state(
                    "sick",
                    "A veth of two CPUs that uses one queue, its driver's name replaced",
                    &[],
                    &[],
                ),
                state(
                    "healthy",
                    "The same veth with two queues",
                    &[],
                    &["+ethtool -L eth0 rx 2 tx 2"],
                ),
            ],
        ),
        scenario(
            "d18",
            Pair::linked,
            Place::Guest,
            [
                state(
                    "sick",
                    "A veth of which RPS hands all to one CPU, with 3000 rules for each",
                    IPERF_SMALL,
                    &["+tc qdisc add dev eth0 ingress", "+RULES", "+RPS 2"],
                ),
                state(
                    "healthy",
                    "The same link without the rules and without RPS",
                    IPERF_SMALL,
                    &["+tc qdisc del dev eth0 ingress", "+RPS 0"],
                ),
            ],
        ),
        scenario(
            "d19",
            Pair::new,
            Place::Host,
            [
                state(
                    "sick",
                    "A namespace without SACK and with a txqueuelen of 300000",
                    &[],
                    &["sysctl -qw net.ipv4.tcp_sack=0", "ip link set vif1.0 txqueuelen 300000"],
                ),
                state(
                    "healthy",
                    "The same namespace as the kernel has it",
                    &[],
                    &["sysctl -qw net.ipv4.tcp_sack=1", "ip link set vif1.0 txqueuelen 1000"],
                ),
            ],
        ),
        scenario(
            "d21",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick-host",
                    "Open vSwitch in user space with a rule that looks at ports, and packets to \
                     many",
                    &["SCAN"],
                    &[
                        "ip addr del 10.98.0.1/24 dev vif1.0",
                        "OVS",
                        "ip addr add 10.98.0.1/24 dev ovs0",
                        "ip link set ovs0 up",
                        "+ethtool -K eth0 tx off",
                        BY_PORTS,
                    ],
                ),
                state("healthy-host", "The same switch and rule, and one connection", IPERF, &[]),
            ],
        ),
        scenario(
            "d26",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick-host",
                    "A veth between neighbours, and TCP with BBR",
                    IPERF,
                    &["sysctl -qw net.ipv4.tcp_congestion_control=bbr"],
                ),
                state(
                    "healthy-host",
                    "The same veth with Reno",
                    &["iperf3 -c 10.98.0.2 -b 20M -t 60"],
                    &["sysctl -qw net.ipv4.tcp_congestion_control=reno"],
                ),
            ],
        ),
        scenario(
            "d30",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick",
                    "A veth behind a token bucket of 50 Mbit/s, and TCP that wants more",
                    IPERF,
                    &["tc qdisc add dev vif1.0 root tbf rate 50mbit burst 64kb latency 50ms"],
                ),
                state(
                    "healthy",
                    "The same veth and a bucket that nobody reaches",
                    IPERF,
                    &["tc qdisc replace dev vif1.0 root tbf rate 900gbit burst 64mb latency 50ms"],
                ),
            ],
        ),
        scenario(
            "d31",
            Pair::linked,
            Place::Guest,
            [
                state(
                    "healthy",
                    "A namespace that tracks connections",
                    &[],
                    &[
                        "+nft add table inet seen",
                        "+nft add chain inet seen at { type filter hook prerouting priority 0 ; }",
                        "+nft add rule inet seen at ct state new counter",
                        "+sysctl -qw net.netfilter.nf_conntrack_udp_timeout=600",
                    ],
                ),
                state("sick", "The same namespace after a scan of many UDP ports", &[], &["SCAN"]),
            ],
        ),
        scenario(
            "d32",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick-host",
                    "Two veths, called as vifs are, for both of which one CPU takes in, with 30000 \
                     rules; one is flooded",
                    &[
                        "taskset -c 0 iperf3 -c 10.98.0.2 -u -R -b 0 -l 64 -P 8 -t 60",
                        "ping -q -i 0.002 10.98.1.2",
                    ],
                    SECOND_GUEST_BY_BACKLOG,
                ),
                state(
                    "healthy-host",
                    "The same veths and rules when nobody floods",
                    &[
                        "iperf3 -c 10.98.0.2 -u -R -b 100K -l 64 -t 60",
                        "ping -q -i 0.002 10.98.1.2",
                    ],
                    &[],
                ),
            ],
        ),
    ]
}

//! Set-ups of guests' interfaces and of the processes that serve them.

use ringway_e2e::pair::Pair;

use super::End::{Guest, Host};
use super::{Place, Scenario, Step, guest, host, scenario, state};

const IPERF: &[Step] = &[host("iperf3 -c 10.98.0.2 -t 60")];
const IPERF_BACK: &[Step] = &[host("iperf3 -c 10.98.0.2 -R -t 60")];
/// What virtio_net has by default, and a veth has not.
const GRO: Step = guest("ethtool -K eth0 gro on");
/// Small packets of many connections, from one CPU.
const IPERF_SMALL: &[Step] = &[host("taskset -c 0 iperf3 -c 10.98.0.2 -u -b 0 -l 64 -P 64 -t 60")];
/// From many ports: a hash of them chooses the queue, so each has its own flow.
const BY_PORTS: Step = host(
    "ovs-ofctl add-flow ovs0 \
     'priority=5,udp,actions=multipath(symmetric_l3l4+udp,1024,hrw,2,0,NXM_NX_REG0[0]),normal'",
);

/// A second guest, both served by threads, and what makes the first one's work.
const SECOND_GUEST: &[Step] = &[
    host("ip link add vif2.0 type veth peer name eth1 netns $GUEST"),
    host("ip addr add 10.98.1.1/24 dev vif2.0"),
    host("ip link set vif2.0 up"),
    guest("ip addr add 10.98.1.2/24 dev eth1"),
    guest("ip link set eth1 up"),
    // Without these a veth bypasses NAPI.
    guest("ethtool -K eth0 tso off"),
    guest("ethtool -K eth1 tso off"),
    host("ethtool -K vif1.0 gro on"),
    host("ethtool -K vif2.0 gro on"),
    host("echo 1 > /sys/class/net/vif1.0/threaded"),
    host("echo 1 > /sys/class/net/vif2.0/threaded"),
    host("tc qdisc add dev vif1.0 ingress"),
    Step::Rules(Host),
];

/// A second guest, both served by the backlog of one CPU.
const SECOND_GUEST_BY_BACKLOG: &[Step] = &[
    host("ip link add vif2.0 type veth peer name eth1 netns $GUEST"),
    host("ip addr add 10.98.1.1/24 dev vif2.0"),
    host("ip link set vif2.0 up"),
    guest("ip addr add 10.98.1.2/24 dev eth1"),
    guest("ip link set eth1 up"),
    host("echo 2 > /sys/class/net/vif1.0/queues/rx-0/rps_cpus"),
    host("echo 2 > /sys/class/net/vif2.0/queues/rx-0/rps_cpus"),
    host("tc qdisc add dev vif1.0 ingress"),
    Step::Rules(Host),
];

pub(super) fn all() -> Vec<Scenario> {
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
                        host("iperf3 -c 10.98.0.2 -u -R -b 0 -l 64 -P 8 -t 60"),
                        host("ping -q -i 0.02 10.98.1.2"),
                    ],
                    SECOND_GUEST,
                ),
                state(
                    "healthy-host",
                    "The same veths and rules when nothing floods",
                    &[
                        host("iperf3 -c 10.98.0.2 -u -R -b 100K -l 64 -t 60"),
                        host("ping -q -i 0.02 10.98.1.2"),
                    ],
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
                        host("ip link add br0 type bridge"),
                        host("ip link add own type veth peer name own-port"),
                        host("ip link set own-port mtu 9000 master br0 up"),
                        host("ip link set vif1.0 master br0 up"),
                        host("ip link set br0 up"),
                    ],
                ),
                state(
                    "healthy",
                    "The same bridge when all its members have MTU 9000",
                    &[],
                    &[host("ip link set vif1.0 mtu 9000"), host("ip link set br0 mtu 9000")],
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
                    &[host("iperf3 -c 10.98.0.2 -R -u -b 150M -t 60")],
                    &[
                        guest("ip link set eth0 txqueuelen 5000"),
                        guest("ethtool -s eth0 speed 100 duplex full autoneg off"),
                        guest(
                            "tc qdisc replace dev eth0 root tbf rate 100mbit overhead 24 burst \
                             64kb latency 50ms",
                        ),
                    ],
                ),
                state(
                    "healthy-host",
                    "The same wire with 40 Mbit/s on it",
                    &[host("iperf3 -c 10.98.0.2 -R -b 40M -t 60")],
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
                    &[host("iperf3 -c 10.98.0.2 -R -t 60")],
                    &[
                        GRO,
                        guest("ethtool -L eth0 rx 2 tx 2"),
                        guest("tc qdisc replace dev eth0 root handle 1: mq"),
                        guest(
                            "tc qdisc replace dev eth0 parent 1:1 tbf rate 100mbit burst 64kb \
                             latency 50ms",
                        ),
                        guest(
                            "tc qdisc replace dev eth0 parent 1:2 tbf rate 100mbit burst 64kb \
                             latency 50ms",
                        ),
                    ],
                ),
                state(
                    "healthy-host",
                    "The same queues and eight connections",
                    &[host("iperf3 -c 10.98.0.2 -R -P 8 -t 60")],
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
                        host("ethtool -s vif1.0 speed 10000 duplex full autoneg off"),
                        host("sysctl -qw net.ipv4.tcp_wmem='4096 16384 65536'"),
                    ],
                ),
                state(
                    "healthy",
                    "The same link and a send buffer of 32 MiB",
                    IPERF,
                    &[host("sysctl -qw net.ipv4.tcp_wmem='4096 16384 33554432'")],
                ),
                state(
                    "sick-receiver",
                    "The same link, and a receive buffer of 64 KiB at this end",
                    IPERF_BACK,
                    &[host("sysctl -qw net.ipv4.tcp_rmem='4096 16384 65536'")],
                ),
                state(
                    "healthy-receiver",
                    "The same link and a receive buffer of 32 MiB",
                    IPERF_BACK,
                    &[host("sysctl -qw net.ipv4.tcp_rmem='4096 131072 33554432'")],
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
                &[host("iperf3 -c 10.98.0.2 -R -C reno -b 100M -t 60")],
                &[GRO, guest("ethtool -L eth0 rx 2 tx 2")],
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
                    &[host("ethtool -K vif1.0 tso off gso off sg off tx off gro off")],
                ),
                state(
                    "healthy",
                    "The same veth with its offloads on",
                    &[],
                    &[host("ethtool -K vif1.0 tx on sg on tso on gso on gro on")],
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
                    &[GRO],
                ),
                state(
                    "healthy",
                    "The same veth with two queues",
                    &[],
                    &[guest("ethtool -L eth0 rx 2 tx 2")],
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
                    &[
                        guest("tc qdisc add dev eth0 ingress"),
                        Step::Rules(Guest),
                        guest("echo 2 > /sys/class/net/eth0/queues/rx-0/rps_cpus"),
                    ],
                ),
                state(
                    "healthy",
                    "The same link without the rules and without RPS",
                    IPERF_SMALL,
                    &[
                        guest("tc qdisc del dev eth0 ingress"),
                        guest("echo 0 > /sys/class/net/eth0/queues/rx-0/rps_cpus"),
                    ],
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
                    &[
                        host("sysctl -qw net.ipv4.tcp_sack=0"),
                        host("ip link set vif1.0 txqueuelen 300000"),
                    ],
                ),
                state(
                    "healthy",
                    "The same namespace as the kernel has it",
                    &[],
                    &[
                        host("sysctl -qw net.ipv4.tcp_sack=1"),
                        host("ip link set vif1.0 txqueuelen 1000"),
                    ],
                ),
                state(
                    "sick-buffers",
                    "The same namespace with 8192 bytes for receive buffers at most",
                    &[],
                    &[host("sysctl -qw net.ipv4.tcp_rmem='4096 8192 8192'")],
                ),
                state(
                    "healthy-buffers",
                    "The same namespace with the least that the kernel sets",
                    &[],
                    &[host("sysctl -qw net.ipv4.tcp_rmem='4096 131072 131072'")],
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
                    "Open vSwitch in user space with a rule that matches ports, and packets to \
                     many",
                    &[Step::Scan],
                    &[
                        host("ip addr del 10.98.0.1/24 dev vif1.0"),
                        Step::OpenVswitch,
                        host("ip addr add 10.98.0.1/24 dev ovs0"),
                        host("ip link set ovs0 up"),
                        guest("ethtool -K eth0 tx off"),
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
                    &[host("sysctl -qw net.ipv4.tcp_congestion_control=bbr")],
                ),
                state(
                    "healthy-host",
                    "The same veth with Reno",
                    &[host("iperf3 -c 10.98.0.2 -b 20M -t 60")],
                    &[host("sysctl -qw net.ipv4.tcp_congestion_control=reno")],
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
                    &[host("tc qdisc add dev vif1.0 root tbf rate 50mbit burst 64kb latency 50ms")],
                ),
                state(
                    "healthy",
                    "The same veth and a bucket that nothing reaches",
                    IPERF,
                    &[host(
                        "tc qdisc replace dev vif1.0 root tbf rate 900gbit burst 64mb latency 50ms",
                    )],
                ),
                state(
                    "sick-class",
                    "The default class of HTB, with 6 Mbit/s below one of 900",
                    IPERF,
                    &[
                        host("tc qdisc replace dev vif1.0 root handle 1: htb default 20"),
                        host("tc class add dev vif1.0 parent 1: classid 1:1 htb rate 900mbit"),
                        host("tc class add dev vif1.0 parent 1:1 classid 1:10 htb rate 800mbit"),
                        host(
                            "tc class add dev vif1.0 parent 1:1 classid 1:20 htb rate 4mbit ceil \
                             6mbit",
                        ),
                    ],
                ),
                state(
                    "healthy-class",
                    "The same classes when the default one has room",
                    &[host("iperf3 -c 10.98.0.2 -b 20M -t 60")],
                    &[host(
                        "tc class replace dev vif1.0 parent 1:1 classid 1:20 htb rate 400mbit ceil \
                         800mbit",
                    )],
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
                        guest("nft add table inet seen"),
                        guest(
                            "nft add chain inet seen at '{ type filter hook prerouting priority \
                             0; }'",
                        ),
                        guest("nft add rule inet seen at ct state new counter"),
                        guest("sysctl -qw net.netfilter.nf_conntrack_udp_timeout=600"),
                    ],
                ),
                state(
                    "sick",
                    "The same namespace after a scan of many UDP ports",
                    &[],
                    &[Step::Scan],
                ),
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
                        host("taskset -c 0 iperf3 -c 10.98.0.2 -u -R -b 0 -l 64 -P 8 -t 60"),
                        host("ping -q -i 0.002 10.98.1.2"),
                    ],
                    SECOND_GUEST_BY_BACKLOG,
                ),
                state(
                    "healthy-host",
                    "The same veths and rules when nothing floods",
                    &[
                        host("iperf3 -c 10.98.0.2 -u -R -b 100K -l 64 -t 60"),
                        host("ping -q -i 0.002 10.98.1.2"),
                    ],
                    &[],
                ),
            ],
        ),
        scenario(
            "d33",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick-not-forwarding",
                    "A host that does not forward, and packets for another host",
                    &[guest("ping -q -i 0.02 10.97.0.1")],
                    &[guest("ip route add 10.97.0.0/24 via 10.98.0.1")],
                ),
                state(
                    "sick-no-route",
                    "A host that forwards, without a route to where the packets are sent",
                    &[guest("ping -q -i 0.02 10.97.0.1")],
                    &[host("sysctl -qw net.ipv4.conf.all.forwarding=1")],
                ),
                state(
                    "healthy-route",
                    "The same host with such a route",
                    &[guest("ping -q -i 0.02 10.97.0.1")],
                    &[
                        host("ip link add away type veth peer name astray"),
                        host("ip addr add 10.97.0.2/24 dev away"),
                        host("ip link set away up; ip link set astray up"),
                        host("ip neigh add 10.97.0.1 lladdr 02:00:00:00:00:01 dev away"),
                    ],
                ),
                state(
                    "sick-too-long",
                    "The same route with an MTU of 1000, and datagrams of 1400 bytes with DF set",
                    &[guest("exec python3 -c \"$LONG\" 10.97.0.1")],
                    &[host("ip link set away mtu 1000")],
                ),
                state(
                    "sick-loop",
                    "Two hosts that send packets for a network to each other",
                    &[guest("exec python3 -c \"$STRANGER\" 10.97.0.1")],
                    &[
                        host("ip link del away"),
                        host("ip route add 10.97.0.0/24 via 10.98.0.2"),
                        guest("sysctl -qw net.ipv4.conf.all.forwarding=1"),
                    ],
                ),
                state(
                    "sick-refused",
                    "A program that connects again and again to a port where none listens",
                    &[host("while :; do echo > /dev/tcp/10.98.0.2/81; done")],
                    &[host("ip route del 10.97.0.0/24")],
                ),
            ],
        ),
    ]
}

//! Set-ups around guests: programs, links, routes, rules and connections.

use ringway_e2e::pair::Pair;

use super::{Place, Scenario, Step, guest, host, machine, scenario, state};

/// A stream that does not fill a CPU.
const IPERF_SLOW: &[Step] = &[host("iperf3 -c 10.98.0.2 -b 20M -t 60")];
/// Pings to a network behind another host.
const PING_NINE: &str = "while :; do for i in 1 2 3 4 5 6 7 8; do ping -c1 -W1 10.98.9.$i & done; \
                         wait; done";
/// A guest with an address whose way back is another one, and a strict reverse-path filter.
const ASTRAY: &[Step] = &[
    host("ip link set vif1.0 address 02:00:00:00:00:01"),
    // Requests for an address are dropped as well, and not counted.
    guest("ip neigh add 10.98.0.1 lladdr 02:00:00:00:00:01 dev eth0"),
    guest("ip addr add 10.97.0.1/32 dev lo"),
    host("ip link add away type veth peer name astray"),
    host("ip link set astray up; ip link set away up"),
    host("ip route add 10.97.0.0/24 dev away"),
    host("sysctl -qw net/ipv4/conf/vif1.0/rp_filter=1"),
];
/// Four readers of a file, in a control group of the set-up.
const READ_FILE: &[Step] = &[machine(
    "echo $BASHPID > /sys/fs/cgroup/memory/$HOST/cgroup.procs; for i in 1 2 3 4; do while :; do \
     cat $DIR/file > /dev/null; done & done; wait",
)];
/// Datagrams for a TAP device with a short queue, and with a long one.
// waits: another program makes the device.
const FLOOD_TAP_SHORT: &str = "until ip link set tap0 up txqueuelen 50; do sleep 0.1; done; ip \
    addr add 10.98.7.1/24 dev tap0; ip neigh add 10.98.7.2 lladdr 02:00:00:00:00:02 dev tap0; exec \
    python3 -c \"$FLOOD\" 10.98.7.2";
// waits: another program makes the device.
const FLOOD_TAP_LONG: &str = "until ip link set tap0 up txqueuelen 500; do sleep 0.1; done; ip \
    addr add 10.98.7.1/24 dev tap0; ip neigh add 10.98.7.2 lladdr 02:00:00:00:00:02 dev tap0; exec \
    python3 -c \"$FLOOD\" 10.98.7.2";
/// Datagrams from the guest, of a thousand bytes each.
const FLOOD_HOST: &[Step] = &[host("iperf3 -c 10.98.0.2 -u -R -b 160M -l 1000 -t 60")];
/// Rules that no packet matches, for all that comes in.
const LONG_CHAIN: &str = "(echo '*filter'; echo ':long - [0:0]'; echo '-A INPUT -j long'; for i in \
    $(seq 500); do echo \"-A long -s 10.98.$((i / 250 + 1)).$((i % 250)) -j DROP\"; done; echo \
    COMMIT) | iptables-legacy-restore";
const FLOOD_GUEST: &[Step] = &[host("exec python3 -c \"$FLOOD\" 10.98.0.2")];
/// Eight connections to the host every 300 ms.
// waits: they are part of the set-up.
const CONNECT_ALWAYS: &str = "sleep 0.5; while :; do python3 -c \"$CONNECT\" 8 & sleep 0.3; done";
const OPEN_FIFTY: &[Step] =
    &[guest("exec python3 -c \"$LISTEN\" 0"), host("exec python3 -c \"$OPEN\" 50")];

/// Two more veths between host and guest, `q1` and `q2` on the host.
const TWO_LINKS: &str = "for i in 1 2; do ip link add q$i type veth peer name p$i netns $GUEST; ip \
    link set q$i up; done";
const GUEST_LINKS: &str = "for i in 1 2; do ip link set p$i up; done";
/// Both links of the guest ask for the host every half a second, as if each were a host alone.
// waits: so each has the address for some time.
const PING_BOTH: &str = "while :; do for i in 1 2; do ip neigh flush dev p$i; ping -c1 -W1 -I p$i \
    10.98.7.1 & sleep 1.2; done; done";

pub(super) fn all() -> Vec<Scenario> {
    vec![
        scenario(
            "d34",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick",
                    "iperf3 in a control group of version 1 with a tenth of a CPU",
                    &[machine(
                        "echo $BASHPID > /sys/fs/cgroup/cpu/$HOST/cgroup.procs; exec ip netns exec \
                         $HOST iperf3 -c 10.98.0.2 -t 60",
                    )],
                    &[machine(
                        "c=/sys/fs/cgroup/cpu/$HOST; mkdir -p $c; echo 10000 > $c/cpu.cfs_quota_us",
                    )],
                ),
                state(
                    "healthy",
                    "The same program in the same group with 1.9 CPUs",
                    &[machine(
                        "echo $BASHPID > /sys/fs/cgroup/cpu/$HOST/cgroup.procs; exec ip netns exec \
                         $HOST iperf3 -c 10.98.0.2 -b 20M -t 60",
                    )],
                    &[machine("echo 190000 > /sys/fs/cgroup/cpu/$HOST/cpu.cfs_quota_us")],
                ),
            ],
        ),
        scenario(
            "d35",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick",
                    "iperf3 on a CPU that three loops of a shell use as well",
                    &[
                        host(
                            "for i in 1 2 3; do taskset -c 1 bash -c 'while :; do :; done' & done; \
                             wait",
                        ),
                        host("taskset -c 1 iperf3 -c 10.98.0.2 -t 60"),
                    ],
                    &[],
                ),
                state(
                    "healthy",
                    "The same program without the loops",
                    &[host("taskset -c 1 iperf3 -c 10.98.0.2 -t 60")],
                    &[],
                ),
                state(
                    "healthy-quota",
                    "iperf3 in a control group of version 1 with a twentieth of a CPU",
                    &[machine(
                        "echo $BASHPID > /sys/fs/cgroup/cpu/$HOST/cgroup.procs; exec ip netns exec \
                         $HOST iperf3 -c 10.98.0.2 -t 60",
                    )],
                    &[machine(
                        "c=/sys/fs/cgroup/cpu/$HOST; mkdir -p $c; echo 5000 > $c/cpu.cfs_quota_us",
                    )],
                ),
                state(
                    "sick-real-time",
                    "iperf3 on a CPU that a real-time loop of a shell uses as well",
                    &[
                        host("taskset -c 1 chrt -f 10 bash -c 'while :; do :; done'"),
                        host("taskset -c 1 iperf3 -c 10.98.0.2 -t 60"),
                    ],
                    &[],
                ),
            ],
        ),
        scenario(
            "d36",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick",
                    "A program whose control group has less memory than the file that it reads",
                    READ_FILE,
                    &[machine(
                        "m=/sys/fs/cgroup/memory/$HOST; mkdir -p $m; echo 24M > \
                         $m/memory.limit_in_bytes; head -c 96M /dev/zero > $DIR/file",
                    )],
                ),
                state(
                    "healthy",
                    "The same program without the limit",
                    READ_FILE,
                    &[machine("echo -1 > /sys/fs/cgroup/memory/$HOST/memory.limit_in_bytes")],
                ),
            ],
        ),
        scenario(
            "d37",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick",
                    "A veth whose other end goes down and up",
                    &[guest(
                        // waits: the link changes at a pace.
                        "while :; do ip link set eth0 down; sleep 0.3; ip link set eth0 up; sleep \
                         0.3; done",
                    )],
                    &[],
                ),
                state(
                    "healthy",
                    "The same veth when it stays up",
                    IPERF_SLOW,
                    &[guest("ip link set eth0 up")],
                ),
                state(
                    "sick-port",
                    "A bridge of one port, a veth whose other end goes down and up",
                    &[guest(
                        // waits: the link changes at a pace.
                        "while :; do ip link set eth0 down; sleep 0.3; ip link set eth0 up; sleep \
                         0.3; done",
                    )],
                    &[
                        host("ip link add br0 type bridge; ip link set vif1.0 master br0"),
                        host("ip link set br0 up"),
                    ],
                ),
            ],
        ),
        scenario(
            "d38",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick",
                    "A TAP device whose program reads 100 frames a second, and 2000 that come",
                    &[host("exec python3 -c \"$TAP\" 0.01"), host(FLOOD_TAP_SHORT)],
                    &[],
                ),
                state(
                    "healthy",
                    "The same device when its program reads all at once",
                    &[host("exec python3 -c \"$TAP\" 0"), host(FLOOD_TAP_LONG)],
                    &[],
                ),
            ],
        ),
        scenario(
            "d39",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick",
                    "A route of two next hops of which one does not reply",
                    &[host(PING_NINE)],
                    &[host(
                        "ip route add 10.98.9.0/24 nexthop via 10.98.0.2 nexthop via 10.98.0.9",
                    )],
                ),
                state(
                    "healthy",
                    "The same route with one next hop",
                    &[host(PING_NINE)],
                    &[
                        host("ip neigh del 10.98.0.9 dev vif1.0 || true"),
                        host("ip route replace 10.98.9.0/24 via 10.98.0.2"),
                    ],
                ),
            ],
        ),
        scenario(
            "d53",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick",
                    "Two veths behind a bridge with the same IPv4 address, each of which asks for \
                     the host by turns",
                    &[guest(PING_BOTH)],
                    &[
                        host(TWO_LINKS),
                        guest(GUEST_LINKS),
                        host(
                            "ip link add br7 type bridge; ip addr add 10.98.7.1/24 dev br7; ip \
                             link set br7 up; for i in 1 2; do ip link set q$i master br7; done",
                        ),
                        guest("for i in 1 2; do ip addr add 10.98.7.2/24 dev p$i; done"),
                    ],
                ),
                state(
                    "healthy",
                    "The same bridge, when the address moves from one veth to the other once",
                    &[guest(
                        // waits: it moves once, after some traffic.
                        "ping -i 0.2 -I p1 10.98.7.1 & sleep 3; kill $!; ip addr del \
                         10.98.7.2/24 dev p1; ip addr add 10.98.7.2/24 dev p2; ip neigh flush \
                         dev p2; exec ping -i 0.2 -I p2 10.98.7.1",
                    )],
                    &[guest("ip addr del 10.98.7.2/24 dev p2")],
                ),
                state(
                    "sick-bridge",
                    "Two veths behind a bridge with the same Ethernet address, which both send",
                    &[guest("ping -i 0.2 -I p1 10.98.7.1 & exec ping -i 0.2 -I p2 10.98.7.1")],
                    &[guest(
                        "for i in 1 2; do ip link set p$i address 02:00:00:00:00:07; ip addr \
                         flush dev p$i; ip addr add 10.98.7.1$i/24 dev p$i; done",
                    )],
                ),
                state(
                    "healthy-bridge",
                    "The same Ethernet address when it moves from one port to the other once",
                    &[guest(
                        // waits: it moves once, after some traffic.
                        "ip link set p2 down; ping -i 0.2 -I p1 10.98.7.1 & sleep 3; kill $!; ip \
                         link set p1 down; ip link set p2 up; exec ping -i 0.2 -I p2 10.98.7.1",
                    )],
                    &[],
                ),
                state(
                    "sick-own",
                    "A veth with an IPv6 address that its other end has as well",
                    &[],
                    &[
                        guest("ip -6 addr add fe80::98:2/64 dev eth0 nodad"),
                        // waits: the kernel looks for a duplicate that long.
                        host("ip -6 addr add fe80::98:2/64 dev vif1.0; sleep 3"),
                    ],
                ),
                state(
                    "healthy-own",
                    "The same veth with another address",
                    &[],
                    &[host(
                        // waits: the kernel looks for a duplicate that long.
                        "ip -6 addr del fe80::98:2/64 dev vif1.0; ip -6 addr add fe80::98:1/64 \
                         dev vif1.0; sleep 3",
                    )],
                ),
            ],
        ),
        scenario(
            "d40",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick",
                    "A route with a window of 4096 bytes",
                    IPERF_SLOW,
                    &[host("ip route replace 10.98.9.0/24 via 10.98.0.2 window 4096 initcwnd 1")],
                ),
                state(
                    "healthy",
                    "The same route without it",
                    IPERF_SLOW,
                    &[host("ip route replace 10.98.9.0/24 via 10.98.0.2")],
                ),
            ],
        ),
        scenario(
            "d41",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick-refused",
                    "A strict reverse-path filter, and packets from a sender whose way back is \
                     another one",
                    &[guest("exec ping -q -i 0.05 -I 10.97.0.1 10.98.0.1")],
                    ASTRAY,
                ),
                state(
                    "healthy-loose",
                    "The same filter when it is loose",
                    &[guest("exec ping -q -i 0.05 -I 10.97.0.1 10.98.0.1")],
                    &[host("sysctl -qw net/ipv4/conf/vif1.0/rp_filter=2")],
                ),
                state(
                    "sick",
                    "Two veths with addresses of one network",
                    IPERF_SLOW,
                    &[
                        host("ip link add e1 type veth peer name p1 netns $GUEST"),
                        host("ip addr add 10.98.0.3/24 dev e1"),
                        host("ip link set e1 up"),
                        guest("ip link set p1 up"),
                    ],
                ),
                state(
                    "healthy",
                    "The same ones, each in a network of its own",
                    IPERF_SLOW,
                    &[
                        host("ip addr del 10.98.0.3/24 dev e1"),
                        host("ip addr add 10.98.1.3/24 dev e1"),
                    ],
                ),
            ],
        ),
        scenario(
            "d42",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick",
                    "A bridge of three ports whose ageing time is 0",
                    FLOOD_GUEST,
                    &[
                        host("ip link add br0 type bridge ageing_time 0"),
                        host("ip addr del 10.98.0.1/24 dev vif1.0"),
                        host("ip addr add 10.98.0.1/24 dev br0"),
                        host("ip link set vif1.0 master br0; ip link set br0 up"),
                        host(
                            "for i in 1 2; do ip link add x$i type veth peer name y$i; ip link set \
                             x$i master br0 up; ip link set y$i up; done",
                        ),
                    ],
                ),
                state(
                    "healthy",
                    "The same bridge when it learns",
                    FLOOD_GUEST,
                    &[host("ip link set br0 type bridge ageing_time 30000")],
                ),
            ],
        ),
        scenario(
            "d43",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick",
                    "A rule of nftables that drops UDP, and 2000 packets a second of it",
                    FLOOD_GUEST,
                    &[
                        host("nft add table inet t"),
                        host("nft add chain inet t c '{ type filter hook output priority 0; }'"),
                        host("nft add rule inet t c udp dport 9 counter drop"),
                    ],
                ),
                state("healthy", "The same rule when nothing for it comes", IPERF_SLOW, &[]),
                state(
                    "sick-limit",
                    "A rule that takes 200 packets a second of a stream, which stays below that",
                    &[host("iperf3 -c 10.98.0.2 -R -t 60")],
                    &[
                        host("nft flush ruleset; nft add table inet t"),
                        host("nft add chain inet t c '{ type filter hook input priority 0; }'"),
                        host(
                            "nft add rule inet t c tcp sport 5201 limit rate over 200/second \
                             counter drop",
                        ),
                    ],
                ),
                state(
                    "sick-long",
                    "Rules of the older iptables, 500 of them, for 20000 datagrams a second",
                    FLOOD_HOST,
                    &[host("nft flush ruleset"), host(LONG_CHAIN)],
                ),
                state(
                    "healthy-long",
                    "The same rules in a chain for another interface",
                    FLOOD_HOST,
                    &[host("iptables-legacy -R INPUT 1 -i eth9 -j long")],
                ),
            ],
        ),
        scenario(
            "d44",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick",
                    "A path that drops packets of more than 1000 bytes and says nothing",
                    IPERF_SLOW,
                    &[
                        guest("nft add table inet t"),
                        guest("nft add chain inet t c '{ type filter hook input priority 0; }'"),
                        guest("nft add rule inet t c meta length '>' 1000 drop"),
                    ],
                ),
                state(
                    "healthy",
                    "The same path without the rule",
                    IPERF_SLOW,
                    // waits: what was sent before is gone then.
                    &[guest("nft flush ruleset"), guest("sleep 1")],
                ),
            ],
        ),
        scenario(
            "d45",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick",
                    "A token bucket of 8 Mbit/s that holds 300 ms",
                    &[host("iperf3 -C reno -c 10.98.0.2 -t 60")],
                    &[host("tc qdisc add dev vif1.0 root tbf rate 8mbit burst 16kb latency 300ms")],
                ),
                state(
                    "healthy",
                    "The same link without it",
                    IPERF_SLOW,
                    &[host("tc qdisc del dev vif1.0 root")],
                ),
            ],
        ),
        scenario(
            "d46",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick",
                    "iperf3 that lets its socket send 8 Mbit/s",
                    &[host("iperf3 -c 10.98.0.2 -t 60 --fq-rate 8M")],
                    &[],
                ),
                // waits: what was sent before is gone then.
                state("healthy", "iperf3 that does not", IPERF_SLOW, &[host("sleep 1")]),
                state(
                    "sick-unread",
                    "A program that accepts a connection and does not read what comes",
                    &[
                        host("exec python3 -c \"$LISTEN\" 0"),
                        // waits: for the listener.
                        guest("sleep 0.5; exec cat /dev/zero > /dev/tcp/10.98.0.1/7000"),
                    ],
                    &[],
                ),
                state(
                    "sick-slow",
                    "A program that reads 0.4 MB a second of a connection that sends more",
                    &[
                        host("exec python3 -c \"$SLOW\" 0.05"),
                        // waits: for the listener.
                        guest("sleep 0.5; exec cat /dev/zero > /dev/tcp/10.98.0.1/7000"),
                    ],
                    &[],
                ),
                state(
                    "sick-announced",
                    "A route with advmss 400, and a connection that receives over it",
                    &[host("iperf3 -c 10.98.0.2 -R -b 20M -t 60")],
                    &[host("ip route replace 10.98.0.0/24 dev vif1.0 src 10.98.0.1 advmss 400")],
                ),
                state(
                    "healthy-receiver",
                    "The same connection without it",
                    &[host("iperf3 -c 10.98.0.2 -R -b 20M -t 60")],
                    &[host("ip route replace 10.98.0.0/24 dev vif1.0 src 10.98.0.1")],
                ),
            ],
        ),
        scenario(
            "d47",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick",
                    "A program that listens and does not accept, and clients",
                    &[host("exec python3 -c \"$LISTEN\" 1000"), guest(CONNECT_ALWAYS)],
                    &[],
                ),
                state(
                    "healthy",
                    "The same program when it accepts",
                    &[host("exec python3 -c \"$LISTEN\" 0"), guest(CONNECT_ALWAYS)],
                    // waits: what was sent before is gone then.
                    &[host("sleep 1")],
                ),
            ],
        ),
        scenario(
            "d48",
            Pair::linked,
            Place::Host,
            [
                state(
                    "sick",
                    "Fifty ports for new connections, and fifty connections to one destination",
                    OPEN_FIFTY,
                    &[host("sysctl -qw net.ipv4.ip_local_port_range='60000 60049'")],
                ),
                state(
                    "healthy",
                    "The same connections and the ports that the kernel has by default",
                    OPEN_FIFTY,
                    // waits: what was sent before is gone then.
                    &[host("sleep 1; sysctl -qw net.ipv4.ip_local_port_range='32768 60999'")],
                ),
            ],
        ),
        scenario(
            "d49",
            Pair::linked,
            Place::Machine,
            [
                state(
                    "sick",
                    "A network namespace with a strict reverse-path filter, and a hundred packets \
                     a second from a sender whose way back is another one",
                    &[guest("exec ping -q -i 0.01 -I 10.97.0.1 10.98.0.1")],
                    ASTRAY,
                ),
                state(
                    "healthy",
                    "The same namespace when its filter is off, and a stream",
                    IPERF_SLOW,
                    &[host("sysctl -qw net/ipv4/conf/vif1.0/rp_filter=0")],
                ),
            ],
        ),
    ]
}

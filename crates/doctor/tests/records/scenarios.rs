/// All of them.
const SCENARIOS: &[Scenario] = &[
    Scenario {
        check: "d34",
        states: &[
            state(
                "sick",
                "iperf3 in a control group of version 1 with a tenth of a CPU",
                "c=/sys/fs/cgroup/cpu/rwd; mkdir -p $c; echo 10000 > $c/cpu.cfs_quota_us",
                "echo $BASHPID > /sys/fs/cgroup/cpu/rwd/cgroup.procs; exec $H iperf3 -c 10.98.0.2 \
                 -t 60",
            ),
            state(
                "healthy",
                "The same program in the same group with 1.9 CPUs",
                "echo 190000 > /sys/fs/cgroup/cpu/rwd/cpu.cfs_quota_us",
                "echo $BASHPID > /sys/fs/cgroup/cpu/rwd/cgroup.procs; exec $H iperf3 -c 10.98.0.2 \
                 -b 20M -t 60",
            ),
        ],
    },
    Scenario {
        check: "d35",
        states: &[
            state(
                "sick",
                "iperf3 on a CPU that three loops of a shell use as well",
                "true",
                "for i in 1 2 3; do taskset -c 1 bash -c 'while :; do :; done' & done; \
                 $H taskset -c 1 iperf3 -c 10.98.0.2 -t 60",
            ),
            state(
                "healthy",
                "The same program without the loops",
                "true",
                "exec $H taskset -c 1 iperf3 -c 10.98.0.2 -t 60",
            ),
            state(
                "sick-real-time",
                "iperf3 on a CPU that a real-time loop of a shell uses as well",
                "true",
                "taskset -c 1 chrt -f 10 bash -c 'while :; do :; done' & \
                 $H taskset -c 1 iperf3 -c 10.98.0.2 -t 60",
            ),
        ],
    },
    Scenario {
        check: "d36",
        states: &[
            state(
                "sick",
                "A program whose control group has less memory than the file that it reads",
                "m=/sys/fs/cgroup/memory/rwd; mkdir -p $m; echo 24M > $m/memory.limit_in_bytes; \
                 head -c 96M /dev/zero > /var/tmp/rwd-file",
                "echo $BASHPID > /sys/fs/cgroup/memory/rwd/cgroup.procs; for i in 1 2 3 4; do \
                 while :; do cat /var/tmp/rwd-file > /dev/null; done & done; wait",
            ),
            state(
                "healthy",
                "The same program without the limit",
                "echo -1 > /sys/fs/cgroup/memory/rwd/memory.limit_in_bytes",
                "echo $BASHPID > /sys/fs/cgroup/memory/rwd/cgroup.procs; for i in 1 2 3 4; do \
                 while :; do cat /var/tmp/rwd-file > /dev/null; done & done; wait",
            ),
        ],
    },
    Scenario {
        check: "d37",
        states: &[
            state(
                "sick",
                "A veth whose other end goes down and up",
                "true",
                "while :; do $G ip link set p0 down; sleep 0.3; $G ip link set p0 up; sleep 0.3; \
                 done",
            ),
            state("healthy", "The same veth when it stays up", "$G ip link set p0 up", IPERF),
        ],
    },
    Scenario {
        check: "d38",
        states: &[
            state(
                "sick",
                "A TAP device whose program reads 100 frames a second, and 2000 that come",
                "true",
                "$H python3 -c \"$TAP\" 0.01 & sleep 0.7; $H ip link set tap0 up txqueuelen 50; \
                 $H ip addr add 10.98.7.1/24 dev tap0; \
                 $H ip neigh add 10.98.7.2 lladdr 02:00:00:00:00:02 dev tap0; \
                 $H python3 -c \"$FLOOD\" 10.98.7.2",
            ),
            state(
                "healthy",
                "The same device when its program reads all at once",
                "sleep 1",
                "$H python3 -c \"$TAP\" 0 & sleep 0.7; $H ip link set tap0 up txqueuelen 500; \
                 $H ip addr add 10.98.7.1/24 dev tap0; \
                 $H ip neigh add 10.98.7.2 lladdr 02:00:00:00:00:02 dev tap0; \
                 $H python3 -c \"$FLOOD\" 10.98.7.2",
            ),
        ],
    },
    Scenario {
        check: "d39",
        states: &[
            state(
                "sick",
                "A route of two next hops of which one does not answer",
                "$H ip route add 10.98.9.0/24 nexthop via 10.98.0.2 nexthop via 10.98.0.9",
                "while :; do for i in 1 2 3 4 5 6 7 8; do $H ping -c1 -W1 10.98.9.$i & done; wait; \
                 done",
            ),
            state(
                "healthy",
                "The same route with one next hop",
                "$H ip neigh del 10.98.0.9 dev e0 || true; \
                 $H ip route replace 10.98.9.0/24 via 10.98.0.2",
                "while :; do for i in 1 2 3 4 5 6 7 8; do $H ping -c1 -W1 10.98.9.$i & done; wait; \
                 done",
            ),
        ],
    },
    Scenario {
        check: "d40",
        states: &[
            state(
                "sick",
                "A route with a window of 4096 bytes",
                "$H ip route replace 10.98.9.0/24 via 10.98.0.2 window 4096 initcwnd 1",
                IPERF,
            ),
            state(
                "healthy",
                "The same route without it",
                "$H ip route replace 10.98.9.0/24 via 10.98.0.2",
                IPERF,
            ),
        ],
    },
    Scenario {
        check: "d41",
        states: &[
            state(
                "sick",
                "Two veths with addresses of one network",
                "$H ip link add e1 type veth peer name p1; $H ip link set p1 netns $GN; \
                 $H ip addr add 10.98.0.3/24 dev e1; $H ip link set e1 up; $G ip link set p1 up",
                IPERF,
            ),
            state(
                "healthy",
                "The same ones, each in a network of its own",
                "$H ip addr del 10.98.0.3/24 dev e1; $H ip addr add 10.98.1.3/24 dev e1",
                IPERF,
            ),
        ],
    },
    Scenario {
        check: "d42",
        states: &[
            state(
                "sick",
                "A bridge of three ports whose ageing time is 0",
                "$H ip link add br0 type bridge ageing_time 0; $H ip addr del 10.98.0.1/24 dev e0; \
                 $H ip addr add 10.98.0.1/24 dev br0; $H ip link set e0 master br0; \
                 $H ip link set br0 up; for i in 1 2; do $H ip link add x$i type veth peer name \
                 y$i; $H ip link set x$i master br0 up; $H ip link set y$i up; done",
                "exec $H python3 -c \"$FLOOD\" 10.98.0.2",
            ),
            state(
                "healthy",
                "The same bridge when it learns",
                "$H ip link set br0 type bridge ageing_time 30000",
                "exec $H python3 -c \"$FLOOD\" 10.98.0.2",
            ),
        ],
    },
    Scenario {
        check: "d43",
        states: &[
            state(
                "sick",
                "A rule of nftables that drops UDP, and 2000 packets a second of it",
                "$H nft add table inet t; \
                 $H nft add chain inet t c '{ type filter hook output priority 0; }'; \
                 $H nft add rule inet t c udp dport 9 counter drop",
                "exec $H python3 -c \"$FLOOD\" 10.98.0.2",
            ),
            state(
                "healthy",
                "The same rule when nothing for it comes",
                "true",
                IPERF,
            ),
        ],
    },
    Scenario {
        check: "d44",
        states: &[
            state(
                "sick",
                "A path that drops packets of more than 1000 bytes and says nothing",
                "$G nft add table inet t; \
                 $G nft add chain inet t c '{ type filter hook input priority 0; }'; \
                 $G nft add rule inet t c meta length '>' 1000 drop",
                IPERF,
            ),
            state("healthy", "The same path without the rule", "$G nft flush ruleset", IPERF),
        ],
    },
    Scenario {
        check: "d45",
        states: &[
            state(
                "sick",
                "A token bucket of 8 Mbit/s that holds 300 ms",
                "$H tc qdisc add dev e0 root tbf rate 8mbit burst 16kb latency 300ms",
                "exec $H iperf3 -C reno -c 10.98.0.2 -t 60",
            ),
            state("healthy", "The same link without it", "$H tc qdisc del dev e0 root", IPERF),
        ],
    },
    Scenario {
        check: "d46",
        states: &[
            state(
                "sick",
                "iperf3 that lets its socket send 8 Mbit/s",
                "true",
                "exec $H iperf3 -c 10.98.0.2 -t 60 --fq-rate 8M",
            ),
            state("healthy", "iperf3 that does not", "sleep 1", IPERF),
        ],
    },
    Scenario {
        check: "d47",
        states: &[
            state(
                "sick",
                "A program that listens and does not accept, and clients",
                "true",
                "$H python3 -c \"$LISTEN\" 1000 & sleep 0.5; while :; do $G python3 -c \
                 \"$CONNECT\" 8 & sleep 0.3; done",
            ),
            state(
                "healthy",
                "The same program when it accepts",
                "sleep 1",
                "$H python3 -c \"$LISTEN\" 0 & sleep 0.5; while :; do $G python3 -c \
                 \"$CONNECT\" 8 & sleep 0.3; done",
            ),
        ],
    },
    Scenario {
        check: "d48",
        states: &[
            state(
                "sick",
                "Fifty ports for new connections, and fifty connections to one destination",
                "$H sysctl -qw net.ipv4.ip_local_port_range='60000 60049'",
                "$G python3 -c \"$LISTEN\" 0 & exec $H python3 -c \"$OPEN\" 50",
            ),
            state(
                "healthy",
                "The same connections and the ports that the kernel has by default",
                "sleep 1; $H sysctl -qw net.ipv4.ip_local_port_range='32768 60999'",
                "$G python3 -c \"$LISTEN\" 0 & exec $H python3 -c \"$OPEN\" 50",
            ),
        ],
    },
];

/// A program that listens, and sleeps before it accepts.
const LISTEN: &str = "\
import socket,sys,time\n\
s=socket.socket()\n\
s.setsockopt(1,2,1)\n\
s.bind(('0.0.0.0',7000))\n\
s.listen(4)\n\
time.sleep(float(sys.argv[1]))\n\
k=[]\n\
while 1: k.append(s.accept())\n\
";
/// A program that opens connections to the host and ends.
const CONNECT: &str = "\
import socket,sys\n\
k=[]\n\
for i in range(int(sys.argv[1])):\n\
\x20s=socket.socket()\n\
\x20s.setblocking(False)\n\
\x20s.connect_ex(('10.98.0.1',7000))\n\
\x20k.append(s)\n\
__import__('time').sleep(2)\n\
";
/// A program that opens connections to the guest and keeps them.
const OPEN: &str = "\
import socket,sys,time\n\
k=[]\n\
while len(k)<int(sys.argv[1]):\n\
\x20try: k.append(socket.create_connection(('10.98.0.2',7000)))\n\
\x20except OSError: time.sleep(.1)\n\
time.sleep(60)\n\
";
/// A program behind a TAP device that sleeps before it reads a frame.
const TAP: &str = "\
import fcntl,struct,os,sys,time\n\
f=os.open('/dev/net/tun',os.O_RDWR)\n\
fcntl.ioctl(f,0x400454ca,struct.pack('16sH',b'tap0',0x1002))\n\
while 1:\n\
\x20time.sleep(float(sys.argv[1]))\n\
\x20os.read(f,9000)\n\
";
/// Two thousand datagrams a second.
const FLOOD: &str = "\
import socket,sys,time\n\
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n\
while 1:\n\
\x20for i in range(20):\n\
\x20 try: s.sendto(b'x'*100,(sys.argv[1],9))\n\
\x20 except OSError: pass\n\
\x20time.sleep(0.01)\n\
";

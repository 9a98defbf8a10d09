# The doctor finds that a card's ring is too small; apply and undo change its size, and BBR.
# sets: full
# limit: 1200
only_on x86_64 "the other machine has no such card"
# Both ends of the wire are dom0's, the far one in a namespace, so that frames have to use it.
modprobe -a e1000 tcp_bbr tcp_diag sch_ingress cls_u32
ip netns add far
far() {
    ip netns exec far "$@"
}

# Joins an interface of dom0 to one of the far namespace: INTERFACE FAR-INTERFACE NETWORK MTU
join() {
    ip link set "$2" netns far
    ip address add "$3.1/24" dev "$1"
    ip link set "$1" mtu "$4" up
    far ip address add "$3.2/24" dev "$2"
    far ip link set "$2" mtu "$4" up
    check_ping dom0 "$3.2"
}
join eth0 eth1 10.77.1 9000
iperf3 --server --daemon

# Prints the current size of the near card's ring, from the last section: RX|TX
ring() {
    ethtool -g eth0 | sed -n "s/^$1:\t*//p" | tail -n 1
}

# Pings only: after the first missed frame, the emulated card's counter grows without frames.
while_running "ping -i 0.2 10.77.1.2" dom0 "ringway doctor record /tmp/card-healthy.tar --interval 5" 200
judge dom0 card-healthy D29 healthy

# Makes a CPU late, with a ring for one burst: a long list of filter rules, and datagrams of seven
# frames from a sender on the other CPU.
ethtool -G eth0 rx 80
expect "received frames that the ring holds" 80 "$(ring RX)"
sysctl -qw net.core.wmem_max=8000000 net.core.rmem_max=8000000
interrupt_to() {
    echo "$2" > "/proc/irq/$(sed -n "s/^ *\([0-9]*\):.* $1\$/\1/p" /proc/interrupts)/smp_affinity_list"
}
interrupt_to eth0 0
interrupt_to eth1 1
tc qdisc add dev eth0 clsact
for list in 1 2; do
    for port in $(seq 4000); do
        echo "filter add dev eth0 ingress protocol ip pref $list u32 match ip dport $port 0xffff"
    done
done | tc -batch -
bursts="ip netns exec far taskset 2 iperf3 --client 10.77.1.1 --udp -b 0 -l 60000 -w 4M -t 250"
# waits: the server does not say when it has ended the last run
bursts="until $bursts; do sleep 0.5; done"
while_running "$bursts" dom0 "ringway doctor record /tmp/card-small-ring.tar --interval 5"
judge dom0 card-small-ring D29 sick

# Prints the output and exit status of the doctor's apply, during bursts: [OPTION]...
apply() {
    while_running "$bursts" dom0 "ringway doctor apply D29 --subject eth0 --interval 5 $*" \
        > "$FOLDER/apply.txt" 2>&1 && status=0 || status=$?
    cat "$FOLDER/apply.txt"
}
apply --confirm-within 60
expect "apply of what disrupts, without leave" 3 "$status"
apply --allow-disruptive --confirm-within 0
expect "apply of what disrupts, for good at once" 1 "$status"
expect "ring after both refusals" 80 "$(ring RX)"
apply --allow-disruptive --confirm-within 60
expect "apply: $(tail -n 3 "$FOLDER/apply.txt")" 0 "$status"
expect "ring after apply" 4096 "$(ring RX)"
ringway doctor confirm
ringway doctor undo
expect "ring after undo" 80 "$(ring RX)"
expect "the other ring, which was not set" 256 "$(ring TX)"

# No one confirms.
apply --allow-disruptive --confirm-within 5
expect "apply: $(tail -n 3 "$FOLDER/apply.txt")" 0 "$status"
ring_is() {
    [ "$(ring RX)" = "$1" ]
}
wait_until 60 "a ring change that no one confirmed is undone" ring_is 80
tc qdisc del dev eth0 clsact

# BBR with a near peer. A namespace may not choose cubic, so dom0 sends.
ip link add veth0 type veth peer name veth1
join veth0 veth1 10.77.2 1500
far iperf3 --server --daemon
congestion_control() {
    cat /proc/sys/net/ipv4/tcp_congestion_control
}
chosen=$(congestion_control)
echo bbr > /proc/sys/net/ipv4/tcp_congestion_control
# waits: as above
near="until iperf3 --client 10.77.2.2 -t 250; do sleep 0.5; done"
while_running "$near" dom0 "ringway doctor record /tmp/card-bbr.tar --interval 5"
# It is a warning only where no CPU is full, which emulated ones usually are.
expect "BBR is found" true "$(ringway doctor --root /tmp/card-bbr.tar --check D26 --json |
    jq '[.findings[].summary | contains("use BBR")] | any')"
while_running "$near" dom0 "ringway doctor apply D26 --confirm-within 0 --interval 5"
expect "congestion control after apply" cubic "$(congestion_control)"
while_running "$near" dom0 "ringway doctor record /tmp/card-cubic.tar --interval 5"
judge dom0 card-cubic D26 healthy
ringway doctor undo
expect "congestion control after undo" bbr "$(congestion_control)"
echo "$chosen" > /proc/sys/net/ipv4/tcp_congestion_control

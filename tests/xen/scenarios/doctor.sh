# The doctor finds faults that were made in a guest and around it, live and from a record.
# sets: full
# limit: 1800
# The records are among the results, and some are fixtures of its tests (doctor/fixtures).
bridge_create
backend_start 4

guest_start a vcpus=4 queues=4 memory=448 programs=yes
vif_wait a
check_ping dom0 10.77.0.2
iperf_serve a
diagnose a guest-healthy D13 healthy
diagnose dom0 dom0-healthy D30 healthy

# A long list of filter rules stands for a guest's softirq work; otherwise, on emulated CPUs, the
# programs that send and receive would take most of the time.
guest a 'modprobe -a sch_ingress cls_u32 && tc qdisc add dev eth0 clsact || exit
    for list in 1 2; do
        for port in $(seq 4000); do
            echo "filter add dev eth0 ingress protocol ip pref $list u32 match ip dport $port 0xffff"
        done
    done | tc -batch - || exit
    for irq in $(sed -n "s/^ *\([0-9]*\):.*vif0-q.*/\1/p" /proc/interrupts); do
        echo 0 > /proc/irq/$irq/smp_affinity_list
    done'
small="--udp -b 0 -l 200"
diagnose a guest-interrupts-on-one-cpu D03 sick "$small"

# CPUs that a guest's network interrupts may go to, in the order of their numbers: NAME
interrupt_cpus() {
    guest "$1" 'for irq in $(sed -n "s/^ *\([0-9]*\):.*vif0-q.*/\1/p" /proc/interrupts); do
        cat /proc/irq/$irq/smp_affinity_list; done' | tr '\n' ' '
}
under_load "$small" a "ringway doctor apply D03 --confirm-within 0 --interval 5" > "$FOLDER/apply.txt" ||
    fail "apply D03: $(tail -n 3 "$FOLDER/apply.txt")"
expect "CPUs of the interrupts after apply" "0 0 1 1 2 2 3 3 " "$(interrupt_cpus a)"
diagnose a guest-interrupts-spread D03 healthy "$small"
guest a 'ringway doctor undo'
expect "CPUs of the interrupts after undo" "0 0 0 0 0 0 0 0 " "$(interrupt_cpus a)"
guest a 'tc qdisc del dev eth0 clsact'

guest a 'ethtool -K eth0 tx off sg off tso off gso off gro off'
diagnose a guest-without-offloads D13 sick

guest a 'sysctl -w net.core.netdev_max_backlog=1 &&
    for queue in /sys/class/net/eth0/queues/rx-*; do echo e > $queue/rps_cpus; done'
diagnose a guest-backlog-drops D18 sick
guest_destroy a

guest_start a vcpus=4 queues=1 memory=448 programs=yes
vif_wait a
check_ping dom0 10.77.0.2
iperf_serve a
diagnose a guest-one-queue D14 sick
diagnose dom0 dom0-guest-one-queue D14 sick
guest_destroy a

guest_start a vcpus=2 queues=2 memory=448 programs=yes rate=8Mb/s
vif_wait a
check_ping dom0 10.77.0.2
iperf_serve a
# Four streams that do not slow down where TCP would, on a machine that is late.
diagnose dom0 dom0-shaped-vif D30 sick "--udp -b 8M -l 1400 -R"
guest_destroy a

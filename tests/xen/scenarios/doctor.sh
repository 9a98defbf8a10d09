# The doctor finds what was made wrong in a guest and around it, live and from a record.
# sets: full
# limit: 1800
# The records are among the results, and some are fixtures of its tests (crates/doctor/fixtures).
bridge_create
backend_start 4

# Looks at a place while a guest sends and receives, keeps what was recorded, and fails unless a check
# finds something wrong, or nothing: PLACE NAME CHECK sick|healthy [WHAT IPERF3 SENDS]
diagnose() {
    local place=$1 name=$2 check=$3 expected=$4 load=${5:---bidir} found
    under_load "$load" "$place" "ringway doctor record /tmp/$name.tar --interval 5"
    if [ "$place" != dom0 ]; then
        fetch "$place" "/tmp/$name.tar"
    fi
    cp "/tmp/$name.tar" "$FOLDER/"
    ringway doctor --root "/tmp/$name.tar" --check "$check" --json > "$FOLDER/$name.json" || true
    ringway doctor --root "/tmp/$name.tar" > "$FOLDER/$name.txt" || true
    found=$(jq -r '[.findings[].severity] | if any(. == ("warning", "problem")) then "sick"
        elif any(. == ("ok", "note")) then "healthy" else "nothing" end' "$FOLDER/$name.json")
    expect "$name by $check" "$expected" "$found"
    say "$name: $check finds it $found"
}

# Runs a command while iperf3 sends to guest a: WHAT IPERF3 SENDS, PLACE, COMMAND
under_load() {
    local result=0
    # shellcheck disable=SC2086
    timeout 120 iperf3 --client 10.77.0.2 -t 60 -P 4 $1 > /dev/null 2>&1 &
    at "$2" "sleep 2 && $3" || result=$?
    kill $! 2> /dev/null || true
    wait $! || true
    return $result
}

# Brings a file from a guest to the same place in dom0: NAME FILE
fetch() {
    local file=$2
    socat -u TCP-LISTEN:5556,reuseaddr "CREATE:$file" &
    guest "$1" "socat -u OPEN:$file TCP:10.77.0.1:5556,retry=50,interval=0.2"
    wait $!
}

guest_start a vcpus=4 queues=4 memory=448 programs=yes
vif_wait a
check_ping dom0 10.77.0.2
iperf_serve a
diagnose a guest-healthy D13 healthy
diagnose dom0 dom0-healthy D30 healthy

# A long list of filter rules is what a guest's deferred work is in practice; on emulated CPUs the
# programs that send and receive would take most of the time otherwise.
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
diagnose dom0 dom0-shaped-vif D30 sick
guest_destroy a

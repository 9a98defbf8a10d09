# The doctor finds what was made wrong in a guest and around it, live and from a record.
# sets: full
# limit: 1800
# The records are among the results, and some are fixtures of its tests (crates/doctor/fixtures).
bridge_create
backend_start 4

# Looks at a place while a guest sends and receives, keeps what was recorded, and fails unless a check
# finds something wrong, or nothing: PLACE NAME CHECK sick|healthy
diagnose() {
    local place=$1 name=$2 check=$3 expected=$4 found
    timeout 120 iperf3 --client 10.77.0.2 -t 40 -P 4 --bidir > /dev/null 2>&1 &
    at "$place" "sleep 2 && ringway doctor record /tmp/$name.tar --interval 5"
    kill $! 2> /dev/null || true
    wait $! || true
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

guest a 'for irq in $(sed -n "s/^ *\([0-9]*\):.*vif0-q.*/\1/p" /proc/interrupts); do
    echo 0 > /proc/irq/$irq/smp_affinity_list; done'
diagnose a guest-interrupts-on-one-cpu D03 sick

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

# The same steps with the kernel's backend and with ringway, in one boot: prints a table of the differences.
# sets: race
# limit: 3600
[ "$BACKEND" = ringway ] || skip "it runs both backends: once is enough"
bridge_create

rebind() {
    guest a "echo $1 > /sys/module/xen_netfront/parameters/max_queues
        echo vif-0 > /sys/bus/xen/drivers/vif/unbind && sleep 1 # waits: as long for both backends, which are compared
        echo vif-0 > /sys/bus/xen/drivers/vif/bind" > /dev/null
    configure
}

reload() {
    # waits: as above
    guest a "modprobe -r xen-netfront && sleep 1 && modprobe xen-netfront max_queues=$1" ||
        say "$BACKEND: the module was not loaded again: status $?"
    configure
}

configure() {
    # waits: looks again until eth0 is there
    guest a 'for try in $(seq 60); do [ ! -e /sys/class/net/eth0 ] || break; sleep 1; done
        ip address add 10.77.0.2/24 dev eth0; ip link set eth0 up' > /dev/null 2>&1 || true
}

# Writes a stray key to the frontend's directory, and binds the driver again.
odd() {
    xenstore-write "$(guest_path a)/device/vif/0/$1" "$2"
    rebind 2
}

down_and_up() {
    # waits: an interface that is down for a moment is what is tested
    guest a 'ip link set eth0 down; sleep 1; ip link set eth0 up; ip address add 10.77.0.2/24 dev eth0' \
        > /dev/null 2>&1 || true
}

# Few pages are posted, and frames arrive at once: lost ones get no reply.
burst() {
    # waits: replies that are later count as lost, with either backend
    lost=$(within 60 ping -q -c 200 -i 0.002 -s 1400 -W 2 10.77.0.2 | sed -n 's/.* \([0-9.]*\)% packet loss.*/\1/p')
}

# Runs a step and writes its result as a line of steps.tsv: STEP COMMAND...
try() {
    local step=$1 end states answered=no
    shift
    lost=''
    "$@" || say "$BACKEND: $step: status $?"
    end=$((SECONDS + PATIENCE * 20))
    until vif_is_connected a || [ $SECONDS -ge $end ]; do
        sleep 0.3 # waits: looks again until it is connected
    done
    states=$(frontend_key a state)/$(backend_key a state)
    for _ in $(seq $((PATIENCE * 5))); do
        # waits: it is tried again
        ! ping -q -c 1 -W 2 10.77.0.2 > /dev/null 2>&1 || { answered=yes; break; }
    done
    printf '%s\t%s\tstates %s, queues %s, ping %s%s\n' "$step" "$BACKEND" "$states" \
        "$(frontend_key a multi-queue-num-queues)" "$answered" "${lost:+, lost $lost %}" |
        tee -a "$FOLDER/steps.tsv"
}

for BACKEND in kernel ringway; do
    backend_start 4
    # More queues than CPUs depend on the driver's parameter.
    guest_start a queues=2 vcpus=2
    vif_wait a
    try connect true
    try "interface down and up" down_and_up
    for queues in 1 4 2 1; do
        try "driver bound again for $queues" rebind $queues
    done
    try "module loaded again for 2" reload 2
    try "200 pings of 1400 bytes, 2 ms apart" burst
    for pair in tx-ring-ref=1 event-channel=1 queue-7/tx-ring-ref=5 request-multicast-control=1 \
        feature-gso-tcpv4-prefix=1 feature-no-csum-offload=1 mtu=99999 unknown-key=x; do
        try "key $pair" odd "${pair%%=*}" "${pair#*=}"
        xenstore-rm "$(guest_path a)/device/vif/0/${pair%%[=/]*}" 2> /dev/null || true
    done
    guest_destroy a
    backend_stop
done
BACKEND=ringway

say "what differs:"
differences=$(awk -F '\t' '{ found[$1] = found[$1] SUBSEP $3; if (!($1 in first)) { first[$1] = $3; order[++count] = $1 }
        else if (first[$1] != $3) { print $1 ": kernel: " first[$1] "; ringway: " $3 } }' "$FOLDER/steps.tsv")
echo "${differences:-nothing}"
measure differences "$(grep -c . <<< "$differences" || true)"
without=$(awk -F '\t' '$2 == "ringway" && $3 !~ /states 4\/4.*ping yes/ { print $1 }' "$FOLDER/steps.tsv")
expect "steps after which a guest of ringway has no network" "" "$without"

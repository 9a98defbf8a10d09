# Compares the kernel's backend and ringway alternately: same boot, guest and bridge. `ringway-bench race` shows it.
# sets: race
# limit: 7200
seconds=2
racers=(kernel ringway)
# With the kernel's alone, it only fills one side of the table.
[ "$BACKEND" = ringway ] || racers=(kernel)
[ "$BACKEND" = kernel ] || ringway_has run || skip "this ringway run has no --hypervisor"
bridge_create

# Datagrams per second that arrived: [OPTION]...
datagrams() {
    iperf 10.77.0.2 --udp --length 64 --bitrate 0 --time $seconds "$@" > /dev/null
    jq '.end.sum | (.packets - .lost_packets) / .seconds | round' "$state/iperf.json"
}

ping_pong() {
    within 60 sockperf ping-pong --ip 10.77.0.2 --time $seconds > "$state/sockperf" 2>&1
}

measure_all() {
    local streams
    for streams in 1 2 4; do
        try "TCP to the guest, $streams streams" bit/s iperf 10.77.0.2 -t $seconds -P $streams
        try "TCP from the guest, $streams streams" bit/s iperf 10.77.0.2 -t $seconds -P $streams -R
    done
    try "64-byte UDP to the guest" packet/s datagrams
    try "64-byte UDP from the guest" packet/s datagrams -R
    try_ping_pong
}

with_guest() {
    guest_start a queues=$queues vcpus=2
    vif_wait a
    check_ping dom0 10.77.0.2
    iperf_serve a
    guest_begin a /tmp/sockperf sockperf server
    measure_all
    guest_destroy a
}

race with_guest "${racers[@]}"

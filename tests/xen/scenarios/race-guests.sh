# Compares traffic between two guests: the kernel's backend with a bridge, and ringway's own switch, alternately.
# sets: race
# limit: 7200
seconds=2
[ "$BACKEND" = ringway ] || skip "only ringway has a switch"
ringway_has run || skip "this ringway run has no --hypervisor"
bridge_create

# TCP from a to b, in bit/s: STREAMS
between() {
    guest a iperf3 --client 10.77.0.3 -t $seconds -P "$1" --json |
        jq '.end.sum_received.bits_per_second | round'
}

ping_pong() {
    guest a timeout $((PATIENCE * 60)) sockperf ping-pong --ip 10.77.0.3 --time $seconds > "$state/sockperf" 2>&1
}

measure_all() {
    local streams
    for streams in 1 2 4; do
        try "TCP, $streams streams" bit/s between $streams
    done
    try_ping_pong
}

with_guests() {
    local place=()
    [ "$BACKEND" = kernel ] || place=(bridge= script=/payload/vif-ringway)
    guest_create a queues=$queues vcpus=2 "${place[@]}"
    guest_create b queues=$queues vcpus=2 host=3 "${place[@]}"
    guest_wait a
    guest_wait b
    check_ping a 10.77.0.3
    iperf_serve b
    guest_begin b /tmp/sockperf sockperf server
    measure_all
    guest_destroy a
    guest_destroy b
}

race with_guests kernel ringway

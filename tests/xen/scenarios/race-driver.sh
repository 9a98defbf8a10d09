# Compares both backends in a PVH driver domain, alternately in one boot: its system calls do not enter Xen.
# sets: race
# limit: 14400
seconds=2
[ "$BACKEND" = ringway ] || skip "it runs both backends: once is enough"
only_on x86_64 "Debian's Xen for Arm64 refuses grants between guests"

# Each turn has a driver domain of its own, which starts the backend.
backend_start() {
    :
}

backend_stop() {
    :
}

# A number of iperf3's report, from the driver domain to the guest: FILTER [OPTION]...
from_driver() {
    guest driver "iperf3 --client 10.77.0.2 --time $seconds ${*:2} --json | jq '$1 | round'"
}

tcp() {
    from_driver .end.sum_received.bits_per_second "$@"
}

# Datagrams per second that arrived: [OPTION]...
datagrams() {
    from_driver '.end.sum | (.packets - .lost_packets) / .seconds' --udp --length 64 --bitrate 0 "$@"
}

ping_pong() {
    guest driver timeout $((PATIENCE * 60)) sockperf ping-pong --ip 10.77.0.2 --time $seconds > "$state/sockperf" 2>&1
}

measure_all() {
    local streams
    for streams in 1 2 4; do
        try "TCP to the guest, $streams streams" bit/s tcp -P $streams
        try "TCP from the guest, $streams streams" bit/s tcp -P $streams -R
    done
    try "64-byte UDP to the guest" packet/s datagrams
    try "64-byte UDP from the guest" packet/s datagrams -R
    try_ping_pong
}

turn() {
    # race() sets the number of queues.
    driver_start "$queues" type=pvh
    guest_start a queues="$queues" vcpus=2 backend=driver
    vif_wait a
    check_ping driver 10.77.0.2
    iperf_serve a
    guest_begin a /tmp/sockperf sockperf server
    measure_all
    # This is a process of its own, so race() does not see their number.
    expect "cells that could not be measured" 0 "$missing"
    guest_destroy a
    guest_destroy driver
}

# What a try has recorded before the emulator ended it is replaced: the last line of a cell counts.
turn_in_pvh() {
    with_pvh turn a driver
}

race turn_in_pvh kernel ringway

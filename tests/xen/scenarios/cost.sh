# CPU time of dom0 for TCP, with the kernel's backend and with ringway alternately, in one boot.
# sets: race
# limit: 3600
[ "$BACKEND" = ringway ] || skip "it runs both backends: once is enough"
bridge_create
megabytes=200

# CPU seconds of dom0, its programs and Xen's work for them included.
dom0_seconds() {
    xl list 0 | awk 'NR == 2 { print $NF }'
}

# CPU seconds of dom0 for a gigabyte, of which iperf3's own are a part: [OPTION]...
seconds_per_gigabyte() {
    local before
    before=$(dom0_seconds)
    iperf 10.77.0.2 -n "${megabytes}M" "$@" > /dev/null || return
    awk -v before="$before" -v after="$(dom0_seconds)" -v megabytes=$megabytes \
        'BEGIN { printf "%.2f\n", (after - before) * 1024 / megabytes }'
}

with_guest() {
    # race() sets it.
    # shellcheck disable=SC2154
    guest_start a queues="$queues" vcpus=2
    vif_wait a
    check_ping dom0 10.77.0.2
    iperf_serve a
    try "dom0's CPU for TCP to the guest" s/GiB seconds_per_gigabyte
    try "dom0's CPU for TCP from the guest" s/GiB seconds_per_gigabyte -R
    guest_destroy a
}

race with_guest kernel ringway

# Two guests communicate: over a bridge, and with ringway over its own switch.
# sets: full
# limit: 1200
bridge_create
backend_start 2

# Traffic between a and b.
converse() {
    check_ping a 10.77.0.3
    check_ping b fd77::2
    iperf_serve b
    measure "$1_bits_per_s" "$(guest a iperf3 --client 10.77.0.3 -t 4 --json |
        jq '.end.sum_received.bits_per_second | round')"
    check_payload a b 10.77.0.3 8
    check_payload b a 10.77.0.2 8
}

guest_create a queues=2
guest_create b queues=2 host=3
guest_wait a
guest_wait b
converse bridge
guest_destroy a
guest_destroy b
[ "$BACKEND" = ringway ] || exit 0

guest_create a queues=2 bridge= script=/payload/vif-ringway
guest_create b queues=2 host=3 bridge= script=/payload/vif-ringway
guest_wait a
guest_wait b
converse switch

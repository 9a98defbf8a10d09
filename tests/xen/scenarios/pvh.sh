# A PVH guest, whose pages are translated by hardware, uses two queues.
# sets: full
# limit: 1800
bridge_create
backend_start 2

one_guest() {
    guest_start a type=pvh queues=2
    vif_wait a
    expect "type of the guest" pvh "$(xl list -l a | jq -r '.[0].config.c_info.type')"
    expect "queues" 2 "$(frontend_key a multi-queue-num-queues)"
    check_ping dom0 10.77.0.2
    check_ping dom0 fd77::2
    check_conversation a
    guest_destroy a
}

with_pvh one_guest

# A PVH guest, whose pages are translated by hardware, over two queues.
# sets: full
# limit: 900
bridge_create
backend_start 2
guest_start a type=pvh queues=2
vif_wait a
expect "type of the guest" pvh "$(xl list -l a | jq -r '.[0].config.c_info.type')"
expect "queues" 2 "$(frontend_key a multi-queue-num-queues)"
check_ping dom0 10.77.0.2
check_ping dom0 fd77::2
iperf_serve a
measure dom0_to_guest_bits_per_s "$(iperf 10.77.0.2 -t 4)"
measure guest_to_dom0_bits_per_s "$(iperf 10.77.0.2 -t 4 -R)"
check_payload dom0 a 10.77.0.2 8
check_payload a dom0 10.77.0.1 8
guest_destroy a

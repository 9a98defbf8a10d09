# The backend runs in an ordinary guest, where `xl devd` does what xl does in dom0.
# sets: full
# limit: 1200
driver_start
# xl waits ten seconds for the backend; with this log, a failure shows what it saw and when.
xl_options=(-vvv -T)
guest_create a queues=2 backend=driver
guest_wait a
vif_wait a
expect "the backend's domain" "$(guest_id driver)" "$(frontend_key a backend-id)"
check_ping driver 10.77.0.2
check_ping driver fd77::2
iperf_serve a
measure driver_to_guest_bits_per_s "$(guest driver iperf3 --client 10.77.0.2 -t 4 --json |
    jq '.end.sum_received.bits_per_second | round')"
check_payload driver a 10.77.0.2 8
check_payload a driver 10.77.0.1 8
# Its part of the toolstack is asynchronous, so the guest's folders may remain a moment longer.
guest_destroy a
wait_until 60 "the vif is gone" guest driver '[ ! -e /sys/class/net/vif*.0 ]'

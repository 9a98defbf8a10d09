# What a guest sends is held to the `rate` of its vif line, what it receives is not.
# sets: full admin
# limit: 900
bridge_create
backend_start 2
guest_start a queues=2 rate=8Mb/s
vif_wait a
check_ping dom0 10.77.0.2
iperf_serve a
to_guest=$(iperf 10.77.0.2 -t 4)
from_guest=$(iperf 10.77.0.2 -t 8 -R)
measure dom0_to_guest_bits_per_s "$to_guest"
measure guest_to_dom0_bits_per_s "$from_guest"
# A burst comes on top, and iperf3 counts over its own time; a limit that is not there lets
# ten times as much through.
[ "$from_guest" -lt 10000000 ] || fail "$from_guest bit/s from a guest held to 8 Mbit/s"
[ "$from_guest" -gt 4000000 ] || fail "$from_guest bit/s from a guest that may send 8 Mbit/s"
[ "$to_guest" -gt 10000000 ] || fail "$to_guest bit/s to a guest: its rate is for what it sends"
guest_destroy a

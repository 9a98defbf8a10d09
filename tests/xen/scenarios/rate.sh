# The `rate` of a vif limits what the guest sends, and not what it receives.
# sets: full admin
# limit: 900
serve_guest 2 rate=8Mb/s
iperf_serve a
to_guest=$(iperf 10.77.0.2 -t 4)
from_guest=$(iperf 10.77.0.2 -t 8 -R)
measure dom0_to_guest_bits_per_s "$to_guest"
measure guest_to_dom0_bits_per_s "$from_guest"
# A burst is added to the rate, and iperf3 measures over its own time; without a limit, ten times as
# much would pass.
[ "$from_guest" -lt 10000000 ] || fail "$from_guest bit/s from a guest held to 8 Mbit/s"
[ "$from_guest" -gt 4000000 ] || fail "$from_guest bit/s from a guest that may send 8 Mbit/s"
[ "$to_guest" -gt 10000000 ] || fail "$to_guest bit/s to a guest: its rate is for what it sends"
guest_destroy a

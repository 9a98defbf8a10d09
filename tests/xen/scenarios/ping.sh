# A PV guest answers pings over IPv4 and IPv6, small ones and fragmented ones.
# sets: smoke full
# limit: 150
bridge_create
backend_start
guest_start a
vif_wait a
check_ping 10.77.0.2
check_ping fd77::2
ping -q -c 3 -i 0.2 -W 5 -s 8000 10.77.0.2 || fail "large pings were lost"
guest a ping -q -c 3 -i 0.2 -W 5 10.77.0.1 || fail "pings from the guest were lost"
measure rtt_ms "$(ping -q -c 50 -i 0.02 10.77.0.2 | sed -n 's,.*= [0-9.]*/\([0-9.]*\)/.*,\1,p')"

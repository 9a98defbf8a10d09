# A guest replies to pings over IPv4 and IPv6, small ones and fragmented ones.
# sets: smoke full
# limit: 400
bridge_create
backend_start
guest_start a
vif_wait a
check_ping dom0 10.77.0.2
check_ping dom0 fd77::2
check_ping dom0 10.77.0.2 -s 8000
check_ping a 10.77.0.1
check_ping a fd77::1 -s 8000
measure rtt_ms "$(ping -q -c 50 -i 0.02 10.77.0.2 | sed -n 's,.*= [0-9.]*/\([0-9.]*\)/.*,\1,p')"

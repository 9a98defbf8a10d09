# A guest is destroyed under traffic; nothing of it remains, and the next guest is served.
# sets: smoke full
# limit: 600
bridge_create
backend_start 2
guest_start a queues=2
vif_wait a
check_ping dom0 10.77.0.2
iperf_serve a
vif=$(guest_vif a) path=$(backend_path a)
iperf3 --client 10.77.0.2 --time 60 > /dev/null 2>&1 &
sleep 4
start=$EPOCHSECONDS
guest_destroy a
measure destroy_seconds $((EPOCHSECONDS - start))
[ ! -e "/sys/class/net/$vif" ] || fail "$vif is still there"
! xenstore-exists "$path" || fail "$path is still there"
kill $!
guest_start b host=3
vif_wait b
check_ping dom0 10.77.0.3

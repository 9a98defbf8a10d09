# A guest is destroyed under traffic; nothing of it remains, and the next guest is served.
# sets: smoke full
# limit: 600
serve_guest 2
vif=$(guest_vif a) path=$(backend_path a)
keep_busy a
start=$EPOCHSECONDS
guest_destroy a
measure destroy_seconds $((EPOCHSECONDS - start))
wait_until 30 "$vif is gone" test ! -e "/sys/class/net/$vif"
! xenstore-exists "$path" || fail "$path is still there"
kill "$busy" 2> /dev/null || true
guest_start b host=3
vif_wait b
check_ping dom0 10.77.0.3

# Guests come, send, and are destroyed under traffic, ROUNDS times; nothing of them is left.
# sets: admin
# limit: 7200
rounds=${ROUNDS:-5}
bridge_create
backend_start 2

# What dom0 and the backend hold, a line `NAME COUNT` each.
census() {
    # Debian has lsevtchn for some architectures only.
    ! command -v lsevtchn > /dev/null || echo "event_channels $(lsevtchn 0 | wc -l)"
    echo "net_devices $(find /sys/class/net -type l | wc -l)"
    echo "xenstore_nodes $(xenstore-ls -f | wc -l)"
    [ "$BACKEND" = kernel ] || echo "open_files $(find "/proc/$(backend_pid)/fd" -type l | wc -l)"
    echo "mapped_grants $(mapped_grants)"
}

# Grants that dom0 has mapped, as Xen counts them.
mapped_grants() {
    xl dmesg --clear > /dev/null
    xl debug-keys g
    sleep 1
    xl dmesg | grep -cE '^\(XEN\) *\[ *(0x)?[0-9a-f]+\]' || true
}

come_and_go() {
    guest_start a queues=2
    vif_wait a
    check_ping dom0 10.77.0.2
    keep_busy a 60
    guest_destroy a
    kill "$busy" 2> /dev/null || true
    wait "$busy" || true
}

# The first one brings what stays for good, such as folders in XenStore.
come_and_go
census > "$state/before"
for ((round = 1; round <= rounds; round++)); do
    say "round $round of $rounds"
    come_and_go
done
# Some things are let go of a moment later.
for try in 1 2 3 4 5; do
    census > "$state/after"
    ! diff "$state/before" "$state/after" || break
    say "try $try: not as before yet"
    sleep 3
done
measure rounds "$rounds"
expect "what is held after them" "$(cat "$state/before")" "$(cat "$state/after")"

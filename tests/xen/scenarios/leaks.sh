# Ten guests come and go; grants, event channels, devices, XenStore and files are as before.
# sets: full
# limit: 3000
only_on x86_64 "Debian has no lsevtchn for others"
bridge_create
backend_start 2

# Grants that are in use, in all of Xen.
grants() {
    xl dmesg --clear > /dev/null
    xl debug-keys g
    sleep 1
    # A line for each begins with its reference in brackets.
    xl dmesg | grep -cE '^\(XEN\) *\[ *(0x)?[0-9a-f]+\]' || true
}

# What dom0 and the backend hold, a line `NAME COUNT` each.
census() {
    echo "grants $(grants)"
    echo "event_channels $(lsevtchn 0 | wc -l)"
    echo "net_devices $(find /sys/class/net -type l | wc -l)"
    echo "xenstore_nodes $(xenstore-ls -f | wc -l)"
    [ "$BACKEND" = kernel ] || echo "open_files $(find "/proc/$(backend_pid)/fd" -type l | wc -l)"
}

come_and_go() {
    guest_start a queues=2
    vif_wait a
    # So that none later on means none.
    [ "$(grants)" -ge 4 ] || fail "the rings of two queues are mapped, yet no grant is in use"
    check_ping dom0 10.77.0.2
    guest_destroy a
}

# The first one brings what stays for good, such as folders in XenStore.
come_and_go
census > "$state/before"
for round in 1 2 3 4 5 6 7 8 9 10; do
    say "round $round"
    come_and_go
done
# Some things are let go of a moment later.
for try in 1 2 3 4 5; do
    census > "$state/after"
    ! diff "$state/before" "$state/after" || break
    say "try $try: not as before yet"
    sleep 3
done
while read -r name count; do
    measure "$name" "$count"
done < "$state/after"
expect "what is held after ten guests" "$(cat "$state/before")" "$(cat "$state/after")"

# Ten guests come and go; grants, event channels, devices, XenStore and files are as before.
# sets: full
# limit: 3000
only_on x86_64 "Debian has no lsevtchn for others"
bridge_create
backend_start 2

come_and_go() {
    guest_start a queues=2
    vif_wait a
    # This shows that the command works, so that an empty result later means no leaks.
    [ "$(grants_in_use)" -ge 4 ] || fail "the rings of two queues are mapped, yet no grant is in use"
    check_ping dom0 10.77.0.2
    guest_destroy a
}

# The first guest leaves permanent traces, such as folders in XenStore.
come_and_go
census > "$state/before"
for round in 1 2 3 4 5 6 7 8 9 10; do
    say "round $round"
    come_and_go
done
census_again
while read -r name count; do
    measure "$name" "$count"
done < "$state/after"
expect "what is held after ten guests" "$(cat "$state/before")" "$(cat "$state/after")"

# Guests start, send, and are destroyed under traffic, ROUNDS times; nothing of them remains.
# sets: admin
# limit: 7200
rounds=${ROUNDS:-5}
bridge_create
backend_start 2

come_and_go() {
    guest_start a queues=2
    vif_wait a
    check_ping dom0 10.77.0.2
    keep_busy a 60
    guest_destroy a
    kill "$busy" 2> /dev/null || true
    wait "$busy" || true
}

# The first guest leaves permanent traces, such as folders in XenStore.
come_and_go
census > "$state/before"
for ((round = 1; round <= rounds; round++)); do
    say "round $round of $rounds"
    come_and_go
done
census_again
measure rounds "$rounds"
expect "what is held after them" "$(cat "$state/before")" "$(cat "$state/after")"

# Guests start, send, and are destroyed under traffic, ROUNDS times; nothing of them remains.
# sets: admin
# limit: 7200
#
# A round is one guest: created, pinged, a megabyte carried each way, destroyed while more is under
# way. After every twelve, all that is held is counted, so a leak shows early, and a run that is cut
# short has shown something.
#
# A guest has two queues and one virtual CPU: under emulation, a second one makes its boot cost five
# times as much. Three guests side by side end no sooner than three in turn.
rounds=${ROUNDS:-5}
between_counts=12
bridge_create
backend_start 2

come_and_go() {
    local busy
    guest_start a queues=2 vcpus=1 memory=192
    vif_wait a
    expect queues 2 "$(frontend_key a multi-queue-num-queues)"
    check_ping dom0 10.77.0.2
    iperf_serve a
    # Slow enough that the destruction gets its share of an emulated CPU.
    note_carried
    iperf3 --client 10.77.0.2 --connect-timeout $((PATIENCE * 60000)) --time 36000 --bidir -b 10M > "$FOLDER/busy" 2>&1 &
    busy=$!
    wait_until 300 "a megabyte each way" have_carried $busy "$FOLDER/busy"
    guest_destroy a
    kill $busy 2> /dev/null || true
    wait $busy || true
}

count_again() {
    census_again
    say "after round $round: $(tr '\n' ' ' < "$state/after")"
    expect "what is held after $round rounds" "$(cat "$state/before")" "$(cat "$state/after")"
}

# The first guest leaves permanent traces, such as folders in XenStore.
come_and_go
census > "$state/before"
say "before: $(tr '\n' ' ' < "$state/before")"
for ((round = 1; round <= rounds; round++)); do
    say "round $round of $rounds"
    come_and_go
    [ $((round % between_counts)) -ne 0 ] && [ "$round" -ne "$rounds" ] || count_again
done
measure rounds "$rounds"

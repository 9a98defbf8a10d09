# The `rate` of a vif limits what the guest sends, and not what it receives.
# sets: full admin
# limit: 900
serve_guest 2 rate=8Mb/s
iperf_serve a
vif=$(guest_vif a)
[ "$BACKEND" = kernel ] || expect "bytes in an interval of microseconds" "50000 50000" \
    "$(ringway vif show "$vif" --dir "$run_directory" --json | jq -r '.limits.rate | "\(.bytes) \(.interval_us)"')"

# In microseconds, in each of which the rate allows a byte.
now() {
    echo "${EPOCHREALTIME//[.,]/}"
}

# Bytes that the guest has sent (rx) or received (tx): DIRECTION
bytes() {
    cat "/sys/class/net/$vif/statistics/$1_bytes"
}

# What the rate does not delay: what has accumulated, and the frames that exceed it.
burst=$((384 << 10))

# The time is from before the first count to after the last, so however late this runs, no more may
# pass in it.
say "from the guest"
iperf3 --client 10.77.0.2 --connect-timeout $((PATIENCE * 60000)) --time 36000 --reverse > "$state/sends" 2>&1 &
sends=$!
has_sent() {
    kill -0 $sends || fail "iperf3 ended: $(tail -n 1 "$state/sends")"
    [ "$(bytes rx)" -ge "$1" ]
}
wait_until 60 "a megabyte from the guest" has_sent $((1 << 20))
start=$(now)
before=$(bytes rx)
wait_until 60 "three more" has_sent $((before + (3 << 20)))
sent=$(($(bytes rx) - before))
took=$(($(now) - start))
kill $sends
wait $sends || true
measure guest_to_dom0_bits_per_s $((8 * sent * 1000000 / took))
[ $took -ge $((sent - burst)) ] || fail "$sent bytes in $took us from a guest held to 8 Mbit/s"

# In some seconds, more arrives than the rate would allow.
say "to the guest"
exceeds() {
    local received end
    received=$(($(bytes tx) - before))
    end=$(now)
    [ $received -le $((end - start + burst)) ] || return 0
    [ $((end - start)) -lt 2000000 ] || begin
    return 1
}
begin() {
    start=$(now)
    before=$(bytes tx)
}
client="iperf3 --client 10.77.0.2 --connect-timeout $((PATIENCE * 60000)) --time 36000"
# waits: the server does not say when it has ended the last run
setsid bash -c "until $client; do sleep 0.5; done" > "$state/receives" 2>&1 &
receives=$!
begin
wait_until 120 "more to the guest than its rate, which is for what it sends" exceeds
measure dom0_to_guest_bits_per_s $((8 * ($(bytes tx) - before) * 1000000 / ($(now) - start)))
kill -- -$receives
wait $receives || true
guest_destroy a

# A guest writes absurd keys: its vif closes with a reason, xl does not hang, and other vifs stay served.
# sets: full
# limit: 1500
bridge_create
backend_start 4
guest_start bad vif=no netfront=no
guest_start good host=3

# Gives the bad guest a vif, plays its frontend with these keys, and takes the vif away: WHAT KEY=VALUE...
misbehave() {
    local what=$1 path writes=() start word
    shift
    say "bad guest: $what"
    attach bad "mac=$(guest_mac 9)" bridge=br0
    path=$(guest_path bad)/device/vif/0
    wait_until 20 "the backend waits for the guest" backend_key_is bad state 2
    for word in request-rx-copy=1 feature-rx-notify=1 "$@" state=4; do
        writes+=("$path/${word%%=*}" "${word#*=}")
    done
    xenstore-write "${writes[@]}"
    wait_until 30 "$what: an error is written" backend_error bad
    say "error: $(backend_error bad)"
    # Linux's backend reports the error but becomes connected nevertheless.
    [ "$BACKEND" = kernel ] || ! backend_key_is bad state 4 ||
        fail "$what: the vif is connected all the same"
    start=$EPOCHSECONDS
    within 60 xl network-detach bad 0 || say "xl network-detach: status $?"
    measure "detach_seconds_${what// /_}" $((EPOCHSECONDS - start))
    xenstore-rm "$path" 2> /dev/null || true
}

# A connected guest that changes its keys gains nothing, and keeps working if the backend continues. The
# backend sees this before what the bad guest does.
path=$(guest_path good)/device/vif/0
check_ping dom0 10.77.0.3
xenstore-write "$path/tx-ring-ref" 4294967295 "$path/event-channel-tx" x "$path/feature-sg" ''

rings="tx-ring-ref=8 rx-ring-ref=9 event-channel-tx=7 event-channel-rx=8"
misbehave "grants that are none" tx-ring-ref=999999 rx-ring-ref=999998 event-channel-tx=7 \
    event-channel-rx=8
misbehave "no rings at all"
misbehave "words for numbers" tx-ring-ref=many rx-ring-ref=99999999999 event-channel-tx=7 event-channel-rx=8
# shellcheck disable=SC2086
misbehave "too many queues" multi-queue-num-queues=1000 $rings
# shellcheck disable=SC2086
misbehave "no queues" multi-queue-num-queues=0 $rings

check_ping dom0 10.77.0.3
guest_destroy good
guest_destroy bad

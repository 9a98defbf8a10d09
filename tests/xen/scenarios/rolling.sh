# A guest that was saved under one backend is restored under the other, there and back.
# sets: full admin
# limit: 2000
#
# A rolling switch moves guests so between two hosts. A TCP connection stays open all the way.
[ "$BACKEND" = ringway ] || skip "it runs both backends: once is enough"
bridge_create

# Saves guest a, replaces the backend, and restores it: BACKEND QUEUES
move_to() {
    say "to the backend $1"
    within 200 xl save a "$state/a.save" || fail "xl save: status $?"
    backend_stop
    BACKEND=$1
    backend_start "$2"
    within 200 xl restore "$state/a.save" || fail "xl restore: status $?"
    rm "$state/a.save"
    guest_renew a
    vif_wait a
    expect "queues" "$2" "$(frontend_key a multi-queue-num-queues)"
    say_over_tcp "with the backend $1"
    check_ping dom0 10.77.0.2
    check_ping dom0 fd77::2
    expect "the guest has not rebooted" "$boot" "$(guest a cat /proc/sys/kernel/random/boot_id)"
    expect "network devices" "$(guest_vif a)" "$(vif_devices)"
    check_payload dom0 a 10.77.0.2 8
    check_payload a dom0 10.77.0.1 8
}

# Sends a line over the connection to the guest, which returns it: LINE
say_over_tcp() {
    local returned=''
    echo "$1" >&"${connection[1]}"
    # waits: for the line, which no slow guest misses
    IFS= read -r -t $((PATIENCE * 60)) returned <&"${connection[0]}" || true
    expect "what the TCP connection returns" "$1" "$returned"
}

BACKEND=kernel
backend_start 1
guest_start a queues=2
vif_wait a
check_ping dom0 10.77.0.2
boot=$(guest a cat /proc/sys/kernel/random/boot_id)
guest_begin a /tmp/echo "socat TCP-LISTEN:5557 EXEC:cat"
coproc connection { exec socat - TCP:10.77.0.2:5557,retry=600,interval=0.2; }
say_over_tcp "with the backend kernel, at first"
move_to ringway 2
move_to kernel 1
move_to ringway 2

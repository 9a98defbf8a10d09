# A guest loads programs of XDP that pass, drop and send frames, under TCP, and ringway is killed meanwhile.
# sets: full
# limit: 900
only_with ringway

# Loads a program into the guest's device: pass|drop|reply|off
load() {
    say "program: $1"
    guest a "xdp eth0 $1" || fail "the guest could not load '$1'"
    vif_wait a
    check_headroom "$([ "$1" = off ] && echo 0 || echo 256)"
}

# Fails unless the guest asks for so much headroom, and the backend gives it: BYTES
check_headroom() {
    expect "headroom that the guest asks for" "$1" "$(frontend_key a xdp-headroom)"
    wait_until 30 "the vif has $1 bytes of headroom" has_headroom "$1"
}

has_headroom() {
    [ "$(ringway vif show "$(guest_vif a)" --dir "$run_directory" --json | jq .headroom)" = "$1" ]
}

# Has the guest's kernel reply to no ping, or to all again: 1|0
ignore_pings() {
    guest a "echo $1 > /proc/sys/net/ipv4/icmp_echo_ignore_all"
}

# Fails if the guest replies to a ping. What follows shows what was done with these.
check_silence() {
    # waits: for nothing, as the guest replies to none
    ping -q -c 5 -i 0.2 -W 2 10.77.0.2 > "$state/silence" || true
    grep ' 0 received' "$state/silence" || fail "the guest replied: $(tail -n 2 "$state/silence")"
}

# Requests that the guest's kernel has had, however it replies to them.
requests() {
    guest a cat /proc/net/snmp | awk '/^Icmp: / && !seen++ { for (i = 1; i <= NF; i++) if ($i == "InEchos") column = i; next }
        /^Icmp: / { print $column }'
}

# Whether it has had more of them than before: BEFORE
has_had_more() {
    [ "$(requests)" -gt "$1" ]
}

serve_guest 2
expect "headroom is offered" 1 "$(backend_key a feature-xdp-headroom)"
keep_busy a 120
rings=$(xenstore-ls "$(guest_path a)/device/vif/0" | grep -E 'ring-ref|event-channel')

load pass
check_ping dom0 10.77.0.2
check_ping a 10.77.0.1
load drop
before=$(requests)
check_silence
ignore_pings 1
load reply
check_ping dom0 10.77.0.2
# Those without a reply came first: its programs have let none of all these pass.
expect "requests that its kernel has had" "$before" "$(requests)"
# The longest frame, whose end is farthest behind the headroom.
check_ping dom0 10.77.0.2 -M "do" -s 1472

backend_kill
backend_start 2
wait_until 30 "$(guest_vif a) is on the bridge again" test -e "/sys/class/net/$(guest_vif a)/master"
vif_wait a
check_headroom 256
check_ping dom0 10.77.0.2
load off
before=$(requests)
check_silence
wait_until 60 "its kernel has had requests" has_had_more "$before"
ignore_pings 0
check_ping dom0 10.77.0.2
# One change after another, none of which waits for anything but the kernel.
guest a 'for program in pass off drop off reply off pass; do xdp eth0 $program || exit; done' ||
    fail "the guest could not change its programs"
check_headroom 256
check_ping dom0 10.77.0.2
busy_to_the_end
check_payload dom0 a 10.77.0.2 8
check_payload a dom0 10.77.0.1 8
load off
check_payload dom0 a 10.77.0.2 8
expect "the guest has not reconnected" "$rings" \
    "$(xenstore-ls "$(guest_path a)/device/vif/0" | grep -E 'ring-ref|event-channel')"

# A backend domain can map no more pages: one vif waits with a reason, others stay, and it is served later.
# sets: full admin
# limit: 1800
only_with ringway
# Two pages for a queue, each with an entry for the kernel and one for the process. One frame of Xen's
# table of mappings has 256 entries.
queues=16 vifs=6
guest_start driver role=backend vif=no memory=512 vcpus=2 programs=yes setting=max_maptrack_frames=1
trap 'guest driver "cat /tmp/ringway.log" > "$FOLDER/driver.log" || true' EXIT
guest driver 'ip link add br0 type bridge forward_delay 0 && ip link set br0 up && ip address add 10.77.0.1/24 dev br0'
guest_begin driver /tmp/ringway.log ringway run --hypervisor xen --dir /run/ringway --max-queues $queues
wait_until 60 "ringway is ready" guest driver ringway vif list --dir /run/ringway
guest driver xl devd
# Linux takes 514 grants for a queue.
guest_start a queues=$queues vcpus=2 memory=768 backend=driver setting=max_grant_frames=256
vif_wait a
check_ping driver 10.77.0.2

backend_state() {
    xenstore-read "$(xenstore-read "$(guest_path a)/device/vif/$1/backend")/state"
}

error() {
    guest driver ringway vif show "vif$(guest_id a).$1" --dir /run/ringway --json | jq -re '.error // empty'
}

is_connected_or_says_why() {
    [ "$(backend_state "$1")" = 4 ] || error "$1"
}

is_connected() {
    [ "$(backend_state "$1")" = 4 ]
}

say "vifs until one is too many"
waits=no
for ((index = 1; index <= vifs; index++)); do
    attach a "mac=$(guest_mac $((2 + 16 * index)))" bridge=br0 backend=driver
    wait_until 120 "vif $index is connected, or says why it is not" is_connected_or_says_why $index
    is_connected $index || { waits=$index; break; }
done
[ "$waits" != no ] || fail "$vifs vifs of $queues queues were mapped into one frame"
[ "$waits" -gt 1 ] || fail "no vif but the first was mapped: there is none to detach"
reason=$(error "$waits")
measure waits "$waits"
say "vif $waits: $reason"
case $reason in *max_maptrack_frames*) ;; *) fail "the reason does not name the limit: $reason" ;; esac
expect "the state of the vif that waits" 2 "$(backend_state "$waits")"
say "others go on"
check_ping driver 10.77.0.2
for ((index = 1; index < waits; index++)); do
    is_connected $index || fail "vif $index has gone to state $(backend_state $index)"
done

say "room is made"
within 60 xl network-detach a 1 || fail "xl network-detach: status $?"
wait_until 180 "vif $waits is connected" is_connected "$waits"
expect "its error" "" "$(error "$waits" || true)"
check_ping driver 10.77.0.2

# A backend domain runs out of event channels: the next vif is refused with a reason, others stay.
# sets: full admin
# limit: 1800
only_with ringway
# Two channels for each vif, and the domain itself has some twenty.
vifs=14
guest_start driver role=backend vif=no memory=512 vcpus=2 programs=yes setting=max_event_channels=40
trap 'guest driver "cat /tmp/ringway.log" > "$FOLDER/driver.log" || true' EXIT
guest driver 'ip link add br0 type bridge forward_delay 0 && ip link set br0 up && ip address add 10.77.0.1/24 dev br0'
guest_begin driver /tmp/ringway.log ringway run --hypervisor xen --dir /run/ringway --max-queues 4
wait_until 60 "ringway is ready" guest driver ringway vif list --dir /run/ringway
guest driver xl devd
guest_start a queues=1 backend=driver
vif_wait a
check_ping driver 10.77.0.2

say "vifs until one is refused"
refused=no
for ((index = 1; index <= vifs; index++)); do
    # The number is given, as libxl takes that of the last node and oxenstored lists 9 after 10.
    attach a "devid=$index" "mac=$(guest_mac $((2 + 16 * index)))" bridge=br0 backend=driver
    path=$(xenstore-read "$(guest_path a)/device/vif/$index/backend")
    end=$((SECONDS + PATIENCE * 60))
    until [ "$(xenstore-read "$path/state")" = 4 ] || [ $SECONDS -ge $end ] ||
        error=$(guest driver ringway vif show "vif$(guest_id a).$index" --dir /run/ringway --json | jq -re '.error // empty'); do
        sleep 1 # waits: looks again until it is connected, or says why it is not
    done
    [ "$(xenstore-read "$path/state")" = 4 ] || { refused=$index; break; }
done
measure refused "$refused"
[ "$refused" != no ] || fail "none of $vifs vifs was refused with 40 event channels"
say "vif $refused: ${error:-no error is shown}"
[ -n "${error:-}" ] || fail "the vif that was refused has no error"
say "others go on"
check_ping driver 10.77.0.2
guest driver ringway vif list --dir /run/ringway

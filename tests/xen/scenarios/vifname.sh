# The stock script renames a vif with vifname=, and the backend finds it again after a crash.
# sets: full admin
# limit: 600
bridge_create
backend_start 2
guest_start a queues=2 vifname=web0
vif_wait a
is_in_place() {
    [ -e /sys/class/net/web0/master ] && [ ! -e "/sys/class/net/$(guest_vif a)" ]
}
wait_until 30 "web0 is on the bridge" is_in_place
check_ping dom0 10.77.0.2

if [ "$BACKEND" = ringway ]; then
    index=$(cat /sys/class/net/web0/ifindex)
    for try in 1 2; do
        say "kill $try"
        backend_kill
        backend_start 2
        expect "the device" "$index" "$(cat /sys/class/net/web0/ifindex)"
        is_in_place || fail "web0 is not on the bridge, or there is a second device"
        check_ping dom0 10.77.0.2
    done
fi

say "detach"
within 60 xl network-detach a 0 || fail "xl network-detach: status $?"
wait_until 30 "web0 is gone" test ! -e /sys/class/net/web0
guest_destroy a

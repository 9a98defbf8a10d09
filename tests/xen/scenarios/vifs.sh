# Four vifs in one guest, each on its own bridge, work in parallel; one is detached.
# sets: full admin
# limit: 900
bridge_create
backend_start 2
guest_start a queues=2 vifs=4
vif_wait a
for index in 1 2 3; do
    guest a "ip address add 10.77.$index.2/24 dev eth$index && ip link set eth$index up"
    wait_until 60 "vif $index is on the bridge" test -e "/sys/class/net/vif$(guest_id a).$index/master"
    ip address add "10.77.$index.1/24" dev br0
    check_ping dom0 "10.77.$index.2"
done
check_ping dom0 10.77.0.2
check_payload dom0 a 10.77.3.2 4
say "detach vif 1"
within 60 xl network-detach a 1 || fail "xl network-detach: status $?"
wait_until 30 "vif 1 is gone" test ! -e "/sys/class/net/vif$(guest_id a).1"
for index in 0 2 3; do
    check_ping dom0 "10.77.$index.2"
done

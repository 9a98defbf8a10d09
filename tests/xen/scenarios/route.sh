# `vif-route` connects a vif: no bridge, a route to the guest, and dom0 replies to ARP for it.
# sets: full admin
# limit: 900
# The script gives the vif the address of dom0's eth0. A whole Debian has the driver of a card.
ip link show dev eth0 > /dev/null 2>&1 || ip link add eth0 type veth peer name eth0-peer
ip address add 10.77.0.1/32 dev eth0
trap 'ip address delete 10.77.0.1/32 dev eth0; ip link delete eth0-peer 2> /dev/null || true' EXIT
ip link set eth0 up
backend_start 2

route_is_gone() {
    [ -z "$(ip route show 10.77.0.2)" ]
}

guest_start a queues=2 bridge= script=vif-route ip=10.77.0.2
vif_wait a
wait_until 20 "the hotplug script is done" backend_key_is a hotplug-status connected
expect "route to the guest" "$(guest_vif a)" \
    "$(ip --json route show 10.77.0.2 | jq -r '.[0].dev')"
check_ping dom0 10.77.0.2
check_conversation a
guest_destroy a
wait_until 20 "the route is gone" route_is_gone

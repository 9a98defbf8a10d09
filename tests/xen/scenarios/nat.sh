# Xen's script for address translation, vif-nat, serves a vif.
# sets: full admin
# limit: 600
backend_start 2
guest_start a queues=2 bridge= script=vif-nat ip=10.77.0.2
vif_wait a
vif=$(guest_vif a)
expect "the script says" connected "$(backend_key a hotplug-status)"
# The script gives the interface an address beside the guest's: 10.77.0.129 for 10.77.0.2.
router=$(ip -4 -o address show dev "$vif" | awk '{ sub("/.*", "", $4); print $4; exit }')
guest a "ip route replace $router dev eth0 && ip route replace default via $router"
check_ping dom0 10.77.0.2
check_ping a "$router"

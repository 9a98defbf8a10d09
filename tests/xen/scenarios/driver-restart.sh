# A driver domain ends without a word and starts again under another number; its guest gets its vif back.
# sets: full admin
# limit: 1800
#
# What the toolstack must do meanwhile is in docs/qubes.md, "When the net qube starts again".
driver_start
guest_start a queues=2 backend=driver
vif_wait a
check_ping driver 10.77.0.2
boot=$(guest a cat /proc/sys/kernel/random/boot_id)
before=$(guest_id driver)

say "the driver domain ends, as in a crash"
guest_destroy driver
expect "the frontend's state, as it has no news of that" 4 "$(frontend_key a state)"
driver_start
[ "$(guest_id driver)" != "$before" ] || fail "the driver domain has its old number"

say "detach from the domain that is gone"
within 60 xl network-detach a 0 || fail "xl network-detach: status $?"
wait_until 60 "eth0 is gone" guest a 'test ! -e /sys/class/net/eth0'

say "attach to the new one"
attach a "mac=$(guest_mac 2)" bridge=br0 backend=driver
wait_until 60 "eth0 is there" guest a 'test -e /sys/class/net/eth0'
guest a 'ip address add 10.77.0.2/24 dev eth0 && ip link set eth0 up'
vif_wait a
expect "the backend's domain" "$(guest_id driver)" "$(frontend_key a backend-id)"
check_ping driver 10.77.0.2
check_payload driver a 10.77.0.2 8
check_payload a driver 10.77.0.1 8
expect "the guest has not rebooted" "$boot" "$(guest a cat /proc/sys/kernel/random/boot_id)"

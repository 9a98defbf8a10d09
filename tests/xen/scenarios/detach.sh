# A vif is detached from a live guest and attached again; the guest reboots, and is saved and restored.
# sets: full admin
# limit: 1500
serve_guest 2
vif=$(guest_vif a)

say "detach"
within 60 xl network-detach a 0 || fail "xl network-detach: status $?"
wait_until 30 "eth0 is gone" guest a 'test ! -e /sys/class/net/eth0'
wait_until 30 "$vif is gone" test ! -e "/sys/class/net/$vif"

say "attach"
attach a "mac=$(guest_mac 2)" bridge=br0
wait_until 60 "eth0 is there" guest a 'test -e /sys/class/net/eth0'
guest a 'ip address add 10.77.0.2/24 dev eth0 && ip link set eth0 up'
vif_wait a
check_ping dom0 10.77.0.2

say "reboot"
before=$(guest_id a)
within 60 xl reboot a || fail "xl reboot: status $?"
is_another_domain() {
    guest_renew a && [ "$(guest_id a)" != "$before" ]
}
wait_until 120 "the guest is another domain" is_another_domain
guest_wait a
vif_wait a
check_ping dom0 10.77.0.2

say "save"
boot=$(guest a cat /proc/sys/kernel/random/boot_id)
within 200 xl save a "$state/a.save" || fail "xl save: status $?"
say "restore"
within 200 xl restore "$state/a.save" || fail "xl restore: status $?"
rm "$state/a.save"
guest_renew a
vif_wait a
check_ping dom0 10.77.0.2
expect "the guest has not rebooted" "$boot" "$(guest a cat /proc/sys/kernel/random/boot_id)"
check_payload dom0 a 10.77.0.2 8

# docs/xen.md, block by block: from the kernel's backend to ringway, an upgrade, back, and again.
# sets: admin
# limit: 5400
only_in_debian "the page is for one"
only_with ringway
trap 'for address in 10.77.0.1 10.0.0.1; do ip address del $address/24 dev xenbr0 2> /dev/null || true; done' EXIT
ip address add 10.77.0.1/24 dev xenbr0

# A guest's new interface has no address; this assigns one, as an administrator's guest would.
address() {
    wait_until 60 "eth0 is there" guest a 'test -e /sys/class/net/eth0'
    guest a 'ip address replace 10.77.0.2/24 dev eth0 && ip link set eth0 up'
}

works() {
    vif_wait a
    check_ping dom0 10.77.0.2
    say "$1: works"
}

say "a guest on the kernel's backend"
modprobe xen-netback max_queues=2
# With the page's address, which stays the same when the vif is detached and attached again.
guest_start a queues=2 text="$(page_text vif-line)"
works "the kernel's backend"

page install
expect "the service after its installation" "disabled/inactive" \
    "$(systemctl is-enabled ringway || true)/$(systemctl is-active ringway || true)" 2> /dev/null
expect "the kernel's backend after it" yes "$([ -e /sys/module/xen_netback ] && echo yes)"
works "the package by itself"
! ringway run --hypervisor xen --dir /run/refused 2> "$FOLDER/refused" || fail "it serves beside xen-netback"
grep -q xen.netback "$FOLDER/refused" || fail "it does not say why: $(cat "$FOLDER/refused")"

page locks
page_text no-change > "$state/no-change.toml"
ringway run --hypervisor xen --check "$state/no-change.toml"
page switch GUEST=a
address
works "the switch"
page look GUEST=a
iperf_serve a
measure guest_to_dom0_bits_per_s "$(iperf 10.77.0.2 -t 4 -R)"
check_payload dom0 a 10.77.0.2 4

say "a newer package"
newer_package /payload/ringway_*.deb /payload/ringway_NEWER.deb
rings=$(xenstore-ls "$(guest_path a)/device/vif/0" | grep -E 'ring-ref|event-channel')
keep_busy a
page check
page restart
busy_to_the_end
works "the newer package"
expect "its version" yes "$(dpkg-query --show ringway | grep -q newer && echo yes)"
expect "the guest has not reconnected" "$rings" \
    "$(xenstore-ls "$(guest_path a)/device/vif/0" | grep -E 'ring-ref|event-channel')"

say "a changed description"
settings=/etc/ringway/ringway.toml
has_mode() {
    ringway vif show "$(guest_vif a)" | grep -q "^locking-mode *$1\$"
}
cp "$settings" "$state/settings.toml"
printf '\n[switch]\nlocking-mode = "unlocked"\n' >> "$settings"
page reload
wait_until 60 "the vif is unlocked" has_mode unlocked
sed -i 's/^locking-mode = "unlocked"$/locking-mode = "open"/' "$settings"
! systemctl reload ringway || fail "a wrong description was taken over"
has_mode unlocked || fail "a wrong description has changed something"
cp "$state/settings.toml" "$settings"
page reload
wait_until 60 "the vif is as before" has_mode default
expect "the guest has not reconnected at a reload" "$rings" \
    "$(xenstore-ls "$(guest_path a)/device/vif/0" | grep -E 'ring-ref|event-channel')"
works "a reload"

say "kill -9"
backend_kill
wait_until 60 "systemd has started it again" backend_answers
works "kill -9"
page show "vif7.0=$(guest_vif a)"
page unlock "vif/7/0=vif/$(guest_id a)/0"
works "an unlocked vif"

page back GUEST=a
address
works "the kernel's backend again"
expect "users of Xen's devices" "" "$(find /dev/xen -group ringway)"
say "and to ringway again"
page install
page switch GUEST=a
address
works "ringway again"
guest_destroy a

say "other vif lines of the page"
ip address add 10.0.0.1/24 dev xenbr0
guest_create a queues=2 text="$(page_text locked-line)"
guest_wait a
vif_wait a
guest a 'ip address replace 10.0.0.5/24 dev eth0 && ip address replace 10.0.0.6/24 dev eth0'
check_ping dom0 10.0.0.5
# waits: for what shows below, where the machine is too slow for a reply, that there is none
! ping -q -c 2 -W 2 10.0.0.6 || fail "a guest that is locked to 10.0.0.5 answers for 10.0.0.6"
# What the guest replied to those is ahead of its replies to these.
check_ping dom0 10.0.0.5
! ip neighbour show 10.0.0.6 | grep lladdr || fail "a guest that is locked to 10.0.0.5 has 10.0.0.6"
ip address del 10.0.0.1/24 dev xenbr0
guest_destroy a
printf '%s\n' "$(page_text uplink | sed 's,10.77.0.1,10.79.0.1,')" > /etc/ringway/ringway.toml
systemctl restart ringway
wait_until 60 "ringway answers" backend_answers
guest_create a queues=2 text="$(page_text switch-line)"
guest_wait a
vif_wait a
guest a 'ip address replace 10.79.0.2/24 dev eth0'
check_ping dom0 10.79.0.2

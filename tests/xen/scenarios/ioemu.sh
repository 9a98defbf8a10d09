# A fully virtualized guest with a `type=ioemu` vif: first an emulated card for its firmware, then the PV one.
# sets: admin
# limit: 2400
# needs: vmlinuz ipxe
only_on x86_64 "there is no such guest elsewhere"
only_in_debian "it takes Xen's QEMU"
[ -s /payload/ipxe.lkrn ] || skip "Debian's package ipxe could not be fetched"
bridge_create
backend_start 2
# iPXE fetches Linux over the emulated card. QEMU's own loader would read it one byte at a
# time through a port, with an exit to QEMU for each.
guest_create a type=hvm vcpus=1 memory=384 setting='vga = "none"' ipxe="$(ipxe_script 2)" \
    text="vif = [ 'mac=$(guest_mac 2),bridge=br0,type=ioemu,model=e1000' ]"
# The second device belongs to QEMU, for the emulated card.
wait_until 60 "both devices are on the bridge" test -e "/sys/class/net/$(guest_vif a)/master" \
    -a -e "/sys/class/net/$(guest_vif a)-emu/master"
guest_wait a 1200
vif_wait a
expect "the driver of eth0" vif "$(guest a 'basename $(readlink /sys/class/net/eth0/device/driver)')"
check_ping dom0 10.77.0.2
check_payload dom0 a 10.77.0.2 4
if [ "$BACKEND" = ringway ]; then
    backend_kill
    backend_start 2
    check_ping dom0 10.77.0.2
fi
guest_destroy a
no_vif_is_left() {
    [ -z "$(vif_devices)" ]
}
wait_until 30 "no device of it is left" no_vif_is_left

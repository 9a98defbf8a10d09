# iPXE's netfront fetches Linux over ringway, and Linux' netfront takes over the vif.
# sets: admin
# limit: 3000
# needs: vmlinuz ipxe
only_on x86_64 "Debian has iPXE for it"
only_in_debian "it takes Xen's QEMU"
[ -s /payload/ipxe.lkrn ] || skip "Debian's package ipxe could not be fetched"
# Xen's log then has what the firmware prints, which tells how far a slow boot came.
xl set-parameters guest_loglvl=all
bridge_create
backend_start 2
# One virtual CPU, as the second ended in a triple fault (Linux, under emulation in emulation).
# Without an emulated card, only iPXE's netfront can fetch it.
guest_create a type=hvm vcpus=1 memory=384 setting='vga = "none"' ipxe="$(ipxe_script 2)" \
    text="vif = [ 'mac=$(guest_mac 2),bridge=br0,type=vif' ]"
wait_until 900 "iPXE has connected" vif_is_connected a
# It may release the vif a few seconds later, so the keys are read at once.
keys=$(xenstore-ls "$(guest_path a)/device/vif/0" | tr '\n' ' ')
say "iPXE: $keys"
case $keys in *' event-channel = '*) ;; *) fail "iPXE has no event channel for both directions: $keys" ;; esac
# 20 MB through an emulated guest that polls.
guest_wait a 1200
vif_wait a
say "Linux: $(xenstore-ls "$(guest_path a)/device/vif/0" | tr '\n' ' ')"
expect "queues of Linux" 2 "$(frontend_key a multi-queue-num-queues)"
check_ping dom0 10.77.0.2
check_payload dom0 a 10.77.0.2 4
check_payload a dom0 10.77.0.1 4
if [ "$BACKEND" = ringway ]; then
    backend_kill
    backend_start 2
    check_ping dom0 10.77.0.2
fi
guest_destroy a

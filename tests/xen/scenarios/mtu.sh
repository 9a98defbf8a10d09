# Frames of 1500 and of 9000 bytes pass unfragmented; frames that are one byte longer do not.
# sets: full
# limit: 900
for mtu in 1500 9000; do
    bridge_create $mtu
    backend_start 1
    guest_start a mtu=$mtu
    vif_wait a
    expect "MTU of the guest" $mtu "$(guest a cat /sys/class/net/eth0/mtu)"
    expect "MTU of the vif" $mtu "$(cat "/sys/class/net/$(guest_vif a)/mtu")"
    check_ping dom0 10.77.0.2
    # 28 bytes are headers of IPv4 and ICMP.
    check_ping dom0 10.77.0.2 -M "do" -s $((mtu - 28))
    check_ping a 10.77.0.1 -M "do" -s $((mtu - 28))
    # waits: for nothing, as dom0 itself refuses it
    ! ping -q -M "do" -c 1 -W 2 -s $((mtu - 27)) 10.77.0.2 || fail "a frame was longer than the MTU"
    check_payload dom0 a 10.77.0.2 8
    check_payload a dom0 10.77.0.1 8
    guest_destroy a
    backend_stop
    ip link delete br0
done

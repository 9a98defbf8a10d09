# The backend runs in an ordinary guest, where `xl devd` does what xl does in dom0.
# sets: full
# limit: 1200
programs=no
[ "$BACKEND" = kernel ] || programs=yes
guest_start driver role=backend vif=no memory=512 vcpus=2 programs=$programs
# dom0 cannot read its logs after it has ended.
trap 'guest driver "tail -n 500 /var/log/xen/* /tmp/ringway.log" > "$FOLDER/driver.log" || true' EXIT
guest driver 'ip link add br0 type bridge forward_delay 0 && ip link set br0 up &&
    ip address add 10.77.0.1/24 dev br0 && ip address add fd77::1/64 dev br0 nodad'
if [ "$BACKEND" = kernel ]; then
    guest driver modprobe xen-netback max_queues=2
else
    # A whole Debian as dom0 need not have it installed.
    guest driver ringway run --help | grep -- --hypervisor > /dev/null || skip "this ringway run has no --hypervisor"
    guest_begin driver /tmp/ringway.log ringway --log-level debug run --hypervisor xen --dir /run/ringway --max-queues 2
    wait_until 60 "ringway is ready" guest driver ringway vif list --dir /run/ringway
fi
guest driver xl devd
# xl waits ten seconds for the backend; with this log, a failure shows what it saw and when.
xl_options=(-vvv -T)
guest_create a queues=2 backend=driver
guest_wait a
vif_wait a
expect "the backend's domain" "$(guest_id driver)" "$(frontend_key a backend-id)"
check_ping driver 10.77.0.2
check_ping driver fd77::2
iperf_serve a
measure driver_to_guest_bits_per_s "$(guest driver iperf3 --client 10.77.0.2 -t 4 --json |
    jq '.end.sum_received.bits_per_second | round')"
check_payload driver a 10.77.0.2 8
check_payload a driver 10.77.0.1 8
# Its part of the toolstack is asynchronous, so the guest's folders may remain a moment longer.
guest_destroy a
wait_until 60 "the vif is gone" guest driver '[ ! -e /sys/class/net/vif*.0 ]'

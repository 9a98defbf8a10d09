# ringway's own frontend replaces the kernel's in a guest, with the selected backend.
# sets: full
# limit: 900
bridge_create
backend_start 2
guest_start a queues=2 vcpus=2 memory=384 role=guest netfront=no programs=yes
ringway_has guest || skip "this ringway guest has no --hypervisor"
guest a 'modprobe -a tun'
guest_begin a /tmp/ringway.log ringway guest --hypervisor xen --dir /run/ringway
keep_log() { guest a cat /tmp/ringway.log > "$FOLDER/ringway-guest.log" || true; }
trap keep_log EXIT
wait_until 60 "eth0 is there" guest a 'test -e /sys/class/net/eth0'
guest a 'ip address replace 10.77.0.2/24 dev eth0 && ip address replace fd77::2/64 dev eth0 nodad &&
    ip link set eth0 up'
vif_wait a
expect "queues" 2 "$(frontend_key a multi-queue-num-queues)"
check_ping dom0 10.77.0.2
check_ping dom0 fd77::2
check_conversation a
guest_destroy a

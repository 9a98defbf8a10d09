# Guests with kernels of other Debian releases connect, transfer bytes unchanged, and survive a kill of the backend.
# sets: admin
# limit: 2400
# needs: kernels
only_on x86_64 "tests/xen/kernels fetches them for it"
ls /payload/kernels/*/vmlinux > /dev/null 2>&1 || skip "no kernel could be fetched (tests/xen/kernels)"
bridge_create
backend_start 4
for folder in /payload/kernels/*/; do
    series=$(basename "$folder")
    say "kernel $series: $(cat "$folder/version")"
    guest_start a queues=2 "kernel=$series"
    vif_wait a
    measure "kernel_${series}" "$(guest a uname -r), $(frontend_key a multi-queue-num-queues) queues"
    check_ping dom0 10.77.0.2
    check_ping dom0 fd77::2
    check_payload dom0 a 10.77.0.2 4
    check_payload a dom0 10.77.0.1 4
    if [ "$BACKEND" = ringway ]; then
        backend_kill
        backend_start 4
        check_ping dom0 10.77.0.2
    fi
    guest_destroy a
done

# A guest migrates to its own host under traffic and has its network again.
# sets: full admin
# limit: 2400
#
# A PVH guest: Debian builds Xen without shadow paging, so Xen cannot track the pages that a PV
# guest writes meanwhile, and refuses its live migration (EOPNOTSUPP).
bridge_create
backend_start 2

# The most pings in a row, of those up to the last reply, that got none: FILE
lost_in_a_row() {
    sed -n 's/.*bytes from .* icmp_seq=\([0-9]*\) .*/\1/p' "$1" | sort -nu |
        awk 'NR > 1 && $1 - last > longest { longest = $1 - last } { last = $1 } END { print longest - 1 }'
}

# Whether there is no other, such as that of the domain before: VIF
only_vif_is() {
    [ "$(vif_devices)" = "$1" ]
}

migrate() {
    local before boot pings
    guest_start a type=pvh queues=2 memory=192
    vif_wait a
    check_ping dom0 10.77.0.2
    before=$(guest_id a)
    boot=$(guest a cat /proc/sys/kernel/random/boot_id)
    ping -i 0.1 10.77.0.2 > "$FOLDER/pings" 2>&1 &
    pings=$!
    # With an empty command for the connection, xl runs the name of the host as the command.
    within 1800 xl migrate -s '' a 'xl migrate-receive' || fail "xl migrate: status $?"
    guest_renew a
    [ "$(guest_id a)" != "$before" ] || fail "the guest is the domain that it was"
    vif_wait a
    check_ping dom0 10.77.0.2
    kill $pings
    # A bound would depend on the machine: while the guest is suspended, xl makes its new vif and runs
    # the script, which takes seconds under emulation.
    measure pings_of_100_ms_lost_in_a_row "$(lost_in_a_row "$FOLDER/pings")"
    check_ping dom0 fd77::2
    expect "the guest has not rebooted" "$boot" "$(guest a cat /proc/sys/kernel/random/boot_id)"
    wait_until 30 "its vif is the only one" only_vif_is "$(guest_vif a)"
    check_payload dom0 a 10.77.0.2 4
}

with_pvh migrate

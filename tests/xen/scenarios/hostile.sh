# A guest does whatever it has the right to, in each way that there is: the backend and others go on.
# sets: full
# limit: 2400
command -v ringway-hostile > /dev/null ||
    skip "it is not built: cargo build --release --package ringway-hostile"
bridge_create
backend_start 4
guest_start good host=3
guest_start bad netfront=no programs=yes memory=384
guest bad 'modprobe -a xen-gntalloc xen-evtchn' || say "the guest has no such modules to load"

host_mac=$(cat /sys/class/net/br0/address)
aim="--victim 10.77.0.3=$(guest_mac 3) --other 10.77.0.1=$host_mac --host 10.77.0.1=$host_mac"
# What is known not to hold, and what takes more than one guest or cannot be done here, is left out.
names=$(ringway-hostile list --json |
    jq -r '.[] | select(."emulated-only" or .known | not) | .name')

# shellcheck disable=SC2086
for name in ${HOSTILE:-$names}; do
    case $name in *-bridge) continue ;; esac
    say "scenario $name"
    status=0
    account=$(guest bad "ringway-hostile guest $name --hypervisor xen --seconds 2 --json $aim 2>&1") ||
        status=$?
    say "${account//$'\n'/ }"
    account=$(tail -n 1 <<< "$account")
    case $name in
    # The program has ended; what it has left behind is for the backend to see.
    death-in-handshake) ;;
    *) [ "$status" = 0 ] || fail "$name: status $status: $account" ;;
    esac
    measure "${name//-/_}" "$(jq -c '[.is_served, (.closed | length)]' <<< "$account" 2> /dev/null || echo none)"
    [ "$BACKEND" = kernel ] || backend_answers
    check_ping dom0 10.77.0.3
    vif_is_connected good || fail "$name: the vif of the other guest was closed"
done
if [ "$BACKEND" = ringway ]; then
    expect "restarts" 0 "$(grep -c backend-restarted "$FOLDER/ringway.out" || true)"
fi
guest_destroy bad
guest_destroy good

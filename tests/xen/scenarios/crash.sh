# The backend is killed under TCP and restarted; the guest's connection continues.
# sets: full admin
# limit: 600
only_with ringway
serve_guest 2
vif=$(guest_vif a)
boots=$(guest a cat /proc/sys/kernel/random/boot_id)
rings=$(xenstore-ls "$(guest_path a)/device/vif/0" | grep -E 'ring-ref|event-channel')

keep_busy a
backend_kill
say "killed"
expect "the frontend's state while nobody serves it" 4 "$(frontend_key a state)"
backend_start 2
wait_until 30 "$vif is on the bridge again" test -e "/sys/class/net/$vif/master"
say "serves again"
check_ping dom0 10.77.0.2
busy_to_the_end
measure bits_per_s "$(jq '[.intervals[].sum.bits_per_second] | add / length | round' "$FOLDER/busy.json")"
expect "the guest has not rebooted" "$boots" "$(guest a cat /proc/sys/kernel/random/boot_id)"
expect "the guest has not reconnected" "$rings" \
    "$(xenstore-ls "$(guest_path a)/device/vif/0" | grep -E 'ring-ref|event-channel')"
check_payload dom0 a 10.77.0.2 8
check_payload a dom0 10.77.0.1 8

# With many flows, every queue's rings move on the backend and its interrupts in the guest.
# sets: full
# limit: 600
serve_guest 4
iperf_serve a
vif=$(guest_vif a)

# Lines `NAME COUNT`, of the vif's interrupts, over all of the guest's processors.
interrupts() {
    guest a grep vif0- /proc/interrupts |
        awk '{ for (i = 2; i <= 5; i++) sum += $i; print $NF, sum; sum = 0 }' | sort
}

backend_queues "$vif" > "$state/queues"
interrupts > "$state/interrupts"
expect "interrupts of 4 queues" 8 "$(wc -l < "$state/interrupts")"

# Prints the names whose count has not grown: BEFORE AFTER
not_moved() {
    awk 'NR == FNR { for (i = 2; i <= NF; i++) before[$1, i] = $i; next }
        { for (i = 2; i <= NF; i++) if ($i <= before[$1, i]) print $1 }' "$1" "$2"
}

# The queue of a flow is random, so this adds flows until each queue has had some.
for round in 1 2 3 4 5 6; do
    iperf 10.77.0.2 -t 2 -P 12
    iperf 10.77.0.2 -t 2 -P 12 -R
    interrupts > "$state/interrupts.now"
    backend_queues "$vif" > "$state/queues.now"
    still=$(not_moved "$state/queues" "$state/queues.now"; not_moved "$state/interrupts" "$state/interrupts.now")
    say "round $round; not moved: ${still//$'\n'/ }"
    [ -n "$still" ] || break
done
cat "$state/queues.now" "$state/interrupts.now"
expect "queues that did not move" "" "$still"
measure rounds "$round"

# A backend is killed; how long the next one takes for eight vifs, on an idle dom0 and on a busy one.
# sets: race
# limit: 900
only_with ringway
[ "$DOM0" = small ] || skip "only in the small dom0: in the journal, lines of the log have no time of their own"
bridge_create
backend_start 2
guest_start a queues=2 vifs=8
log=$FOLDER/ringway.log

# The backend's lines since the last kill. It is `ringway run` itself, whose lines begin with their
# time: only those of the processes that it starts have a name before it.
lines() {
    tail -n "+$((before + 1))" "$log" | grep '^[0-9]'
}

are_connected() {
    [ "$(lines | grep -c ' connected ')" -ge 8 ]
}

# The time of day of a line, in seconds.
time_of() {
    awk '{ split($1, part, /[TZ:]/); printf "%.3f", 3600 * part[2] + 60 * part[3] + part[4] }'
}

# Kills the backend, starts another, and measures from its first line to the last connection: NAME
take_over() {
    backend_kill
    before=$(wc -l < "$log")
    backend_start 2
    wait_until 120 "eight vifs are connected" are_connected
    measure "$1" "$(bc <<< "$(lines | grep ' connected ' | tail -n 1 | time_of) - $(lines | head -n 1 | time_of)")"
}

before=0
wait_until 120 "eight vifs are connected" are_connected
take_over seconds_idle
loops=()
for _ in 1 2 3 4; do
    timeout 600 bash -c 'while :; do :; done' &
    loops+=($!)
done
take_over seconds_beside_four_busy_loops
kill "${loops[@]}"
check_ping dom0 10.77.0.2

# Measures `xl create` with the kernel's backend and with ringway alternately, and with six guests at once.
# sets: race
# limit: 3600
rounds=${ROUNDS:-5}
together=6
[ "$BACKEND" = ringway ] || skip "it runs both backends: once is enough"
bridge_create

# Seconds, with three digits, of a command: COMMAND...
seconds_of() {
    local begin=$EPOCHREALTIME
    "$@" >&2
    echo "$begin $EPOCHREALTIME" | awk '{ printf "%.3f\n", $2 - $1 }'
}

# One result, as a line of create.jsonl: CELL VALUE
record() {
    say "$BACKEND: $1: $2 s"
    jq -nc --argjson round "$round" --arg backend "$BACKEND" --arg cell "$1" --argjson value "$2" \
        '{$round, $backend, $cell, $value}' >> "$FOLDER/create.jsonl"
}

create_all() {
    local number pids=()
    for ((number = 1; number <= together; number++)); do
        guest_create "g$number" host=$((10 + number)) memory=192 &
        pids+=($!)
    done
    for number in "${pids[@]}"; do
        wait "$number" || fail "one of $together was not created"
    done
}

connect_all() {
    local number
    for ((number = 1; number <= together; number++)); do
        wait_until 300 "the vif of g$number is connected" vif_is_connected "g$number"
    done
}

# The middle of all values of a cell, in seconds: BACKEND CELL
median() {
    jq -s --arg backend "$1" --arg cell "$2" 'map(select(.backend == $backend and .cell == $cell).value)
        | sort | .[length / 2 | floor]' "$FOLDER/create.jsonl"
}

order=(kernel ringway)
for ((round = 1; round <= rounds; round++)); do
    for BACKEND in "${order[@]}"; do
        backend_start 2
        record "one" "$(seconds_of guest_create a queues=2)"
        guest_destroy a
        if [ "$round" -eq "$rounds" ]; then
            record "$together together" "$(seconds_of create_all)"
            record "$together connected after that" "$(seconds_of connect_all)"
            for ((number = 1; number <= together; number++)); do
                guest_destroy "g$number"
            done
        fi
        backend_stop
    done
    order=("${order[1]}" "${order[0]}")
done
for BACKEND in kernel ringway; do
    measure "${BACKEND}_one_median_s" "$(median $BACKEND one)"
    measure "${BACKEND}_together_s" "$(median $BACKEND "$together together")"
    measure "${BACKEND}_connected_s" "$(median $BACKEND "$together connected after that")"
done
BACKEND=ringway

# A guest attacks in every way that it has the right to: the backend and other guests continue.
# sets: full
# limit: 2400
#
# All in one boot, one after the other. Meanwhile an honest guest sends 4 Mbit/s of TCP to dom0 and
# dom0 pings it ten times a second. Its losses are in a table in the log
# and in measurements. The loss of nearly all pings, a restart, or a closed vif is a failure.
command -v ringway-hostile > /dev/null ||
    skip "it is not built: cargo build --release --package ringway-hostile"

# The honest guest's rate in kbit/s, low enough to leave an emulated machine some time. With 20000,
# on a busy machine, the script's own work between two scenarios took up to a minute.
pace=4000
# Seconds of each scenario.
seconds=${HOSTILE_SECONDS:-2}
# As in `ringway-hostile run`: pings that may be lost beside floods, in percent.
lost_max=95

# Ends when a connection exists and its first bytes have arrived.
honest_begin() {
    guest_begin good /tmp/iperf 'iperf3 --server'
    wait_until 60 "a server in the guest" guest good 'ss -ltn | grep -q :5201'
    began=$(uptime_ms)
    # Received here, ten lines a second, whose times are from its start.
    iperf3 --client 10.77.0.3 --reverse -b ${pace}K -l 4K -t 86400 -i 0.1 -f k --forceflush \
        > "$state/tcp" 2> "$state/tcp.err" &
    wait_until 60 "TCP from the guest" grep -q Kbits/sec "$state/tcp"
}

uptime_ms() {
    local up
    read -r up _ < /proc/uptime
    echo "${up/./}0"
}

# The part of its pace that arrived, and the longest time without a byte, in ms: FROM TO
honest_tcp() {
    awk -v from=$(($1 - began)) -v to=$(($2 - began)) -v pace=$pace '
        /Kbits\/sec/ {
            split($0, halves, "]")
            split(halves[2], words, " ")
            split(words[1], times, "-")
            if (times[1] * 1000 < from || times[2] * 1000 > to) next
            rows++
            rate = words[5]
            sum += rate
            silent = rate > 0 ? 0 : silent + 100
            if (silent > longest) longest = silent
        }
        END { printf "%.2f %d", rows ? sum / rows / pace : 0, longest }' "$state/tcp"
}

# Pings that were sent and those that were lost, and the slowest reply, in ms: FILE
honest_pings() {
    awk '
        match($0, /icmp_seq=[0-9]+/) {
            number = substr($0, RSTART + 9, RLENGTH - 9) + 0
            sent[number] = 1
            if (match($0, /time=[0-9.]+/)) {
                replied[number] = 1
                time = substr($0, RSTART + 5, RLENGTH - 5) + 0
                if (time > slowest) slowest = time
            }
        }
        END {
            for (number in sent) { all++; if (!(number in replied)) lost++ }
            printf "%d %d %d", all, lost, slowest
        }' "$1"
}

# A guest may overwrite what the toolstack has written for it, so that the next scenario would not find its
# backend.
restore_keys() {
    local key
    for key in "${!toolstack_keys[@]}"; do
        xenstore-write "$(guest_path bad)/device/vif/0/$key" "${toolstack_keys[$key]}"
    done
}

# NAME
hostile_act() {
    local name=$1 status=0 account parsed from to share pause sent lost slowest percent verdict=held
    ping -O -i 0.1 10.77.0.3 > "$state/pings" 2>&1 &
    local pings=$!
    from=$(uptime_ms)
    # shellcheck disable=SC2086
    account=$(guest bad "ringway-hostile guest $name --hypervisor xen --seconds $seconds --json $aim 2>&1") ||
        status=$?
    to=$(uptime_ms)
    kill -INT $pings
    wait $pings || true
    restore_keys
    read -r share pause <<< "$(honest_tcp "$from" "$to")"
    read -r sent lost slowest <<< "$(honest_pings "$state/pings")"
    percent=$((sent ? 100 * lost / sent : 100))
    say "${account//$'\n'/ }"
    account=$(tail -n 1 <<< "$account")
    # A guest that dies cannot report that; the backend must find what it left behind.
    if [ "$status" != 0 ] && [ "$name" != death-in-handshake ]; then
        broken+=("$name: status $status: $account")
        verdict=BROKEN
    fi
    [ "$BACKEND" = kernel ] || wait_until 30 "the backend answers after $name" backend_answers
    if [ $percent -gt $lost_max ]; then
        broken+=("$name: $lost of $sent pings were lost")
        verdict=BROKEN
    fi
    check_ping dom0 10.77.0.3 > /dev/null
    vif_is_connected good || fail "$name: the vif of the other guest was closed"
    rows+=("$(printf '%-24s %5s %6s %9s %9s  %s' "$name" "$share" "$percent %" "$pause ms" "$slowest ms" $verdict)")
    say "${rows[-1]}"
    parsed=$(jq -c . <<< "$account" 2> /dev/null) || true
    measure "${name//-/_}" "$(jq -nc --argjson share "$share" --argjson lost $percent \
        --argjson pause "$pause" --argjson slowest "$slowest" --argjson account "${parsed:-null}" \
        '{share: $share, lost_percent: $lost, longest_pause_ms: $pause, slowest_ping_ms: $slowest,
          is_served: $account.is_served, closed: ($account.closed // [] | length)}')"
}

bridge_create
backend_start 4
guest_start good host=3
guest_start bad netfront=no programs=yes memory=384
declare -A toolstack_keys
for key in backend backend-id mac; do
    toolstack_keys[$key]=$(frontend_key bad "$key")
done
guest bad 'modprobe -a xen-gntalloc xen-evtchn' || say "the guest has no such modules to load"

host_mac=$(cat /sys/class/net/br0/address)
aim="--victim 10.77.0.3=$(guest_mac 3) --victim-peer 10.77.0.1=$host_mac --host 10.77.0.1=$host_mac"
broken=()
rows=()
honest_begin
# The baseline beside a guest that does nothing.
from=$(uptime_ms)
sleep 5 # waits: what the honest guest has in this time is measured
read -r share pause <<< "$(honest_tcp "$from" "$(uptime_ms)")"
rows+=("$(printf '%-24s %5s %6s %9s %9s' "(nothing happens)" "$share" - "$pause ms" -)")

# Leaves out scenarios that are known not to hold, need more than one guest, or cannot run here.
# All guests are on a bridge here.
names=$(ringway-hostile list --json |
    jq -r '.[] | select(."emulated-only" or .known | not) | .name | select(endswith("-bridge") | not)')
for name in ${HOSTILE:-$names}; do
    hostile_act "$name"
done

say "what the honest guest had: the part of its pace of TCP, pings lost, longest pause, slowest ping"
printf '%s\n' "${rows[@]}" | tee "$FOLDER/table"
if [ "$BACKEND" = ringway ]; then
    expect "restarts" 0 "$(grep -c backend-restarted "$FOLDER/ringway.out" || true)"
fi
[ ${#broken[@]} -eq 0 ] || fail "$(printf '%s; ' "${broken[@]}")"
guest_destroy bad
guest_destroy good

# The lab's latency study runs completely in dom0 with --quick; the report that it repeats is about Arm64.
# sets: full
# limit: 3600
only_with ringway
[ "$DOM0" = small ] || skip "only in the small dom0, which has the programs that the lab runs"
modprobe -a tun veth sch_tbf
status=0
ringway lab run latency --quick --seed 1 --out "$FOLDER/study" > "$FOLDER/lab.txt" 2>&1 || status=$?
say "$(tail -n 12 "$FOLDER/lab.txt")"
[ $status = 0 ] || fail "ringway lab run latency --quick: status $status"

# Of a cell: METRIC, STATISTIC, PATH
of_cell() {
    jq -re --arg metric "$1" --arg statistic "$2" --arg path "$3" \
        '.cells[] | select(.cell.path == $path) | .values[$metric][$statistic]' "$FOLDER/study/summary.json"
}

for path in host guest-asynchronous guest-staged; do
    rate=$(of_cell throughput-bps mean $path) || fail "there is no throughput of $path"
    measure "${path//-/_}_mbps" "$(jq -n "$rate / 1e6 | round")"
done

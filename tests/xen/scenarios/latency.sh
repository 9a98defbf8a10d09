# The lab's latency study runs completely in dom0 with --quick; the report that it repeats is about Arm64.
# sets: full
# limit: 3600
only_with ringway
[ "$DOM0" = small ] || skip "only in the small dom0, which has the programs that the lab runs"
modprobe -a tun veth sch_tbf
status=0
ringway lab run latency --quick --seed 1 --out "$FOLDER/study" > "$FOLDER/lab.txt" 2>&1 || status=$?
say "$(tail -n 12 "$FOLDER/lab.txt")"
# Cells of which its own counters contradict all attempts, as where programs get no CPU, are named.
unmeasured=$(sed -n 's/^not measured: //p' "$FOLDER/lab.txt")
if [ $status != 0 ]; then
    [ -n "$unmeasured" ] || fail "ringway lab run latency --quick: status $status"
    ! grep ' FAILED: ' "$FOLDER/lab.txt" || fail "ringway lab run latency --quick: a run failed"
fi

# Of a cell: METRIC, STATISTIC, PATH
of_cell() {
    jq -re --arg metric "$1" --arg statistic "$2" --arg path "$3" \
        '.cells[] | select(.cell.path == $path) | .values[$metric][$statistic]' "$FOLDER/study/summary.json"
}

for path in host guest-asynchronous guest-staged; do
    if rate=$(of_cell throughput-bps mean $path); then
        measure "${path//-/_}_mbps" "$(jq -n "$rate / 1e6 | round")"
    else
        case $unmeasured in *"$path"*) say "not measured: $path" ;; *) fail "there is no throughput of $path" ;; esac
    fi
done

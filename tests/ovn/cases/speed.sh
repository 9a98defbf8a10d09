# TCP between guests of each kind on two hosts, and the time to the first frame, against veth ports of the same OVN.
command -v iperf3 > /dev/null || skip "iperf3 is missing (apt install iperf3, or scripts/install-packages ovn)"
hosts_start 1600
page_text ports | execute central
declare -A address=(
    [veth1]=10.9.0.11 [virtio1]=10.9.0.12 [xen1]=10.9.0.13
    [veth2]=10.9.0.21 [virtio2]=10.9.0.22 [xen2]=10.9.0.23
)
# The Ethernet address of a guest: NAME
mac_of() {
    echo "00:16:3e:77:01:${address[$1]##*.}"
}
for name in "${!address[@]}"; do
    on central ovn-nbctl lsp-add net0 "$name" \
        -- lsp-set-addresses "$name" "$(mac_of "$name") ${address[$name]}"
done

# Starts the guests of a host, with ports: NUMBER
guests_start() {
    local at=hv$1 veth=veth$1 virtio=virtio$1 xen=xen$1
    describe "$at" "$virtio" "$(mac_of "$virtio")"
    page_text table 00:16:3e:77:00:02="$(mac_of "$xen")" db="$xen" | on "$at" tee /etc/ringway/ovs.toml
    serve "$at"
    veth_start "$veth" "$at" "$(mac_of "$veth")" "${address[$veth]}"
    veth_plug "$veth" "$at"
    virtio_start "$virtio" "$at" "$(mac_of "$virtio")" "${address[$virtio]}"
    xen_start "$xen" "$at"
    xen_plug "$xen" "$at" "$(mac_of "$xen")" "${address[$xen]}"
    wait_installed "$at" "$virtio"
    wait_installed "$at" vif1.0 xen
}

# Kbit/s from a guest on one host to one of its kind on the other, after a second: KIND STREAMS
rate() {
    in_guest "${1}1" timeout $((PATIENCE * 75)) iperf3 --client "${address[${1}2]}" --parallel "$2" \
        --omit 1 --time 3 --format k > "$state/iperf3.log" &&
        sed -n 's/.* \([0-9.]*\) Kbits.* receiver.*/\1/p' "$state/iperf3.log" | tail -n 1
}

# One value of each kind, in turns: STREAMS
round_of_rates() {
    local kind found kinds="veth virtio xen"
    [ $((round % 2)) = 1 ] || kinds="xen virtio veth"
    for kind in $kinds; do
        found=$(rate "$kind" "$1")
        rates[$kind]+=" $found" last[$kind]=$found
    done
    for kind in virtio xen; do
        ratios[$kind]+=" $(awk "BEGIN { printf \"%.2f\", ${last[$kind]} / ${last[veth]} }")"
    done
}

# Sets `delay` to the milliseconds from a port's id in the database of hv2 to a reply from there: NAME COMMAND...
# Both ends of the time are noted by programs that run before the command.
first_frame() {
    local name=$1 begin end monitor pings
    nsenter --target "${host[hv2]}" --mount --net --uts -- ovsdb-client --timestamp --format=csv \
        monitor Interface external_ids > "$state/ids" 2> "$state/monitor.log" &
    monitor=$!
    # A request for the address, which might be lost, would be repeated after a second only.
    in_guest virtio1 ip neighbor replace "${address[$name]}" lladdr "$(mac_of "$name")" dev eth0 nud permanent
    nsenter --target "${guest[virtio1]}" --net -- ping -n -D -O -i 0.01 "${address[$name]}" > "$state/first" 2>&1 &
    pings=$!
    wait_soon "what the database has" test -s "$state/ids"
    wait_soon "pings" test -s "$state/first"
    "${@:2}"
    wait_soon "a reply from $name" has_replies first 1
    kill "$pings" "$monitor"
    wait "$pings" "$monitor" || true
    # Its tables have a line with the time above them.
    begin=$(awk -v id="iface-id=${name}[,}]" '/^[-0-9]+ [0-9:.]+$/ { time = $0 } $0 ~ id { print time; exit }' "$state/ids")
    begin=$(date --utc --date "${begin:?}" +%s%3N)
    end=$(sed -n '/time=/ { s/^\[\([0-9]*\)\.\([0-9]\{3\}\).*/\1\2/p; q }' "$state/first")
    delay=$((end - begin))
    say "$name: the first reply after $delay ms"
}

guests_start 1
guests_start 2
for kind in veth virtio xen; do
    in_guest "${kind}2" iperf3 --server > "$state/server-$kind.log" 2>&1 &
    wait_until 60 "TCP between guests, $kind" rate "$kind" 1
done

for streams in 1 4; do
    declare -A rates=() ratios=() last=()
    for ((round = 1; round <= trials; round++)); do
        round_of_rates "$streams"
    done
    what="streams $streams, offloads $offloads"
    for kind in veth virtio xen; do
        # shellcheck disable=SC2086 # They are numbers.
        report_trials "TCP, $kind, $what" kbit_per_s null 1 ${rates[$kind]}
    done
    for kind in virtio xen; do
        # shellcheck disable=SC2086
        report_trials "TCP, $kind to veth, $what" ratio null 1 ${ratios[$kind]}
    done
done

delays_of_veth=() delays=() later=() delays_of_xen=() later_of_xen=()
for ((round = 1; round <= trials; round++)); do
    on hv2 ovs-vsctl del-port veth2
    kill -9 "${guest[virtio2]}"
    xen_unplug hv2
    for name in veth2 virtio2 xen2; do
        on central ovn-nbctl --timeout=$((PATIENCE * 30)) wait-until Logical_Switch_Port "$name" up=false
    done
    first_frame veth2 veth_plug veth2 hv2
    delays_of_veth+=("$delay")
    first_frame virtio2 virtio_start virtio2 hv2 "$(mac_of virtio2)" "${address[virtio2]}"
    delays+=("$delay") later+=($((delay - delays_of_veth[-1])))
    first_frame xen2 xen_plug xen2 hv2 "$(mac_of xen2)" "${address[xen2]}"
    delays_of_xen+=("$delay") later_of_xen+=($((delay - delays_of_veth[-1])))
done
report_trials "iface-id to first frame, veth, offloads $offloads" ms null 1 "${delays_of_veth[@]}"
report_trials "iface-id to first frame, virtio, offloads $offloads" ms null 1 "${delays[@]}"
report_trials "iface-id to first frame, virtio after veth, offloads $offloads" ms 20 'median <= bound' "${later[@]}"
report_trials "iface-id to first frame, xen, offloads $offloads" ms null 1 "${delays_of_xen[@]}"
report_trials "iface-id to first frame, xen after veth, offloads $offloads" ms 20 'median <= bound' "${later_of_xen[@]}"

# Guests of both kinds on a VLAN of plain Open vSwitch: ping and TCP between two hosts, flat, by Geneve and by VXLAN.
hosts_start 1600
bridge=br-own.7
declare -A address=(
    [virtio1]=10.9.0.12 [xen1]=10.9.0.13
    [virtio2]=10.9.0.22 [xen2]=10.9.0.23
)
# The Ethernet address of a guest: NAME
mac_of() {
    echo "00:16:3e:77:01:${address[$1]##*.}"
}

# Runs `ringway vif` for each guest's vif: VERB WORD...
each_vif() {
    local number
    for number in 1 2; do
        on "hv$number" ringway vif "$1" "virtio$number" "${@:2}" --dir /run/ringway/default
        on "hv$number" ringway vif "$1" vif1.0 "${@:2}" --dir /run/ringway/xen
    done
}

# Connects the bridges of both hosts: flat|geneve|vxlan
connect_by() {
    local number
    for number in 1 2; do
        on "hv$number" ovs-vsctl --if-exists del-port br-own out -- --if-exists del-port br-phy in
        case $1 in
        flat)
            on "hv$number" ovs-vsctl add-port br-own out -- set Interface out type=patch options:peer=in \
                -- add-port br-phy in -- set Interface in type=patch options:peer=out
            ;;
        *)
            on "hv$number" ovs-vsctl add-port br-own out -- set Interface out "type=$1" options:key=7 \
                "options:remote_ip=192.0.2.1$((3 - number))"
            ;;
        esac
    done
}

# Pings and data in both directions between guests of two hosts: NETWORK
check_pairs() {
    local pair
    connect_by "$1"
    for pair in "virtio1 xen2" "xen1 virtio2" "xen1 xen2" "virtio1 virtio2"; do
        say "$1: $pair"
        wait_until 30 "$pair: a reply, $1" reaches "${pair% *}" "${address[${pair#* }]}"
        check_tcp "${pair% *}" "${address[${pair#* }]}"
    done
}

for number in 1 2; do
    at=hv$number
    on "$at" ovs-vsctl --timeout=60 add-br br-own -- set Bridge br-own datapath_type=netdev
    describe "$at" "virtio$number" "$(mac_of "virtio$number")"
    serve "$at"
    virtio_start "virtio$number" "$at" "$(mac_of "virtio$number")" "${address[virtio$number]}"
    xen_start "xen$number" "$at"
    xen_plug "xen$number" "$at" "$(mac_of "xen$number")" "${address[xen$number]}"
done
each_vif wait --timeout $((PATIENCE * 30))
for number in 1 2; do
    for port in "virtio$number" vif1.0; do
        wait_until 30 "the port $port" on "hv$number" ovs-vsctl get Port "$port" tag
        expect "the VLAN of $port" 7 "$(on "hv$number" ovs-vsctl get Port "$port" tag)"
    done
done

found=$(version ovs-vsctl)
cuts_in_tunnels() {
    [ "$(printf '%s\n' 3.5 "$found" | sort --version-sort | head -n 1)" = 3.5 ]
}
because='without userspace-tso-enable'
[ "$offloads" = off ] || because='and 3.5 is the first'
[ "$offloads" = off ] || ! cuts_in_tunnels || because='with userspace-tso-enable, version'
# Whether all vifs have this reason for their offloads.
all_say_why() {
    each_vif show > "$state/shown"
    [ "$(grep -c "because.*$because" "$state/shown")" = 4 ]
}
wait_until 30 "a datapath $because" all_say_why
for network in flat geneve vxlan; do
    check_pairs "$network"
done

# shellcheck shell=bash
# The functions that scenarios use: hosts, OVN on them, ringway and its guests, pings. tests/ovn/run reads
# it, in namespaces for one scenario: NAME WORK RINGWAY TRIALS BOUNDS
set -eEuo pipefail

work=$2 state=$2/$1 ringway=$3 trials=$4 bounds=$5
page=$here/../../docs/ovn.md
PATIENCE=${PATIENCE:-4}
# Of the hosts, and of guests: a process in their namespaces.
declare -A host guest
over_bounds=''
# Whether the datapath takes frames in which work is left.
offloads=off
# The bridge of guests, perhaps with a VLAN.
bridge=br-int
# What the page calls `ringway`.
PATH=$work/bin:$PATH

# shellcheck source=tests/steps.sh
. "$here/../steps.sh"

# The output of what failed may be in a file.
exec 3>&1
fail() {
    exec >&3 2>&3
    say "FAILED: $*"
    local log
    for log in "$state"/*.log; do
        echo "--- ${log##*/}"
        tail -n 20 "$log"
    done
    exit 1
}
trap 'fail "line $LINENO: $BASH_COMMAND: status $?"' ERR

skip() {
    echo "$*"
    exit 77
}

end_of_scenario() {
    [ -z "$over_bounds" ] || fail "beyond a bound:$over_bounds"
    say "all is as it should be"
}

# --- hosts ---------------------------------------------------------------------------------------

# Makes the network between hosts, the host `central` with OVN's databases, and three more: BYTES
# What they send to each other has this many bytes at most.
hosts_start() {
    local number name
    ip link set lo up
    ip link add net type bridge forward_delay 0
    ip link set net mtu "$1" up
    host_make central "$1"
    on central ip address add 192.0.2.1/24 dev wire
    on central /usr/share/ovn/scripts/ovn-ctl start_northd
    page_text databases | execute central
    for number in 1 2 3; do
        name=hv$number
        host_make "$name" "$1"
        switch_start "$name"
        # A tunnel begins at a bridge where Open vSwitch forwards in its own process. On a host with the
        # kernel's module it is the address of a network card.
        on "$name" ovs-vsctl --timeout=60 add-br br-phy \
            -- set Bridge br-phy datapath_type=netdev "other-config:hwaddr=02:00:00:00:00:1$number" \
            -- add-port br-phy wire
        on "$name" ip address add "192.0.2.1$number/24" dev br-phy
        on "$name" ip link set br-phy mtu "$1" up
        on "$name" ovs-vsctl set open_vswitch . external-ids:ovn-bridge-datapath-type=netdev \
            external-ids:ovn-bridge-mappings=physnet:br-phy
        page_text chassis 192.0.2.11="192.0.2.1$number" | execute "$name"
        controller_start "$name"
    done
    for name in hv1 hv2 hv3; do
        wait_until 30 "OVN knows $name" knows_chassis "$name"
    done
}

knows_chassis() {
    on central ovn-sbctl --bare --columns=name find chassis "name=$1" | grep -qx "$1"
}

# Makes a host with a network device `wire`: NAME BYTES
host_make() {
    local place=$state/$1
    mkdir "$place"
    unshare --mount --net --uts bash -c '
        set -e
        mount -t tmpfs tmpfs "$1"
        for dir in etc var; do
            mkdir "$1/$dir" "$1/$dir.work"
            mount -t overlay -o "lowerdir=/$dir,upperdir=$1/$dir,workdir=$1/$dir.work" overlay "/$dir"
        done
        mount -t tmpfs tmpfs /run
        mkdir -p /etc/ringway /run/ringway-vms
        rm -rf /etc/openvswitch /var/lib/openvswitch /var/lib/ovn
        mkdir -p /etc/openvswitch /var/lib/openvswitch /var/lib/ovn
        hostname "$2"
        echo "127.0.1.1 $2" >> /etc/hosts
        ip link set lo up
        touch "$1.made"
        exec sleep infinity' - "$place" "$1" &
    host[$1]=$!
    wait_until 30 "the host $1" test -e "$place.made"
    ip link add "$1" mtu "$2" master net type veth peer name wire mtu "$2" netns "${host[$1]}"
    ip link set "$1" up
    on "$1" ip link set wire up
    # Open vSwitch passes on checksums that are blank.
    ethtool -K "$1" tx off tso off gso off gro off > "$state/ethtool.log"
    on "$1" ethtool -K wire tx off tso off gso off gro off > "$state/ethtool.log"
}

# Runs a command on a host: NAME COMMAND...
on() {
    nsenter --target "${host[$1]}" --mount --net --uts -- "${@:2}"
}

# Runs lines of the page on a host, each as an administrator would: NAME
execute() {
    local line
    while IFS= read -r line <&5; do
        case $line in '' | '#'*) continue ;; esac
        say "$1: $line"
        on "$1" timeout $((PATIENCE * 100)) bash -c "$line" < /dev/null ||
            fail "the page, $1: $line: status $?"
    done 5<&0
}

# Waits for what should take milliseconds: WHAT COMMAND...
wait_soon() {
    local end=$((SECONDS + PATIENCE * 30))
    until "${@:2}" > /dev/null 2>&1; do
        [ $SECONDS -lt $end ] || fail "$1: not within $((PATIENCE * 30)) s"
        sleep 0.01 # waits: looks again until the state is there
    done
}

# Starts Open vSwitch: HOST
switch_start() {
    on "$1" /usr/share/openvswitch/scripts/ovs-ctl start "--system-id=$1" --no-ovs-vswitchd
    [ "$offloads" = off ] ||
        on "$1" ovs-vsctl --no-wait set open_vswitch . other_config:userspace-tso-enable=true
    vswitchd_start "$1"
}

# Starts the process that forwards, and waits until it has done what its database says: HOST [PROGRAM]
vswitchd_start() {
    on "$1" "${2:-/usr/lib/openvswitch-switch/ovs-vswitchd}" --disable-system --pidfile --detach \
        --log-file > "$state/vswitchd-$1.log" 2>&1
    on "$1" ovs-vsctl --timeout=$((PATIENCE * 30)) show > /dev/null
}

controller_start() {
    on "$1" /usr/share/ovn/scripts/ovn-ctl start_controller
}

# The processes of a host by their command line: HOST PATTERN
processes_of() {
    pgrep --ns "${host[$1]}" --nslist mnt --full "$2"
}

# --- ringway and guests --------------------------------------------------------------------------

# Adds a virtio vif to the description of a host: HOST NAME MAC [LINE]...
describe() {
    {
        printf '[[vhost]]\nname = "%s"\nsocket = "/run/ringway-vms/%s.sock"\n' "$2" "$2"
        printf 'mac = "%s"\nbridge = "%s"\niface-id = "%s"\n' "$3" "$bridge" "$2"
        [ $# = 3 ] || printf '%s\n' "${@:4}"
    } | on "$1" tee -a /etc/ringway/host.toml
}

# Serves the virtual machines of a host, those in its /etc/ringway/host.toml: HOST
serve() {
    ringway_start "$1" /etc/ringway/host.toml default
}

# Starts ringway: HOST DESCRIPTION DIRECTORY
ringway_start() {
    on "$1" ringway run --config "$2" --dir "/run/ringway/$3" >> "$state/ringway-$1-$3.log" 2>&1 &
    wait_until 30 "ringway on $1" on "$1" ringway vif list --dir "/run/ringway/$3"
}

# Starts the guest behind a socket of a host, as QEMU does, with an echo server: NAME HOST MAC ADDRESS
virtio_start() {
    # shellcheck disable=SC2016 # The other shell expands them.
    nsenter --target "${host[$2]}" --mount --uts -- unshare --net bash -c '
        ip link set lo up
        socat TCP-LISTEN:7,fork,reuseaddr EXEC:cat,nofork &
        exec ringway guest --vhost "/run/ringway-vms/$1.sock" --mode server --mac "$2" --address "$3/24"
        ' - "$1" "$3" "$4" >> "$state/guest-$1.log" 2>&1 &
    guest[$1]=$!
    # Not a word of the shell on how it has ended.
    disown "$!"
}

# Starts an echo server on TCP port 7 of a guest: NAME
echo_start() {
    in_guest "$1" socat TCP-LISTEN:7,fork,reuseaddr EXEC:cat,nofork >> "$state/guest-$1.log" 2>&1 &
}

# Starts an emulated Xen on a host, with one guest that has no vif yet: NAME HOST
xen_start() {
    printf '[[guest]]\nname = "%s"\nmemory-mib = 16\n' "$1" | on "$2" tee /etc/ringway/xen.toml
    ringway_start "$2" /etc/ringway/xen.toml xen
    wait_until 30 "the guest $1" processes_of "$2" "guest run "
}

# XenStore's tools in the domain 0 of a host: HOST TOOL WORD...
store() {
    on "$1" env XENSTORED_PATH=/run/ringway/xen/xenstored.sock "xenstore-$2" "${@:3}"
}

# Of the only vif: the ends' directories.
xen_front=/local/domain/1/device/vif xen_back=/local/domain/0/backend/vif/1

# Writes what xl does for the vif of a guest in the page, with all that it needs: NAME HOST MAC ADDRESS
xen_plug() {
    guest[$1]=$(processes_of "$2" "guest run ")
    # What is in them gets their permissions.
    store "$2" write "$xen_front" '' "$xen_back" ''
    store "$2" chmod "$xen_front" n1 r0
    store "$2" chmod "$xen_back" n0 r1
    store "$2" write \
        "$xen_front/0/backend" "$xen_back/0" "$xen_front/0/backend-id" 0 \
        "$xen_front/0/handle" 0 "$xen_front/0/mac" "$3" "$xen_front/0/state" 1 \
        "$xen_back/0/frontend" "$xen_front/0" "$xen_back/0/frontend-id" 1 "$xen_back/0/online" 1 \
        "$xen_back/0/handle" 0 "$xen_back/0/mac" "$3" "$xen_back/0/state" 1 \
        "$xen_back/0/bridge" "$bridge" "$xen_back/0/script" /etc/xen/scripts/vif-ringway-bridge
    wait_soon "eth0 of $1" in_guest "$1" ip link show eth0
    in_guest "$1" ip address add "$4/24" dev eth0
    in_guest "$1" ip link set eth0 up
    [ -z "$(in_guest "$1" ss --no-header --listening --tcp 'sport = :7')" ] || return 0
    echo_start "$1"
}

# Removes the vif, as xl does: HOST
xen_unplug() {
    store "$1" write "$xen_back/0/online" 0 "$xen_back/0/state" 5
    wait_soon "the end of the vif" eval "[ \"\$(store $1 read $xen_back/0/state)\" = 6 ]"
    store "$1" rm "$xen_back/0" "$xen_front/0"
}

# Starts a guest without ringway, for comparison, behind a veth pair: NAME HOST MAC ADDRESS
veth_start() {
    unshare --net sleep infinity &
    guest[$1]=$!
    wait_soon "the network of $1" has_other_network "${guest[$1]}"
    on "$2" ip link add "$1" type veth peer name eth0 address "$3" netns "${guest[$1]}"
    on "$2" ip link set "$1" up
    in_guest "$1" ip address add "$4/24" dev eth0
    in_guest "$1" ip link set eth0 up
    [ "$offloads" = on ] || in_guest "$1" ethtool -K eth0 tx off > "$state/ethtool.log"
}

# Whether a process is in another network: PID
has_other_network() {
    [ "$(readlink "/proc/$1/ns/net")" != "$(readlink /proc/self/ns/net)" ]
}

# Gives it its port, with its id in the same transaction: NAME HOST
veth_plug() {
    on "$2" ovs-vsctl add-port br-int "$1" -- set interface "$1" "external_ids:iface-id=$1"
}

# Runs a command in the network of a guest: NAME COMMAND...
in_guest() {
    nsenter --target "${guest[$1]}" --net -- "${@:2}"
}

# Waits until OVN has installed the port of a vif: HOST VIF [DIRECTORY]
wait_installed() {
    on "$1" ringway vif wait "$2" --installed --timeout $((PATIENCE * 30)) --dir "/run/ringway/${3:-default}"
}

# Whether a guest has a reply from an address: NAME ADDRESS
reaches() {
    # waits: its callers try again, or have waited until OVN stops it everywhere
    in_guest "$1" ping -n -q -c 1 -W 1 "$2"
}

# Whether a guest's frames of so many bytes arrive uncut, behind the Ethernet header: NAME ADDRESS BYTES
reaches_with() {
    # waits: its callers try again, or have made it impossible
    in_guest "$1" ping -n -q -c 1 -W 1 -M "do" -s $(($3 - 28)) "$2"
}

# Pings that a guest's kernel has had, whether it replies or not: NAME
pings_had() {
    in_guest "$1" cat /proc/net/snmp | awk '/^Icmp: / && !seen++ { for (i = 1; i <= NF; i++) if ($i == "InEchos") column = i; next }
        /^Icmp: / { print $column }'
}

# Sends data to a guest's echo server, and compares what comes back: NAME ADDRESS
check_tcp() {
    local data=$state/data
    [ -e "$data" ] || head -c 3000000 /dev/urandom > "$data"
    in_guest "$1" timeout $((PATIENCE * 100)) socat -t $((PATIENCE * 60)) - "TCP:$2:7" < "$data" > "$state/echo" ||
        fail "TCP from $1 to $2"
    cmp "$data" "$state/echo" || fail "TCP from $1 to $2 changes data"
}

# --- pings and events ----------------------------------------------------------------------------

# Begins a ping each 10 ms: FILE NAME ADDRESS
pings_start() {
    # Not by in_guest, which would be another process.
    nsenter --target "${guest[$2]}" --net -- ping -n -i 0.01 "$3" > "$state/$1" 2>&1 &
    pinger[$1]=$!
    wait_until 30 "replies to pings" has_replies "$1" 50
}

# Whether there are so many replies: FILE COUNT
has_replies() {
    [ "$(replies "$1")" -ge "$2" ]
}

replies() {
    grep -c time= "$state/$1" || true
}

# Waits for more replies, and ends the pings. Sets `lost` to how many before the last reply had none: FILE
pings_end() {
    wait_until 60 "more replies to pings" has_replies "$1" $(($(replies "$1") + 100))
    kill -INT "${pinger[$1]}"
    wait "${pinger[$1]}" || true
    lost=$(sed -n 's/.*icmp_seq=\([0-9]*\) .*time=.*/\1/p' "$state/$1" | sort --numeric --unique |
        awk '{ last = $1 } END { print last - NR }')
}
declare -A pinger

# Begins a TCP connection from a guest to another's echo server, with a line each 50 ms: NAME ADDRESS
stream_start() {
    rm -f "$state/stream"
    touch "$state/streaming"
    {
        line=0
        while [ -e "$state/streaming" ]; do
            echo $((line++))
            sleep 0.05 # waits: the connection lasts for the whole event
        done
    } | in_guest "$1" socat -t $((PATIENCE * 30)) - "TCP:$2:7" > "$state/stream" &
    streamer=$!
    wait_soon "the TCP connection" test -s "$state/stream"
}

# Ends it, and checks that every line came back.
stream_end() {
    rm "$state/streaming"
    wait "$streamer" || fail "the TCP connection has ended early: $(tail -n 1 "$state/stream")"
    awk '$1 != NR - 1 { is_wrong = 1 } END { exit is_wrong || NR < 10 }' "$state/stream" ||
        fail "lines of the TCP connection are lost"
}

# Measures an event some times: NAME BOUND FROM ADDRESS COMMAND...
# The command is run, with the number of the trial behind it, while a guest is pinged. A stream that it
# begins has to outlast it.
measure() {
    local name=$1 bound=$2 from=$3 address=$4 trial lost all=()
    shift 4
    for ((trial = 1; trial <= trials; trial++)); do
        pings_start pings "$from" "$address"
        "$@" "$trial"
        pings_end pings
        [ ! -e "$state/streaming" ] || stream_end
        say "$name: $lost lost"
        all+=("$lost")
    done
    report_lost "$name" "$bound" "${all[@]}"
}

# Prints the lost pings of all trials, and notes if they are too many: NAME BOUND LOST...
report_lost() {
    report_trials "$1" lost "$2" 'median <= bound && most <= 2 * bound' "${@:3}"
}

# Prints what was measured in all trials, and notes if it is not as it should be: NAME UNIT BOUND CONDITION NUMBER...
# The condition, in awk's words, is about `median`, `least`, `most` and `bound`.
report_trials() {
    local name=$1 unit=$2 bound=$3 condition=$4 sorted median
    shift 4
    mapfile -t sorted < <(printf '%s\n' "$@" | sort --numeric)
    median=${sorted[$(($# / 2))]}
    echo "measured: $name: $unit $*, median $median (bound ${bound/null/none})"
    printf '{"event":"%s","%s":[%s],"median":%s,"least":%s,"most":%s,"bound":%s}\n' \
        "$name" "$unit" "$(IFS=,; echo "$*")" "$median" "${sorted[0]}" "${sorted[-1]}" "$bound" >> "$work/measured"
    [ "$bounds" = no ] || awk -v median="$median" -v least="${sorted[0]}" -v most="${sorted[-1]}" \
        -v bound="$bound" "BEGIN { exit !($condition) }" || over_bounds+=" $name ($*);"
}

# --- guests that move -----------------------------------------------------------------------------

# The host on which each port is, whose guest has moved any number of times.
declare -A place

# Sets `old` and `new` for a move: PORT
choose_hosts() {
    old=${place[$1]}
    if [ "$old" = hv2 ]; then new=hv3; else new=hv2; fi
    place[$1]=$new
}

# A guest moves by `move_KIND`, and OVN follows: KIND PORT
plain_move() {
    choose_hosts "$2"
    "move_$1"
    wait_until 60 "OVN has moved $2" eval "[ \"\$(chassis_of $2)\" = $new ]"
}

# As plain_move, prepared as the page says: KIND PORT
rarp_move() {
    choose_hosts "$2"
    page_text before-move hv1,hv2="$old,$new" "lsp-set-options web=lsp-set-options $2" | execute central
    "move_$1"
    wait_until 60 "the move of $2 is activated" is_activated "$2" "$new"
    page_text after-move hv2="$new" "lsp-set-options web=lsp-set-options $2" | execute central
    wait_until 60 "OVN has moved $2" eval "[ \"\$(chassis_of $2)\" = $new ]"
}

# The host on which a logical port is: PORT
chassis_of() {
    local id
    id=$(on central ovn-sbctl --bare --columns=chassis find port_binding "logical_port=$1")
    on central ovn-sbctl get chassis "$id" name
}

# Whether OVN has seen a port's announcement on a host: PORT HOST
is_activated() {
    on central ovn-sbctl --bare --columns=options find port_binding "logical_port=$1" |
        grep -q "additional-chassis-activated=$2"
}

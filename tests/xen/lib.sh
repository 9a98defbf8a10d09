# shellcheck shell=bash
# The functions that scenarios use. Runs in dom0 as `bash lib.sh SCENARIO`, with BACKEND (kernel or
# ringway), SCENARIO (its name) and FOLDER (for its results) in the environment.
#
# A scenario passes if it reaches its end, and fails if a command fails. All helpers that wait, wait
# for a state, with a limit in seconds that only ends a scenario which hangs; none asserts a speed.
set -eEuo pipefail

: "${BACKEND:?}" "${SCENARIO:?}" "${FOLDER:?}"
# Limits are for a machine with nothing else to do, and last this many times as long.
: "${PATIENCE:=1}"
state=/run/rig
guest_images=/mnt
# Of `xl` when it makes guests.
xl_options=()
# The kind of dom0: `small` (tools in an initramfs), or the release of a whole Debian.
: "${DOM0:=small}"
# Where ringway puts its socket.
case $DOM0 in small) run_directory=$state/ringway ;; *) run_directory=/run/ringway/default ;; esac
case $(uname -m) in aarch64) guest_type=pvh ;; *) guest_type=pv ;; esac
# What the page is, and where an administrator reads it.
page=/payload/xen.md
mkdir -p "$state"
# shellcheck source=tests/steps.sh
. /payload/steps.sh

# --- results -------------------------------------------------------------------------------------

# Ends the scenario: REASON
fail() {
    say "FAILED: $*"
    # The first reason is the one that counts.
    [ -e "$FOLDER/reason" ] || echo "$*" > "$FOLDER/reason"
    exit 1
}

skip() {
    say "SKIPPED: $*"
    echo "$*" > "$FOLDER/reason"
    exit 77
}

trap 'fail "line $LINENO of ${BASH_SOURCE[0]##*/}: $BASH_COMMAND: status $?"' ERR

# Adds a number to results.json: NAME VALUE
measure() {
    say "measured $1: $2"
    jq -nc --arg name "$1" --arg value "$2" '{($name): ($value | tonumber? // $value)}' \
        >> "$FOLDER/measurements"
}

# Runs a command, and ends it after a time: SECONDS COMMAND...
within() {
    timeout $((PATIENCE * $1)) "${@:2}"
}

only_with() {
    [ "$BACKEND" = "$1" ] || skip "only with the backend $1"
}

# Skips a scenario in the small dom0: WHY
only_in_debian() {
    [ "$DOM0" != small ] || skip "only in a whole Debian: $1 (tests/xen/run --dom0 bookworm)"
}

# Skips a scenario on other machines, by `uname -m`: MACHINE WHY
only_on() {
    [ "$(uname -m)" = "$1" ] || skip "only on $1: $2"
}

# --- the backend under test ----------------------------------------------------------------------

# Queues that the backend offers at most: [QUEUES]
backend_start() {
    local queues=${1:-4}
    say "backend $BACKEND, at most $queues queues"
    if [ "$BACKEND" = kernel ]; then
        # The service keeps it away.
        rm -f /etc/modprobe.d/no-xen-netback.conf
        modprobe xen-netback max_queues="$queues"
    elif [ "$DOM0" = small ]; then
        ringway_has run || skip "this ringway run has no --hypervisor"
        # As in the service's unit.
        chrt --batch 0 ringway run --hypervisor xen --dir "$run_directory" --max-queues "$queues" \
            2>> "$FOLDER/ringway.log" > "$FOLDER/ringway.out" &
        echo $! > "$state/ringway.pid"
        wait_until 30 "ringway is ready" backend_answers
    else
        service_start "$queues"
    fi
}

# Starts the installed service, with a setting that an administrator would write: QUEUES
service_start() {
    if ! [ -x /usr/bin/ringway ]; then
        page install
    fi
    # On the page these blocks follow others; here each scenario may be the first to run them.
    if [ -e /sys/module/xen_netback ]; then
        modprobe -r xen-netback
    fi
    cp /usr/share/doc/ringway/examples/no-xen-netback.conf /etc/modprobe.d/
    printf '[host]\nmax-queues = %s\n' "$1" > "$state/ringway.toml"
    if cmp -s "$state/ringway.toml" /etc/ringway/ringway.toml; then
        systemctl start ringway
    else
        cp "$state/ringway.toml" /etc/ringway/ringway.toml
        systemctl restart ringway
    fi
    wait_until 120 "ringway is ready" backend_answers
}

# Whether a verb of the payload's ringway knows real Xen: VERB
ringway_has() {
    ringway "$1" --help 2>&1 | grep -q -- --hypervisor
}

backend_answers() {
    [ "$DOM0" != small ] || kill -0 "$(backend_pid)" ||
        fail "ringway ended: $(tail -n 1 "$FOLDER/ringway.log")"
    ringway vif list --dir "$run_directory"
}

backend_pid() {
    if [ "$DOM0" = small ]; then
        cat "$state/ringway.pid"
    else
        systemctl show --property MainPID --value ringway
    fi
}

backend_stop() {
    if [ "$BACKEND" = kernel ]; then
        rmmod xen-netback
    elif [ "$DOM0" = small ]; then
        kill -INT "$(backend_pid)"
        wait_until 20 "ringway ends" process_is_gone "$(backend_pid)"
    else
        systemctl stop ringway
    fi
}

# Kills the process and all that it started. A whole Debian starts it again by itself.
backend_kill() {
    local process
    process=$(backend_pid)
    # shellcheck disable=SC2046
    kill -9 "$process" $(children_of "$process") 2> /dev/null || true
    wait_until 5 "ringway is dead" process_is_gone "$process"
}

process_is_gone() {
    ! kill -0 "$1" 2> /dev/null
}

# Processes by their parent, without a program that not all images have: PROCESS
children_of() {
    local file
    for file in /proc/[0-9]*/status; do
        # A process that has ended meanwhile is skipped.
        awk -v parent="$1" '/^Pid:/ { id = $2 } /^PPid:/ && $2 == parent { print id }' "$file" 2> /dev/null || true
    done
}

# Prints the traffic of each queue of a vif, a line `QUEUE TX RX` each: slots with a response with
# the kernel's backend, frames with ringway's. VIF
backend_queues() {
    if [ "$BACKEND" = kernel ]; then
        local file
        for file in /sys/kernel/debug/xen-netback/"$1"/io_ring_q*; do
            awk -v queue="${file##*_q}" '/^rsp prod/ { moved = moved " " $3 } END { print queue moved }' "$file"
        done
    else
        ringway vif show "$1" --dir "$run_directory" --json |
            jq -r '.queues[] | "\(.index) \(.tx_packets) \(.rx_packets)"'
    fi
}

# --- dom0's network ------------------------------------------------------------------------------

# The bridge of all guests, with dom0's addresses 10.77.0.1 and fd77::1: [MTU]
bridge_create() {
    ip link add br0 type bridge forward_delay 0
    ip link set br0 mtu "${1:-1500}"
    ip address add 10.77.0.1/24 dev br0
    ip address add fd77::1/64 dev br0 nodad
    ip link set br0 up
}

# The network devices of vifs, a line each.
vif_devices() {
    local device
    for device in /sys/class/net/vif*; do
        [ ! -e "$device" ] || echo "${device##*/}"
    done
}

# --- guests --------------------------------------------------------------------------------------

# Makes a guest and waits until it is up: NAME [KEY=VALUE]...
guest_start() {
    guest_create "$@"
    guest_wait "$1"
}

# Makes a guest: NAME [KEY=VALUE]... with these keys
#   type=pv|pvh (default: pv; on Arm64 pvh, the only type there)
#    host=N (of its addresses, default 2)   queues=N (that it requests; default 1)
#   vcpus=N (default: queues)   mtu=N (of its own interface)   backend=NAME (of a driver domain)
#   vif=no (none at all)   vifs=N (that many of the kind)   text=LINE (replaces all settings of vifs)
#   kernel=SERIES (one of tests/xen/kernels, for a scenario whose head says `needs: kernels`)
#   ipxe=FILE (a script for iPXE, which is then loaded instead of Linux: `needs: ipxe`)
#   setting=LINE (one more of xl.cfg(5); may be repeated)
#   bridge=NAME (default br0; empty for none)   memory=MIB
#   script=FILE, ip=ADDRESS, rate=RATE, vifname=NAME (of the vif, as in xl-network-configuration(5))
#   role=guest|backend   netfront=yes|no   programs=yes (put the payload's programs into it)
guest_create() {
    local name=$1 word index
    local type=$guest_type host=2 queues=1 vcpus='' mtu='' backend='' bridge=br0 memory=256 \
        role=guest netfront=yes programs=no vif=yes \
        line='' vifs=1 text='' kernel='' ipxe='' settings=()
    shift
    for word in "$@"; do
        case ${word%%=*} in
        script | ip | rate | vifname | model) line+=,$word ;;
        type | host | queues | vcpus | mtu | backend | bridge | memory | role | netfront | programs | vif | \
            vifs | text | kernel | ipxe)
            printf -v "${word%%=*}" %s "${word#*=}"
            ;;
        setting) settings+=("${word#*=}") ;;
        *) fail "a guest has no ${word%%=*}" ;;
        esac
    done
    say "guest $name: $*"
    [ -z "$bridge" ] || line+=,bridge=$bridge
    [ -z "$backend" ] || line+=,backend=$backend
    [ -z "$mtu" ] || line+=,mtu=$mtu
    line="\"mac=$(guest_mac "$host")$line\""
    for ((index = 1; index < vifs; index++)); do
        line+=", \"mac=$(guest_mac $((host + 16 * index))),bridge=$bridge\""
    done
    local image ramdisk words
    words="console=hvc0 mitigations=off loglevel=4 cryptomgr.notests net.ifnames=0 rig.role=$role \
rig.queues=$queues rig.netfront=$netfront ${mtu:+rig.mtu=$mtu} $([ "$vif" = no ] || echo "rig.host=$host")"
    if [ -n "$ipxe" ]; then
        # It parses words as commands.
        image=/payload/ipxe.lkrn ramdisk=$ipxe words=''
    else
        image=$(guest_kernel "$type" "$kernel")
        ramdisk=$(guest_ramdisk "$role" "$programs" "$kernel")
    fi
    cat > "$state/$name.cfg" <<END
name = "$name"
type = "$type"
kernel = "$image"
ramdisk = "$ramdisk"
extra = "$words"
memory = $memory
vcpus = ${vcpus:-$queues}
${text:-vif = [$([ "$vif" = no ] || echo "$line")]}
$(printf '%s\n' "${settings[@]}")
driver_domain = $([ "$role" = backend ] && echo 1 || echo 0)
on_crash = "destroy"
END
    create_domain "$name"
    guest_renew "$name"
}

# Runs xl, and prints what it says. On a busy machine, two limits of libxl's own are too short: it
# kills its hotplug script after 40 seconds, and waits 10 for the backend. Then `gave_up` is set:
# SECONDS WORD...
run_xl() {
    local status=0 said=$state/xl.said
    within "$1" xl "${xl_options[@]}" "${@:2}" 2> "$said" || status=$?
    cat "$said"
    gave_up=''
    ! grep -qE 'killing execution of .* because of timeout|device_backend_callback: .*unable to add' "$said" ||
        gave_up=$status
    return "$status"
}

# Makes a domain, again if libxl gave up, until the scenario's own limit: NAME
create_domain() {
    local status
    while :; do
        status=0
        run_xl 300 create "$state/$1.cfg" || status=$?
        [ "$status" != 0 ] || return 0
        [ -n "$gave_up" ] || fail "xl create $1: status $status"
        say "libxl gave up: again"
    done
}

# Gives a guest a vif, again if libxl gave up, unless the backend says why it serves none:
# NAME WORD...
attach() {
    local status vifs new
    vifs=$(guest_path "$1")/device/vif
    while :; do
        # With a line that matches none, where there is no vif yet.
        { echo - && xenstore-list "$vifs" 2> /dev/null; } > "$state/vifs" || true
        status=0
        run_xl 120 network-attach "$@" || status=$?
        [ "$status" != 0 ] || return 0
        [ -n "$gave_up" ] || fail "xl network-attach $*: status $status"
        # libxl leaves it as it is.
        for new in $(xenstore-list "$vifs" 2> /dev/null | grep -vxFf "$state/vifs" || true); do
            ! backend_error "$1" "$new" || fail "xl network-attach $*: the backend refuses it"
            run_xl 120 network-detach "$1" "$new" || say "xl network-detach $1 $new: status $?"
        done
        say "libxl gave up: again"
    done
}

# Serves Linux on 10.77.0.1 for firmware that fetches it, and prints the script for iPXE: QUEUES
ipxe_script() {
    local www=$state/www
    mkdir -p "$www"
    cp /payload/vmlinuz "$www/"
    gzip -1 < "$guest_images/base.cpio" > "$www/base.gz"
    busybox httpd -p 10.77.0.1:80 -h "$www" > /dev/null
    cat > "$state/boot.ipxe" <<END
#!ipxe
set net0/ip 10.77.0.2
set net0/netmask 255.255.255.0
ifopen net0
kernel http://10.77.0.1/vmlinuz console=hvc0 mitigations=off loglevel=4 net.ifnames=0 rig.role=guest rig.queues=$1 rig.netfront=yes rig.host=2
initrd http://10.77.0.1/base.gz
boot
END
    echo "$state/boot.ipxe"
}

# Finds a guest's domain, which changes with a reboot or restore: NAME
guest_renew() {
    # Under emulation each start of xl costs a quarter of a second, so the result is kept.
    xl domid "$1" > "$state/$1.id"
}

guest_mac() {
    printf '00:16:3e:77:00:%02x' "$1"
}

# Prints the kernel to load: TYPE SERIES. PC firmware accepts no uncompressed kernel.
guest_kernel() {
    case $1/$2 in
    hvm/) echo /payload/vmlinuz ;;
    */) echo "$guest_images/vmlinux" ;;
    *) echo "/payload/kernels/$2/vmlinux" ;;
    esac
}

# Builds an initramfs from as many concatenated archives as needed: ROLE PROGRAMS KERNEL
guest_ramdisk() {
    local archives=("$guest_images/base.cpio") file=$state/base
    if [ "$1" = backend ]; then
        archives+=("$guest_images/host.cpio")
        file+=-host
    fi
    if [ "$2" = yes ]; then
        [ -e /payload/programs.cpio ] || skip "there is no ringway in the payload"
        archives+=(/payload/programs.cpio)
        file+=-programs
    fi
    if [ -n "$3" ]; then
        archives+=("/payload/kernels/$3/modules.cpio")
        file+=-$3
    fi
    if [ ${#archives[@]} -eq 1 ]; then
        echo "${archives[0]}"
        return
    fi
    [ -e "$file.cpio" ] || cat "${archives[@]}" > "$file.cpio"
    echo "$file.cpio"
}

# Waits until a guest's agent runs and its network is configured: NAME [SECONDS]
guest_wait() {
    wait_until "${2:-300}" "guest $1 is up" guest_comes_up "$1"
    say "guest $1 is up"
}

# Waits some seconds for a guest, on a watch: while guests boot, programs that poll take a CPU: NAME
guest_comes_up() {
    local up
    up=$(guest_path "$1")/data/up
    # The first event is for the watch itself.
    # waits: it is called again
    guest_is_up "$1" || timeout 5 xenstore-watch -n 2 "$up" || true
    guest_is_up "$1"
}

# Makes a driver domain `driver` with a bridge that has dom0's addresses of `bridge_create`, and
# starts the backend in it: [QUEUES [KEY=VALUE]...] with the keys of guest_create
driver_start() {
    local queues=${1:-2} programs=no
    [ "$BACKEND" = kernel ] || programs=yes
    guest_start driver role=backend vif=no memory=512 vcpus=2 programs=$programs "${@:2}"
    # dom0 cannot read its logs after it has ended.
    trap 'guest driver "tail -n 500 /var/log/xen/* /tmp/ringway.log" > "$FOLDER/driver.log" || true' EXIT
    guest driver 'ip link add br0 type bridge forward_delay 0 && ip link set br0 up &&
        ip address add 10.77.0.1/24 dev br0 && ip address add fd77::1/64 dev br0 nodad'
    if [ "$BACKEND" = kernel ]; then
        guest driver modprobe xen-netback max_queues="$queues"
    else
        # A whole Debian as dom0 need not have it installed.
        guest driver ringway run --help | grep -- --hypervisor > /dev/null || skip "this ringway run has no --hypervisor"
        # As in the service's unit.
        guest_begin driver /tmp/ringway.log chrt --batch 0 ringway --log-level debug run --hypervisor xen \
            --dir /run/ringway --max-queues "$queues"
        wait_until 60 "ringway is ready" guest driver ringway vif list --dir /run/ringway
    fi
    guest driver xl devd
}

guest_is_up() {
    xenstore-exists "$(guest_path "$1")" || fail "guest $1 has died"
    [ "$(xenstore-read "$(guest_path "$1")/data/up")" = 1 ]
}

guest_id() {
    cat "$state/$1.id"
}

guest_path() {
    echo "/local/domain/$(guest_id "$1")"
}

# The name of a guest's only vif: NAME
guest_vif() {
    echo "vif$(guest_id "$1").0"
}

# Starts a command in a guest and does not wait for it: NAME LOG COMMAND...
guest_begin() {
    local name=$1 log=$2
    shift 2
    guest "$name" "($*) > $log 2>&1 < /dev/null &"
}

# Runs a command in a guest, prints its output and returns its status: NAME COMMAND...
# The status is 124 if it takes more than GUEST_LIMIT seconds, and 125 if the guest died.
guest() {
    local path number reply
    path=$(guest_path "$1")
    # A write would make the directory of a guest that was destroyed, and nothing would reply there.
    xenstore-exists "$path" || return 125
    path=$path/data
    shift
    number=$EPOCHREALTIME
    xenstore-write "$path/command" "$number $(base64 -w 0 <<< "$*")"
    local end=$((SECONDS + PATIENCE * ${GUEST_LIMIT:-120}))
    while reply=$(xenstore-read "$path/answer" 2> /dev/null); [ "${reply%% *}" != "$number" ]; do
        [ $SECONDS -lt $end ] || return 124
        [ -n "$reply" ] || xenstore-exists "$path" || return 125
        sleep 0.1 # waits: looks again until the answer is there
    done
    local status pieces
    read -r _ status pieces <<< "$reply"
    if [ "$pieces" -gt 0 ]; then
        local keys=() piece
        for ((piece = 0; piece < pieces; piece++)); do
            keys+=("$path/output/$piece")
        done
        xenstore-read "${keys[@]}" | tr -d '\n' | base64 -d
    fi
    return "$status"
}

# Runs a function that creates PVH guests, again if the emulator has killed one: FUNCTION [GUEST]...
# It creates no others than these, by default `a`.
#
# QEMU's emulation of AMD's virtualization occasionally continues in Xen's own code where it should
# return to the guest, which then dies of a triple fault at an address of Xen's. Such a run says
# nothing about the backend.
with_pvh() {
    local try faults guests=("${@:2}")
    [ $# -gt 1 ] || guests=(a)
    for try in 1 2 3 4; do
        faults=$(triple_faults)
        # As a condition, it would not end at a failing command.
        ("$1") &
        ! wait $! || return 0
        [ "$(triple_faults)" -gt "$faults" ] || fail "$(cat "$FOLDER/reason")"
        say "the emulator has killed a guest in try $try"
        rm -f "$FOLDER"/{reason,measurements}
        wait_until 60 "its guests are gone" no_guest_is_left_of "${guests[@]}"
    done
    skip "the emulator has killed a guest in every try"
}

triple_faults() {
    xl dmesg | grep -c "Triple fault" || true
}

# Destroys guests as often as they are there: a triple fault is a reboot to xl, which starts the guest
# again, also if it is destroyed in the meantime.
no_guest_is_left_of() {
    local name
    for name in "$@"; do
        xl destroy "$name" 2> /dev/null || true
    done
    [ "$(xl list | wc -l)" -eq 2 ]
}

# Ends a guest at once and waits until nothing of it is left: NAME
guest_destroy() {
    local id
    id=$(guest_id "$1")
    within 60 xl destroy "$1" || fail "xl destroy $1: status $?"
    wait_until 30 "domain $id is gone" domain_is_gone "$id"
}

domain_is_gone() {
    ! xl list "$1" && ! xenstore-exists "/local/domain/$1"
}

# --- What is held --------------------------------------------------------------------------------

# Prints the number of grants in use in all of Xen, which prints a line for each that begins with
# the reference in brackets.
grants_in_use() {
    xl dmesg --clear > /dev/null
    xl debug-keys g
    wait_until 30 "Xen has listed the grants" eval 'xl dmesg | grep -q "gnttab_usage_print_all \] done"'
    xl dmesg | grep -cE '^\(XEN\) *\[ *(0x)?[0-9a-f]+\]' || true
}

# Prints the resources that dom0 and the backend hold, a line `NAME COUNT` each.
census() {
    # Debian has lsevtchn for some architectures only.
    ! command -v lsevtchn > /dev/null || echo "event_channels $(lsevtchn 0 | wc -l)"
    echo "net_devices $(find /sys/class/net -type l | wc -l)"
    echo "xenstore_nodes $(xenstore-ls -f | wc -l)"
    [ "$BACKEND" = kernel ] || echo "open_files $(find "/proc/$(backend_pid)/fd" -type l | wc -l)"
    echo "grants $(grants_in_use)"
}

# Writes a census to $state/after, repeatedly until it equals $state/before, because some resources
# are released a moment later.
census_again() {
    local end=$((SECONDS + PATIENCE * 60))
    while :; do
        census > "$state/after"
        ! diff "$state/before" "$state/after" || break
        [ $SECONDS -lt $end ] || break
        say "not as before yet"
        sleep 3 # waits: looks again until all is released
    done
}

# --- XenStore ------------------------------------------------------------------------------------

# A key of the backend's, or of the frontend's, end of a guest's only vif: NAME KEY
backend_key() {
    xenstore-read "$(backend_path "$1")/$2" 2> /dev/null
}

# NAME KEY VALUE
backend_key_is() {
    [ "$(backend_key "$1" "$2")" = "$3" ]
}

# Of a guest's first vif, or of another: NAME [INDEX]
backend_path() {
    xenstore-read "$(guest_path "$1")/device/vif/${2:-0}/backend"
}

frontend_key() {
    xenstore-read "$(guest_path "$1")/device/vif/0/$2" 2> /dev/null
}

# Whether both ends of a guest's vif are connected: NAME
vif_is_connected() {
    [ "$(frontend_key "$1" state)/$(backend_key "$1" state)" = 4/4 ]
}

vif_wait() {
    wait_until 60 "the vif of $1 is connected" vif_is_connected "$1"
}

# Prints the backend's error for a guest's vif; Linux's backend writes it below its domain's path:
# NAME [INDEX]
backend_error() {
    local path
    path=$(backend_path "$@")
    xenstore-read "$path/error" 2> /dev/null ||
        xenstore-read "${path%%/backend/*}/error/${path#/local/domain/*/}/error" 2> /dev/null
}

# Makes the bridge, starts the backend, and makes guest `a` with as many queues, which then answers
# a ping: QUEUES [KEY=VALUE]...
serve_guest() {
    bridge_create 1500
    backend_start "$1"
    guest_start a queues="$1" "${@:2}"
    vif_wait a
    check_ping dom0 10.77.0.2
}

# --- traffic -------------------------------------------------------------------------------------

# Fails unless all pings of a series get replies: FROM ADDRESS [OPTION]...
# FROM is a guest, or dom0.
check_ping() {
    local from=$1 address=$2 try
    shift 2
    # The first one may be lost while the bridge and both ends learn of each other.
    wait_until 60 "$address answers a ping from $from" at "$from" "ping -c 1 -W 2 $address"
    # A late reply on a busy machine is no fault.
    for try in 1 2 3; do
        ! at "$from" "ping -q -c 5 -i 0.2 -W $((PATIENCE * 5)) $* $address" | grep ' 0% packet loss' || return 0
        say "ping $* $address from $from: some were lost in try $try"
    done
    fail "pings from $from to $address were lost"
}

# TCP from dom0 to a guest's server, or with `-R` back; prints bits per second: ADDRESS [OPTION]...
iperf() {
    local address=$1 limit=${IPERF_LIMIT:-90} end
    shift
    end=$((SECONDS + PATIENCE * limit))
    while :; do
        # Its status may be 0 although there is an error in the report.
        within "$limit" iperf3 --client "$address" --connect-timeout $((PATIENCE * 60000)) --json "$@" \
            > "$state/iperf.json" 2> "$state/iperf.err" || true
        if [ -s "$state/iperf.json" ] &&
            jq -e '.end | (.sum_received // .sum).bits_per_second | round' "$state/iperf.json" 2> /dev/null; then
            return
        fi
        say "iperf3: $(jq -r '.error // empty' "$state/iperf.json" || true) $(cat "$state/iperf.err")" >&2
        # A run that has begun is not tried again.
        [ $SECONDS -lt $end ] && grep -q '"intervals":[[:space:]]*\[\]' "$state/iperf.json" || return 1
        sleep 0.5 # waits: the server does not say when it has ended the last run
    done
}

# Sends random bytes from one end to the other and compares what arrived: FROM TO ADDRESS [MIB]
# FROM and TO are guests, or dom0; ADDRESS is that of TO.
check_payload() {
    local from=$1 to=$2 address=$3 bytes=$((${4:-32} << 20)) sent received
    local listen="TCP-LISTEN:5555,reuseaddr"
    case $address in *:*) address=[$address] listen="TCP6-LISTEN:5555,reuseaddr" ;; esac
    sent=$(at "$from" "head -c $bytes /dev/urandom > /tmp/sent && sha256sum < /tmp/sent")
    at "$to" "socat -u $listen CREATE:/tmp/received.part && mv /tmp/received.part /tmp/received" begin
    # The receiver takes a moment to listen, so the sender tries again.
    GUEST_LIMIT=240 at "$from" "timeout $((PATIENCE * 200)) socat -u OPEN:/tmp/sent TCP:$address:5555,retry=600,interval=0.2 &&
        rm /tmp/sent" || fail "$bytes bytes from $from to $to: not sent"
    wait_until 60 "$to has all bytes" at "$to" "test -e /tmp/received"
    expect "bytes from $from to $to" $bytes "$(at "$to" "wc -c < /tmp/received")"
    received=$(at "$to" "sha256sum < /tmp/received && rm /tmp/received")
    expect "checksum of $bytes bytes from $from to $to" "$sent" "$received"
    say "$bytes bytes from $from to $to arrived as they were"
}

# Fails unless dom0 and a guest at 10.77.0.2 exchange TCP both ways, and bytes as they were: NAME
check_conversation() {
    iperf_serve "$1"
    measure dom0_to_guest_bits_per_s "$(iperf 10.77.0.2 -t 4)"
    measure guest_to_dom0_bits_per_s "$(iperf 10.77.0.2 -t 4 -R)"
    check_payload dom0 "$1" 10.77.0.2 8
    check_payload "$1" dom0 10.77.0.1 8
}

# Keeps a guest at 10.77.0.2 busy both ways, until the traffic is ended: NAME
# Sets `busy`, the process, which writes its counts to busy.json in FOLDER.
keep_busy() {
    iperf_serve "$1"
    note_carried
    iperf3 --client 10.77.0.2 --connect-timeout $((PATIENCE * 60000)) --time 36000 --bidir --json \
        > "$FOLDER/busy.json" 2>&1 &
    busy=$!
    wait_until 60 "a megabyte each way" have_carried "$busy" "$FOLDER/busy.json"
}

# Prints what each connection to a guest at 10.77.0.2 has carried, a line `ADDRESS BYTES` each.
carried() {
    ss -OtinH state established dst 10.77.0.2 | awk '{
        address = ""
        most = 0
        for (word = 1; word <= NF; word++) {
            if (address == "" && $word ~ /^[0-9.]+:[0-9]+$/) address = $word
            if (split($word, part, ":") == 2 && part[1] ~ /^bytes_(acked|received)$/ && part[2] + 0 > most)
                most = part[2] + 0
        }
        printf "%s %.0f\n", address, most
    }'
}

# Notes it, for `have_carried`.
note_carried() {
    modprobe -a tcp_diag
    { echo "- 0" && carried; } > "$state/carried"
}

# Whether each of two connections of iperf3 has carried a megabyte since `note_carried`, and it goes
# on: PROCESS OUTPUT
have_carried() {
    kill -0 "$1" || fail "iperf3 ended: $(tail -n 1 "$2")"
    carried | awk 'NR == FNR { before[$1] = $2; next } $2 - before[$1] > 1048576 { count++ }
        END { exit count < 2 }' "$state/carried" -
}

# Fails unless the connections of `keep_busy` go on from here, and ends them.
busy_to_the_end() {
    note_carried
    wait_until 60 "a megabyte more by each connection" have_carried "$busy" "$FOLDER/busy.json"
    kill "$busy"
    wait "$busy" || true
    case $(jq -r '.error // empty' "$FOLDER/busy.json") in
    '' | interrupt*) ;;
    *) fail "TCP did not last: $(jq -r .error "$FOLDER/busy.json")" ;;
    esac
    # Seconds without traffic.
    measure silent_seconds "$(jq '[.intervals[].sum.bits_per_second | select(. == 0)] | length' "$FOLDER/busy.json")"
}

# Runs a command in dom0 or in a guest: PLACE COMMAND [begin]
at() {
    if [ "$1" = dom0 ] && [ "${3:-}" = begin ]; then
        bash -c "$2" > /tmp/begun 2>&1 < /dev/null &
    elif [ "$1" = dom0 ]; then
        bash -c "$2"
    elif [ "${3:-}" = begin ]; then
        guest_begin "$1" /tmp/begun "$2"
    else
        guest "$1" "$2"
    fi
}

# A server in a guest for `iperf`, and for other guests: NAME
iperf_serve() {
    guest "$1" "iperf3 --server --daemon"
    wait_until 60 "a server in $1" guest "$1" 'ss -ltn | grep -q :5201'
}

# --- races ---------------------------------------------------------------------------------------

# One result, as a line of race.jsonl: CELL UNIT VALUE
record() {
    say "$BACKEND, $queues queues: $1: $3 $2"
    jq -nc --argjson round "$round" --arg backend "$BACKEND" --argjson queues "$queues" \
        --arg cell "$1" --arg unit "$2" --argjson value "$3" \
        '{$round, $backend, $queues, $cell, $unit, $value}' >> "$FOLDER/race.jsonl"
}

# Records what a command prints: CELL UNIT COMMAND...
# A cell that could not be measured is left out of the table, but makes the scenario fail in the end.
missing=0
try() {
    local cell=$1 unit=$2 value
    shift 2
    if value=$("$@") && [ -n "$value" ]; then
        record "$cell" "$unit" "$value"
    else
        say "$BACKEND, $queues queues: $cell: not measured"
        missing=$((missing + 1))
    fi
}

# Half of a round trip, in microseconds, from the report of sockperf's ping-pong: PERCENTILE
latency() {
    awk -v percentile="$1" '$0 ~ "percentile " percentile { print $NF }' "$state/sockperf"
}

# The scenario's ping_pong, which leaves a report of sockperf.
try_ping_pong() {
    ping_pong || say "sockperf: $(tail -n 3 "$state/sockperf")"
    try "ping-pong, median" us latency 50.000
    try "ping-pong, 99th percentile" us latency 99.000
}

# Runs some backends in each round, each with one queue and with two. The command makes the guests,
# measures, and destroys them: COMMAND BACKEND...
race() {
    local command=$1 rounds=${ROUNDS:?} racers=("${@:2}")
    for ((round = 1; round <= rounds; round++)); do
        for queues in 1 2; do
            for BACKEND in "${racers[@]}"; do
                say "round $round of $rounds: $BACKEND, $queues queues"
                backend_start "$queues"
                "$command"
                backend_stop
            done
        done
        # The order may matter, so it alternates between rounds.
        [ ${#racers[@]} -eq 1 ] || racers=("${racers[1]}" "${racers[0]}")
    done
    measure cells "$(wc -l < "$FOLDER/race.jsonl")"
    expect "cells that could not be measured" 0 $missing
}

# --- the doctor ----------------------------------------------------------------------------------

# Runs the doctor in a place while a guest sends and receives, keeps the record, and fails unless a
# check finds a problem (sick) or none (healthy): PLACE NAME CHECK sick|healthy [WHAT IPERF3 SENDS]
diagnose() {
    local try found
    # Traffic that gets no CPU in these seconds meets no limit, so there are more of them.
    for try in 1 2 3 4 5; do
        under_load "${5:---bidir}" "$1" "ringway doctor record /tmp/$2.tar --interval 5"
        found_by "$1" "$2" "$3"
        [ "$4" = sick ] && [ "$found" != sick ] || break
        say "$2: $3 finds it $found in try $try"
    done
    expect "$2 by $3" "$4" "$found"
    say "$2: $3 finds it $found"
}

# The same as `diagnose`, for a record that was made in a place: PLACE NAME CHECK sick|healthy
judge() {
    local found
    found_by "$1" "$2" "$3"
    expect "$2 by $3" "$4" "$found"
    say "$2: $3 finds it $found"
}

# Sets `found` to what a check finds in a record: sick, healthy or nothing: PLACE NAME CHECK
found_by() {
    local place=$1 name=$2 check=$3
    if [ "$place" != dom0 ]; then
        fetch "$place" "/tmp/$name.tar"
    fi
    cp "/tmp/$name.tar" "$FOLDER/"
    ringway doctor --root "/tmp/$name.tar" --check "$check" --json > "$FOLDER/$name.json" || true
    ringway doctor --root "/tmp/$name.tar" > "$FOLDER/$name.txt" || true
    found=$(jq -r '[.findings[].severity] | if any(. == ("warning", "problem")) then "sick"
        elif any(. == ("ok", "note")) then "healthy" else "nothing" end' "$FOLDER/$name.json")
}

# Runs a command while iperf3 sends to guest a: WHAT IPERF3 SENDS, PLACE, COMMAND
under_load() {
    # waits: the server does not say when it has ended the last run
    while_running "until iperf3 --client 10.77.0.2 -t 36000 -P 4 $1; do sleep 0.5; done" "$2" "$3"
}

# Runs a command while another one makes traffic in dom0, once that has begun:
# OTHER, PLACE, COMMAND [BYTES OF ITS BEGINNING]
while_running() {
    local result=0 load before
    before=$(bytes_here)
    setsid timeout $((PATIENCE * 300)) bash -c "$1" > /tmp/load 2>&1 &
    load=$!
    wait_until 60 "traffic of $1" has_begun "$load" $((before + ${4:-1048576}))
    # waits: a rate is measured, so the other command should have left its beginning behind
    at "$2" "sleep 2 && $3" || result=$?
    kill -- -$load 2> /dev/null || true
    wait $load || true
    return $result
}

# All bytes of dom0's interfaces.
bytes_here() {
    awk 'NR > 2 && $1 != "lo:" { sum += $2 + $10 } END { printf "%.0f\n", sum }' /proc/net/dev
}

# Whether interfaces have carried so many bytes while a process goes on: PROCESS BYTES
has_begun() {
    kill -0 "$1" || fail "no traffic: $(tail -n 1 /tmp/load)"
    [ "$(bytes_here)" -ge "$2" ]
}

# Brings a file from a guest to the same place in dom0: NAME FILE
fetch() {
    local file=$2
    socat -u TCP-LISTEN:5556,reuseaddr "CREATE:$file" &
    guest "$1" "socat -u OPEN:$file TCP:10.77.0.1:5556,retry=600,interval=0.2"
    wait $!
}

# shellcheck source=/dev/null
. "$1"

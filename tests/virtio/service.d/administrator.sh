# shellcheck shell=bash
# The page, step by step. Runs in the container as `bash administrator.sh before|after`: a reboot is between the two.
set -eEuo pipefail

PATIENCE=${PATIENCE:-4}
state=/run/test
page=/payload/virtio.md
mkdir -p "$state"
# shellcheck source=tests/steps.sh
. /payload/steps.sh

fail() {
    say "FAILED: $*"
    trap - ERR
    ringway vif show vm1 || true
    systemctl status --no-pager --lines 20 ringway-host || true
    tail -n 20 /var/log/libvirt/qemu/vm1.{log,console} || true
    exit 1
}
trap 'fail "line $LINENO of ${BASH_SOURCE[0]##*/}: $BASH_COMMAND: status $?"' ERR

# The machine that the page's elements are for. Its kernel and initramfs are those of other tests. With
# <domain type='qemu'>, QEMU 7.2 crashes unless `vectors` is 0, as the page says.
definition() {
    local elements
    elements=$(page_text libvirt)
    cat << END
<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>vm1</name>
  <memory unit='MiB'>256</memory>
  ${elements%%...*}
  <vcpu>2</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>/var/lib/libvirt/images/vmlinux</kernel>
    <initrd>/var/lib/libvirt/images/guest.cpio</initrd>
    <cmdline>console=ttyS0 panic=-1 cryptomgr.notests guest.address=10.77.0.1/24 guest.seconds=3600</cmdline>
  </os>
  <features><acpi/></features>
  <devices>
    ${elements##*...}
    <serial type='file'><source path='/var/log/libvirt/qemu/vm1.console'/></serial>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
  <qemu:override><qemu:device alias='net0'><qemu:frontend>
    <qemu:property name='vectors' type='unsigned' value='0'/>
  </qemu:frontend></qemu:device></qemu:override>
</domain>
END
}

status() {
    systemctl show --property StatusText --value ringway-host
}

works() {
    wait_until 120 "$1: the machine is connected" eval '[ "$(status)" = "1 vifs, 1 connected" ]'
    wait_until 120 "$1: it answers a ping" ping -q -c 1 -W 1 10.77.0.1
    ping -q -c 5 -i 0.2 10.77.0.1
    say "$1: works"
}

main_process() {
    systemctl show --property MainPID --value ringway-host
}

# Whether the service has another first process: PID
is_other() {
    case $(main_process) in 0 | "$1") return 1 ;; esac
}

before() {
    page install
    expect "the service after its installation" "disabled/inactive" \
        "$(systemctl is-enabled ringway-host || true)/$(systemctl is-active ringway-host || true)"
    demonstration
    page_text description >> /etc/ringway/host.toml
    page start
    expect "the service" active "$(systemctl is-active ringway-host)"
    mv /payload/{vmlinux,guest.cpio} /var/lib/libvirt/images/
    definition > /payload/vm1.xml
    page machine
    works "the first start"
    local pid
    pid=$(main_process)
    page restart
    is_other "$pid" || fail "it was not restarted"
    works "a restart"
    reloaded
    pid=$(main_process)
    systemctl kill --signal KILL --kill-whom main ringway-host
    wait_until 60 "another process after kill -9" is_other "$pid"
    works "kill -9"
    upgrades
    network_namespace
    stated_times
    first_steps
    exposure
    hotplug_scripts
}

# What `make demo` shows, by the installed program: it moves traffic, and leaves nothing.
demonstration() {
    ringway demo --seconds 1 > "$state/demo" 2> "$state/demo.err" ||
        fail "ringway demo: status $?: $(tail -n 3 "$state/demo.err")"
    cat "$state/demo"
    grep -q ', release build$' "$state/demo.err" || fail "ringway demo: $(head -n 1 "$state/demo.err")"
    expect "the demo's last line" "left behind: nothing" "$(tail -n 1 "$state/demo")"
    say "the demo: works"
}

# A changed description applies at once, in the same process, and a wrong one changes nothing.
reloaded() {
    local pid description=/etc/ringway/host.toml
    pid=$(main_process)
    # Of vm1, whose section is the last one.
    echo 'weight = 3' >> "$description"
    page reload
    wait_until 60 "its weight is 3" has_weight 3
    sed -i 's/^weight = 3$/weight = 4000/' "$description"
    ! systemctl reload ringway-host || fail "a wrong description was taken over"
    sed -i 's/^weight = 4000$/weight = 4/' "$description"
    has_weight 3 || fail "a wrong description has changed something"
    page reload
    wait_until 60 "its weight is 4" has_weight 4
    expect "the process after three reloads" "$pid" "$(main_process)"
    works "a reload"
}

has_weight() {
    ringway vif show vm1 | grep -q "^weight *$1\$"
}

# Another version of the package and this one again, while the machine sends back what comes over a connection.
# The connection lasts, a changed description stays, and no restart is left to do.
upgrades() {
    local description=/etc/ringway/host.toml package process load
    newer_package /payload/ringway_*.deb /payload/newer.deb
    cp "$description" "$state/host.toml"
    exec {connection}<> /dev/tcp/10.77.0.1/7
    # Another connection carries all that it can.
    setsid bash -c 'exec 3<> /dev/tcp/10.77.0.1/7; cat /dev/zero >&3 & exec cat <&3 > /dev/null' &
    load=$!
    for package in /payload/newer.deb /payload/ringway_*.deb; do
        process=$(main_process)
        silence_during 10.77.0.1 install_over "$package"
        is_other "$process" || fail "${package##*/}: the service was not restarted"
        say_over_tcp "${package##*/}"
        cmp "$state/host.toml" "$description" || fail "${package##*/}: the description is not as it was"
        has_weight 4 || fail "${package##*/}: its weight is not 4"
        expect "${package##*/}: what needs a restart" '' "$(outdated)"
        say "${package##*/}: $silence_ms ms without a reply at most"
        [ -z "${SILENCE_MS_MAX:-}" ] || [ "$silence_ms" -le "$SILENCE_MS_MAX" ] ||
            fail "${package##*/}: more than $SILENCE_MS_MAX ms without a reply"
    done
    kill -- "-$load"
    wait "$load" || true
    exec {connection}>&-
    rm /payload/newer.deb
    works "upgrades"
}

# Sends a line over the connection to the machine, which returns it: LINE
say_over_tcp() {
    local returned=''
    echo "$1" >&"$connection"
    # waits: for the line, which no slow machine misses
    IFS= read -r -t $((PATIENCE * 60)) -u "$connection" returned || true
    expect "what the TCP connection returns" "$1" "$returned"
}

# Which of ringway's services run a program or library that is no longer there.
outdated() {
    needrestart -b -l -r l > "$state/needrestart" 2> /dev/null || fail "needrestart: status $?"
    grep -q '^NEEDRESTART-VER: ' "$state/needrestart" || fail "needrestart: $(head -n 3 "$state/needrestart")"
    sed -n 's/^NEEDRESTART-SVC: \(ringway.*\)/\1/p' "$state/needrestart"
}

# A network namespace reaches the machine with what the page adds to the unit, and also when it is made again
# while the service runs. Then all is as before.
network_namespace() {
    local description=/etc/ringway/host.toml added=/etc/systemd/system/ringway-host.service.d
    ip netns add proxy
    page_text namespace >> "$description"
    mkdir "$added"
    page_text namespace-rights > "$added/override.conf"
    systemctl daemon-reload
    page restart
    in_namespace "a namespace"
    ip netns delete proxy
    ip netns add proxy
    in_namespace "another namespace of that name"
    sed -i '/^\[\[namespace\]\]$/,$d' "$description"
    rm -r "$added"
    systemctl daemon-reload
    page restart
    ip netns delete proxy
    works "without the namespace"
}

# Waits until a machine replies to the namespace: WHAT
in_namespace() {
    wait_until 120 "$1: the machine replies to its ping" nsenter --net=/run/netns/proxy ping -q -c 1 -W 1 10.77.0.1
    say "$1: works"
}

# What docs/xen.md states of a process that ends at once, or gets no CPU time, holds for both services.
stated_times() {
    local unit
    for unit in ringway ringway-host; do
        expect "what systemd does with $unit" \
            "Restart=always RestartUSec=100ms StartLimitBurst=20 " \
            "$(systemctl show --property Restart,RestartUSec,StartLimitBurst $unit | sort | tr '\n' ' ')"
        # While it does not run, its properties have no watchdog.
        systemctl cat $unit | grep -q '^WatchdogSec=2min$' || fail "$unit has no watchdog"
    done
}

# With processes, networks and a default run directory of its own, beside the service.
first_steps() {
    mkdir /payload/first
    cp /payload/first-steps.md /payload/first/
    unshare --mount --net --pid --fork --kill-child --mount-proc \
        bash /payload/first-steps.sh /payload/first/first-steps.md
    works "beside the first steps"
}

after() {
    works "a reboot"
    expect "machines that run" vm1 "$(virsh list --name | sed '/^$/d')"
    purged
}

# A purge, also without `systemctl disable` before it, leaves nothing, and what is installed then is as new.
purged() {
    expect "the service" enabled "$(systemctl is-enabled ringway-host)"
    mkdir /var/lib/ringway/doctor
    DEBIAN_FRONTEND=noninteractive apt-get purge --assume-yes ringway
    expect "what stays for another package, its journal" doctor "$(ls -A /var/lib/ringway)"
    rm -r /var/lib/ringway
    expect "what a purge leaves in /run" '' "$(find /run -maxdepth 1 -name ringway)"
    # The administrator's own file, of the page, stays.
    expect "what a purge leaves" '' "$(find /etc /usr /var/lib ! -name 'ringway-vms.conf' \
        \( -name '*ringway*' -o -lname '*ringway*' \))"
    page install
    expect "the service after another installation" "disabled/inactive" \
        "$(systemctl is-enabled ringway-host || true)/$(systemctl is-active ringway-host || true)"
    say "a purge: leaves nothing"
}

# What systemd itself says of the confinement, in its own version.
exposure() {
    local unit
    for unit in ringway-host:20 ringway:20 ringway-devd:52; do
        systemd-analyze security --no-pager --offline=true --threshold="${unit#*:}" \
            "/usr/lib/systemd/system/${unit%:*}.service" | tail -n 1
    done
}

# Xen's hotplug scripts for networks, as `xl devd` starts them: with what ringway-devd.service confines.
hotplug_scripts() {
    export vif=vif1.0 XENBUS_PATH=/local/domain/0/backend/vif/1/0
    mkdir /run/xenstored
    systemd-run --quiet --unit xenstore-for-test ringway xenstore serve --socket /run/xenstored/socket
    wait_until 60 "XenStore serves" xenstore-write "$XENBUS_PATH/frontend-id" 1 "$XENBUS_PATH/handle" 0 \
        "$XENBUS_PATH/mac" 00:16:3e:00:00:01 "$XENBUS_PATH/bridge" xenbr0 "$XENBUS_PATH/ip" 10.79.0.5
    ip link add xenbr0 type bridge
    # vif-route gives the interface the address of eth0.
    ip link add eth0 type bridge
    ip address add 10.79.0.1/24 dev eth0
    ip link set eth0 up
    ip tuntap add vif1.0 mode tap
    hotplug vif-bridge online
    expect "the bridge of vif1.0" xenbr0 "$(basename "$(readlink /sys/class/net/vif1.0/master)")"
    hotplug vif-bridge offline
    [ ! -e /sys/class/net/vif1.0/master ] || fail "vif-bridge offline: it is on a bridge"
    local script
    for script in vif-route vif-nat; do
        hotplug "$script" online
        expect "proxy_arp after $script" 1 "$(cat /proc/sys/net/ipv4/conf/vif1.0/proxy_arp)"
        ip route show dev vif1.0 | grep -q 10.79.0.5 || fail "$script: there is no route"
        hotplug "$script" offline
        ip address flush dev vif1.0
        ip route flush dev vif1.0
        echo 0 > /proc/sys/net/ipv4/conf/vif1.0/proxy_arp
    done
    systemctl stop xenstore-for-test
    say "hotplug scripts: work"
}

# SCRIPT online|offline
hotplug() {
    sed -e '/^\(Condition\|Exec\|Restart\|Wants\|After\)/d' -e '/^\[Install\]/,$d' \
        -e "s|^\[Service\]|&\nType=oneshot\nExecStart=/etc/xen/scripts/$1 $2 type_if=vif\n&|" \
        -e "s|^\[Service\]|&\nEnvironment=vif=$vif XENBUS_PATH=$XENBUS_PATH|" \
        /usr/lib/systemd/system/ringway-devd.service > /run/systemd/system/hotplug-for-test.service
    systemctl daemon-reload
    xenstore-rm "$XENBUS_PATH/hotplug-status" 2> /dev/null || true
    systemctl start hotplug-for-test || { tail -n 5 /var/log/xen/xen-hotplug.log || true; fail "$1 $2"; }
    [ "$2" = offline ] || expect "$1" connected "$(xenstore-read "$XENBUS_PATH/hotplug-status")"
}

"$1"

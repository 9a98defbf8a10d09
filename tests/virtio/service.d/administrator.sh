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
    <cmdline>console=ttyS0 panic=-1 guest.address=10.77.0.1/24 guest.seconds=3600</cmdline>
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

# Whether the service has another first process: PID
is_other() {
    case $(systemctl show --property MainPID --value ringway-host) in 0 | "$1") return 1 ;; esac
}

before() {
    page install
    expect "the service after its installation" "disabled/inactive" \
        "$(systemctl is-enabled ringway-host || true)/$(systemctl is-active ringway-host || true)"
    page_text description >> /etc/ringway/host.toml
    page start
    expect "the service" active "$(systemctl is-active ringway-host)"
    mv /payload/{vmlinux,guest.cpio} /var/lib/libvirt/images/
    definition > /payload/vm1.xml
    page machine
    works "the first start"
    local pid
    pid=$(systemctl show --property MainPID --value ringway-host)
    page restart
    is_other "$pid" || fail "it was not restarted"
    works "a restart"
    pid=$(systemctl show --property MainPID --value ringway-host)
    systemctl kill --signal KILL --kill-whom main ringway-host
    wait_until 60 "another process after kill -9" is_other "$pid"
    works "kill -9"
    exposure
}

after() {
    works "a reboot"
    expect "machines that run" vm1 "$(virsh list --name | sed '/^$/d')"
}

# What systemd itself says of the confinement, in its own version.
exposure() {
    local unit
    for unit in ringway-host:20 ringway:20; do
        systemd-analyze security --no-pager --offline=true --threshold="${unit#*:}" \
            "/usr/lib/systemd/system/${unit%:*}.service" | tail -n 1
    done
}

"$1"

# As `speed`, with offloads: Open vSwitch's userspace TSO, of a version that cuts frames in tunnels.
found=$(version ovs-vsctl)
[ "$(printf '%s\n' 3.5 "$found" | sort --version-sort | head -n 1)" = 3.5 ] ||
    skip "Open vSwitch $found cuts no frames in tunnels: 3.5 is the first that does"
offloads=on
# shellcheck source=tests/ovn/cases/speed.sh
. "$here/cases/speed.sh"

# As `tunnels`, with Open vSwitch's userspace TSO, of any version: one before 3.5 gets finished frames only.
offloads=on
# shellcheck source=tests/ovn/cases/tunnels.sh
. "$here/cases/tunnels.sh"

# `vif-openvswitch` connects a vif to an Open vSwitch bridge, in the given VLAN.
# sets: full
# limit: 900
mkdir -p /etc/openvswitch /run/openvswitch /var/log/openvswitch
modprobe openvswitch
ovsdb-tool create /etc/openvswitch/conf.db /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server --detach --pidfile --remote=punix:/run/openvswitch/db.sock /etc/openvswitch/conf.db
ovs-vsctl --no-wait init
/usr/lib/openvswitch-switch/ovs-vswitchd --detach --pidfile --log-file
# The kernel keeps its state after the daemons have ended.
trap 'ovs-vsctl --timeout=60 del-br ovs0' EXIT
ovs-vsctl --timeout=60 add-br ovs0 -- add-port ovs0 dom0 tag=7 -- set interface dom0 type=internal
ip address add 10.77.0.1/24 dev dom0
ip link set dom0 up
backend_start 2

port_is_gone() {
    ! ovs-vsctl list-ports ovs0 | grep -qx "$1"
}

guest_start a queues=2 bridge=ovs0.7 script=vif-openvswitch
vif_wait a
wait_until 20 "the hotplug script is done" backend_key_is a hotplug-status connected
expect "VLAN of the vif's port" 7 "$(ovs-vsctl get port "$(guest_vif a)" tag)"
check_ping dom0 10.77.0.2
check_conversation a
vif=$(guest_vif a)
guest_destroy a
wait_until 20 "its port is gone" port_is_gone "$vif"

# A vhost-user guest of Open vSwitch itself, with DPDK, reaches one of ringway by two queues.
dpdk=/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk
[ -x "$dpdk" ] || skip "there is no $dpdk (apt install openvswitch-switch-dpdk, or scripts/install-packages ovn)"
hosts_start 1600
page_text ports | execute central
on central ovn-nbctl lsp-add net0 fast -- lsp-set-addresses fast "52:54:00:77:00:04 10.9.0.4"
page_text description | on hv1 tee /etc/ringway/host.toml
serve hv1
virtio_start web hv1 52:54:00:77:00:01 10.9.0.1

on hv3 ovs-appctl exit
on hv3 ovs-vsctl --no-wait set open . other_config:dpdk-init=true other_config:per-port-memory=true \
    other_config:dpdk-extra="--no-huge --legacy-mem -m 1024 --no-pci" \
    other_config:pmd-cpu-mask=0x1 other_config:dpdk-lcore-mask=0x1
vswitchd_start hv3 "$dpdk"
page_text fast-port | execute hv3
nsenter --target "${host[hv3]}" --mount --uts -- unshare --net bash -c "ip link set lo up; exec $(page_text fast-guest)" \
    >> "$state/guest-fast.log" 2>&1 &
guest[fast]=$!
is_installed() {
    on hv3 ovs-vsctl get interface fast0 external_ids:ovn-installed | grep -q true
}
wait_until 60 "OVN has installed the port" is_installed
echo_start fast
wait_until 30 "fast reaches web" reaches fast 10.9.0.1
check_tcp web 10.9.0.4
has_two_queues() {
    on hv3 ovs-vsctl get interface fast0 status | grep -q 'num_of_vrings="4"'
}
wait_until 30 "the guest has two queues" has_two_queues

# Guests of both kinds outlive killed processes of ringway, of Open vSwitch and of OVN.
hosts_start 1600
page_text ports | execute central
for port in "plain 52:54:00:77:00:08 10.9.0.8" "probe 52:54:00:77:00:09 10.9.0.9"; do
    read -r name mac address <<< "$port"
    on central ovn-nbctl lsp-add net0 "$name" -- lsp-set-addresses "$name" "$mac $address"
done
describe hv1 probe 52:54:00:77:00:09
page_text description | on hv2 tee /etc/ringway/host.toml
page_text table | on hv2 tee /etc/ringway/ovs.toml
serve hv1
serve hv2
virtio_start probe hv1 52:54:00:77:00:09 10.9.0.9
virtio_start web hv2 52:54:00:77:00:01 10.9.0.1
xen_start db hv2
xen_plug db hv2 00:16:3e:77:00:02 10.9.0.2
wait_installed hv1 probe
wait_installed hv2 web
wait_installed hv2 vif1.0 xen

veth_start plain hv2 52:54:00:77:00:08 10.9.0.8
veth_plug plain hv2
for address in 10.9.0.1 10.9.0.2 10.9.0.8; do
    wait_until 30 "probe reaches $address" reaches probe "$address"
done

# What must stay as it is: VIF
port_of() {
    on hv2 ovs-vsctl get interface "$1" ofport external_ids:iface-id
    on hv2 ip -o link show "$1" | cut -d : -f 1
}

# A killed backend is replaced: VIF DIRECTORY ADDRESS TRIAL
kill_backend() {
    local before port
    port=$(port_of "$1")
    stream_start probe "$3"
    before=$(processes_of hv2 "backend --dir /run/ringway/$2")
    kill -9 "$before"
    wait_until 30 "another backend" eval "processes_of hv2 'backend --dir /run/ringway/$2' | grep -qvx $before"
    on hv2 ringway vif wait "$1" --dir "/run/ringway/$2" --timeout $((PATIENCE * 30))
    expect "the port of $1" "$port" "$(port_of "$1")"
}

# The process that asks Open vSwitch, and its successor. VIF DIRECTORY ADDRESS TRIAL
kill_plugger() {
    local before
    stream_start probe "$3"
    for _ in 1 2; do
        before=$(processes_of hv2 "plugger --dir /run/ringway/$2" | head -n 1)
        kill -9 "$before"
        wait_until 30 "another process" eval "[ \"\$(processes_of hv2 'plugger --dir /run/ringway/$2' | grep -vcx $before)\" = 2 ]"
    done
}

# It stays dead for as long as the guest is pinged: OVN itself may lose a frame when it starts again.
kill_controller() {
    local lost trial all=()
    for ((trial = 1; trial <= trials; trial++)); do
        pings_start pings probe 10.9.0.1
        stream_start probe 10.9.0.1
        kill -9 "$(on hv2 cat /run/ovn/ovn-controller.pid)"
        pings_end pings
        stream_end
        all+=("$lost")
        controller_start hv2
        # What it wrote before its end would do for ovn-installed.
        on central ovn-nbctl --wait=hv --timeout=$((PATIENCE * 30)) sync
    done
    report_lost 'ovn-controller is killed' 0 "${all[@]}"
}

# Besides the guests, it pings the veth pair, and counts what the guests lose more than that.
kill_vswitchd() {
    local lost trial web=() db=() plain before
    for ((trial = 1; trial <= trials; trial++)); do
        pings_start web probe 10.9.0.1
        pings_start db probe 10.9.0.2
        pings_start plain probe 10.9.0.8
        stream_start probe 10.9.0.1
        before=$(on hv2 cat /run/openvswitch/ovs-vswitchd.pid)
        kill -9 "$before"
        # The next one refuses to start beside it.
        wait_soon "the end of ovs-vswitchd" eval "! kill -0 $before"
        vswitchd_start hv2
        pings_end plain
        plain=$lost
        pings_end web
        say "ovs-vswitchd: web lost $lost, plain $plain"
        web+=($((lost > plain ? lost - plain : 0)))
        pings_end db
        say "ovs-vswitchd: db lost $lost, plain $plain"
        db+=($((lost > plain ? lost - plain : 0)))
        stream_end
    done
    report_lost 'ovs-vswitchd is killed, virtio guest, more than a veth pair' 10 "${web[@]}"
    report_lost 'ovs-vswitchd is killed, Xen guest, more than a veth pair' 10 "${db[@]}"
}

measure 'backend is killed, virtio guest' 5 probe 10.9.0.1 kill_backend web default 10.9.0.1
measure 'backend is killed, Xen guest' 5 probe 10.9.0.2 kill_backend vif1.0 xen 10.9.0.2
measure 'helper is killed, virtio guest' 0 probe 10.9.0.1 kill_plugger web default 10.9.0.1
measure 'helper is killed, Xen guest' 0 probe 10.9.0.2 kill_plugger vif1.0 xen 10.9.0.2
kill_controller
kill_vswitchd

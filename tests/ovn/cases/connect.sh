# Guests of both kinds on three hosts, as docs/ovn.md says: ping, TCP, an ACL, a VLAN, two MTUs.
hosts_start 1600
page_text ports | execute central
on central ovn-nbctl lsp-add net0 vm3 -- lsp-set-addresses vm3 "52:54:00:77:00:03 10.9.0.3"
page_text description | on hv1 tee /etc/ringway/host.toml
page_text table | on hv2 tee /etc/ringway/ovs.toml
describe hv3 vm3 52:54:00:77:00:03
serve hv1
serve hv3
virtio_start web hv1 52:54:00:77:00:01 10.9.0.1
virtio_start vm3 hv3 52:54:00:77:00:03 10.9.0.3
xen_start db hv2
xen_plug db hv2 00:16:3e:77:00:02 10.9.0.2
page_text installed | execute hv1
wait_installed hv3 vm3
wait_installed hv2 vif1.0 xen
page_text bound | execute central
check_all() {
    local pair
    for pair in web:10.9.0.2 db:10.9.0.3 vm3:10.9.0.1; do
        wait_until 30 "${pair/:/ reaches }" reaches "${pair%:*}" "${pair#*:}"
        check_tcp "${pair%:*}" "${pair#*:}"
    done
}
check_all

# An ACL holds for guests of both kinds, and for what it names.
for name in db vm3; do
    on central ovn-nbctl --wait=hv acl-add net0 to-lport 1001 "outport == \"$name\" && icmp4" drop
done
# Fails if a ping of web reaches a guest. What it sends by TCP is behind the ping: NAME ADDRESS
is_cut_off() {
    local before
    before=$(pings_had "$1")
    # waits: for no reply, which is no proof; the count is
    ! reaches web "$2" || fail "a ping passes the ACL of $1"
    check_tcp web "$2"
    expect "pings that $1 has had" "$before" "$(pings_had "$1")"
}
is_cut_off db 10.9.0.2
is_cut_off vm3 10.9.0.3
on central ovn-nbctl --wait=hv acl-del net0
wait_until 30 "pings pass again" reaches web 10.9.0.2

# The guests' frames travel in a tunnel with room for them, and then without.
wait_until 30 "1500 bytes arrive" reaches_with web 10.9.0.2 1500
for name in hv1 hv2 hv3; do
    ip link set "$name" mtu 1500
    on "$name" ip link set wire mtu 1500
    on "$name" ip link set br-phy mtu 1500
done
before=$(pings_had db)
# waits: as above
! reaches_with web 10.9.0.2 1500 || fail "1500 bytes arrive through a tunnel of 1500"
for name in web db vm3; do
    in_guest "$name" ip link set eth0 mtu 1442
done
check_tcp web 10.9.0.2
expect "pings that db has had" "$before" "$(pings_had db)"
wait_until 30 "1442 bytes arrive" reaches_with web 10.9.0.2 1442
check_all

# A VLAN of the network between the hosts instead of a tunnel.
page_text vlan | execute central
reload_id() {
    on "$1" sed -i "s/^iface-id = .*/iface-id = \"$2\"/" /etc/ringway/host.toml
    pkill -HUP --ns "${host[$1]}" --nslist mnt --full 'ringway run .*host.toml'
    wait_until 30 "the port of $1 has another id" eval "on $1 ovs-vsctl find interface external_ids:iface-id=$2 | grep -q ."
    wait_until 30 "OVN has bound $2" eval "[ \"\$(on central ovn-nbctl lsp-get-up $2)\" = up ]"
}
reload_id hv1 tagged1
reload_id hv3 tagged3
wait_until 30 "web reaches vm3" reaches web 10.9.0.3
check_tcp web 10.9.0.3
on hv1 ovs-appctl fdb/show br-phy | grep -q '  *7  *52:54:00:77:00:03' || fail "its frames have no tag"

# A guest of each kind moves between two hosts while it is pinged.
hosts_start 1600
page_text ports | execute central
on central ovn-nbctl lsp-add net0 probe -- lsp-set-addresses probe "52:54:00:77:00:09 10.9.0.9"
describe hv1 probe 52:54:00:77:00:09
for name in hv2 hv3; do
    page_text description | on "$name" tee /etc/ringway/host.toml
    page_text table | on "$name" tee /etc/ringway/ovs.toml
    serve "$name"
    xen_start db "$name"
done
serve hv1
virtio_start probe hv1 52:54:00:77:00:09 10.9.0.9
virtio_start web hv2 52:54:00:77:00:01 10.9.0.1
xen_plug db hv2 00:16:3e:77:00:02 10.9.0.2
wait_installed hv1 probe
wait_installed hv2 web
wait_installed hv2 vif1.0 xen
wait_until 30 "probe reaches web" reaches probe 10.9.0.1
wait_until 30 "probe reaches db" reaches probe 10.9.0.2

place=([web]=hv2 [db]=hv2)

# Whether a host serves a guest: HOST VIF DIRECTORY
is_connected() {
    on "$1" ringway vif show "$2" --dir "/run/ringway/$3" | grep -q '^state  *Connected'
}

# The guest runs on the other host, and from then on no longer on this one.
move_virtio() {
    local before=${guest[web]}
    virtio_start web "$new" 52:54:00:77:00:01 10.9.0.1
    wait_soon "web is on $new" is_connected "$new" web default
    kill -9 "$before"
}
move_xen() {
    xen_plug db "$new" 00:16:3e:77:00:02 10.9.0.2
    wait_soon "db is on $new" is_connected "$new" vif1.0 xen
    xen_unplug "$old"
}

measure 'virtio guest moves, plain claim' 10 probe 10.9.0.1 plain_move virtio web
measure 'Xen guest moves, plain claim' 10 probe 10.9.0.2 plain_move xen db
measure 'virtio guest moves, activation by RARP' 3 probe 10.9.0.1 rarp_move virtio web
measure 'Xen guest moves, activation by RARP' 3 probe 10.9.0.2 rarp_move xen db

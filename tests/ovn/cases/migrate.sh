# A stock Linux in QEMU moves between two hosts by live migration, while it is pinged and exchanges lines.
command -v qemu-system-x86_64 > /dev/null ||
    skip "qemu-system-x86_64 is missing (apt install qemu-system-x86, or scripts/install-packages ovn)"
[ ! -e "$work/no-image" ] || skip "$(tail -n 1 "$work/no-image")"
hosts_start 1600
page_text ports | execute central
on central ovn-nbctl lsp-add net0 probe -- lsp-set-addresses probe "52:54:00:77:00:09 10.9.0.9"
describe hv1 probe 52:54:00:77:00:09
serve hv1
for name in hv2 hv3; do
    page_text description | on "$name" tee /etc/ringway/host.toml
    serve "$name"
done
virtio_start probe hv1 52:54:00:77:00:09 10.9.0.9
place=([web]=hv2)

# Starts QEMU on a host, as docs/virtio.md says, emulated: HOST [ARGUMENT]...
# Before 9.0, which has 03bfc2188f06, an emulated QEMU may lose a store of its guest in a migration that takes
# seconds, as on a busy machine. The guest's network is down then, and its console says that something
# `is not a head`.
machine_start() {
    local boot=$target/virtio kernel_options="console=ttyS0 quiet panic=-1 no_timer_check cryptomgr.notests"
    kernel_options+=" guest.address=10.9.0.1/24 guest.seconds=$((PATIENCE * 1800))"
    # The function `on` would be another process. Without KVM, QEMU 7.2 needs `vectors=0`.
    nsenter --target "${host[$1]}" --mount --net --uts -- qemu-system-x86_64 \
        -accel tcg -display none -nodefaults -no-reboot -m 256 -machine q35,memory-backend=m \
        -object memory-backend-memfd,id=m,size=256M,share=on \
        -kernel "$boot/vmlinux" -initrd "$boot/guest.cpio" -append "$kernel_options" \
        -serial "file:$state/console-$1.log" -serial null \
        -monitor unix:/run/ringway-vms/web.monitor,server=on,wait=off \
        -chardev socket,id=c,path=/run/ringway-vms/web.sock,server=on -netdev vhost-user,id=n,chardev=c \
        -device virtio-net-pci,netdev=n,mac=52:54:00:77:00:01,vectors=0,romfile= "${@:2}" \
        >> "$state/guest-web.log" 2>&1 &
    guest[web]=$!
    disown "$!"
}

# The guest's memory takes a way of its own: that between these hosts would lose pings under it.
move_machine() {
    local before=${guest[web]} channel=unix:$state/channel
    rm -f "$state/channel"
    machine_start "$new" -incoming "$channel"
    wait_soon "QEMU on $new" test -S "$state/channel"
    stream_start probe 10.9.0.1
    page_text migrate tcp:192.0.2.12:4444="$channel" | execute "$old"
    on "$new" ringway vif wait web --timeout $((PATIENCE * 30))
    wait_until 60 "the end of the migration" has_left "$old"
    say "QEMU: $(grep 'down.*[0-9]' "$state/monitor.log" || true)"
    kill -9 "$before"
}

# Whether QEMU has nothing to do any more: HOST
has_left() {
    echo info migrate | on "$1" socat -t $((PATIENCE * 5)) - UNIX-CONNECT:/run/ringway-vms/web.monitor \
        > "$state/monitor.log"
    grep -qi 'status:[[:space:]]*completed' "$state/monitor.log"
}

machine_start hv2
wait_installed hv1 probe
wait_until 120 "the echo server of web" in_guest probe bash -c ': > /dev/tcp/10.9.0.1/7'
wait_installed hv2 web

measure 'machine of QEMU migrates, plain claim' 10 probe 10.9.0.1 plain_move machine web
measure 'machine of QEMU migrates, activation by RARP' 3 probe 10.9.0.1 rarp_move machine web

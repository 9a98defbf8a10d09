# An earlier package, this one over it, a newer one and this one again, under a guest's TCP, which lasts.
# sets: upgrade
# limit: 3000
# needs: earlier
only_in_debian "packages are installed there"
only_with ringway
[ -e /payload/earlier.deb ] || skip "there is no earlier package (tests/earlier)"
settings=/etc/ringway/ringway.toml

rings() {
    xenstore-ls "$(guest_path a)/device/vif/0" | grep -E 'ring-ref|event-channel'
}

# WHAT PACKAGE
upgrade() {
    local process
    process=$(backend_pid)
    say "$1"
    silence_during 10.77.0.2 install_over "$2"
    [ "$(backend_pid)" != "$process" ] || fail "$1: the service was not restarted"
    wait_until 120 "ringway is ready" backend_answers
    vif_wait a
    measure "silence_ms_$1" "$silence_ms"
    expect "$1: the version" "$(dpkg-deb --field "$2" Version)" \
        "$(dpkg-query --show --showformat '${Version}' ringway)"
    expect "$1: what the guest has shared" "$shared" "$(rings)"
    expect "$1: its network devices" "$(guest_vif a)" "$(vif_devices)"
    cmp "$state/settings.toml" "$settings" || fail "$1: the settings are not as they were"
}

install_over /payload/earlier.deb
serve_guest 2
shared=$(rings)
cp "$settings" "$state/settings.toml"
newer_package /payload/ringway_*.deb /payload/newer.deb
keep_busy a
upgrade to_this /payload/ringway_*.deb
upgrade to_newer /payload/newer.deb
upgrade back /payload/ringway_*.deb
busy_to_the_end
check_ping dom0 10.77.0.2

# A guest with 4 vCPUs connects with 1, 2 and 4 queues and writes exactly the keys of netif.h.
# sets: smoke full
# limit: 900
bridge_create
backend_start 4

# The keys of a folder that the vif's two ends write for each other: PATH
protocol_keys() {
    xenstore-ls -f -p "$1" | sed -n "s,^$1/\([^ ]*\) .*,\1,p" |
        grep -E '^(feature|request|multi-queue|queue-|tx-|rx-|event-)' | grep -v '^queue-[0-9]*$' | sort
}

# What Linux's netfront writes, for a number of queues: QUEUES
frontend_keys() {
    local queue key
    echo feature-{gso-tcpv4,gso-tcpv6,ipv6-csum-offload,rx-notify,sg} multi-queue-num-queues \
        request-rx-copy
    for key in event-channel-rx event-channel-tx rx-ring-ref tx-ring-ref; do
        [ "$1" -gt 1 ] || echo $key
        for ((queue = 0; queue < $1 && $1 > 1; queue++)); do
            echo queue-$queue/$key
        done
    done
}

backend_keys() {
    echo feature-{ctrl-ring,dynamic-multicast-control,gso-tcpv4,gso-tcpv6,ipv6-csum-offload} \
        feature-{multicast-control,rx-copy,rx-flip,sg,split-event-channels,xdp-headroom} \
        multi-queue-max-queues
}

sorted() {
    "$@" | tr ' ' '\n' | sort
}

for queues in 1 2 4; do
    guest_start a vcpus=4 queues=$queues
    vif_wait a
    expect "keys of the frontend with $queues queues" "$(sorted frontend_keys $queues)" \
        "$(protocol_keys "$(guest_path a)/device/vif/0")"
    expect "keys of the backend" "$(sorted backend_keys)" "$(protocol_keys "$(backend_path a)")"
    expect multi-queue-max-queues 4 "$(backend_key a multi-queue-max-queues)"
    expect multi-queue-num-queues $queues "$(frontend_key a multi-queue-num-queues)"
    expect feature-rx-copy 1 "$(backend_key a feature-rx-copy)"
    expect request-rx-copy 1 "$(frontend_key a request-rx-copy)"
    expect "queues of eth0" $queues "$(guest a 'ls -d /sys/class/net/eth0/queues/tx-* | wc -l')"
    expect "queues of the backend" $queues "$(backend_queues "$(guest_vif a)" | wc -l)"
    wait_until 20 "the hotplug script is done" backend_key_is a hotplug-status connected
    check_ping dom0 10.77.0.2
    guest_destroy a
done

# A lowered limit of queues, for one vif or for all, does not change connected guests.
# sets: full admin
# limit: 1200
only_with ringway
bridge_create
backend_start 4
guest_start a queues=2
vif_wait a
check_ping dom0 10.77.0.2

still_two() {
    expect "states after $1" 4/4 "$(frontend_key a state)/$(backend_key a state)"
    expect "queues after $1" 2 "$(frontend_key a multi-queue-num-queues)"
    check_ping dom0 10.77.0.2
}

ringway vif set "$(guest_vif a)" max-queues 1 --dir "$run_directory"
still_two "vif set"
backend_stop
backend_start 1
still_two "a restart with a lower limit"
backend_stop
backend_start 4
still_two "a restart with a higher limit"

say "the guest's driver is bound again"
guest a 'echo vif-0 > /sys/bus/xen/drivers/vif/unbind && echo vif-0 > /sys/bus/xen/drivers/vif/bind'
vif_wait a
expect "queues of a new connection" 1 "$(frontend_key a multi-queue-num-queues)"
wait_until 60 "eth0 is there" guest a 'test -e /sys/class/net/eth0'
guest a 'ip address replace 10.77.0.2/24 dev eth0 && ip link set eth0 up'
check_ping dom0 10.77.0.2

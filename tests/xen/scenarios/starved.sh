# dom0 loses CPU and memory under traffic and gets them back: guests stay connected.
# sets: full admin
# limit: 1200
serve_guest 2

cpus_online() {
    grep -c ^processor /proc/cpuinfo
}

has_one_cpu() {
    [ "$(cpus_online)" = 1 ]
}

# Linux only registers a CPU that Xen gives back; a rule of the administrator's would start it.
give_back() {
    xl mem-set 0 "${before}m"
    xl vcpu-set 0 "$cpus"
    wait_until 30 "dom0 has its second CPU" test -e /sys/devices/system/cpu/cpu1/online
    echo 1 > /sys/devices/system/cpu/cpu1/online
}
cpus=$(cpus_online)
before=$(xl list 0 | awk 'NR == 2 { print $3 }')
# Other scenarios follow, even if this one fails.
trap give_back EXIT
keep_busy a

say "one CPU"
xl vcpu-set 0 1
wait_until 30 "dom0 has one CPU" has_one_cpu
check_ping dom0 10.77.0.2
say "little memory"
# In MiB: the memory in use, plus 160.
left=$(awk '/^MemTotal/ { total = $2 } /^MemAvailable/ { free = $2 } END { print int((total - free) / 1024) + 160 }' /proc/meminfo)
xl mem-set 0 "${left}m"
sleep 10 # waits: Linux gives what it can, and does not say when that is all
measure dom0_memory_mib "$(xl list 0 | awk 'NR == 2 { print $3 }')"
check_ping dom0 10.77.0.2
check_payload dom0 a 10.77.0.2 4
give_back
trap - EXIT
expect "CPUs of dom0" "$cpus" "$(cpus_online)"
busy_to_the_end
expect "states" 4/4 "$(frontend_key a state)/$(backend_key a state)"
check_ping dom0 10.77.0.2

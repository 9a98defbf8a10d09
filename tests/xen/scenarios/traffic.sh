# TCP in both directions, and 32 MiB each way that arrive unchanged; over IPv6 as well.
# sets: smoke full
# limit: 900
serve_guest 2
iperf_serve a
measure dom0_to_guest_bits_per_s "$(iperf 10.77.0.2 -t 4)"
measure guest_to_dom0_bits_per_s "$(iperf 10.77.0.2 -t 4 -R)"
check_payload dom0 a 10.77.0.2
check_payload a dom0 10.77.0.1
check_payload dom0 a fd77::2 8
check_payload a dom0 fd77::1 8

# A guest is paused for 30 seconds under traffic; afterwards the guest and its TCP continue.
# sets: full admin
# limit: 900
serve_guest 2
keep_busy a
xl pause a
sleep 30 # waits: the time of the pause is what is tested
expect "states while it is paused" 4/4 "$(frontend_key a state)/$(backend_key a state)"
xl unpause a
busy_to_the_end
check_ping dom0 10.77.0.2
check_payload dom0 a 10.77.0.2 8

# The suite that every port of the hypervisor passes, on the real one's devices.
# sets: full
# limit: 600
command -v conformance > /dev/null || skip "no test binary was given with --conformance"
conformance --nocapture --test-threads 1

# The suite that every port of the hypervisor passes, on the real one's devices.
# sets: smoke full
# limit: 600
command -v conformance > /dev/null ||
    skip "it is not built: cargo build --release --package ringway-xen --examples"
conformance

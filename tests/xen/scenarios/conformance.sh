# The conformance suite of all hypervisor ports passes on real Xen devices.
# sets: smoke full
# limit: 600
command -v conformance > /dev/null ||
    skip "it is not built: cargo build --release --package ringway-xen --examples"
conformance

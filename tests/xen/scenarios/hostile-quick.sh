# As `hostile`, with the few scenarios that once ended or stopped a backend.
# sets: full
# limit: 600
# shellcheck disable=SC2034
HOSTILE="tx-producer-jump chain-cut-off store-storm slow-receiver gso-tiny-segments spoofed-source flood-broadcast"
# shellcheck source=tests/xen/scenarios/hostile.sh
. scenarios/hostile.sh

#!/bin/bash
# docs/first-steps.md, block by block, as a newcomer would run it: PAGE
#
# `cargo test -p ringway --test e2e first_steps` starts it in namespaces of its own, so that the default run
# directory is free, and the page's `pkill` finds no process of others.
set -eEuo pipefail

PATIENCE=${PATIENCE:-4}
page=$1
state=${page%/*}
# shellcheck source=tests/steps.sh
. "${0%/*}/steps.sh"

fail() {
    say "FAILED: $*"
    ringway vif list || true
    exit 1
}
trap 'fail "line $LINENO: $BASH_COMMAND: status $?"' ERR

connected() {
    [ "$(ringway vif list | grep -c Connected)" -ge 2 ]
}

replies() {
    # waits: then it is tried again
    ringway guest exec a -- ping -q -c 1 -W 1 10.77.0.2
}

mount -t tmpfs tmpfs /run
ip link set lo up
page host &
wait_until 30 "both guests are connected" connected
wait_until 30 "guest b replies" replies
page state "ringway top=ringway top --once"
page store > "$state/nodes"
grep -q backend/vif/1/0 "$state/nodes" || fail "XenStore has no vif"
page change
wait_until 30 "guest a has one queue" eval 'ringway vif show vif1.0 | grep -q "^max-queues *1$"'
wait_until 30 "guest b replies" replies
page capture &
wait_until 30 "the capture begins" test -s "$state/a.pcapng"
capture='ringway capture vif1.0 -w a.pcapng'
pkill -x -f "$capture"
wait_until 30 "the capture ends" eval '! pgrep -x -f "$capture"'
# With no shell around it, whose own words it would find.
eval "$(page_text kill)"
wait_until 30 "the next backend serves" eval 'ringway vif show vif1.0 | grep -q "^restarts *1$"'
wait_until 30 "guest b replies" replies
say "docs/first-steps.md: works"

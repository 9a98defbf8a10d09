# shellcheck shell=bash
# The functions that scenarios on whole systems have in common: results, waiting, and the execution of a page
# for administrators. Read by tests/xen/lib.sh, tests/virtio/service.d/administrator.sh and tests/first-steps.sh, which define `fail`, `state` (a
# directory), `page` (a file) and PATIENCE (limits last this many times as long).

say() {
    printf '[%s] %s\n' "$(cut -d ' ' -f 1 /proc/uptime)" "$*"
}

# Fails unless two values are the same: WHAT EXPECTED FOUND
expect() {
    [ "$2" = "$3" ] || fail "$1: expected '$2', found '$3'"
}

# Waits until a command succeeds: SECONDS WHAT COMMAND...
wait_until() {
    local limit=$((PATIENCE * $1)) what=$2 end
    shift 2
    end=$((SECONDS + limit))
    until "$@" > /dev/null 2>&1; do
        [ $SECONDS -lt $end ] || fail "$what: not within $limit s"
        sleep 0.3 # waits: looks again until the state is there
    done
}

# Runs a block of the page line by line, each as an administrator would: NAME [WORD=REPLACEMENT]...
# A line fails if its command fails. If its comment says "prints nothing", it fails if it prints.
page() {
    local name=$1 line output
    page_text "$@" > "$state/page"
    [ -s "$state/page" ] || fail "the page has no block '$name'"
    while IFS= read -r line <&5; do
        case $line in '' | '#'*) continue ;; esac
        say "page: $line"
        case $line in
        *'# prints nothing'*)
            output=$(cd "${page%/*}" && bash -c "$line" 2>&1) || true
            expect "$line prints" '' "$output"
            ;;
        *)
            (cd "${page%/*}" && APT_CONFIG=$(apt_config) DEBIAN_FRONTEND=noninteractive SYSTEMD_PAGER='' \
                timeout $((PATIENCE * 600)) bash -c "$line" < /dev/null) || fail "the page, $name: $line: status $?"
            ;;
        esac
    done 5< "$state/page"
}

# A block of the page, with some of its words replaced: NAME [WORD=REPLACEMENT]...
page_text() {
    local name=$1 script='' word
    shift
    for word in "$@"; do
        script+="s|${word%%=*}|${word#*=}|g;"
    done
    awk -v mark="<!-- run: $name -->" '
        $0 == mark { inside = 1; next }
        inside && /^[^ ]/ { exit }
        inside && /^    / { print substr($0, 5) }' "$page" | sed -e "$script"
}

# Replies to the questions that apt asks an interactive user.
apt_config() {
    echo 'APT::Get::Assume-Yes "true";' > "$state/apt.conf"
    echo "$state/apt.conf"
}

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

# Makes a newer version of a package, with the same content: PACKAGE NEWER
newer_package() {
    rm -rf "$state/newer"
    dpkg-deb --raw-extract "$1" "$state/newer"
    sed -i 's/^Version: .*/&+newer/' "$state/newer/DEBIAN/control"
    dpkg-deb --root-owner-group --build "$state/newer" "$2" > /dev/null
}

# Installs a package over any version of it without a question, as unattended upgrades are: settings that were
# changed stay as they are. PACKAGE
install_over() {
    DEBIAN_FRONTEND=noninteractive apt-get install --assume-yes --allow-downgrades \
        --option Dpkg::Options::=--force-confdef --option Dpkg::Options::=--force-confold "$1" < /dev/null
}

# Runs a command, and sets `silence_ms` to the longest time without a reply of an address meanwhile, which is
# asked a hundred times a second: ADDRESS COMMAND...
silence_during() {
    local address=$1 pings before
    shift
    ping -n -D -i 0.01 "$address" > "$state/pings" &
    pings=$!
    wait_until 60 "$address replies" has_replied 0
    "$@"
    before=$(replies)
    wait_until 60 "$address replies again" has_replied "$before"
    kill "$pings"
    wait "$pings" || true
    silence_ms=$(awk -F '[][]' '/bytes from/ {
        if (last && $2 - last > longest) longest = $2 - last
        last = $2
    } END { printf "%.0f", 1000 * longest }' "$state/pings")
}

# How many replies there were.
replies() {
    grep -c 'bytes from' "$state/pings" || true
}

# Whether there were more than: COUNT
has_replied() {
    [ "$(replies)" -gt "$1" ]
}

//! Set-ups that look like another one: the doctor must not name the cause of that one.

use ringway_e2e::pair::Pair;

use super::{Place, Scenario, guest, host, scenario, state};

pub(super) fn all() -> Vec<Scenario> {
    vec![
        scenario(
            "d11",
            Pair::far,
            Place::Host,
            [state(
                "sick-unscaled",
                "A link of 10 ms, and a receiver that does not scale its window",
                &[host("iperf3 -c 10.98.0.2 -t 60")],
                &[guest("sysctl -qw net.ipv4.tcp_window_scaling=0")],
            )],
        ),
        scenario(
            "d31",
            Pair::linked,
            Place::Host,
            [state(
                "sick-ports",
                "A NAT of fifty ports, and a program that wants eighty connections to one \
                 destination",
                &[
                    guest("exec python3 -c \"$LISTEN\" 0"),
                    host("for i in 1 2 3 4; do python3 -c \"$OPEN\" 20 & done; wait"),
                ],
                &[
                    host("nft add table ip n"),
                    host("nft add chain ip n c '{ type nat hook postrouting priority 100; }'"),
                    host("nft add rule ip n c tcp dport 7000 masquerade to :61000-61049"),
                ],
            )],
        ),
        scenario(
            "d33",
            Pair::linked,
            Place::Host,
            [state(
                "sick-half-open",
                "A server that lets two connections be half open, and clients that do not get its \
                 replies",
                &[
                    host("exec python3 -c \"$LISTEN\" 0"),
                    // waits: they are part of the set-up.
                    guest("while :; do python3 -c \"$CONNECT\" 8 & sleep 0.3; done"),
                ],
                &[
                    host("sysctl -qw net.ipv4.tcp_syncookies=0 net.ipv4.tcp_max_syn_backlog=2"),
                    guest("nft add table inet t"),
                    guest("nft add chain inet t c '{ type filter hook input priority 0; }'"),
                    guest("nft add rule inet t c tcp sport 7000 drop"),
                ],
            )],
        ),
        scenario(
            "d44",
            Pair::linked,
            Place::Host,
            [state(
                "sick-gone",
                "A connection that has sent megabytes when its other end goes",
                &[
                    host("iperf3 -c 10.98.0.2 -t 60"),
                    // waits: it sends meanwhile.
                    guest("sleep 0.8; ip link set eth0 down"),
                ],
                &[],
            )],
        ),
    ]
}

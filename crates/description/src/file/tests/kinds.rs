//! Keys that not all kinds of vifs have.

use super::refusal;
use crate::section::{NOT_OF_NAMESPACE, ONLY_OF_GUEST, ONLY_OF_NAMESPACE, ONLY_OF_VHOST};

#[test]
fn each_key_that_a_kind_of_vif_lacks_is_refused_there() {
    let values = [
        "name = 'a'",
        "socket = '/run/a.sock'",
        "mode = 'server'",
        "features = []",
        "max-memory = '1GiB'",
        "netns = 'a'",
        "device = 'eth1'",
        "addresses = ['10.0.0.1/8']",
        "gateway = '10.0.0.1'",
        "bridge = 'br0'",
        "iface-id = 'a'",
        "vm-uuid = 'a'",
        "bind = 'plugged'",
        "max-queues = 1",
        "completion = 'copied'",
        "max-unanswered = 1",
        "staging = true",
        "gro = false",
        "announce = false",
    ];
    for (header, of, lacks) in [
        ("[[vhost]]", "vhost", [&ONLY_OF_GUEST[..], &ONLY_OF_NAMESPACE[..]]),
        ("[[namespace]]", "namespace", [&NOT_OF_NAMESPACE[..], &[]]),
        (
            "[[guest]]\nname = 'a'\n[[guest.vif]]",
            "guest.vif",
            [&ONLY_OF_VHOST[..], &ONLY_OF_NAMESPACE[..]],
        ),
    ] {
        let found = refusal(&format!("{header}\n{}\n", values.join("\n")));
        let first = header.lines().count() + 1;
        for (line, key) in (first..).zip(values.iter().filter_map(|it| it.split(' ').next())) {
            let start = format!("host.toml, line {line}: {of}.{key}: ");
            let is_of_key = |it: &&str| it.starts_with(&start);
            let is_refused = found
                .lines()
                .filter(is_of_key)
                .any(|it| it.contains(": only in [[") || it.contains(": not here; "));
            let is_lacking = lacks.iter().any(|keys| keys.contains(&key));
            assert_eq!(is_refused, is_lacking, "{of}.{key}\n{found}");
        }
        let listed = lacks.iter().map(|keys| keys.len()).sum::<usize>();
        assert_eq!(
            found.matches(": only in [[").count() + found.matches(": not here; ").count(),
            listed,
            "{found}"
        );
    }
}

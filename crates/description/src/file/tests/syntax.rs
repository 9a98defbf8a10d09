//! Mistakes of the syntax.

use super::refusal;

#[test]
fn mistakes_of_the_syntax_are_named_along_with_others() {
    let found = refusal(
        "[host]\nworkers = two\nmax-queues = 0\n[uplink]\nname = \"up\nmtu = 9\n\
         [[guest]]\nname = 'a'\nname = 'b'\n",
    );
    for (line, part) in [
        (2, "host.workers: "),
        (3, "host.max-queues: 0 is out of range"),
        (5, "uplink.name: invalid basic string"),
        (6, "uplink.mtu: 9 is out of range"),
        (9, "duplicate key"),
    ] {
        let start = format!("host.toml, line {line}: {part}");
        assert!(found.lines().any(|it| it.starts_with(&start)), "{start} is not in\n{found}");
    }
    let swallowed =
        "[[guest]]\nname = 'a'\n[[guest.vif]]\naddresses = ['10.0.0.1/24'\nmtu = 1500\n";
    let found = refusal(swallowed);
    assert_eq!(found.matches("host.toml, line").count(), 1, "{found}");
    // However much is wrong, it comes to an end.
    let many: String = (0..500).map(|n| format!("k{n} = 1\n")).collect();
    let found = refusal(&format!("[host]\n{many}")).matches("host.toml, line").count();
    assert!((90..=110).contains(&found), "{found}");
}

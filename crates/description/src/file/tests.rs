//! Valid descriptions, and the errors of invalid ones.

mod isolation;
mod kinds;
mod namespaces;
mod syntax;

use ringway_datapath::MacAddr;
use ringway_vhost::backend::{FEATURES, PROTOCOL_FEATURES, REQUIRED};
use ringway_wire::vhost_user::{VHOST_USER_PROTOCOL_F_RARP, protocol_names};
use ringway_wire::virtio::Features;
use ringway_xenbus::LIMITS;
use ringway_xenbus::limits::{Field, Scope};

use super::vif::is_on_link;
use super::*;
use crate::{Place, SocketMode, VHOSTS_MAX};

/// Without options that override what it says.
fn parse_plain(file: &str, content: &str) -> Result<Host, DescriptionError> {
    parse(file, content, Usage::default())
}

fn refusal(content: &str) -> String {
    parse("host.toml", content, Usage::default()).expect_err(content).to_string()
}

#[test]
fn a_virtio_vif_has_a_socket_and_the_settings_of_other_vifs() {
    let host = parse_plain(
        "host.toml",
        "[host]\nsocket-group = 'kvm'\n\
         [[vhost]]\nname = 'vm1'\nsocket = '/run/vm1.sock'\nqueues = 4\nrate = '100Mb/s'\n\
         [[vhost]]\nname = 'vm2'\nsocket = '/run/vm2.sock'\nmode = 'server'\n\
         features = ['ring_packed', '-host_ecn', '-protocol:rarp']\n",
    )
    .expect("it is good");
    assert_eq!(host.socket_group.as_ref().map(|group| group.0.as_str()), Some("kvm"));
    let [one, two] = &host.vhosts[..] else { panic!("two of them") };
    let mode = |vhost: &Vhost| match vhost.place {
        Place::Socket { mode, .. } => Some(mode),
        Place::Namespace(_) => None,
    };
    assert_eq!((one.queues, mode(one), one.mac), (4, Some(SocketMode::Client), None));
    assert!(one.vif.limits.rate.is_some());
    assert_eq!((two.queues, mode(two)), (1, Some(SocketMode::Server)));
    let (usual, protocol) = one.features();
    let (features, without_rarp) = two.features();
    assert_eq!(features.without(usual).names().collect::<Vec<_>>(), ["ring_packed"]);
    assert_eq!(usual.without(features).names().collect::<Vec<_>>(), ["host_ecn"]);
    assert_eq!(protocol & !without_rarp, VHOST_USER_PROTOCOL_F_RARP);
}

/// What a vif of virtio offers with this list of features.
fn offers(features: &str) -> (Features, u64) {
    let text = "[[vhost]]\nname = 'vm1'\nsocket = '/run/vm1.sock'\nfeatures = ";
    let host = parse_plain("host.toml", &format!("{text}[{features}]\n"));
    host.expect(features).vhosts[0].features()
}

#[test]
fn each_feature_is_switched_off_and_on_by_its_name() {
    let (usual, usual_protocol) = offers("");
    for name in FEATURES.without(REQUIRED).names() {
        let feature = Features::named(name).expect("its name");
        let (off, protocol) = offers(&format!("'-{name}'"));
        assert_eq!((off, protocol), (usual.without(feature), usual_protocol), "-{name}");
        let (on, protocol) = offers(&format!("'{name}'"));
        assert_eq!((on, protocol), (usual.or(feature), usual_protocol), "{name}");
    }
    assert_eq!(usual_protocol, PROTOCOL_FEATURES);
    for name in protocol_names(PROTOCOL_FEATURES) {
        let (features, protocol) = offers(&format!("'-protocol:{name}'"));
        assert_eq!(features, usual, "-protocol:{name}");
        let left: Vec<_> = protocol_names(protocol).collect();
        let others: Vec<_> = protocol_names(PROTOCOL_FEATURES).filter(|it| *it != name).collect();
        assert_eq!(left, others);
    }
}

#[test]
fn an_invalid_virtio_vif_is_refused_with_line_and_key() {
    let with = |keys: &str| refusal(&format!("[[vhost]]\nname = 'vm1'\n{keys}\n"));
    let socket = "socket = '/run/vm1.sock'";
    assert!(with("").contains("line 2: vhost.socket: is missing"));
    assert!(with("socket = 'vm1.sock'").contains("line 3: vhost.socket: `vm1.sock` is not a"));
    assert!(with(&format!("{socket}\nqueues = 0")).contains("from 1 to"));
    assert!(
        with(&format!("{socket}\nmode = 'both'"))
            .contains("line 4: vhost.mode: `both` is not a mode")
    );
    let key = refusal("[host]\nflow-key = '6d5a'\n");
    assert!(key.contains("line 2: host.flow-key: `6d5a` is not a key: expected 32"), "{key}");
    let group = refusal("[host]\nsocket-group = 'a b'\n");
    assert!(group.contains("line 2: host.socket-group: `a b` is not a group"), "{group}");
    let rss = with(&format!("{socket}\nfeatures = ['rss']"));
    assert!(rss.contains("line 4: vhost.features: `rss` is not a feature"), "{rss}");
    let least = with(&format!("{socket}\nfeatures = ['-version_1']"));
    assert!(least.contains("needs version_1"), "{least}");
    for (key, refusal) in [
        ("max-queues = 4", "line 5: vhost.max-queues: only in [[guest.vif]]; use `queues` here"),
        ("addresses = ['10.0.0.1/8']", "line 5: vhost.addresses: only in [[guest.vif]]; set"),
        ("gateway = '10.0.0.1'", "line 5: vhost.gateway: only in [[guest.vif]]; remove it"),
        ("queues = '4'", "line 5: vhost.queues: expected a whole number without quotes"),
        ("features = 'rarp'", "line 5: vhost.features: expected a list, such as [\"rarp\"]"),
        ("features = ['csum', '-csum']", "line 5: vhost.features: `csum` is in the list twice"),
        ("max-memory = '4'", "line 5: vhost.max-memory: `4` is not an amount of memory"),
        ("max-memory = '0GiB'", "line 5: vhost.max-memory: `0GiB` is not an amount of memory"),
        ("max-memory = 4", "line 5: vhost.max-memory: "),
        ("mirror = ['zz']", "line 5: vhost.mirror: there is no port `zz`"),
        ("[uplink]\nname = 'vm1'", "line 2: vhost.name: `vm1` is the name of the uplink"),
    ] {
        let found = with(&format!("{socket}\nrate = '1Mb/s'\n{key}"));
        assert!(found.contains(refusal), "{found}");
    }
    let mistaken = refusal("[vhost]\nname = 'vm1'\n");
    assert!(mistaken.contains("line 1: write [[vhost]]\n"), "{mistaken}");
    let all = refusal("[[vhost]]\nname = 'all'\n");
    assert!(all.contains("line 2: vhost.name: `all` means all ports"), "{all}");
    let known = with(&format!("{socket}\ncolour = 1"));
    assert!(known.contains("`socket`") && !known.contains("`max-queues`"), "{known}");
    let vlan = with(&format!("{socket}\nbridge = 'xenbr0'\nvlan = 5"));
    assert!(vlan.contains("line 5: vhost.vlan"), "{vlan}");
    let long = "[[vhost]]\nname = 'a-name-of-16-bytes'\nsocket = '/run/a'\nbridge = 'br0'\n";
    let long = refusal(long);
    assert!(
        long.contains("line 4: vhost.bridge: the network device on it gets the name"),
        "{long}"
    );
    let again = with(&format!("{socket}\n[[vhost]]\nname = 'vm1'\nsocket = '/run/vm2.sock'"));
    assert!(again.contains("line 5: vhost.name: another vhost is called"), "{again}");
    let taken = with(&format!("{socket}\n[[vhost]]\nname = 'vm2'\n{socket}"));
    assert!(taken.contains("line 6: vhost.socket: another vhost has `/run/vm1.sock`"), "{taken}");
    let one = |number| format!("[[vhost]]\nname = '{number}'\nsocket = '/run/{number}'\n");
    let many = refusal(&(0..=VHOSTS_MAX).map(one).collect::<String>());
    assert!(many.contains("line 385: vhost: expected at most 128 of them"), "{many}");
    let named = refusal("[[vhost]]\nname = 'vif1.0'\nsocket = '/run/vm1.sock'\n");
    assert!(named.contains("`vif1.0` is not a name for a vif"), "{named}");
    let of_guest = refusal("[[guest]]\nname = 'a'\n[[guest.vif]]\nsocket = '/run/a.sock'\n");
    assert!(of_guest.contains("only in [[vhost]]"), "{of_guest}");
    let known = refusal("[[guest]]\nname = 'a'\n[[guest.vif]]\ncolour = 1\n");
    assert!(known.contains("`max-queues`") && !known.contains("`socket`"), "{known}");
}

#[test]
fn a_vif_that_is_added_to_a_running_host_may_name_ports_of_that_host() {
    let section = "[[vhost]]\nname = 'vm1'\nsocket = '/run/a'\nmirror = ['vm7']\n";
    assert_eq!(parse_vhost(section).expect("good").name.0, "vm1");
    let none = parse_vhost("").expect_err("it is empty").to_string();
    assert_eq!(none, "the vif: expected one [[vhost]]");
}

#[test]
fn a_switch_has_ports_for_all_vifs_in_use_and_for_some_that_come_later() {
    let vhosts = |count| {
        let one = |number| format!("[[vhost]]\nname = '{number}'\nsocket = '/run/{number}'\n");
        let text = (0..count).map(one).collect::<String>();
        parse("test", &text, Usage::default()).expect("good").switch.ports
    };
    // Each may need three, and 32 are left.
    assert_eq!([0, 10, 11, 31].map(vhosts), [64, 64, 128, 128]);
    assert_eq!(vhosts(VHOSTS_MAX), 448);
}

#[test]
fn the_example_has_two_guests_and_an_uplink() {
    let host = Host::example(Usage::default()).expect("good");
    let names: Vec<&str> = host.guests.iter().map(|guest| guest.name.0.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(host.guests[1].vifs[0].addresses[0].to_string(), "10.77.0.2/24");
    assert_eq!(host.uplink.expect("there is one").addresses[0].to_string(), "10.77.0.254/24");
}

#[test]
fn the_full_example_is_a_description() {
    let host =
        parse_plain("full", include_str!("../../../ringway/examples/full.toml")).expect("good");
    assert!(host.socket_group.is_some());
    assert!(host.guests.iter().any(|guest| guest.vifs.iter().any(|vif| vif.bridge.is_some())));
}

/// The keys that the parser names where one is unknown.
fn keys_of(section: &str) -> Vec<String> {
    let found = refusal(&format!("{section}\nno-such-key = 1\n"));
    let (_, known) = found.split_once(", expected ").expect(&found);
    let known = known.lines().next().expect(&found);
    known.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_full_example_has_every_key() {
    let text = include_str!("../../../ringway/examples/full.toml");
    let has = |sections: &[&str], key: &str| {
        let mut section = "";
        text.lines().any(|line| {
            section = if line.starts_with('[') { line } else { section };
            let line = line.trim_start_matches("# ");
            sections.contains(&section) && line.starts_with(&format!("{key} = "))
        })
    };
    let vif = "[[guest]]\nname = 'a'\n[[guest.vif]]";
    for (section, places) in [
        ("[host]", &["[host]"][..]),
        ("[uplink]", &["[uplink]", "[switch]"]),
        ("[switch]", &["[switch]"]),
        ("[[bridge]]", &["[[bridge]]"]),
        ("[[guest]]", &["[[guest]]"]),
        (vif, &["[[guest.vif]]", "[switch]"]),
        ("[[vhost]]", &["[[vhost]]", "[[guest.vif]]", "[switch]"]),
        ("[[namespace]]", &["[[namespace]]", "[[guest.vif]]", "[switch]"]),
    ] {
        let keys = keys_of(section);
        assert!(keys.len() > 1, "{section}: {keys:?}");
        for key in keys.iter().filter(|key| *key != "vif") {
            assert!(has(places, key), "{section} {key}");
        }
    }
}

#[test]
fn the_configuration_of_the_package_is_a_description_without_guests() {
    let text = include_str!("../../../../packaging/ringway.toml");
    assert!(parse_plain("as it is", text).expect("good").guests.is_empty());
    // Every commented-out line is valid.
    let used: Vec<&str> = text
        .lines()
        .map(|line| line.strip_prefix('#').filter(|key| !key.starts_with(' ')).unwrap_or(line))
        .collect();
    let host = parse_plain("all of it", &used.join("\n")).expect("good");
    assert_eq!(host.workers.count, Some(2));
}

#[test]
fn the_configuration_of_a_host_of_virtual_machines_is_a_description() {
    let text = include_str!("../../../../packaging/host.toml");
    let host = parse_plain("as it is", text).expect("good");
    assert!(host.guests.is_empty() && host.vhosts.is_empty() && host.uplink.is_none());
    // Every commented-out line is valid.
    let used: Vec<&str> = text
        .lines()
        .map(|line| line.strip_prefix('#').filter(|key| !key.starts_with(' ')).unwrap_or(line))
        .collect();
    let host = parse_plain("all of it", &used.join("\n")).expect("good");
    assert!(host.uplink.is_some() && host.vhosts.len() == 1);
}

#[test]
fn processes_get_the_parsed_description() {
    let host = Host::example(Usage::default()).expect("good");
    let json = serde_json::to_string(&host).expect("writable");
    let again: Host = serde_json::from_str(&json).expect("readable");
    assert_eq!(serde_json::to_string(&again).expect("writable"), json);
}

/// A refusal names the line, the key and what was expected.
fn check_refusal(content: &str, line: usize, parts: [&str; 2]) {
    let refusal = refusal(content);
    assert!(refusal.starts_with(&format!("host.toml, line {line}: ")), "{refusal}");
    for part in parts {
        assert!(refusal.contains(part), "{refusal} has no {part}");
    }
}

#[test]
fn a_refusal_names_file_line_key_and_what_was_expected() {
    for (content, line, parts) in [
        ("[hots]\n", 1, ["hots", "expected one of `host`"]),
        ("[host]\nworker = 1\n", 2, ["worker", "`workers`"]),
        ("[host]\nworkers = 0\n", 2, ["host.workers: 0 is out", "from 1 to"]),
        (
            "[host]\nworkers = \"two\"\n",
            2,
            ["host.workers: expected a whole number without quotes", "workers = \"two\""],
        ),
        ("[host]\nisolate = \"true\"\n", 2, ["host.isolate: expected true", "quotes"]),
        ("[host]\npolicy = 1\n", 2, ["host.policy: ", "expected text in quotes"]),
        ("[[host]]\nworkers = 1\n", 1, ["write [host]", "[[host]]"]),
        ("[guest]\nname = \"a\"\n", 1, ["write [[guest]]", "[guest]"]),
        ("guest = 1\n", 1, ["guest: expected a list", "guest = 1"]),
        ("[uplink]\nname = \"all\"\n", 2, ["uplink.name: `all`", "another"]),
        ("[uplink]\nname = \"vif7.0\"\n", 2, ["uplink.name", "Xen vif"]),
        ("[uplink]\nmac = \"01:00:00:00:00:01\"\n", 2, ["uplink.mac", "group"]),
        ("[host]\npolicy = \"fair\"\n", 2, ["policy", "balanced"]),
        ("[host]\nnetwork = \"mine\"\n", 2, ["network", "`private`"]),
        ("[host\n", 1, ["[host", "]"]),
        ("[[guest]]\nmemory-mib = 8\n", 1, ["guest.name: is missing", "each [[guest]] needs one"]),
        ("[[guest]]\nname = \"../a\"\n", 2, ["name", "expected 1 to 32"]),
        ("[switch]\nbroadcast-rate = -1\n", 2, ["broadcast-rate", "from 0 to"]),
        ("[switch]\nmulticast-groups = 7\n", 2, ["multicast-groups", "from 8"]),
        (
            "[switch]\nunregistered-multicast = \"drop\"\n",
            2,
            ["unregistered-multicast", "flood or routers"],
        ),
    ] {
        check_refusal(content, line, parts);
    }
}

#[test]
fn so_does_a_refusal_of_the_keys_of_a_guests_vif() {
    let guest = "[[guest]]\nname = \"a\"\n[[guest.vif]]\n";
    for (content, line, parts) in [
        (
            format!("{guest}trunk = [\n  1,\n  5000,\n]\n"),
            6,
            ["guest.vif.trunk: 5000 is out of range", "from 1 to 4094"],
        ),
        (format!("{guest}mirror = [\"zz\"]\n"), 4, ["guest.vif.mirror", "no port `zz`"]),
        (format!("{guest}rate = 100\n"), 4, ["guest.vif.rate: expected text", "such as \"100Mb/s"]),
        (format!("{guest}mirror = [\"ringway0\"]\n"), 4, ["mirror", "no port `ringway0`"]),
        (format!("{guest}max-unanswered = 0\n"), 4, ["max-unanswered", "from 1 to 256"]),
        (format!("{guest}mac = \"1:2\"\n"), 4, ["mac", "00:16:3e:00:00:02"]),
        (format!("{guest}mac = \"01:00:00:00:00:00\"\n"), 4, ["mac", "even first byte"]),
        (format!("{guest}addresses = [\"10.0.0.1\"]\n"), 4, ["addresses", "10.77.0.1/24"]),
        (format!("{guest}addresses = [\"10.0.0.1/33\"]\n"), 4, ["/33", "10.77.0.1/24"]),
        (format!("{guest}gateway = \"10.0.0.1\"\n"), 4, ["gateway", "own addresses"]),
        (
            format!("[host]\nnetwork = \"private\"\n{guest}bridge = \"br7\"\n"),
            6,
            ["no [[bridge]] `br7`", "expected one that is described"],
        ),
        (format!("{guest}tenant = \"domain-1\"\n"), 4, ["tenant", "and not `domain-`"]),
        (format!("{guest}queues = 0\n"), 4, ["queues", "from 1 to 64"]),
        (format!("{guest}mirror = [\"vif1.0:in\"]\n"), 4, ["mirror", "vif1.0:tx or all"]),
        (format!("{guest}unknown-mbit = 1.5\n"), 4, ["unknown-mbit: expected a", "whole number"]),
        (
            format!("{guest}multicast-router = \"auto\"\n"),
            4,
            ["multicast-router", "never, learn or always"],
        ),
        (format!("{guest}mtu = 9\n"), 4, ["mtu", "from 68 to"]),
        (format!("{guest}\n[[guest]]\nname = \"a\"\n"), 6, ["name", "another guest is called `a`"]),
    ] {
        check_refusal(&content, line, parts);
    }
}

#[test]
fn keys_of_an_earlier_version_are_accepted_and_named() {
    let text = "[host]\ncompletion = \"sent\"\n[[guest]]\nname = \"a\"\n[[guest.vif]]\n\
                completion = \"copied\"\n";
    let host = parse_plain("host.toml", text).expect("accepted");
    let [of_host, of_vif] = &host.obsolete[..] else { panic!("two: {:?}", host.obsolete) };
    assert!(of_host.starts_with("host.toml, line 2: `completion` has no effect"), "{of_host}");
    assert!(of_vif.starts_with("host.toml, line 6: ") && of_vif.contains("remove it"), "{of_vif}");
    assert!(parse_plain("host.toml", "[host]\n").expect("accepted").obsolete.is_empty());
}

#[test]
fn each_limit_is_a_key_of_the_sections_that_may_have_it() {
    let vif = "[[guest]]\nname = 'a'\n[[guest.vif]]\n";
    let sections = [
        ("[uplink]\n", Scope::Uplink),
        ("[switch]\n", Scope::Switch),
        ("[[vhost]]\nname = 'a'\nsocket = '/a'\n", Scope::Vif),
        (vif, Scope::Vif),
    ];
    for limit in LIMITS {
        let (text, value) = match limit.field {
            Field::Rate(_) => ("'8Mb/s@1s'", "1000000,1000000"),
            Field::Link(_) => ("'down'", "0"),
            Field::Offloads(_) => ("'none'", "none"),
            Field::Weight(_) | Field::PerSecond(_) => ("7", "7"),
        };
        for (section, scope) in sections {
            let content = format!("{section}{} = {text}\n", limit.name());
            if !limit.is_of(scope) {
                let found = refusal(&content);
                assert!(found.contains(&format!("unknown field `{}`", limit.name())), "{found}");
                continue;
            }
            let host = parse_plain("host.toml", &content).expect(&content);
            let json = serde_json::to_string(&host).expect("it is handed over");
            let host: Host = serde_json::from_str(&json).expect("and read");
            let of_vifs = host.guests.first().map(|guest| &guest.vifs[0]);
            let of_vifs = of_vifs.or(host.vhosts.first().map(|vhost| &vhost.vif));
            let read = match (scope, &host.uplink) {
                (Scope::Uplink, Some(uplink)) => uplink.limits,
                (Scope::Switch, _) => host.switch.limits,
                _ => of_vifs.expect("it is described").limits,
            };
            let mut keys = read.keys();
            assert!(keys.any(|read| read == (limit.key, value.to_owned())), "{content}: {read}");
        }
    }
    let known = refusal(&format!("{vif}weights = 7\n"));
    let all: Vec<String> = LIMITS.iter().map(|limit| format!("`{}`, ", limit.name())).collect();
    assert!(known.contains(&format!("`gro`, {}`locking-mode`", all.concat())), "{known}");
    let known = refusal("[switch]\nweight = 7\n");
    let all = all.concat();
    let (_, of_switch) = all.split_once("`weight`, ").expect("the last of a vif alone");
    let expected = format!("`ageing-seconds`, {of_switch}`multicast-snooping`");
    assert!(known.contains(&expected), "{known}");
}

#[test]
fn two_vifs_cannot_have_one_address() {
    let vif = "[[guest.vif]]\nmac = \"00:16:3e:00:00:01\"\n";
    let refusal = refusal(&format!("[[guest]]\nname = \"a\"\n{vif}{vif}"));
    assert!(refusal.contains("line 6") && refusal.contains("another vif"), "{refusal}");
}

#[test]
fn an_address_is_in_one_network_once() {
    let mac = "mac = \"00:16:3e:00:00:01\"\n";
    let guest = format!("[[guest]]\nname = \"a\"\n[[guest.vif]]\n{mac}");
    let vhost =
        |name, more| format!("[[vhost]]\nname = \"{name}\"\nsocket = \"/run/{name}\"\n{more}{mac}");
    let [one, two] = [vhost("vm1", ""), vhost("vm2", "")];
    let found = refusal(&format!("{guest}{one}"));
    assert!(found.contains("line 8: vhost.mac: another vif has `00:16:3e:00:00:01`"), "{found}");
    let found = refusal(&format!("{one}{two}"));
    assert!(found.contains("line 8: vhost.mac: another vif has"), "{found}");
    for more in ["bridge = \"br0\"\n", "vlan = 7\n"] {
        let both = format!("{one}{}", vhost("vm2", more));
        assert!(parse_plain("host.toml", &both).is_ok(), "{both}");
    }
}

#[test]
fn the_arrival_of_a_guest_is_announced_unless_its_vif_says_no() {
    for (line, is_unannounced) in
        [("", false), ("announce = true", false), ("announce = false", true)]
    {
        let text = format!("[[vhost]]\nname = \"vm1\"\nsocket = \"/run/vm1\"\n{line}\n");
        let host = parse_plain("host.toml", &text).expect("good");
        assert_eq!(host.vhosts[0].vif.rules().is_unannounced, is_unannounced, "{line}");
    }
}

#[test]
fn an_address_is_one_vifs_or_all_of_its_vifs_share_it() {
    let router = "00:00:5e:00:01:07";
    let vhost = |name: &str, more: &str| {
        format!("[[vhost]]\nname = \"{name}\"\nsocket = \"/run/{name}\"\n{more}\n")
    };
    let lists = |key: &str| format!("{key} = [\"{router}\"]");
    let host = |one: &str, two: &str| {
        let guest = format!("[[guest]]\nname = \"a\"\n[[guest.vif]]\n{}\n", lists(one));
        guest + &vhost("vm1", &lists(two))
    };
    let good = parse_plain("host.toml", &host("shared-macs", "shared-macs")).expect("good");
    let rules = good.vhosts[0].vif.rules();
    assert_eq!(rules.shared_macs, [MacAddr([0, 0, 0x5e, 0, 1, 7])]);
    assert_eq!(good.guests[0].vifs[0].rules().shared_macs, rules.shared_macs);
    for (one, two) in [("allowed-macs", "shared-macs"), ("shared-macs", "allowed-macs")] {
        let found = refusal(&host(one, two));
        let expected = format!(
            "line 8: vhost.{two}: another vif has `{router}`, in `{one}` of the guest `a`: choose \
             another, or list it in `shared-macs` of both"
        );
        assert!(found.contains(&expected), "{found}");
    }
    let two = vhost("vm1", &format!("mac = \"{router}\"")) + &vhost("vm2", &lists("shared-macs"));
    let found = refusal(&two);
    assert!(found.contains("line 8: vhost.shared-macs: ") && found.contains("in `mac` of `vm1`"));
    let twice = format!("mac = \"{router}\"\n{}", lists("shared-macs"));
    let found = refusal(&vhost("vm1", &twice));
    assert!(found.contains("the vif has") && found.contains("in its `mac` already"), "{found}");
    let group = refusal(&vhost("vm1", "shared-macs = [\"01:00:5e:00:00:12\"]"));
    assert!(group.contains("line 4: vhost.shared-macs: `01:00:5e:00:00:12` is a group"), "{group}");
    let many: Vec<String> = (0..65).map(|n| format!("\"02:00:00:00:00:{n:02x}\"")).collect();
    let found = refusal(&vhost("vm1", &format!("allowed-macs = [{}]", many.join(","))));
    assert!(found.contains("vhost.allowed-macs: expected at most 64"), "{found}");
}

#[test]
fn each_end_of_a_link_names_the_other() {
    let guest =
        |name: &str, more: &str| format!("[[guest]]\nname = '{name}'\n[[guest.vif]]\n{more}\n");
    let vhost = |to: &str| {
        format!("[[vhost]]\nname = 'vm1'\nsocket = '/run/vm1'\nlink-local-to = '{to}'\n")
    };
    let to = |name: &str| format!("link-local-to = '{name}'");
    let good = guest("a", &to("vm1")) + &vhost("vif1.0");
    let host = parse_plain("host.toml", &good).expect("good");
    assert_eq!(host.vhosts[0].vif.rules().link_local_to.as_deref(), Some("vif1.0"));
    for (text, line, reason) in [
        (guest("a", "") + &vhost("vif1.0"), 8, "`vif1.0` does not name `vm1`: each of the two"),
        (guest("a", &to("vif1.0")), 4, "`vif1.0` is this vif"),
        (guest("a", &to("vm2")), 4, "`vm2` is no vif"),
        (guest("a", &to("vif2.0")), 4, "`vif2.0` is no vif"),
        (
            format!("[host]\nisolate = true\n{}{}", guest("a", &to("vm1")), vhost("vif1.0")),
            6,
            "`vm1` is of another tenant",
        ),
        (
            format!(
                "[host]\nisolate = true\n{}{}",
                guest("a", &to("vif2.0")),
                guest("b", &to("vif1.0"))
            ),
            6,
            "`vif2.0` is of another tenant",
        ),
        (guest("a", &format!("{}\nbridge = 'b'", to("vif1.0"))), 4, "only for vifs on the switch"),
    ] {
        let found = refusal(&text);
        assert!(found.contains(&format!("line {line}: ")) && found.contains(reason), "{found}");
    }
    // A toolstack's vifs are not known here.
    let xen = Usage { has_toolstack: true, ..Usage::default() };
    assert!(parse("host.toml", &vhost("vif1.0"), xen).is_ok());
}

#[test]
fn a_gateway_is_on_link_by_prefix_and_version() {
    let is_near = |cidr: &str, other: &str| {
        is_on_link(cidr.parse().expect("good"), other.parse().expect("good"))
    };
    assert!(is_near("10.77.0.1/24", "10.77.0.254"));
    assert!(!is_near("10.77.0.1/24", "10.77.1.254"));
    assert!(is_near("10.77.0.1/0", "1.1.1.1"));
    assert!(is_near("fd77::1/64", "fd77::ffff"));
    assert!(!is_near("0.0.0.0/0", "::1"));
    assert!(is_near("::/0", "fd77::1"));
}

#[test]
fn every_fault_is_named_with_its_line() {
    let text = "[host]\nworkers = 0\nworker = 1\ncpus = [1, 2000, 3000]\n\
                [uplink]\nname = 'br0'\nmtu = 'big'\n\
                [[bridge]]\nname = 'br0'\n\
                [[guest]]\nmemory-mib = 8\n\
                [[guest.vif]]\nmtu = 9\nmac = '00:16:3e:00:00:01'\nbridge = 'br1'\n\
                [[guest]]\nname = 'b'\n\
                [[guest.vif]]\nmac = '00:16:3e:00:00:01'\naddresses = ['10.0.0.1', '10.0.0.2']\n\
                [[vhost]]\nname = 'br0'\nbridge = 'br0'\nqueues = 99\ngateway = '10.0.0.1'\n\
                [vhosts]\n";
    let error = parse_plain("host.toml", text).expect_err("refused");
    let shown = error.to_string();
    let lines: Vec<&str> = shown.lines().filter(|line| line.starts_with("host.toml")).collect();
    let expected = [
        (2, "host.workers: 0 is out of range"),
        (3, "unknown field `worker`"),
        (4, "host.cpus: 2000 is out of range"),
        (4, "host.cpus: 3000 is out of range"),
        (6, "uplink.name: `br0` is the name of a [[bridge]]"),
        (7, "uplink.mtu: expected a whole number without quotes"),
        (10, "guest.name: is missing; each [[guest]] needs one"),
        (13, "guest.vif.mtu: 9 is out of range"),
        (19, "guest.vif.mac: another vif has"),
        (20, "guest.vif.addresses: `10.0.0.1` is not an address with a prefix"),
        (20, "guest.vif.addresses: `10.0.0.2` is not an address with a prefix"),
        (22, "vhost.name: `br0` is the name of a [[bridge]]"),
        (22, "vhost.name: `br0` is the name of the uplink"),
        (22, "vhost.socket: is missing"),
        (24, "vhost.queues: 99 is out of range"),
        (25, "vhost.gateway: only in [[guest.vif]]"),
        (26, "unknown field `vhosts`"),
    ];
    for (line, part) in expected {
        let start = format!("host.toml, line {line}: {part}");
        assert!(lines.iter().any(|it| it.starts_with(&start)), "{start} is not in\n{shown}");
    }
    assert_eq!((lines.len(), error.faults()), (expected.len(), expected.len()), "{shown}");
}

#[test]
fn a_fault_is_not_followed_by_faults_that_it_causes() {
    for (text, line, part) in [
        ("[[guest]]\nname = '../a'\n", 2, "guest.name: `../a`"),
        ("[[vhost]]\nname = 'a'\nsocket = 'a'\n", 3, "vhost.socket: `a`"),
        ("[[bridge]]\nnam = 'b'\nname = 7\n", 2, "unknown field `nam`"),
        ("[[guest]]\nname = 'a'\n[[guest.vif]]\nbridge = 'b'\n[[bridge]]\nname = 1\n", 6, "b"),
        (
            "[[guest]]\nname = 'a'\n[[guest.vif]]\naddresses = 1\ngateway = '10.0.0.1'\n",
            4,
            "guest.vif.addresses: expected a list",
        ),
    ] {
        let found = refusal(text);
        let lines: Vec<&str> = found.lines().filter(|it| it.starts_with("host.toml")).collect();
        let is_about = |it: &&&str| it.contains(&format!("line {line}: ")) && it.contains(part);
        assert_eq!(lines.iter().filter(is_about).count(), 1, "{found}");
        let others = usize::from(part.starts_with("unknown"));
        assert_eq!(lines.len(), 1 + others, "{found}");
    }
}

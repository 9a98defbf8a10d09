//! Descriptions of hosts whose tenants have processes of their own, or whose guests have another
//! toolstack.

use super::*;

#[test]
fn a_virtio_vif_of_isolated_tenants_has_a_tenant() {
    let isolate = Usage { isolate: true, ..Usage::default() };
    let read = |name: &str, keys: &str| {
        let text = format!("[[vhost]]\nname = '{name}'\nsocket = '/run/a'\n{keys}\n");
        parse("host.toml", &text, isolate).map_err(|error| error.to_string())
    };
    let tenant = |name, keys| read(name, keys).expect("good").vhosts[0].tenant().map(|it| it.0);
    assert_eq!(tenant("vm1", "").as_deref(), Some("vhost-vm1"));
    assert_eq!(tenant("vm1", "tenant = 'red'").as_deref(), Some("red"));
    assert_eq!(tenant("a-name-of-16-byt", "tenant = 'red'").as_deref(), Some("red"));
    let long = read("a-name-of-16-byt", "").expect_err("no tenant has such a name");
    assert!(long.starts_with("host.toml, line 2: vhost a-name-of-16-byt has a name of"), "{long}");
    read("vm1", "bridge = 'br0'").expect("the supervisor makes its device");
    let guest = "tenant = 'red'\n[[guest]]\nname = 'a'\n[[guest.vif]]\ntenant = 'red'\nvlan = 5";
    let vlans = read("vm1", guest).expect_err("one trunk");
    assert!(vlans.contains("guest a and vhost vm1 belong to one tenant"), "{vlans}");
}

#[test]
fn isolation_is_refused_if_frames_of_another_process_are_mirrored_or_tenants_are_mixed() {
    let obstacle = |host: &str, vif: &str| {
        let bridge = "[[bridge]]\nname = \"br0\"\n";
        let guest = format!("[[guest]]\nname = \"a\"\n[[guest.vif]]\n{vif}");
        let text = format!("[host]\n{host}\n{bridge}{guest}\n");
        let obstacles = parse_plain("host.toml", &text).expect("good").obstacles_to_isolation();
        obstacles.into_iter().next().map(|(_, reason)| reason)
    };
    assert_eq!(obstacle("", "tenant = \"red\""), None);
    let uplink = "[uplink]\naddresses = []\n";
    assert_eq!(obstacle(uplink, "mirror = [\"vif1.0\", \"trunk\"]"), None);
    let reason = obstacle(uplink, "mirror = [\"vif1.0\", \"ringway0:tx\"]").expect("an obstacle");
    assert!(reason.starts_with("guest a has a mirror of ringway0"), "{reason}");
    for rules in ["vlan = 7", "trunk = [7, 8]", "private = true"] {
        assert_eq!(obstacle("", rules), None);
        let next = |tenant| {
            let vif = format!("{rules}\ntenant = \"red\"");
            obstacle("", &format!("{vif}\n[[guest]]\nname = \"b\"\n[[guest.vif]]\n{tenant}"))
        };
        assert_eq!(next("tenant = \"blue\""), None);
        let reason = next("tenant = \"red\"").expect("an obstacle");
        assert!(reason.contains("guest a and guest b") && reason.contains("tenant"), "{reason}");
    }
    // The number of the VLAN makes no difference, nor does a vif on a bridge.
    assert_eq!(obstacle("", "vlan = 7\n[[guest.vif]]\nvlan = 8"), None);
    assert_eq!(obstacle("", "vlan = 7\n[[guest.vif]]\nbridge = \"br0\""), None);
    assert!(obstacle("", "vlan = 7\n[[guest.vif]]").is_some());
}

#[test]
fn a_mirror_of_another_tenants_vif_is_refused_and_both_tenants_are_named() {
    let isolate = Usage { isolate: true, ..Usage::default() };
    let read = |of_a: &str, of_vm1: &str| {
        let text = format!(
            "[[guest]]\nname = 'a'\n[[guest.vif]]\n{of_a}\n[[vhost]]\nname = 'vm1'\n\
             socket = '/run/a'\n{of_vm1}\n[[vhost]]\nname = 'vm2'\nsocket = '/run/b'\n\
             tenant = 'red'\n"
        );
        parse_plain("host.toml", &text).expect("one process sees all");
        parse("host.toml", &text, isolate).map(|_| ()).map_err(|error| error.to_string())
    };
    for (of_a, of_vm1, line, parts) in [
        ("mirror = ['vm1:tx']", "", 2, ["guest a of tenant domain-1", "vm1 of tenant vhost-vm1"]),
        ("", "mirror = ['vif1.0']", 6, ["vm1 of tenant vhost-vm1", "vif1.0 of tenant domain-1"]),
        ("", "mirror = ['vm1', 'vm2']", 6, ["vhost vm1 of tenant vhost-vm1", "vm2 of tenant red"]),
        ("tenant = 'red'", "mirror = ['vif1.0']", 6, ["vm1 of tenant", "vif1.0 of tenant red"]),
    ] {
        let refusal = read(of_a, of_vm1).expect_err("no process sees these frames");
        assert!(refusal.starts_with(&format!("host.toml, line {line}: ")), "{refusal}");
        assert!(refusal.contains("give both one `tenant`"), "{refusal}");
        assert!(parts.iter().all(|part| refusal.contains(part)), "{refusal}");
    }
    for of_vm1 in ["mirror = ['vm2']\ntenant = 'red'", "mirror = ['all', 'trunk']"] {
        read("", of_vm1).expect("its own process sees these frames");
    }
    // A toolstack's vif, whose tenant is not known yet.
    read("", "mirror = ['vif7.0']").expect("it may be of the same tenant");
}

#[test]
fn a_vif_that_is_added_beside_tenants_obeys_the_rules_of_the_description() {
    let text = "[host]\nisolate = true\n[[guest]]\nname = 'a'\n[[guest.vif]]\nvlan = 7\n\
                tenant = 'red'\n";
    let host = parse_plain("host.toml", text).expect("good");
    let vhost = |name: &str, keys: &str| {
        parse_vhost(&format!("[[vhost]]\nname = '{name}'\nsocket = '/run/{name}'\n{keys}"))
            .expect("good")
    };
    let before = [vhost("vm1", "tenant = 'blue'")];
    let obstacle = |name, keys| host.obstacle_to_addition(before.iter(), &vhost(name, keys));
    for (name, keys) in [
        ("vm2", ""),
        ("vm2", "mirror = ['vm1', 'vm9']\ntenant = 'blue'"),
        ("vm2", "vlan = 8\ntenant = 'red'"),
    ] {
        assert_eq!(obstacle(name, keys), None, "{keys}");
    }
    for (name, keys, part) in [
        (
            "vm2",
            "mirror = ['vm1']",
            "vhost vm2 of tenant vhost-vm2 has a mirror of vm1 of tenant blue",
        ),
        ("vm2", "tenant = 'red'", "guest a and vhost vm2 belong to one tenant"),
        ("a-name-of-16-byt", "", "no tenant"),
    ] {
        let reason = obstacle(name, keys).expect("an obstacle");
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn guests_and_bridges_of_another_toolstack_are_refused() {
    let xen = Usage { has_toolstack: true, ..Usage::default() };
    let text = "[[bridge]]\nname = 'b'\n[[guest]]\nname = 'a'\n";
    let refused = parse("host.toml", text, xen).expect_err("refused");
    assert_eq!(refused.faults(), 2, "{refused}");
    assert!(refused.to_string().contains("line 3: the description has a section [[guest]]"));
    parse("host.toml", "[[vhost]]\nname = 'a'\nsocket = '/a'\n", xen).expect("it is good");
}

//! Vifs of network namespaces.

use super::{parse_plain, refusal};
use crate::{NamespaceDevice, VHOSTS_MAX, Vhost};

#[test]
fn a_network_namespace_has_a_device_and_the_settings_of_other_vifs() {
    let host = parse_plain(
        "host.toml",
        "[[vhost]]\nname = 'vm1'\nsocket = '/run/vm1.sock'\n\
         [[namespace]]\nname = 'web'\naddresses = ['10.77.0.5/24']\nrate = '1Gb/s'\nvlan = 5\n\
         [[namespace]]\nname = 'node'\nnetns = '/run/docker/netns/1'\ndevice = 'up'\n\
         queues = 2\nmac = '02:00:00:00:00:05'\nmirror = ['web']\n",
    )
    .expect("it is good");
    let [_, web, node] = &host.vhosts[..] else { panic!("three of them") };
    let at = |vhost: &Vhost| vhost.place.namespace().cloned().expect("it is one");
    let NamespaceDevice { netns, device, addresses } = at(web);
    assert_eq!((netns.path().to_str(), &*device.0), (Some("/run/netns/web"), "eth0"));
    assert_eq!(addresses.len(), 1);
    assert!(web.vif.limits.rate.is_some() && web.vif.rules().is_unannounced);
    assert_eq!((web.vif.vlan, web.queues, web.mac), (Some(5), 1, None));
    let NamespaceDevice { netns, device, .. } = at(node);
    assert_eq!((netns.path().to_str(), &*device.0), (Some("/run/docker/netns/1"), "up"));
    assert_eq!((node.queues, node.mac.is_some(), node.vif.mirror.len()), (2, true, 1));
    // The backend gets it in this form.
    let text = serde_json::to_string(node).expect("JSON");
    let again: Vhost = serde_json::from_str(&text).expect("JSON");
    assert_eq!((again.place, again.queues), (node.place.clone(), 2));
}

#[test]
fn an_invalid_network_namespace_is_refused_with_line_and_key() {
    for (keys, refusal_of_it) in [
        ("netns = 'a/b'", "line 3: namespace.netns: `a/b` is not a network namespace: expected"),
        ("device = 'a/b'", "line 3: namespace.device: `a/b` is not an interface name"),
        ("socket = '/run/a'", "line 3: namespace.socket: not here; remove it"),
        ("bridge = 'br0'", "line 3: namespace.bridge: not here; a namespace on a bridge needs"),
        ("gateway = '10.0.0.1'", "line 3: namespace.gateway: not here; set routes in"),
        ("queues = 33", "line 2: namespace.queues: expected at most 32"),
        ("[[namespace]]\nname = 'web'", "line 4: namespace.name: another vif is called `web`"),
        ("[[vhost]]\nname = 'web'\nsocket = '/a'", "line 2: namespace.name: another vif is"),
        (
            "[[namespace]]\nname = 'b'\nnetns = '/run/netns/web'",
            "line 4: namespace.device: another one is the device eth0 in the namespace /run/netns/",
        ),
        ("[uplink]\nname = 'web'", "line 2: namespace.name: `web` is the name of the uplink"),
        ("mirror = ['zz']", "line 3: namespace.mirror: there is no port `zz`"),
        ("link-local-to = 'zz'", "line 3: namespace.link-local-to: `zz` is no vif"),
        ("[[vhost]]\nnetns = 'a'", "line 4: vhost.netns: only in [[namespace]]; remove it"),
    ] {
        let found = refusal(&format!("[[namespace]]\nname = 'web'\n{keys}\n"));
        assert!(found.contains(refusal_of_it), "{found}");
    }
    let unnamed = refusal("[[namespace]]\nnetns = 'web'\n");
    assert!(unnamed.contains("namespace.name: is missing; each [[namespace]] needs"), "{unnamed}");
    let known = refusal("[[namespace]]\nname = 'web'\ncolour = 1\n");
    assert!(known.contains("`netns`") && !known.contains("`socket`"), "{known}");
    let one = |number| format!("[[namespace]]\nname = '{number}'\n");
    let many = refusal(&(0..=VHOSTS_MAX).map(one).collect::<String>());
    assert!(many.contains("line 257: namespace: expected at most 128"), "{many}");
}

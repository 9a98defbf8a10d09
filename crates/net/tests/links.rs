//! Every operation against the kernel, in a network namespace that ends with the process.

use std::error::Error;
use std::fs::File;
use std::io::ErrorKind;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::thread;

use ringway_net::LinkSetting::{
    Address, Alias, Down, GsoMaxSize, Master, Mtu, Name, Netns, NetnsOf, NoLinkLocalAddress,
    NoMaster, TxQueueLen, Up,
};
use ringway_net::ethtool::Ethtool;
use ringway_net::{Link, LinkWatch, Netlink};
use ringway_sys::namespace::{enter_user_namespace, unshare_network};

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    // Root may create network namespaces directly; other users need a user namespace.
    if unshare_network().is_err() {
        if let Err(error) = enter_user_namespace() {
            println!("SKIPPED everything: {error}");
            return Ok(());
        }
    }
    type Test = (&'static str, fn() -> Outcome);
    let tests: [Test; 9] = [
        ("a_new_namespace_has_lo_only_and_errors_name_the_link", errors),
        ("settings_of_a_link_read_back_as_set", settings),
        ("a_bridge_has_ports_and_loses_them", bridge),
        ("a_link_moves_between_namespaces_by_process_and_by_descriptor", netns),
        ("addresses_and_routes_carry_connections", addresses_and_routes),
        ("a_link_has_the_addresses_that_it_was_given_and_no_others", own_addresses),
        ("frames_end_at_a_link_that_passes_them_on_to_nothing", local_end),
        ("a_port_of_a_bridge_gets_its_settings_again", bridge_port),
        ("a_speed_that_cannot_be_set_is_refused_with_the_name_of_the_link", speed),
    ];
    for (name, test) in tests {
        // Each test has a thread with an empty network namespace of its own.
        let run = move || {
            unshare_network().map_err(|error| error.to_string())?;
            test().map_err(|error| error.to_string())
        };
        thread::spawn(run)
            .join()
            .map_err(|_| format!("{name} panicked"))?
            .map_err(|error| format!("{name}: {error}"))?;
        println!("ok: {name}");
    }
    Ok(())
}

/// Links that can have one are TAP devices, in tests of the frontend.
fn speed() -> Outcome {
    Netlink::open()?.add_veth("eth0", "far")?;
    let mut ethtool = match Ethtool::open() {
        Ok(ethtool) => ethtool,
        Err(error) => {
            println!("SKIPPED: {error}");
            return Ok(());
        }
    };
    let mut refusal = |name| ethtool.set_speed(name, 1000).expect_err("it has no speed");
    let (refused, missing) = (refusal("eth0"), refusal("eth1"));
    // EOPNOTSUPP, for which the oldest Rust that builds this has no kind.
    assert!(refused.to_string().contains("os error 95"), "{refused}");
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    for (error, name) in [(refused, "eth0"), (missing, "eth1")] {
        assert!(error.to_string().contains(name), "{error}");
    }
    Ok(())
}

/// Each change is announced, and changes what the link is.
fn local_end() -> Outcome {
    let mut net = Netlink::open()?;
    net.add_veth("eth0", "far")?;
    net.add_bridge("br0")?;
    let mut watch = LinkWatch::of_local_ends()?;
    assert!(net.is_local_end("eth0")?);
    assert_eq!(net.is_local_end("eth9").map_err(|error| error.kind()), Err(ErrorKind::NotFound));

    let sysctl = |name: &str, value: &str| {
        std::fs::write(format!("/proc/sys/net/{name}/conf/eth0/forwarding"), value)
    };
    let run = |command: &str| {
        let status = Command::new("sh").args(["-c", command]).stderr(Stdio::null()).status();
        if status.is_ok_and(|status| status.success()) {
            Ok(())
        } else {
            Err(ErrorKind::Other.into())
        }
    };
    type Change<'a> = (&'a str, Box<dyn Fn(&mut Netlink, bool) -> std::io::Result<()> + 'a>);
    let by_command = |add: &'static str, remove: &'static str| {
        Box::new(move |_: &mut Netlink, begins| run(if begins { add } else { remove }))
    };
    let number = |begins| if begins { "1" } else { "0" };
    let changes: [Change<'_>; 6] = [
        (
            "a port of a bridge",
            Box::new(|net, begins| {
                net.set("eth0", &[if begins { Master("br0") } else { NoMaster }])
            }),
        ),
        ("forwards IPv4", Box::new(|_, begins| sysctl("ipv4", number(begins)))),
        ("forwards IPv6", Box::new(|_, begins| sysctl("ipv6", number(begins)))),
        ("has filters", by_command("tc qdisc add dev eth0 clsact", "tc qdisc del dev eth0 clsact")),
        (
            "has a VLAN over it",
            by_command("ip link add link eth0 name eth0.5 type vlan id 5", "ip link del eth0.5"),
        ),
        (
            "has a macvlan over it",
            by_command("ip link add link eth0 name above type macvlan", "ip link del above"),
        ),
    ];
    for (what, change) in changes {
        watch.has_changed();
        if let Err(error) = change(&mut net, true) {
            println!("SKIPPED a link that {what}: {error}");
            continue;
        }
        assert!(watch.has_changed() && !net.is_local_end("eth0")?, "{what}");
        change(&mut net, false)?;
        assert!(watch.has_changed() && net.is_local_end("eth0")?, "no longer {what}");
    }
    Ok(())
}

fn errors() -> Outcome {
    let mut net = Netlink::open()?;
    let names: Vec<_> = net.links()?.into_iter().map(|link| link.name).collect();
    assert_eq!(names, ["lo"]);

    let error = net.link("vif9").expect_err("there is no such link");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let error = net.set("lo", &[Master("br9")]).expect_err("there is no bridge");
    assert!(error.to_string().contains("br9"), "{error}");
    net.add_bridge("br0")?;
    let error = net.add_bridge("br0").expect_err("the name is taken");
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(error.to_string().starts_with("link br0: add bridge: "), "{error}");
    Ok(())
}

fn own_addresses() -> Outcome {
    let mut net = Netlink::open()?;
    net.add_veth("a", "b")?;
    net.set("a", &[NoLinkLocalAddress])?;
    for name in ["a", "b"] {
        net.set(name, &[Up])?;
    }
    let of = |net: &mut Netlink, name: &str| -> Result<Vec<IpAddr>, Box<dyn Error>> {
        let index = net.link(name)?.index;
        let all = net.addresses()?.into_iter();
        Ok(all.filter(|(of, ..)| *of == index).map(|(_, address, _)| address).collect())
    };
    assert_eq!(of(&mut net, "b")?.len(), 1, "its link-local one");
    assert_eq!(of(&mut net, "a")?.len(), 0);
    let given = "10.0.0.1".parse()?;
    net.add_address("a", given, 24)?;
    assert_eq!(of(&mut net, "a")?, [given]);
    net.remove_address("a", given, 24)?;
    assert_eq!(of(&mut net, "a")?.len(), 0);
    net.remove_address("a", given, 24).expect_err("it has none");
    Ok(())
}

fn settings() -> Outcome {
    let mut net = Netlink::open()?;
    net.add_veth("a", "b")?;
    let mac = [2, 0, 0, 0, 0, 1];
    net.set("a", &[Address(mac), Mtu(9000), GsoMaxSize(65535), TxQueueLen(500), Up])?;
    assert_eq!(net.link("a")?.alias, None);
    net.set("a", &[Alias("a note of 1")])?;
    let link = net.link("a")?;
    let expected = Link {
        index: link.index,
        name: "a".to_owned(),
        kind: Some("veth".to_owned()),
        is_up: true,
        address: Some(mac),
        mtu: 9000,
        master: None,
        gso_max_size: 65535,
        tx_queue_len: 500,
        alias: Some("a note of 1".to_owned()),
    };
    assert_eq!(link, expected);
    assert_eq!(net.links()?.len(), 3);

    net.set("a", &[Down])?;
    net.set("a", &[Name("c")])?;
    assert!(!net.link("c")?.is_up);
    net.delete("c")?;
    assert_eq!(net.links()?.len(), 1, "the other end goes with it");
    Ok(())
}

fn bridge() -> Outcome {
    let mut net = Netlink::open()?;
    net.add_bridge("br0")?;
    net.add_veth("a", "b")?;
    net.set("a", &[Master("br0")])?;
    assert_eq!(net.link("a")?.master, Some(net.link("br0")?.index));
    net.set("a", &[NoMaster])?;
    assert_eq!(net.link("a")?.master, None);
    Ok(())
}

fn netns() -> Outcome {
    let mut home = Netlink::open()?;
    home.add_veth("a", "b")?;
    let abroad = thread::spawn(|| {
        unshare_network()?;
        let namespace = File::open("/proc/thread-self/ns/net")?;
        // It lives until its standard input is closed.
        let resident = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        Ok::<_, std::io::Error>((Netlink::open()?, namespace, resident))
    });
    let (mut abroad, namespace, mut resident) = abroad.join().map_err(|_| "panicked")??;
    home.set("a", &[Netns(namespace.as_fd())])?;
    assert!(home.link("a").is_err());
    assert_eq!(abroad.link("a")?.kind.as_deref(), Some("veth"));

    home.set("b", &[NetnsOf(resident.id())])?;
    assert!(home.link("b").is_err());
    abroad.set("b", &[Up])?;

    drop(resident.stdin.take());
    resident.wait()?;
    Ok(())
}

fn addresses_and_routes() -> Outcome {
    let mut net = Netlink::open()?;
    net.set("lo", &[Up])?;
    net.add_veth("a", "b")?;
    net.set("b", &[Up])?;
    net.set("a", &[Up])?;
    for (address, prefix_len, gateway, remote) in
        [("10.9.0.1", 24, "10.9.0.2", "192.0.2.0"), ("fd00:9::1", 64, "fd00:9::2", "2001:db8::")]
    {
        let (address, gateway): (IpAddr, IpAddr) = (address.parse()?, gateway.parse()?);
        net.add_address("a", address, prefix_len)?;
        let error = net.add_address("a", address, prefix_len).expect_err("it has it");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        // Not tentative: such an address could not be bound before its detection ends.
        TcpListener::bind((address, 0))?;
        let index = net.link("a")?.index;
        assert!(net.addresses()?.contains(&(index, address, prefix_len)), "{address}");

        net.add_route("a", remote.parse()?, 32, Some(gateway))?;
        net.add_default_route("a", gateway)?;
        let error = net.add_default_route("a", gateway).expect_err("there is one");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    }
    // The kernel inserts the local route of an address at once over IPv4 only.
    let listener = TcpListener::bind(("10.9.0.1", 0))?;
    TcpStream::connect(listener.local_addr()?)?;
    net.add_route("b", "198.51.100.0".parse()?, 24, None)?;
    Ok(())
}

fn bridge_port() -> Outcome {
    let mut net = Netlink::open()?;
    let mut watch = LinkWatch::open()?;
    assert!(!watch.has_changed());
    net.add_veth("a", "b")?;
    assert!(watch.has_changed() && !watch.has_changed());
    net.add_bridge("br0")?;
    net.set("a", &[Master("br0")])?;
    let index = net.link("a")?.index;
    let fresh = net.bridge_ports()?.remove(&index).expect("it is a port");
    let bridge = |line: &str| Command::new("bridge").args(line.split(' ')).status();
    assert!(bridge("link set dev a isolated on learning off hairpin on")?.success());
    let lines =
        ["vlan del dev a vid 1", "vlan add dev a vid 10 pvid untagged", "vlan add dev a vid 20"];
    for line in lines {
        if !bridge(line)?.success() {
            println!("SKIPPED: VLANs of a port, because this kernel's bridges have none");
            break;
        }
    }
    assert!(watch.has_changed());
    let set = net.bridge_ports()?.remove(&index).expect("it is a port");
    assert_ne!(set, fresh);
    net.delete("br0")?;
    assert!(!net.bridge_ports()?.contains_key(&index));
    net.add_bridge("br0")?;
    net.set("a", &[Master("br0")])?;
    assert_eq!(net.bridge_ports()?.get(&index), Some(&fresh));
    net.set_bridge_port("a", &set)?;
    assert_eq!(net.bridge_ports()?.get(&index), Some(&set));
    let missing = net.set_bridge_port("c", &set).expect_err("no such link");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    Ok(())
}

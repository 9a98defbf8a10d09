//! Devices in a network namespace, by Linux itself.

use ringway_net::Netlink;
use ringway_sys::namespace::unshare_network;
use ringway_tap::Tap;

use super::*;
use crate::kernel::tests::place;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 5];

/// The device `eth0` in the namespace of the calling thread.
fn wanted() -> DeviceWanted {
    let thread = rustix::thread::gettid().as_raw_nonzero();
    DeviceWanted {
        netns: PathBuf::from(format!("/proc/self/task/{thread}/ns/net")),
        name: "eth0".to_owned(),
        mac: None,
        mtu: 1400,
        addresses: vec![("10.9.0.5".parse().expect("an address"), 24)],
        queues: 2,
    }
}

/// The next message of an attacher, in words, and the device that it has passed.
fn next(link: &Link) -> (String, Option<Tap>) {
    let Received::Message(event, files) = link.wait().expect("a message") else {
        panic!("it has ended")
    };
    match event {
        AttacherEvent::Made { name } => {
            let files = files.into_iter().map(|file| TapFile::from_fd(file).map(Arc::new));
            let files = files.collect::<io::Result<_>>().expect("queues");
            (format!("{name} made"), Some(Tap::from_files(files).expect("it exists")))
        }
        AttacherEvent::Waiting { name, reason, is_absence: true } => {
            (format!("{name} has no guest: {reason}"), None)
        }
        AttacherEvent::Waiting { name, reason, .. } => (format!("{name}: {reason}"), None),
    }
}

fn addresses(net: &mut Netlink) -> usize {
    let index = net.link("eth0").expect("it exists").index;
    let all = net.addresses().expect("read").into_iter();
    all.filter(|(of, address, _)| *of == index && address.is_ipv4()).count()
}

#[test]
fn a_device_is_made_in_its_namespace_again_and_again_and_outlives_the_attacher() {
    let Some((mut net, place)) = place() else { return };
    let dir = RunDir::new(place.path());
    let (link, theirs) = Link::pair().expect("descriptors");
    let of_attacher = dir.clone();
    let attacher = thread::spawn(move || {
        unshare_network()?;
        let mac_of = |_: &str| MacAddr(MAC);
        Attacher::new(Link::new(theirs), &of_attacher, "here".to_owned(), mac_of)?.run()
    });
    let order = |order: AttacherOrder| link.send(&order, &[]).expect("there is room");
    let attach = |name: &str, device| {
        order(AttacherOrder::Attach { name: name.to_owned(), device });
    };
    attach("web", wanted());
    let (made, tap) = next(&link);
    assert_eq!(made, "web made");
    assert_eq!(tap.expect("queues").files().count(), 2);
    let device = net.link("eth0").expect("it is here");
    assert_eq!((device.address, device.mtu, device.is_up), (Some(MAC), 1400, true));
    assert_eq!(addresses(&mut net), 1);

    // The backend has lost its queues; then the device goes.
    order(AttacherOrder::Again { name: "web".to_owned() });
    assert_eq!(next(&link).0, "web made");
    assert_eq!(net.link("eth0").expect("it is here").index, device.index);
    net.delete("eth0").expect("it is here");
    assert_eq!(next(&link).0, "web made");
    assert_ne!(net.link("eth0").expect("it is here again").index, device.index);
    assert_eq!(addresses(&mut net), 1);

    // Another vif cannot have its name, until it has gone.
    attach("other", wanted());
    let (refused, _) = next(&link);
    assert!(refused.contains("the device eth0 in /proc/self/task/"), "{refused}");
    assert!(refused.contains("an interface eth0 exists already"), "{refused}");
    order(AttacherOrder::Detach { name: "web".to_owned() });
    assert_eq!(next(&link).0, "other made");
    assert_eq!(dir.namespaces().len(), 1, "nothing is left of the first");
    attach("lost", DeviceWanted { netns: "/run/netns/of-no-one".into(), ..wanted() });
    let (missing, _) = next(&link);
    assert!(missing.starts_with("lost has no guest: there is no network namespace /run/netns/of"));

    drop(link);
    attacher.join().expect("no panic").expect("it ends with its opener");
    net.link("eth0").expect("it stays for the next attacher");
    delete_in_namespaces(&dir, "here");
    net.link("eth0").expect_err("it was removed with its host");
}

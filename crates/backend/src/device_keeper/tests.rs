use std::time::Duration;

use ringway_net::LinkSetting;
use ringway_wire::DomId;
use rustix::event::{PollFd, PollFlags, poll};

use super::*;
use crate::device::tests::place;

const OWNER: &str = "/run/ringway/here";
const VIF: Vif = Vif { backend: DomId(0), frontend: DomId(7), handle: 0 };
const PATIENCE: Duration = Duration::from_secs(30);

fn keeper(place: &tempfile::TempDir) -> DeviceKeeper {
    DeviceKeeper::open(&RunDir::new(place.path()), OWNER, 2).expect("netlink")
}

/// What a toolstack has written of a vif.
fn keys(more: &[(&str, &str)]) -> Keys {
    let own = [("online", "1"), ("state", "1")];
    let all = own.iter().chain(more).map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Keys::new(&VIF.backend_dir(), all)
}

fn made(keeper: &DeviceKeeper) -> (MadeDevice, Vec<Arc<TapFile>>) {
    made_for(keeper, &Purpose::Xen(VIF))
}

fn made_for(keeper: &DeviceKeeper, vif: &Purpose) -> (MadeDevice, Vec<Arc<TapFile>>) {
    match keeper.passed(vif) {
        (Some(PassedDevice::Made(made)), files) => (made, files),
        (other, _) => panic!("{other:?}"),
    }
}

/// Waits until it has seen a change.
fn change(keeper: &mut DeviceKeeper) -> DeviceChange {
    change_of(keeper, &Purpose::Xen(VIF))
}

fn change_of(keeper: &mut DeviceKeeper, whose: &Purpose) -> DeviceChange {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if let Some((vif, change)) = keeper.follow().pop() {
            assert_eq!(vif, *whose);
            return change;
        }
        let pause =
            keeper.due().map_or(PATIENCE, |due| due.saturating_duration_since(Instant::now()));
        let waker = keeper.waker();
        let mut fds = [PollFd::from_borrowed_fd(waker, PollFlags::IN)];
        poll(&mut fds, Some(&crate::timespec(pause))).expect("ours");
    }
    panic!("no change");
}

#[test]
fn a_device_is_kept_followed_and_removed_without_the_process_that_uses_it() {
    let Some((mut net, place)) = place() else { return };
    net.add_bridge("br0").expect("a bridge");
    net.set("br0", &[LinkSetting::Up]).expect("set");
    let on_bridge = keys(&[("bridge", "br0")]);
    let mut keeper = self::keeper(&place);
    assert!(keeper.make(VIF, &on_bridge));
    assert!(!keeper.make(VIF, &on_bridge), "it has it already");
    let (device, files) = made(&keeper);
    assert_eq!((device.queues, files.len(), device.attached_to.as_str()), (2, 2, "br0"));
    let index = net.link("vif7.0").expect("it exists").index;
    let state = keeper.states().remove(&Purpose::Xen(VIF)).expect("it has one");
    assert_eq!((state.attached_to.as_str(), state.is_down, state.fault), ("br0", false, None));

    // The next process takes it over, with the next supervisor.
    drop((keeper, files));
    let mut keeper = self::keeper(&place);
    assert!(keeper.make(VIF, &on_bridge));
    assert_eq!(net.link("vif7.0").expect("it exists").index, index);
    let (device, files) = made(&keeper);
    assert_eq!((device.queues, files.len()), (2, 2));

    // Before a tenant's next process.
    keeper.retry(VIF, &keys(&[("bridge", "br0"), ("ringway-max-queues", "1")]));
    let (_, again) = made(&keeper);
    assert!(Arc::ptr_eq(&again[0], &files[0]), "it has enough queues");
    drop(again);
    drop(files);
    keeper.retry(VIF, &keys(&[("bridge", "br0"), ("ringway-max-queues", "5")]));
    let (device, files) = made(&keeper);
    assert_eq!((device.queues, net.link("vif7.0").expect("it exists").index), (5, index));

    net.delete("vif7.0").expect("deleted");
    assert_eq!(change(&mut keeper), DeviceChange::Renewed);
    let again = net.link("vif7.0").expect("it is made again");
    assert_eq!(again.master, Some(net.link("br0").expect("a bridge").index));
    let (_, renewed) = made(&keeper);
    assert_eq!((renewed.len(), files.len()), (5, 5));
    assert!(renewed[0].name().is_ok() && files[0].name().is_err());

    keeper.remove(&Purpose::Xen(VIF));
    net.link("vif7.0").expect_err("removed, although its queues are open");
    assert!(renewed[0].name().is_err());
    assert!(matches!(keeper.passed(&Purpose::Xen(VIF)), (None, _)));
}

#[test]
fn a_vif_that_is_made_again_gets_the_device_that_its_keys_want() {
    let Some((mut net, place)) = place() else { return };
    let mut keeper = self::keeper(&place);
    let on_bridge = keys(&[("bridge", "br0")]);
    assert!(keeper.make(VIF, &on_bridge));
    let (Some(PassedDevice::NotMade { reason }), files) = keeper.passed(&Purpose::Xen(VIF)) else {
        panic!("there is no bridge")
    };
    assert!(reason.contains("network device vif7.0 on bridge br0") && files.is_empty(), "{reason}");
    net.add_bridge("br0").expect("a bridge");
    keeper.retry(VIF, &on_bridge);
    let index = net.link("vif7.0").expect("it exists").index;
    keeper.retry(VIF, &on_bridge);
    // A change while it is served counts when it is made again.
    let other = [("script", "/etc/xen/scripts/vif-route")];
    let connected = Keys::new(
        &VIF.backend_dir(),
        [("online", "1"), ("state", "4"), other[0]]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    assert!(!keeper.make(VIF, &connected));
    assert_eq!(net.link("vif7.0").expect("it exists").index, index);
    assert!(keeper.make(VIF, &keys(&other)));
    let link = net.link("vif7.0").expect("it exists");
    assert!(link.index != index && link.master.is_none());
    assert!(keeper.make(VIF, &keys(&[])), "it is on the switch now");
    net.link("vif7.0").expect_err("removed");
    // Refused by the process that serves it, and by the same keys.
    assert!(keeper.make(VIF, &keys(&[("bridge", "br0"), ("mac", "fe:ff:ff:ff:ff:ff")])));
    assert!(matches!(keeper.passed(&Purpose::Xen(VIF)), (None, _)));

    // What an earlier supervisor left.
    let mut first = self::keeper(&place);
    first.make(VIF, &on_bridge);
    drop(first);
    let mut keeper = self::keeper(&place);
    keeper.delete_stale(|_| true);
    net.link("vif7.0").expect("it is kept");
    keeper.delete_stale(|_| false);
    net.link("vif7.0").expect_err("nothing needs it");
}

#[test]
fn the_device_of_a_virtio_vif_is_made_when_it_can_be_and_kept_as_others_are() {
    let Some((mut net, place)) = place() else { return };
    let vm1 = Purpose::Virtio("vm1".to_owned());
    let config = vhost("vm1", Some("br0"), 2);
    let mut keeper = self::keeper(&place);
    keeper.make_virtio(&vhost("vm2", None, 2));
    assert!(!keeper.has(&Purpose::Virtio("vm2".to_owned())), "it is on the switch");
    let refused = keeper.add_virtio(&config).expect_err("there is no bridge");
    assert!(refused.contains("network device vm1 on bridge br0"), "{refused}");
    assert!(!keeper.has(&vm1));
    keeper.make_virtio(&config);
    let (Some(PassedDevice::NotMade { reason }), _) = keeper.passed(&vm1) else {
        panic!("there is no bridge")
    };
    assert!(reason.contains("network device vm1 on bridge br0"), "{reason}");
    assert!(keeper.wants_device(&vm1) && keeper.due().is_some());

    // Another interface has the name when the bridge appears.
    net.add_bridge("br0").expect("a bridge");
    net.add_bridge("vm1").expect("a bridge");
    keeper.retry = Instant::now();
    assert_eq!(keeper.follow(), [(vm1.clone(), DeviceChange::Tried)]);
    let (Some(PassedDevice::NotMade { reason }), _) = keeper.passed(&vm1) else {
        panic!("its name is taken")
    };
    assert!(reason.contains("an interface vm1 exists already"), "{reason}");
    keeper.retry = Instant::now();
    assert_eq!(keeper.follow(), [], "nothing has changed");
    net.delete("vm1").expect("deleted");
    keeper.retry = Instant::now();
    assert_eq!(keeper.follow(), [(vm1.clone(), DeviceChange::Tried)]);
    let (device, files) = made_for(&keeper, &vm1);
    assert_eq!((device.queues, files.len(), device.attached_to.as_str()), (2, 2, "br0"));
    let link = net.link("vm1").expect("it exists");
    assert_eq!(link.master, Some(net.link("br0").expect("a bridge").index));

    net.delete("vm1").expect("deleted");
    assert_eq!(change_of(&mut keeper, &vm1), DeviceChange::Renewed);
    let index = net.link("vm1").expect("it is made again").index;

    // With the next supervisor, and not beyond.
    drop((keeper, files));
    let mut keeper = self::keeper(&place);
    keeper.make_virtio(&vhost("vm1", Some("br0"), 4));
    assert_eq!(made_for(&keeper, &vm1).0.queues, 4);
    keeper.delete_stale(|_| false);
    assert_eq!(net.link("vm1").expect("it is kept").index, index);
    keeper.remove(&vm1);
    net.link("vm1").expect_err("removed");
}

/// A vif of virtio.
fn vhost(name: &str, bridge: Option<&str>, queues: u16) -> VhostVif {
    VhostVif {
        name: name.to_owned(),
        socket: "/nowhere".into(),
        mode: ringway_vhost_shell::Mode::Server,
        queues,
        offloads: ringway_datapath::OffloadCaps::ALL,
        bridge: bridge.map(str::to_owned),
        features: ringway_wire::virtio::Features(0),
        protocol: 0,
        max_memory: None,
        mac: None,
        rules: ringway_datapath::PortRules::default(),
        limits: ringway_xenbus::VifLimits::default(),
    }
}

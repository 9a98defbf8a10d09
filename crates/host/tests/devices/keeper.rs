//! The devices that a supervisor keeps for the processes of tenants.

use std::time::{Duration, Instant};

use ringway_host::{
    Bridged, DeviceChange, DeviceKeeper, LinkSetting, LowMtu, Note, Notes as _, Purpose,
};
use ringway_sim::KeptNotes;
use ringway_wire::DomId;
use ringway_xenbus::{Keys, Vif};

use crate::place::{Device, Net, OWNER, Place, bridged};

const VIF: Vif = Vif { backend: DomId(0), frontend: DomId(7), handle: 0 };
/// Longer than any pause before something is tried again.
const LATER: Duration = Duration::from_secs(60);

type Keeper = DeviceKeeper<Net, KeptNotes>;

fn keeper(place: &Place, now: Instant) -> Keeper {
    DeviceKeeper::new(place.net.clone(), place.notes.clone(), OWNER, 2, now)
}

/// What a toolstack has written of a vif.
fn keys(more: &[(&str, &str)]) -> Keys {
    let own = [("online", "1"), ("state", "1")];
    let all = own.iter().chain(more).map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Keys::new(&VIF.backend_dir(), all)
}

fn made<'a>(keeper: &'a Keeper, vif: &Purpose) -> &'a Device {
    keeper.passed(vif).expect("it can be made").expect("it has one")
}

/// Why it cannot be made.
fn refused<'a>(keeper: &'a Keeper, vif: &Purpose) -> &'a str {
    keeper.passed(vif).err().expect("it cannot be made")
}

fn virtio(name: &str, bridge: &str, queues: u16) -> Bridged {
    Bridged { queues, low_mtu: LowMtu::Warn, ..bridged(name, bridge, None) }
}

#[test]
fn a_device_is_kept_followed_and_removed_without_the_process_that_uses_it() {
    let place = Place::with(&["br0"]);
    let net = place.net.clone();
    let (vif, mut now) = (Purpose::Xen(VIF), Instant::now());
    let on_bridge = keys(&[("bridge", "br0")]);
    let mut first = keeper(&place, now);
    assert!(first.make(VIF, &on_bridge));
    assert!(!first.make(VIF, &on_bridge), "it has it already");
    let device = made(&first, &vif);
    assert_eq!((device.queues_made, device.attached_to.as_str()), (2, "br0"));
    let index = device.index;
    let state = first.states().remove(&vif).expect("it has one");
    assert_eq!((state.attached_to.as_str(), state.is_down, state.fault), ("br0", false, None));

    // The next process takes it over, with the next supervisor.
    drop(first);
    let mut next = keeper(&place, now);
    assert!(next.make(VIF, &on_bridge));
    assert_eq!((made(&next, &vif).index, made(&next, &vif).queues_made), (index, 2));

    // Before a tenant's next process.
    next.retry(VIF, &keys(&[("bridge", "br0"), ("ringway-max-queues", "1")]));
    assert_eq!(made(&next, &vif).queues_made, 2, "it has enough queues");
    next.retry(VIF, &keys(&[("bridge", "br0"), ("ringway-max-queues", "5")]));
    assert_eq!((made(&next, &vif).index, made(&next, &vif).queues_made), (index, 5));

    net.remove("vif7.0").expect("it exists");
    next.note_change(now);
    now += LATER;
    assert_eq!(next.follow(now), [(vif.clone(), DeviceChange::Renewed)]);
    assert_eq!(next.follow(now), [], "nothing has changed");
    assert!(made(&next, &vif).index > index);
    assert_eq!(next.states()[&vif].attached_to, "br0");

    // Its bridge comes back with a larger MTU.
    net.remove("br0").expect("it exists");
    next.note_change(now);
    now += LATER;
    assert_eq!(next.follow(now), []);
    let fault = next.states().remove(&vif).and_then(|state| state.fault).expect("it waits");
    assert!(fault.contains("waiting"), "{fault}");
    net.add_bridge("br0").expect("a bridge");
    net.add_other("port").expect("a link");
    place.set("port", &[LinkSetting::Mtu(9000), LinkSetting::Master("br0")]);
    now = next.due().expect("it is tried again");
    assert_eq!(next.follow(now), [(vif.clone(), DeviceChange::Mtu(9000))]);

    next.remove(&vif);
    assert_eq!(net.find("vif7.0"), None);
    assert!(matches!(next.passed(&vif), Ok(None)) && !next.has(&vif));

    // One that an administrator has made another's is not ours any more.
    assert!(next.make(VIF, &on_bridge));
    place.set("vif7.0", &[LinkSetting::Alias("mine")]);
    next.remove(&vif);
    assert!(net.find("vif7.0").is_some());
}

#[test]
fn a_vif_that_is_made_again_gets_the_device_that_its_keys_want() {
    let place = Place::default();
    let net = place.net.clone();
    let (vif, now) = (Purpose::Xen(VIF), Instant::now());
    let mut keeper = self::keeper(&place, now);
    let on_bridge = keys(&[("bridge", "br0")]);
    assert!(keeper.make(VIF, &on_bridge));
    let reason = refused(&keeper, &vif);
    assert!(reason.contains("network device vif7.0 on bridge br0"), "{reason}");
    net.add_bridge("br0").expect("a bridge");
    keeper.retry(VIF, &on_bridge);
    let index = made(&keeper, &vif).index;
    keeper.retry(VIF, &on_bridge);
    // A change while it is served counts when it is made again.
    let other = [("script", "/etc/xen/scripts/vif-route")];
    let connected = [("online", "1"), ("state", "4"), other[0]];
    let connected = connected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert!(!keeper.make(VIF, &Keys::new(&VIF.backend_dir(), connected)));
    assert_eq!(made(&keeper, &vif).index, index);
    assert!(keeper.make(VIF, &keys(&other)));
    let link = net.find("vif7.0").expect("it exists");
    assert!(link.index != index && link.master.is_none() && !link.is_up);
    assert!(keeper.make(VIF, &keys(&[])), "it is on the switch now");
    assert!(!keeper.wants_device(&vif));
    assert_eq!(net.find("vif7.0"), None);
    // Refused by the process that serves it, and by the same keys.
    assert!(keeper.make(VIF, &keys(&[("bridge", "br0"), ("mac", "fe:ff:ff:ff:ff:ff")])));
    assert!(matches!(keeper.passed(&vif), Ok(None)));
    drop(keeper);

    // What an earlier supervisor left.
    let mut first = self::keeper(&place, now);
    first.make(VIF, &on_bridge);
    drop(first);
    let mut keeper = self::keeper(&place, now);
    keeper.delete_stale(|_| true);
    assert!(net.find("vif7.0").is_some(), "it is kept");
    keeper.delete_stale(|_| false);
    assert_eq!(net.find("vif7.0"), None, "nothing needs it");
}

#[test]
fn the_device_of_a_virtio_vif_is_made_when_it_can_be_and_kept_as_others_are() {
    let place = Place::default();
    let net = place.net.clone();
    let (vm1, mut now) = (Purpose::Virtio("vm1".to_owned()), Instant::now());
    let mut keeper = self::keeper(&place, now);
    let refusal = keeper.add_virtio(virtio("vm1", "br0", 2), now).expect_err("there is no bridge");
    assert!(refusal.contains("network device vm1 on bridge br0"), "{refusal}");
    assert!(!keeper.has(&vm1));
    keeper.make_virtio(virtio("vm1", "br0", 2), now);
    let reason = refused(&keeper, &vm1);
    assert!(reason.contains("network device vm1 on bridge br0"), "{reason}");
    assert!(keeper.wants_device(&vm1) && keeper.due().is_some());

    // Another interface has the name when the bridge appears.
    for bridge in ["br0", "vm1"] {
        net.add_bridge(bridge).expect("a bridge");
    }
    assert_eq!(keeper.follow(now), [], "it is not time yet");
    now = keeper.due().expect("it is tried again");
    assert_eq!(keeper.follow(now), [(vm1.clone(), DeviceChange::Tried)]);
    let reason = refused(&keeper, &vm1);
    assert!(reason.contains("an interface vm1 exists already"), "{reason}");
    now += LATER;
    assert_eq!(keeper.follow(now), [], "nothing has changed");
    net.remove("vm1").expect("it exists");
    now += LATER;
    assert_eq!(keeper.follow(now), [(vm1.clone(), DeviceChange::Tried)]);
    let device = made(&keeper, &vm1);
    assert_eq!((device.queues_made, device.attached_to.as_str()), (2, "br0"));
    assert_eq!(keeper.states()[&vm1].attached_to, "br0");

    net.remove("vm1").expect("it exists");
    let state = keeper.states().remove(&vm1).expect("it has one");
    assert_eq!(state.attached_to, "br0");
    assert_eq!(state.fault.as_deref(), Some("its network device was deleted"));
    keeper.note_change(now);
    now += LATER;
    assert_eq!(keeper.follow(now), [(vm1.clone(), DeviceChange::Renewed)]);
    let index = made(&keeper, &vm1).index;

    // With the next supervisor, and not beyond.
    drop(keeper);
    let mut keeper = self::keeper(&place, now);
    keeper.make_virtio(virtio("vm1", "br0", 4), now);
    assert_eq!(made(&keeper, &vm1).queues_made, 4);
    keeper.delete_stale(|_| false);
    assert_eq!(made(&keeper, &vm1).index, index);
    keeper.remove(&vm1);
    assert_eq!(net.find("vm1"), None);
}

#[test]
fn what_was_applied_to_a_device_is_noted_once_the_disk_has_room() {
    let place = Place::with(&["br0"]);
    let (mut disk, mut now) = (place.notes.clone(), Instant::now());
    assert!(disk.toggle_room(), "it is full");
    let mut keeper = keeper(&place, now);
    keeper.make_virtio(virtio("vm1", "br0", 1), now);
    assert_eq!(disk.read(&Note::Devices, 1), b"");
    for _ in 0..2 {
        now += LATER;
        keeper.follow(now);
        assert!(keeper.due().is_some(), "it tries again");
    }
    disk.toggle_room();
    now += LATER;
    keeper.follow(now);
    assert_eq!(disk.read(&Note::Devices, 1), b"{");
    assert_eq!(keeper.due(), None, "nothing is left to do");
}

use std::time::Duration;

use ringway_net::LinkSetting;
use ringway_sys::poll::wait_readable;
use ringway_wire::DomId;
use ringway_xenbus::{Keys, Vif};

use super::*;
use crate::kernel::tests::place;

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
    match keeper.passed(&Purpose::Xen(VIF)) {
        (Some(PassedDevice::Made(made)), files) => (made, files),
        (other, _) => panic!("{other:?}"),
    }
}

/// Waits until it has seen a change.
fn change(keeper: &mut DeviceKeeper) -> DeviceChange {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if let Some((vif, change)) = keeper.follow().pop() {
            assert_eq!(vif, Purpose::Xen(VIF));
            return change;
        }
        let pause =
            keeper.due().map_or(PATIENCE, |due| due.saturating_duration_since(Instant::now()));
        wait_readable(&keeper.waker(), Some(pause)).expect("ours");
    }
    panic!("no change");
}

#[test]
fn a_device_is_kept_followed_and_removed_without_the_process_that_uses_it() {
    let Some((mut net, place)) = place() else { return };
    let on_bridge = keys(&[("bridge", "br0")]);
    let mut keeper = self::keeper(&place);
    assert!(keeper.make(VIF, &on_bridge));
    let (Some(PassedDevice::NotMade { reason }), files) = keeper.passed(&Purpose::Xen(VIF)) else {
        panic!("there is no bridge")
    };
    assert!(reason.contains("network device vif7.0 on bridge br0") && files.is_empty(), "{reason}");
    net.add_bridge("br0").expect("a bridge");
    net.set("br0", &[LinkSetting::Up]).expect("set");
    keeper.retry(VIF, &on_bridge);
    let (device, files) = made(&keeper);
    assert_eq!((device.queues, files.len(), device.attached_to.as_str()), (2, 2, "br0"));
    let index = net.link("vif7.0").expect("it exists").index;

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

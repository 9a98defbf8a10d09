//! What a keeper of devices rests on, by Linux itself. What it decides is tested over a simulated
//! kernel.

use std::time::Duration;

use ringway_net::{LinkSetting, Netlink};
use ringway_sys::poll::wait_readable;
use ringway_wire::DomId;
use ringway_xenbus::{Keys, Vif};

use super::*;
use crate::kernel::tests::place;

const VIF: Vif = Vif { backend: DomId(0), frontend: DomId(7), handle: 0 };
const PATIENCE: Duration = Duration::from_secs(30);

/// A keeper that has made the device of a vif, or has taken it over.
fn keeper(place: &tempfile::TempDir) -> DeviceKeeper {
    let dir = RunDir::new(place.path());
    let mut keeper = DeviceKeeper::open(&dir, "/run/ringway/here", 2).expect("netlink");
    let keys = [("online", "1"), ("state", "1"), ("bridge", "br0")];
    let keys = keys.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert!(keeper.make(VIF, &Keys::new(&VIF.backend_dir(), keys)));
    keeper
}

/// The device's index and open files.
fn made(keeper: &DeviceKeeper, net: &mut Netlink) -> (u32, Vec<Arc<TapFile>>) {
    let (Some(PassedDevice::Made(device)), files) = keeper.passed(&Purpose::Xen(VIF)) else {
        panic!("it has none")
    };
    assert_eq!((device.queues, files.len(), device.attached_to.as_str()), (2, 2, "br0"));
    let link = net.link("vif7.0").expect("it exists");
    assert_eq!(link.master, Some(net.link("br0").expect("a bridge").index));
    (link.index, files)
}

/// Waits until it has seen a change.
fn change(keeper: &mut DeviceKeeper) -> DeviceChange {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if let Some((vif, change)) = keeper.follow().pop() {
            assert_eq!(vif, Purpose::Xen(VIF));
            return change;
        }
        let due = keeper.due().map(|due| due.saturating_duration_since(Instant::now()));
        wait_readable(&keeper.waker(), Some(due.unwrap_or(PATIENCE))).expect("ours");
    }
    panic!("no change");
}

#[test]
fn open_queues_outlive_a_keeper_and_others_are_passed_when_their_device_is_deleted() {
    let Some((mut net, place)) = place() else { return };
    let without_bridge = keeper(&place);
    let (Some(PassedDevice::NotMade { .. }), _) = without_bridge.passed(&Purpose::Xen(VIF)) else {
        panic!("there is no bridge")
    };
    net.add_bridge("br0").expect("a bridge");
    net.set("br0", &[LinkSetting::Up]).expect("set");
    let first = made(&keeper(&place), &mut net);
    let mut keeper = keeper(&place);
    let (index, files) = made(&keeper, &mut net);
    assert_eq!(index, first.0);
    net.delete("vif7.0").expect("deleted");
    assert_eq!(change(&mut keeper), DeviceChange::Renewed);
    let (_, renewed) = made(&keeper, &mut net);
    assert!(renewed[0].name().is_ok() && files[0].name().is_err());
    keeper.remove(&Purpose::Xen(VIF));
    net.link("vif7.0").expect_err("removed, although its queues are open");
    assert!(renewed[0].name().is_err());
}

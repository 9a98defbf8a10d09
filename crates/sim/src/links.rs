//! The links of the backend's host.

use ringway_datapath::OffloadCaps;
use ringway_wire::DomId;

use crate::device::{Condition, Device, Station, Tap};
use crate::kernel::SimKernel;
use crate::ovs::TAG;
use crate::plane::DataPlane;
use crate::scenario::{Scenario, guest_of, mac_of};

/// A bridge without other links.
pub(crate) const ELSEWHERE: &str = "elsewhere";
/// How the administrator's names of devices begin.
pub(crate) const RENAMED: &str = "web";
/// How the names of virtio vifs begin.
const VIRTIO: &str = "vm";
/// The number of the first station behind a device, for addresses.
const FIRST_STATION: usize = 100;

/// Where the device of a patched guest should be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) place: Place,
    /// Whether it should be up, if that is known.
    pub(crate) is_up: Option<bool>,
    /// The version of the kernel since which that is so.
    pub(crate) since: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the bridge of the station at the far end, as its keys say.
    Bridge,
    Elsewhere,
    Nowhere,
    /// It went before the backend saw where it was.
    Any,
}

/// The bridge that the vif of a patched guest is on.
pub(crate) fn bridge_of(guest: usize) -> String {
    format!("bridge{guest}")
}

/// The bridge of Open vSwitch that the vif of such a guest is on.
pub(crate) fn ovs_bridge(guest: usize) -> String {
    format!("ovs{guest}")
}

/// What is configured as the bridge of a guest's vif, if it is on one.
pub(crate) fn configured_bridge(scenario: &Scenario, guest: usize) -> Option<String> {
    match (scenario.are_patched[guest], scenario.on_ovs[guest]) {
        (_, true) => Some(format!("{}.{TAG}", ovs_bridge(guest))),
        (true, false) => Some(bridge_of(guest)),
        (false, false) => None,
    }
}

/// The link by which a station is on that bridge.
pub(crate) fn far_link(guest: usize) -> String {
    format!("far{guest}")
}

/// Creates the links of the backend's host, and the stations behind them.
pub(crate) fn make_devices(plane: &mut DataPlane, scenario: &Scenario) -> SimKernel<Tap> {
    let patched = (0..scenario.are_patched.len()).filter(|guest| scenario.are_patched[*guest]);
    let patched: Vec<(usize, Condition)> =
        patched.map(|guest| (guest, Condition::default())).collect();
    let (ledger, canary, devices) = (plane.ledger.clone(), scenario.canary, patched.clone());
    let virtio_first = scenario.guests;
    let kernel = SimKernel::new(move |name| {
        let found = guest_of_device(name, virtio_first);
        let place = devices.iter().position(|(guest, _)| found == Some(*guest));
        let device = place.expect("only patched vifs have devices");
        Tap::of_vif(device, &devices[device].1, &ledger, canary)
    });
    let mut add = |device, stations| {
        let number = plane.devices.len();
        plane.devices.push(device);
        for _ in 0..stations {
            let mac = mac_of(FIRST_STATION + plane.stations.len());
            plane.stations.push(Station { mac, device: number });
        }
    };
    for (guest, condition) in patched {
        let (bridge, link) = (bridge_of(guest), far_link(guest));
        if scenario.on_ovs[guest] {
            kernel.add_ovs_bridge(&ovs_bridge(guest)).expect("the name is free");
            add(Device::of_vif(guest, OffloadCaps::NONE, (&kernel, link), condition), 0);
            continue;
        }
        let made = kernel.add_bridge(&bridge).and_then(|()| kernel.add_other(&link));
        made.and_then(|()| kernel.set_master(&link, Some(&bridge))).expect("the names are free");
        // What a guest of virtio accepts is known once it starts: the engines do the rest.
        let caps = scenario.guest_caps.get(guest).copied().unwrap_or(OffloadCaps::ALL);
        let place = (&kernel, link);
        add(Device::of_vif(guest, caps, place, condition), 1);
    }
    kernel.add_bridge(ELSEWHERE).expect("the name is free");
    scenario.uplink.into_iter().for_each(|uplink| add(Device::uplink(), uplink.stations));
    kernel
}

/// The name of the virtio vif with this number.
pub(crate) fn virtio_name(number: usize) -> String {
    format!("{VIRTIO}{number}")
}

/// The guest whose vif has a device that was made with this name, perhaps one of an administrator.
/// Guests of virtio come after so many others.
fn guest_of_device(name: &str, virtio_first: usize) -> Option<usize> {
    if let Some(guest) = name.strip_prefix(RENAMED) {
        return guest.parse().ok();
    }
    if let Some(number) = name.strip_prefix(VIRTIO) {
        return Some(virtio_first + number.parse::<usize>().ok()?);
    }
    let domid = name.strip_prefix("vif")?.strip_suffix(".0")?;
    Some(guest_of(DomId(domid.parse().ok()?)))
}

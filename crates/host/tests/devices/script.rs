//! Devices that a toolstack's hotplug script places.

use std::time::Instant;

use ringway_host::{DeviceKeeper, HOST_ADDRESS, Kernel as _, Purpose};
use ringway_sim::KeptNotes;
use ringway_wire::DomId;
use ringway_xenbus::{Keys, Vif};

use crate::place::{Net, OWNER, Place};

const VIF: Vif = Vif { backend: DomId(0), frontend: DomId(7), handle: 0 };
const SCRIPT: (&str, &str) = ("script", "/etc/xen/scripts/vif-bridge");
const NAMED: (&str, &str) = ("vifname", "web0");
const PLACED: (&str, &str) = ("hotplug-status", "connected");

/// What a process that keeps devices makes of these keys: the kernel's number of the device, or why
/// it makes no device.
fn made(place: &Place, more: &[(&str, &str)]) -> Result<u32, String> {
    let own = [("online", "1"), ("state", "1"), SCRIPT];
    let all = own.iter().chain(more).map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let (net, notes) = (place.net.clone(), place.notes.clone());
    let mut keeper = DeviceKeeper::<Net, KeptNotes>::new(net, notes, OWNER, 2, Instant::now());
    keeper.make(VIF, &Keys::new(&VIF.backend_dir(), all));
    let passed = keeper.passed(&Purpose::Xen(VIF)).map_err(str::to_owned)?;
    Ok(passed.expect("a script places it").index)
}

#[test]
fn a_device_that_waits_for_its_script_is_down_and_on_no_bridge() {
    let place = Place::with(&["br0"]);
    let index = made(&place, &[NAMED, ("bridge", "br0"), ("mtu", "1400")]).expect("made");
    // It outlives the process.
    let link = place.link("vif7.0");
    assert_eq!((link.index, link.is_up, link.master), (index, false, None));
    assert_eq!((link.mtu, link.address), (1400, Some(HOST_ADDRESS.0)));
    assert!(link.alias.is_some_and(|note| note.ends_with(" /local/domain/0/backend/vif/7/0")));
    assert_eq!(place.net.find("web0"), None, "the script gives it that name");
}

#[test]
fn a_device_is_found_by_its_note_under_any_name_that_it_may_have() {
    let place = Place::with(&["br0"]);
    let index = made(&place, &[NAMED]).expect("made");
    assert_eq!(made(&place, &[NAMED]), Ok(index), "the script has not renamed it yet");
    place.net.rename("vif7.0", "web0").expect("it is free");
    assert_eq!(made(&place, &[NAMED, PLACED]), Ok(index));
    assert_eq!(made(&place, &[NAMED]), Ok(index), "nor reported that");
    place.net.rename("web0", "other0").expect("it is free");
    assert_eq!(made(&place, &[NAMED, PLACED]), Ok(index), "an administrator may, too");
    assert_eq!(place.net.all().len(), 2, "there is one device");
    // Without its note, it is not ours.
    place.set("other0", &[ringway_host::LinkSetting::Alias("mine")]);
    assert!(made(&place, &[NAMED, PLACED]).is_ok_and(|other| other != index));
}

#[test]
fn a_name_of_another_interface_is_refused_as_long_as_a_script_may_need_it() {
    let place = Place::with(&["vif7.0"]);
    let refused = made(&place, &[]).expect_err("a bridge has it");
    assert!(refused.starts_with("the name vif7.0 is taken by another"), "{refused}");
    place.net.rename("vif7.0", "web0").expect("it is free");
    let refused = made(&place, &[NAMED]).expect_err("the script could not rename it");
    assert!(refused.starts_with("the name web0 is taken by another"), "{refused}");
    assert_eq!(place.net.find("vif7.0"), None, "nothing was made");
    made(&place, &[NAMED, PLACED]).expect("the script is done");
    // A device of another kind of use is not taken over.
    let place = Place::default();
    let theirs = place.net.clone().open_tap("vif7.0", 1).expect("a device");
    assert!(made(&place, &[]).is_err_and(|refused| refused.contains("its ifalias is not")));
    drop(theirs);
}

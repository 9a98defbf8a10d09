//! A kernel that refuses any one call.

use ringway_host::{Purpose, delete_devices};

use crate::place::{OWNER, Place, bridged};

/// The most calls of one action.
const CALLS_MAX: u32 = 100;

/// Does `act` with each of its calls refused in turn: afterwards `check` holds.
fn each_refused(
    prepare: impl Fn(&mut Place),
    mut act: impl FnMut(&mut Place),
    check: impl Fn(&mut Place, u32),
) {
    for call in 1..CALLS_MAX {
        let mut place = Place::with(&["br0"]);
        prepare(&mut place);
        place.net.refuse(call);
        act(&mut place);
        let is_over = place.net.refuse_nothing();
        check(&mut place, call);
        if is_over {
            assert!(call > 3, "an action takes several calls");
            return;
        }
    }
    panic!("an action takes more than {CALLS_MAX} calls");
}

/// The next process finds a device on br0, and knows where it belongs.
fn is_known(place: &mut Place, call: u32) {
    let mut device = place.made(&bridged("vm1", "br0", None)).expect("nothing is refused now");
    assert_eq!(place.master("vm1").as_deref(), Some("br0"), "call {call}");
    place.net.remove("br0").expect("it exists");
    place.follow(&mut device);
    drop(device);
    place.net.add_bridge("br0").expect("a bridge");
    drop(place.made(&bridged("vm1", "br0", None)).expect("taken over"));
    assert_eq!(place.master("vm1").as_deref(), Some("br0"), "call {call}");
}

#[test]
fn a_refused_call_while_a_device_is_made_leaves_nothing_half_done() {
    each_refused(
        |_| {},
        |place| drop(place.made(&bridged("vm1", "br0", None))),
        |place, call| {
            let has_note = place.net.find("vm1").is_none_or(|link| link.alias.is_some());
            assert!(has_note, "call {call} leaves a device without a note");
            is_known(place, call);
        },
    );
}

#[test]
fn a_refused_call_while_a_device_is_taken_over_is_made_up_for() {
    let prepare = |place: &mut Place| {
        drop(place.made(&bridged("vm1", "br0", None)).expect("made"));
        place.net.remove("br0").expect("it exists");
        place.net.add_bridge("br0").expect("a bridge");
    };
    each_refused(prepare, |place| drop(place.made(&bridged("vm1", "br0", None))), is_known);
}

#[test]
fn a_refused_call_while_a_device_is_made_again_is_made_up_for() {
    for with_bridge in [false, true] {
        for call in 1..CALLS_MAX {
            let mut place = Place::with(&["br0"]);
            let mut device = place.made(&bridged("vm1", "br0", None)).expect("made");
            place.follow(&mut device);
            place.net.remove("vm1").expect("it exists");
            if with_bridge {
                place.net.remove("br0").expect("it exists");
                place.net.add_bridge("br0").expect("a bridge");
            }
            place.net.refuse(call);
            place.follow(&mut device);
            let is_over = place.net.refuse_nothing();
            for _ in 0..2 {
                place.follow(&mut device);
            }
            assert_eq!(device.fault, None, "call {call}");
            let link = place.link("vm1");
            assert_eq!((link.index, link.is_up), (device.index, true), "call {call}");
            assert_eq!(place.master("vm1").as_deref(), Some("br0"), "call {call}");
            if is_over {
                break;
            }
        }
    }
}

#[test]
fn a_device_that_cannot_be_deleted_now_is_the_only_one_that_stays() {
    let delete = |place: &mut Place| delete_devices(&mut place.net.clone(), OWNER, |_, _| false);
    for call in [2, 3] {
        let place = &mut Place::with(&["br0"]);
        for name in ["vm1", "vm2"] {
            drop(place.made(&bridged(name, "br0", None)).expect("made"));
        }
        place.net.refuse(call);
        let deleted = delete(place);
        assert_eq!(deleted.len(), 1, "call {call}");
        let left = ["vm1", "vm2"].into_iter().filter(|name| place.net.find(name).is_some());
        let left: Vec<Purpose> = left.map(|name| Purpose::Virtio(name.to_owned())).collect();
        assert_eq!(delete(place), left, "call {call}");
    }
}

//! In which order a host takes over the vifs of Xen that it finds.

use ringway_datapath::MacAddr;
use ringway_host::{Event, Host, Note, Notes as _, Phase};
use ringway_sim::{KeptNotes, SimKernel};
use ringway_wire::DomId;
use ringway_xenbus::{Device, Vif};
use ringway_xenstore::{WatchEvent, Watched};

use crate::world::{Machine, wanted};

fn vif(guest: u8) -> Vif {
    Vif { backend: DomId(0), frontend: DomId(guest.into()), handle: 0 }
}

#[test]
fn vifs_that_had_traffic_of_late_are_taken_over_first_and_some_at_once() {
    let mut notes = KeptNotes::default();
    // One of these is gone.
    let busy = [vif(9), vif(8), vif(3)].map(Vif::backend_dir).join("\n");
    notes.write(&Note::Traffic, busy.as_bytes()).expect("there is room");
    let mut machine = Machine::start(SimKernel::default(), notes);
    for guest in 1..=8 {
        machine.make(&Device::new(vif(guest), MacAddr([2, 0, 0, 0, 0, guest])));
    }
    let mut served = vec![Vec::new()];
    while machine.act(Host::turn).expect("XenStore is there") {
        let guests: Vec<u16> = machine.host.vifs().map(|(vif, _)| vif.frontend.0).collect();
        if served.last() != Some(&guests) {
            served.push(guests);
        }
    }
    let expected = [vec![], vec![3, 8], vec![1, 2, 3, 8], (1..=8).collect()];
    assert_eq!(served, expected);
    assert_eq!(machine.host.counts(), (8, 0));
}

#[test]
fn a_vif_of_another_backend_is_not_taken_over_although_it_had_traffic() {
    let other = Vif { backend: DomId(5), ..vif(2) };
    let mut notes = KeptNotes::default();
    let busy = [other, vif(1)].map(Vif::backend_dir).join("\n");
    notes.write(&Note::Traffic, busy.as_bytes()).expect("there is room");
    let mut machine = Machine::start(SimKernel::default(), notes);
    for (made, last) in [(other, 2), (vif(1), 1)] {
        machine.make(&Device::new(made, MacAddr([2, 0, 0, 0, 0, last])));
    }
    machine.turn_all();
    let served: Vec<Vif> = machine.host.vifs().map(|(served, _)| served).collect();
    assert_eq!(served, [vif(1)]);
}

#[test]
fn a_host_has_turns_while_vifs_are_to_be_found_or_served() {
    let mut machine = Machine::start(SimKernel::default(), KeptNotes::default());
    assert!(machine.host.has_turns(), "it has not searched yet");
    machine.make(&Device::new(vif(1), MacAddr([2, 0, 0, 0, 0, 1])));
    machine.turn_all();
    assert!(!machine.host.has_turns());
    // A change of the directory of a guest, and of that of its vif.
    for path in ["/local/domain/0/backend/vif/1".to_owned(), vif(1).backend_dir()] {
        let event = WatchEvent { path, token: "vifs".to_owned() };
        machine.on(Event::Watch(Watched::Node(event)));
        assert!(machine.host.has_turns());
        machine.turn_all();
        assert!(!machine.host.has_turns());
    }
}

#[test]
fn each_vif_shows_how_often_its_process_was_replaced() {
    let notes = KeptNotes::default();
    let start = || {
        let mut machine = Machine::start(SimKernel::default(), notes.clone());
        machine.add(wanted("vm1", None), Phase::Start).expect("it is sound");
        machine.make(&Device::new(vif(1), MacAddr([2, 0, 0, 0, 0, 1])));
        machine.turn_all();
        machine
    };
    for restarts in 0..3 {
        let mut machine = start();
        let shown = ["vif1.0", "vm1"].map(|vif| machine.shown(vif).restarts);
        assert_eq!(shown, [restarts; 2]);
    }
    let mut machine = start();
    machine.on(Event::Removed("vm1".to_owned()));
    machine.add(wanted("vm1", None), Phase::Serving).expect("it is sound");
    let shown = ["vif1.0", "vm1"].map(|vif| machine.shown(vif).restarts);
    assert_eq!(shown, [3, 0], "one of them is another vif");
}

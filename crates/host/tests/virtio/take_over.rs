//! In which order a host takes over the vifs of Xen that it finds.

use ringway_datapath::MacAddr;
use ringway_host::{Event, Host, Note, Notes as _, Phase};
use ringway_sim::{KeptNotes, SimKernel};
use ringway_wire::DomId;
use ringway_xenbus::{Device, Vif};

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

//! In which order a host takes over the vifs of Xen that it finds.

use ringway_datapath::MacAddr;
use ringway_host::{Host, Note, Notes as _};
use ringway_sim::{KeptNotes, SimKernel};
use ringway_vif_shell::device;
use ringway_wire::DomId;
use ringway_xenbus::{Device, Vif};

use crate::world::Machine;

fn vif(guest: u8) -> Vif {
    Vif { backend: DomId(0), frontend: DomId(guest.into()), handle: 0 }
}

#[test]
fn vifs_that_had_traffic_of_late_are_taken_over_first() {
    let mut notes = KeptNotes::default();
    // One of these is gone.
    let busy = [vif(9), vif(3)].map(Vif::backend_dir).join("\n");
    notes.write(&Note::Traffic, busy.as_bytes()).expect("there is room");
    let mut machine = Machine::start(SimKernel::default(), notes);
    for guest in 1..=4 {
        let made = Device::new(vif(guest), MacAddr([2, 0, 0, 0, 0, guest]));
        let made = machine.act(|_, _, parts| parts.store.transaction(|tx| device::make(tx, &made)));
        made.expect("domain 0 may");
    }
    let mut order = Vec::new();
    while machine.act(Host::turn).expect("XenStore is there") {
        let mut guests = machine.host.vifs().map(|(vif, _)| vif.frontend.0);
        order.extend(guests.find(|guest| !order.contains(guest)));
    }
    assert_eq!(order, [3, 1, 2, 4]);
}

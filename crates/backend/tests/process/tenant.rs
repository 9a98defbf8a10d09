//! The process that serves the vifs of one tenant.

use std::io::ErrorKind;
use std::sync::Arc;

use ringway_control::{ProcessReport, Recipient, TenantOrder, TenantVif, TrunkRules};
use ringway_host_shell::Tenancy;
use ringway_trunk::{Trunk, Trunks};
use ringway_xenbus::Vif;
use ringway_xenstore::DomId;

use crate::running::{Running, link, report, vifs};

fn vif(guest: u16) -> Vif {
    Vif { backend: DomId(0), frontend: DomId(guest), handle: 0 }
}

fn ordered(guest: u16) -> TenantVif {
    TenantVif::Xen { domid: guest, handle: 0 }
}

#[test]
fn a_tenants_process_serves_the_vifs_that_its_supervisor_orders_and_no_others() {
    let (supervisor, theirs) = link();
    let (tenants_end, _switchs_end) = Trunk::make(1).and_then(Trunk::split).expect("descriptors");
    let start = TenantOrder::Start { vifs: 1, trunk: TrunkRules::default() };
    supervisor.send(&start, &tenants_end.fds()).expect("there is room");
    let order = |order: &TenantOrder| supervisor.send(order, &[]).expect("there is room");
    order(&TenantOrder::Serve { vif: ordered(1), device: None });
    let theirs = Arc::new(theirs);
    let mut running = Running::start(Recipient::of_supervisor(Arc::clone(&theirs)), move |begun| {
        let tenancy = Tenancy::wait(theirs, DomId(0))?;
        let (config, sockets) = (begun.config, begun.sockets);
        ringway_backend::run_tenant(Trunks, begun.store, config, sockets, tenancy, begun.stop)
    });
    assert_eq!(report(&supervisor), vifs(0));
    assert_eq!(report(&supervisor), ProcessReport::Ready);
    running.make(vif(2));
    running.make(vif(1));
    assert_eq!(report(&supervisor), vifs(1));
    let names = |running: &Running| {
        let vifs = running.status().vifs.into_iter();
        vifs.map(|vif| vif.name).collect::<Vec<String>>()
    };
    assert_eq!(names(&running), ["vif1.0"]);
    order(&TenantOrder::Serve { vif: ordered(2), device: None });
    assert_eq!(report(&supervisor), vifs(2));
    order(&TenantOrder::Trunk(TrunkRules { vlans: vec![5, 7], is_private: false }));
    order(&TenantOrder::Forget(ordered(1)));
    assert_eq!(report(&supervisor), vifs(1));
    assert_eq!(names(&running), ["vif2.0"]);
    let uplink = running.status().uplink.expect("the trunk");
    assert_eq!((uplink.name.as_str(), uplink.trunk, uplink.queues.len()), ("trunk", vec![5, 7], 1));
    // It starts once.
    order(&start);
    let error = running.wait().expect_err("it cannot go on");
    assert_eq!(error.kind(), ErrorKind::InvalidData);
}

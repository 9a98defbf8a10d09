//! The process that joins the trunks of tenants.

use std::io::ErrorKind;
use std::sync::Arc;

use ringway_control::{
    BackendRequest, Link, Permitted, ProcessReport, Recipient, SwitchOrder, TrunkRules,
};
use ringway_trunk::{End, Trunk};

use crate::running::{Running, link, report};

/// What a tenant with this address alone may use.
fn with_address(last: u8) -> Permitted {
    let own = Some(vec![[2, 0, 0, 0, 0, last]]);
    Permitted { own, shared: Vec::new(), trunk: TrunkRules::default() }
}

fn start() -> (Running, Link) {
    let (supervisor, theirs) = link();
    let theirs = Arc::new(theirs);
    let running = Running::start(Recipient::of_supervisor(Arc::clone(&theirs)), move |begun| {
        ringway_backend::run_switch(begun.config, begun.sockets, theirs, begun.stop)
    });
    assert_eq!(report(&supervisor), ProcessReport::Ready);
    (running, supervisor)
}

/// Has the process attach a trunk of two queues. The result is its tenant's end.
fn attach(supervisor: &Link, tenant: &str, last: u8) -> End {
    let (tenants_end, end) = Trunk::make(2).and_then(Trunk::split).expect("descriptors");
    let (tenant, permitted) = (tenant.to_owned(), with_address(last));
    let order = SwitchOrder::Attach { tenant: tenant.clone(), permitted };
    supervisor.send(&order, &end.fds()).expect("there is room");
    assert_eq!(report(supervisor), ProcessReport::Attached { tenant });
    tenants_end
}

/// Trunks with their numbers of queues, and where addresses are.
type Shown = (Vec<(String, usize)>, Vec<(String, String)>);

fn shown(running: &Running) -> Shown {
    let status = running.status();
    assert_eq!(status.pid, std::process::id());
    let trunks = status.trunks.into_iter().map(|it| (it.name, it.queues.len()));
    let fdb = status.fdb.into_iter().map(|entry| (entry.port, entry.mac));
    (trunks.collect(), fdb.collect())
}

fn expected(trunks: &[(&str, &str)]) -> Shown {
    let names = trunks.iter().map(|(name, _)| ((*name).to_owned(), 2));
    let fdb = trunks.iter().map(|(name, mac)| ((*name).to_owned(), (*mac).to_owned()));
    (names.collect(), fdb.collect())
}

#[test]
fn trunks_are_attached_changed_and_detached_as_the_supervisor_orders() {
    let (running, supervisor) = start();
    let _red = attach(&supervisor, "red", 1);
    assert_eq!(shown(&running), expected(&[("trunk-red", "02:00:00:00:00:01")]));
    let (tenant, permitted) = ("red".to_owned(), with_address(2));
    supervisor.send(&SwitchOrder::Allow { tenant, permitted }, &[]).expect("there is room");
    // Without its descriptors.
    let (tenant, permitted) = ("blue".to_owned(), with_address(3));
    supervisor.send(&SwitchOrder::Attach { tenant, permitted }, &[]).expect("there is room");
    match report(&supervisor) {
        ProcessReport::CutOff { tenant, .. } => assert_eq!(tenant, "blue"),
        other => panic!("{other:?}"),
    }
    assert_eq!(shown(&running), expected(&[("trunk-red", "02:00:00:00:00:02")]));
    let tenant = "red".to_owned();
    supervisor.send(&SwitchOrder::Detach { tenant }, &[]).expect("there is room");
    let _green = attach(&supervisor, "green", 4);
    assert_eq!(shown(&running), expected(&[("trunk-green", "02:00:00:00:00:04")]));
    let refused = running.call::<()>(&BackendRequest::Release { vif: "vm1".to_owned() });
    assert_eq!(refused, Err("the switch process has no vifs".to_owned()));
    let thread = running.stop();
    thread.join().expect("it does not panic").expect("it was asked to");
}

#[test]
fn the_switch_process_ends_with_its_supervisor() {
    let (running, supervisor) = start();
    drop(supervisor);
    let error = running.wait().expect_err("no one orders anything");
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

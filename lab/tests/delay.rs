//! Delay works in both directions and with each baseline, and a tool's own samples show it. There
//! is no test harness, because this program starts itself again as the parts of a topology.

use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

use ringway_lab::study::{Subject, TopologyKind};
use ringway_lab::topology::{Blueprint, Topology};
use ringway_lab::word::Tool;
use ringway_lab::{part, preflight};
use ringway_rig::launcher::{Launcher, find};
use ringway_rig::stop::Stop;
use ringway_rig::tools::{Flow, Load};

/// The delay in each direction.
const DELAY: Duration = Duration::from_millis(20);
/// The least round trip with this delay in both directions: load on the machine only adds to it.
const ROUND_TRIP_US: f64 = 40_000.0;

fn main() {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if words.first().and_then(|word| word.to_str()).is_some_and(part::is_part) {
        return part::run(&words).expect("a part does its work");
    }
    if find("sockperf").is_none() || preflight::isolate().is_err() {
        let _ = writeln!(std::io::stderr(), "SKIPPED: no sockperf, or no network namespaces");
        return;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let launcher = Launcher::new(&[], scratch.path(), Stop::default()).expect("its own path");
    for subject in [Subject::VethBridge, Subject::TapRelay] {
        for kind in [TopologyKind::Guests, TopologyKind::Wire] {
            let least = round_trip(&launcher, subject, kind);
            println!("{subject:?}, {kind:?}: the shortest round trip took {least:.0} us");
            assert!(least >= ROUND_TRIP_US, "{subject:?}, {kind:?}: {least} us");
        }
    }
}

/// The shortest of all round trips, in microseconds.
fn round_trip(launcher: &Launcher, subject: Subject, kind: TopologyKind) -> f64 {
    let blueprint = Blueprint { kind, delay: DELAY, ..Blueprint::pair(subject) };
    let topology = Topology::build(launcher, &blueprint).expect("it can be built");
    let (near, far) = (&topology.near[0], &topology.far[0]);
    let flow = Flow {
        guest: 0,
        sender: near.pid,
        receiver: far.pid,
        address: far.address,
        source_port: 20_001,
        port: 5201,
    };
    let measure = |seconds| {
        let flows = vec![flow.clone()];
        let load = Load { flows, seconds, warmup_seconds: 0.5, window: None, buffer: None };
        let working = Tool::Sockperf.start(launcher, &load).expect("it starts");
        working.finish().expect("it measures").courses.remove("rtt-median-us")
    };
    // A tool that has no CPU takes few samples: then it has more time.
    let courses = [1.0, 4.0, 16.0, 60.0].into_iter().filter_map(measure);
    let mut courses = courses.inspect(|course| println!("{course:?}"));
    let course = courses.find(|course| course.values.iter().flatten().count() >= 3);
    let course = course.expect("samples of three parts of the time");
    assert!(course.quantiles.is_sorted(), "{course:?}");
    course.quantiles[0]
}

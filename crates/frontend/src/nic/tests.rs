use std::sync::atomic::{AtomicUsize, Ordering};

use ringway_loopback::LoopbackDomain;
use ringway_wire::DomId;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;

const HOST: DomId = DomId(0);
const GUEST: DomId = DomId(7);

fn link(handle: u32) -> NicLink<LoopbackDomain> {
    let vif = Vif { backend: HOST, frontend: GUEST, handle };
    let ports = [PortId(0), PortId(1)];
    Nic::new(vif, format!("eth{handle}"), Interface::default(), ports).link
}

/// Counts the lines of a log.
struct Lines(Arc<AtomicUsize>);

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_backend_cannot_fill_the_log_of_its_guest() {
    let lines: Arc<AtomicUsize> = Arc::default();
    let (mut of_storm, mut other) = (link(0), link(1));
    tracing::subscriber::with_default(Lines(Arc::clone(&lines)), || {
        (0..1000).for_each(|_| of_storm.note(Note::Closed("its offer is unusable")));
    });
    let written = lines.load(Ordering::Relaxed);
    assert!((1..100).contains(&written), "{written} lines");
    tracing::subscriber::with_default(Lines(Arc::clone(&lines)), || {
        other.note(Note::Waits("it lacks memory"));
    });
    assert_eq!(lines.load(Ordering::Relaxed), written + 1, "it has lines of its own");
}

//! A device without memory, rings or network, which records its calls.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ringway_sys::poll;
use ringway_vhost::backend::{
    AreaRequest, Bases, FEATURES, Log, Negotiated, Offer, PROTOCOL_FEATURES,
};
use ringway_vhost::{Area, PairPlan, Region, RegionKey};
use ringway_vhost_shell::{BackendEnd, Device, Note};

/// A generous limit: only a machine that is stuck takes this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) offer: Offer,
    pub(crate) memory: Vec<RegionKey>,
    pub(crate) served: BTreeSet<u16>,
    pub(crate) negotiated: Negotiated,
    pub(crate) settled: usize,
    pub(crate) notes: Vec<String>,
    /// Why memory is refused, if it is.
    pub(crate) refusal: Option<String>,
    /// The inflight area that was requested, and the one that was received.
    pub(crate) wanted: Option<AreaRequest>,
    pub(crate) area: Option<Area>,
}

impl Recorder {
    pub(crate) fn new(pairs: u16) -> Recorder {
        let offer = Offer {
            features: FEATURES,
            floor: Negotiated::NONE,
            protocol: PROTOCOL_FEATURES,
            pairs,
            mtu_max: 9000,
        };
        Recorder {
            offer,
            memory: Vec::new(),
            served: BTreeSet::new(),
            negotiated: Negotiated::NONE,
            settled: 0,
            notes: Vec::new(),
            refusal: None,
            wanted: None,
            area: None,
        }
    }

    fn is_taken(&self) -> Result<(), String> {
        self.refusal.clone().map_or(Ok(()), Err)
    }
}

impl Device for Recorder {
    fn offer(&mut self, _: Option<u32>) -> Offer {
        self.offer
    }

    fn set_memory(&mut self, regions: Vec<Region>) -> Result<(), String> {
        self.memory = regions.iter().map(|region| region.key).collect();
        self.is_taken()
    }

    fn add_region(&mut self, region: Region) -> Result<(), String> {
        self.memory.push(region.key);
        self.is_taken()
    }

    fn remove_region(&mut self, region: RegionKey) -> Result<(), String> {
        self.memory.retain(|known| *known != region);
        Ok(())
    }

    fn set_log(&mut self, _: Log) -> Result<(), String> {
        Ok(())
    }

    fn start(&mut self, plan: PairPlan) -> Result<(), String> {
        assert!(self.served.insert(plan.pair), "started twice");
        Ok(())
    }

    fn stop(&mut self, pair: u16) -> Bases {
        assert!(self.served.remove(&pair), "stopped, and was not served");
        Bases { rx: 0, tx: 0 }
    }

    fn apply_changes(&mut self) -> Result<(), String> {
        self.settled += 1;
        Ok(())
    }

    fn announce(&mut self, _: [u8; 6]) {}

    fn set_mtu(&mut self, _: u16) {}

    fn make_area(&mut self, wanted: AreaRequest) -> Result<(), String> {
        self.wanted = Some(wanted);
        Ok(())
    }

    fn set_area(&mut self, area: Area) -> Result<(), String> {
        self.area = Some(area);
        Ok(())
    }

    fn drop_area(&mut self) {
        self.area = None;
    }

    fn negotiated(&mut self, negotiated: Negotiated) {
        self.negotiated = negotiated;
    }

    fn reset(&mut self) {
        self.memory.clear();
        self.served.clear();
    }

    fn note(&mut self, note: Note<'_>) {
        self.notes.push(format!("{note:?}"));
    }
}

/// Gives an end turns until a condition holds.
pub(crate) fn until(
    end: &mut BackendEnd,
    device: &mut Recorder,
    what: &str,
    mut holds: impl FnMut(&BackendEnd, &Recorder) -> bool,
) {
    let started = Instant::now();
    while !holds(end, device) {
        assert!(started.elapsed() < PATIENCE, "not {what}: {:?}, {device:?}", end.error());
        let now = Instant::now();
        let has_more = end.turn(device, now).expect("a front-end can be met");
        if has_more {
            continue;
        }
        let due = end.due().map_or(Duration::from_millis(20), |due| due.duration_since(now));
        wait(end, due.min(Duration::from_millis(20)));
    }
}

fn wait(end: &BackendEnd, pause: Duration) {
    let source = end.waker().map(|(fd, events)| ((), fd, events));
    poll::wait(source.as_slice(), Some(pause)).expect("descriptors are good");
}

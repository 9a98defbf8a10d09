//! A ringway device without workers: the queues that its client hands over become queue pairs.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use ringway_sys::eventfd::PeerCounters;
use ringway_sys::guest_memory::{self, GuestMemory};
use ringway_vhost::backend::{
    AreaRequest, Bases, FEATURES, Log, Negotiated, OPT_IN, Offer, PROTOCOL_FEATURES,
};
use ringway_vhost::{Area, PairPlan, Region, RegionKey};
use ringway_vhost_shell::Note;
use ringway_virtback::{PairControl, PairParts, QueuePair, QueueParts};
use ringway_virtio::QueueOptions;
use ringway_wire::vhost_user::VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD;

/// What a client has handed over.
pub(super) struct Device {
    offer: Offer,
    memory: Option<Arc<GuestMemory>>,
    plans: BTreeMap<u16, PairPlan>,
    has_changed: bool,
}

impl Device {
    pub(super) fn new(pairs: u16) -> Device {
        let offer = Offer {
            features: FEATURES.without(OPT_IN),
            floor: Negotiated::NONE,
            protocol: PROTOCOL_FEATURES & !VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD,
            pairs,
            mtu_max: 1500,
        };
        Device { offer, memory: None, plans: BTreeMap::new(), has_changed: false }
    }

    /// The pairs that are enabled.
    pub(super) fn pairs(&self) -> Result<Vec<QueuePair>> {
        let memory = self.memory.as_ref().context("the client has shared no memory")?;
        self.enabled().map(|plan| pair(plan, memory)).collect()
    }

    /// How many pairs are enabled.
    pub(super) fn pair_count(&self) -> usize {
        self.enabled().count()
    }

    /// Whether a pair was started or stopped since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    fn enabled(&self) -> impl Iterator<Item = &PairPlan> {
        self.plans.values().filter(|plan| plan.is_enabled)
    }
}

fn pair(plan: &PairPlan, memory: &Arc<GuestMemory>) -> Result<QueuePair> {
    let format = QueueOptions::of(plan.features).format;
    let parts = PairParts {
        memory: Arc::clone(memory),
        features: plan.features,
        tx: QueueParts::of_plan(&plan.tx, memory, format)?,
        rx: QueueParts::of_plan(&plan.rx, memory, format)?,
        control: Arc::new(PairControl::new(true)),
        counters: Arc::default(),
        calls: PeerCounters::default(),
    };
    Ok(QueuePair::attach(parts)?)
}

impl ringway_vhost_shell::Device for Device {
    fn offer(&mut self, _: Option<u32>) -> Offer {
        self.offer
    }

    fn set_memory(&mut self, regions: Vec<Region>) -> Result<(), String> {
        let memory = GuestMemory::map(regions.into_iter().map(region).collect());
        self.memory = Some(Arc::new(memory.map_err(|error| error.to_string())?));
        Ok(())
    }

    fn add_region(&mut self, added: Region) -> Result<(), String> {
        let memory = match &self.memory {
            None => GuestMemory::map(vec![region(added)]),
            Some(memory) => memory.with(region(added)),
        };
        self.memory = Some(Arc::new(memory.map_err(|error| error.to_string())?));
        Ok(())
    }

    fn remove_region(&mut self, removed: RegionKey) -> Result<(), String> {
        let Some(memory) = &self.memory else { return Ok(()) };
        let RegionKey { guest_address, size, user_address, .. } = removed;
        let memory = memory.without(guest_address, user_address, size);
        self.memory = Some(Arc::new(memory.map_err(|error| error.to_string())?));
        Ok(())
    }

    fn set_log(&mut self, _: Log) -> Result<(), String> {
        Err("nothing is migrated here".to_owned())
    }

    fn start(&mut self, plan: PairPlan) -> Result<(), String> {
        self.plans.insert(plan.pair, plan);
        self.has_changed = true;
        Ok(())
    }

    fn stop(&mut self, pair: u16) -> Bases {
        self.plans.remove(&pair);
        self.has_changed = true;
        Bases { rx: 0, tx: 0 }
    }

    fn apply_changes(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn announce(&mut self, _: [u8; 6]) {}

    fn set_mtu(&mut self, _: u16) {}

    fn make_area(&mut self, _: AreaRequest) -> Result<(), String> {
        Err("nothing is noted here".to_owned())
    }

    fn set_area(&mut self, _: Area) -> Result<(), String> {
        Err("nothing is noted here".to_owned())
    }

    fn drop_area(&mut self) {}

    fn negotiated(&mut self, _: Negotiated) {}

    fn reset(&mut self) {
        self.memory = None;
        self.plans.clear();
    }

    fn note(&mut self, note: Note<'_>) {
        if let Note::Closed(reason) | Note::Stopped(reason) = note {
            eprintln!("{reason}");
        }
    }
}

fn region(region: Region) -> guest_memory::Region {
    let RegionKey { guest_address, size, user_address, file_offset } = region.key;
    guest_memory::Region { guest_address, user_address, len: size, file_offset, fd: region.file }
}

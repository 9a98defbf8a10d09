//! What each request of a front-end changes in the session.

use std::os::fd::OwnedFd;

use ringway_wire::vhost_user::{MEM_SLOTS_MAX, Op, REGIONS_MAX, inflight_packed, inflight_split};
use ringway_wire::virtio::{Features, VIRTIO_F_RING_PACKED};

use super::{Action, AreaRequest, Backend, Log, Pending};
use crate::Fault;
use crate::fault::Space;
use crate::memory::{Added, Region, RegionKey, Table};
use crate::offered::{MTU_MIN, RefusedMtu};
use crate::request::{Area, Request};
use crate::ring::{Resumes, Ring};

impl Backend {
    /// Updates the state, and returns the reply to the request itself.
    pub(super) fn apply(&mut self, op: Op, request: Request) -> Result<Option<Pending>, Fault> {
        let number = |number: u64| Ok(Some(Pending::ReplyNumber(op, number)));
        match request {
            Request::GetFeatures => return number(self.offer.features().0),
            Request::GetProtocolFeatures => return number(self.offer.protocol()),
            Request::GetQueueNum => return number(u64::from(self.offer.pairs)),
            Request::GetMaxMemSlots => return number(MEM_SLOTS_MAX),
            Request::GetStatus => return number(self.status),
            Request::SetFeatures(features) => self.set_features(op, features)?,
            Request::SetProtocolFeatures(protocol) => self.set_protocol(protocol)?,
            // `SetOwner` is the first message of a session; `ResetOwner` is deprecated.
            Request::SetOwner | Request::ResetOwner => {}
            // The log is read on demand, and a ring's error closes the session.
            Request::SetLogFd(_) | Request::SetVringErr { .. } => {}
            Request::SetMemTable(regions) => self.set_memory(regions)?,
            Request::AddMemReg(region) => self.add_region(region)?,
            Request::RemMemReg(key) => self.remove_region(&key),
            Request::SetLogBase { size, offset, file } => {
                self.set_log(op, Log { file, size, offset })?;
                return number(0);
            }
            Request::SetVringNum { ring, size } => self.stopped_ring(op, ring)?.size = Some(size),
            Request::SetVringBase { ring, base } => self.set_base(op, ring, base)?,
            Request::SetVringAddr { ring, addresses } => self.ring(ring).set_addresses(addresses),
            Request::SetVringKick { ring, file } => self.set_kick(op, ring, file)?,
            Request::SetVringCall { ring, file } => self.ring(ring).set_call(file),
            Request::GetVringBase { ring } => {
                self.ring(ring).set_kick(None);
                self.reconcile();
                return Ok(Some(Pending::ReplyBase(ring)));
            }
            Request::SetVringEnable { ring, is_enabled } => {
                self.ring(ring).is_enabled = Some(is_enabled);
            }
            Request::SendRarp(mac) => self.push_action(Action::Announce(mac)),
            Request::NetSetMtu(mtu) => {
                self.refused_mtu = self.set_mtu(mtu).err();
                if self.refused_mtu.is_some() {
                    // The front-end asked for a reply.
                    return number(1);
                }
            }
            Request::GetInflightFd { rings, size } => {
                let len = self.area_len(rings, size);
                return Ok(Some(Pending::Act(Action::MakeArea(AreaRequest { rings, size, len }))));
            }
            Request::SetInflightFd(area) => self.set_area(op, area)?,
            Request::ResetDevice => {
                self.reset();
                self.rings.iter_mut().for_each(|ring| ring.is_enabled = None);
            }
            Request::SetStatus(status) => self.set_status(op, status)?,
        }
        Ok(None)
    }

    fn set_features(&mut self, op: Op, features: Features) -> Result<(), Fault> {
        let found = features.without(self.offer.features());
        if found != Features::NONE {
            return Err(Fault::Features { request: op.into(), found });
        }
        self.features = Some(features);
        Ok(())
    }

    fn set_protocol(&mut self, protocol: u64) -> Result<(), Fault> {
        let found = protocol & !self.offer.protocol();
        if found != 0 {
            return Err(Fault::Protocol { found });
        }
        self.protocol = Some(protocol);
        Ok(())
    }

    fn set_memory(&mut self, regions: Vec<Region>) -> Result<(), Fault> {
        let mut table = Table::default();
        for region in &regions {
            let one = region.key.guest_address;
            if table.add(region.key, REGIONS_MAX)? == Added::Known {
                return Err(Fault::Overlap { space: Space::Guest, one, other: one });
            }
        }
        self.memory.replace(table, self.served_count());
        self.stop_all();
        self.push_action(Action::SetMemory(regions));
        Ok(())
    }

    fn add_region(&mut self, region: Region) -> Result<(), Fault> {
        let max = usize::try_from(MEM_SLOTS_MAX).unwrap_or(usize::MAX);
        if self.memory.add(region.key, max)? == Added::New {
            self.stop_all();
            self.push_action(Action::AddRegion(region));
        }
        Ok(())
    }

    fn remove_region(&mut self, key: &RegionKey) {
        let served = self.served_count();
        if let Some(known) = self.memory.remove(key, served) {
            self.stop_all();
            self.push_action(Action::RemoveRegion(known));
        }
    }

    fn set_log(&mut self, op: Op, log: Log) -> Result<(), Fault> {
        if log.offset.checked_add(log.size).is_none() {
            let expected = "an offset below the end of all addresses";
            return Err(Fault::Value { request: op.into(), found: log.offset, expected });
        }
        self.stop_all();
        self.push_action(Action::SetLog(log));
        Ok(())
    }

    fn set_base(&mut self, op: Op, ring: u16, base: u32) -> Result<(), Fault> {
        let is_packed = self.offer.features().has(VIRTIO_F_RING_PACKED);
        if !is_packed && u16::try_from(base).is_err() {
            let expected = "an index of 16 bits";
            return Err(Fault::Value { request: op.into(), found: base.into(), expected });
        }
        self.stopped_ring(op, ring)?.base = Some(base);
        Ok(())
    }

    fn set_kick(&mut self, op: Op, ring: u16, file: Option<OwnedFd>) -> Result<(), Fault> {
        let Some(file) = file else {
            let expected = "a descriptor: rings are not polled all the time";
            return Err(Fault::Value { request: op.into(), found: ring.into(), expected });
        };
        self.ring(ring).set_kick(Some(file));
        Ok(())
    }

    /// Returns a stopped ring, for requests that may change only such a ring.
    fn stopped_ring(&mut self, op: Op, ring: u16) -> Result<&mut Ring, Fault> {
        if self.served[usize::from(ring / 2)].is_some() {
            return Err(Fault::RingRunning { request: op.into(), ring });
        }
        Ok(self.ring(ring))
    }

    fn set_mtu(&mut self, asked: u64) -> Result<(), RefusedMtu> {
        let most = self.offer.mtu_max();
        let mtu = u16::try_from(asked).ok().filter(|mtu| (MTU_MIN..=most).contains(mtu));
        let mtu = mtu.ok_or(RefusedMtu { asked, most })?;
        // QEMU sends the same for each pair. What another front-end sends later is not kept.
        if self.mtu == 0 {
            self.mtu = mtu;
        }
        self.push_action(Action::SetMtu(mtu));
        Ok(())
    }

    fn set_area(&mut self, op: Op, area: Area) -> Result<(), Fault> {
        if area.len < self.area_len(area.rings, area.size) {
            let expected = "room for all its rings";
            return Err(Fault::Value { request: op.into(), found: area.len, expected });
        }
        self.stop_all();
        self.resumes = Resumes::AtUsed;
        self.push_action(Action::SetArea(area));
        Ok(())
    }

    fn set_status(&mut self, op: Op, status: u64) -> Result<(), Fault> {
        if status > u64::from(u8::MAX) {
            let expected = "a status of 8 bits";
            return Err(Fault::Value { request: op.into(), found: status, expected });
        }
        self.status = status;
        // A reset keeps rings enabled: QEMU enables them before and after, and does not repeat it.
        if status == 0 {
            self.reset();
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.rings.iter_mut().for_each(Ring::reset);
        self.features = None;
        if std::mem::replace(&mut self.resumes, Resumes::AtBase) == Resumes::AtUsed {
            self.push_action(Action::DropArea);
        }
    }

    /// Bytes of an area, the same as in QEMU and DPDK.
    fn area_len(&self, rings: u16, size: u16) -> u64 {
        let is_packed = self.features.is_some_and(|it| it.has(VIRTIO_F_RING_PACKED));
        let len = if is_packed { inflight_packed::len } else { inflight_split::len };
        let ring = u64::try_from(len(usize::from(size))).unwrap_or(u64::MAX);
        u64::from(rings).saturating_mul(ring)
    }
}

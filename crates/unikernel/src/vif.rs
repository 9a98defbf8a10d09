//! The guest's vif: its handshake with the backend, and the resulting queue.

use std::fmt::Display;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use ringway_datapath::{MacAddr, OffloadCaps, Wakers as _};
use ringway_emu::{EmuEvent, EmuGrants, EmuHypervisor};
use ringway_hypervisor::{Hypervisor as _, QueueEvents};
use ringway_netfront::VifQueue;
use ringway_vif_shell::{FrontendEnd, FrontendProcess, Note, Released, device};
use ringway_xenbus::frontend::{Allocated, Allocation, Input, Preferences, QueueCount};
use ringway_xenbus::{KeySet, Keys, Vif};
use ringway_xenstore::{Client, Watched};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::device::VifDevice;
use crate::toolstack::store_of;

pub(crate) type Queue = VifQueue<EmuGrants, EmuEvent>;

/// A domain with one vif.
pub(crate) struct Guest {
    store: Client,
    end: FrontendEnd,
    link: Link,
    mac: MacAddr,
}

/// The state of the vif other than its handshake.
struct Link {
    hypervisor: EmuHypervisor,
    vif: Vif,
    /// The queue while the vif is not connected.
    idle: Option<Queue>,
    /// XenStore and the event channels of the queue.
    wakers: OwnedFd,
}

impl Guest {
    /// Makes this process the domain of a vif.
    pub(crate) fn join(dir: &Path, vif: Vif) -> Result<Guest> {
        let domid = vif.frontend;
        let hypervisor = EmuHypervisor::connect(dir, domid)
            .with_context(|| format!("become domain {domid} of {}", dir.display()))?;
        let mut store = store_of(dir, domid)?;
        let keys = device::read_keys(&mut store, &vif.frontend_dir(), KeySet::FrontendDevice)?;
        let mac = keys.context("the vif is gone")?.mac()?.context("the vif has no address")?;
        let wakers = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&wakers, &store, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        let end = FrontendEnd::new(vif, preferences());
        end.watch(&mut store)?;
        Ok(Guest { store, end, link: Link { hypervisor, vif, idle: None, wakers }, mac })
    }

    /// The address that the toolstack chose.
    pub(crate) fn mac(&self) -> MacAddr {
        self.mac
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.end.is_connected()
    }

    /// Begins the handshake.
    pub(crate) fn start(&mut self, device: &mut VifDevice<Queue>) -> Result<()> {
        let own = device::state(&mut self.store, &self.link.vif.frontend_state())?;
        let Guest { store, end, link, .. } = self;
        Ok(end.start(store, &mut Serving { link, device }, own)?)
    }

    /// Handles changes in XenStore.
    pub(crate) fn take_watches(&mut self, device: &mut VifDevice<Queue>) -> Result<()> {
        let Guest { store, end, link, .. } = self;
        while let Some(Watched::Node(_) | Watched::Overflow) = store.next_watch()? {
            end.backend_changed(store, &mut Serving { link, device })?;
        }
        Ok(())
    }

    /// Connects again, because the queue can no longer be used.
    pub(crate) fn recover(
        &mut self,
        device: &mut VifDevice<Queue>,
        fault: impl Display,
    ) -> Result<()> {
        let Guest { store, end, link, .. } = self;
        Ok(end.recover(store, &mut Serving { link, device }, preferences(), fault.to_string())?)
    }

    /// Disconnects from the backend, which may take `limit` to release the vif.
    pub(crate) fn leave(&mut self, device: &mut VifDevice<Queue>, limit: Duration) -> Result<()> {
        let Guest { store, end, link, .. } = self;
        end.feed(store, &mut Serving { link, device }, Input::Stop)?;
        let deadline = std::time::Instant::now() + limit;
        while !self.end.is_finished() {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                bail!("the backend has not released the rings in {limit:?}");
            }
            self.wait(left)?;
            self.take_watches(device)?;
        }
        Ok(())
    }

    /// Sleeps until an event of the backend or of XenStore.
    pub(crate) fn wait(&self, limit: Duration) -> Result<()> {
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::IN, data: epoll::EventData::new_u64(0) }; 4];
        match epoll::wait(&self.link.wakers, &mut events[..], Some(&Timespec::try_from(limit)?)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// One queue, whatever the offer, and no work left to the backend: smoltcp does everything itself.
fn preferences() -> Preferences {
    Preferences { queues: QueueCount::AtMost(1), features: OffloadCaps::NONE.into() }
}

impl Link {
    fn make_queue(&self, wanted: Allocation) -> io::Result<Queue> {
        let Link { hypervisor, vif, wakers, .. } = self;
        let event = || hypervisor.alloc_unbound(vif.backend);
        let events = match wanted.split_event_channels {
            true => QueueEvents::Split { tx: event()?, rx: event()? },
            false => QueueEvents::Single(event()?),
        };
        let mut queue = VifQueue::new(hypervisor.grants()?, vif.backend, events, Arc::default())?;
        queue.set_caps(OffloadCaps::NONE);
        let mut added = Ok(());
        queue.wakers(&mut |waker| {
            let data = epoll::EventData::new_u64(1);
            added = added.and(epoll::add(wakers, waker, data, epoll::EventFlags::IN));
        });
        added?;
        Ok(queue)
    }
}

/// The vif and its device.
struct Serving<'a> {
    link: &'a mut Link,
    device: &'a mut VifDevice<Queue>,
}

impl FrontendProcess for Serving<'_> {
    fn allocate(&mut self, _: &Keys, wanted: Allocation) -> Result<Allocated, String> {
        let queue = self.link.make_queue(wanted).map_err(|error| error.to_string())?;
        let config = queue.config();
        self.link.idle = Some(queue);
        // IPv4 without groups needs no multicast frames: others' cost it nothing.
        let multicast_control = wanted.multicast_control;
        Ok(Allocated { multicast_control, ..vec![config].into() })
    }

    fn release(&mut self) -> Released {
        // Closing the channels takes them out of `wakers`.
        if let Some(Err(in_use)) = self.link.idle.take().map(Queue::close) {
            eprintln!("pages are lost: {in_use}");
            return Released::KeptByBackend;
        }
        Released::Free
    }

    fn carrier_up(&mut self) -> Result<(), String> {
        if let Some(queue) = self.link.idle.take() {
            self.device.attach(queue);
        }
        Ok(())
    }

    fn carrier_down(&mut self) {
        self.link.idle = self.device.detach();
    }

    fn note(&mut self, note: Note<'_>) {
        match note {
            Note::State(state) => eprintln!("frontend: {state}"),
            Note::Refused(refusal) => eprintln!("{refusal}"),
            Note::Waits(reason) | Note::Closed(reason) => eprintln!("{reason}"),
            // Only for the backend's end.
            Note::AwaitsHotplug => {}
        }
    }
}

//! TAP devices as [`PortQueue`](ringway_datapath::PortQueue)s, by which frames leave and enter
//! Linux.
//!
//! Each emulated guest has one, whose far end is the guest's TCP/IP; others are on the host, on a
//! bridge or as the switch's uplink. This crate has no rings, grants or forwarding decisions.

mod queue;
mod vif_or_tap;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use ringway_datapath::headers::IpVersion;
use ringway_datapath::segment::takes_gso;
use ringway_datapath::{GsoKind, OffloadCaps, QueueCounters};
use ringway_sys::tun::{QueueMode, QueueState, TunFile, TunOffload};

pub use queue::TapQueue;
pub use ringway_datapath::Side;
pub use ringway_sys::tun::{Lifetime, TunFile as TapFile};
pub use vif_or_tap::VifOrTap;

/// A TAP device with a fixed number of queues, of which some are enabled.
///
/// It is deleted when this and all its [`TapQueue`]s are dropped.
#[derive(Debug)]
pub struct Tap {
    name: String,
    files: Vec<Arc<TunFile>>,
    enabled: usize,
    /// Work that may be left to the kernel in frames written to the device.
    caps: OffloadCaps,
    modes: Arc<Modes>,
}

/// How the queues of a device read and write frames.
#[derive(Debug, Default)]
struct Modes {
    /// What [`merge_read`](Tap::merge_read) was last given: a bit for each version of IP.
    merged_versions: AtomicU8,
    /// What [`merge`](Tap::merge) was last given.
    merge_len: AtomicUsize,
    /// What [`set_plain`](Tap::set_plain) was last given.
    is_plain: AtomicBool,
}

impl Tap {
    /// Makes a device, or takes the existing one, in this thread's network namespace, with all
    /// queues enabled and no work left to do in frames that enter by it. The kernel completes a
    /// name that ends in `%d`.
    ///
    /// # Errors
    /// If `queues` is 0 or more than 256, and errors of [`TunFile::open`], with the remedy.
    pub fn create(name: &str, queues: u16) -> io::Result<Tap> {
        let mode = if queues == 1 { QueueMode::Single } else { QueueMode::Multi };
        Tap::open(name, queues, mode)
    }

    /// Makes a device that can have several queues, even if `queues` is 1: a later process may open
    /// it with any number, if the device [outlives](Tap::set_lifetime) this process.
    ///
    /// # Errors
    /// As [`create`](Tap::create).
    pub fn create_multi_queue(name: &str, queues: u16) -> io::Result<Tap> {
        Tap::open(name, queues, QueueMode::Multi)
    }

    fn open(name: &str, queues: u16, mode: QueueMode) -> io::Result<Tap> {
        check_queue_count(queues.into(), QUEUES_MAX)?;
        let first = TunFile::open(name, mode)?;
        let name = first.name()?;
        let caps = caps_of(&first)?;
        let mut files = vec![Arc::new(first)];
        for _ in 1..queues {
            files.push(Arc::new(TunFile::open(&name, mode)?));
        }
        let tap = Tap { name, enabled: files.len(), files, caps, modes: Arc::default() };
        tap.set_offloads(OffloadCaps::NONE)?;
        Ok(tap)
    }

    /// A device that another process has made, from its [`files`](Tap::files). All queues are
    /// enabled, whatever an earlier user of the files did.
    ///
    /// # Errors
    /// If there are no files, or the device was deleted.
    pub fn from_files(files: Vec<Arc<TapFile>>) -> io::Result<Tap> {
        let Some(first) = files.first() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let (name, caps) = (first.name()?, caps_of(first)?);
        for file in files.iter().filter(|file| file.queue_state().is_ok_and(is_detached)) {
            file.set_queue(QueueState::Attached)?;
        }
        let tap = Tap { name, enabled: files.len(), files, caps, modes: Arc::default() };
        tap.set_offloads(OffloadCaps::NONE)?;
        Ok(tap)
    }

    /// The open files of the device, one for each queue, for another process.
    pub fn files(&self) -> impl Iterator<Item = &Arc<TapFile>> {
        self.files.iter()
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the work that the kernel may leave in frames that enter by this device: what the
    /// receiving peers accept.
    ///
    /// TAP has a single switch for the checksums of both IP versions, which segmentation requires,
    /// so if a peer lacks checksums of one version, the kernel does all work; UDP segmentation of
    /// both versions also has a single switch. This can be called at any time; frames that the
    /// kernel has already queued do not change.
    ///
    /// # Errors
    /// If the device was deleted.
    pub fn set_offloads(&self, caps: OffloadCaps) -> io::Result<()> {
        let Some(file) = self.files.first() else { return Ok(()) };
        let checksum = caps.checksum_v4 && caps.checksum_v6;
        let segmentation = checksum && caps.scatter_gather;
        file.set_offload(TunOffload {
            checksum,
            tso_v4: segmentation && caps.gso_v4,
            tso_v6: segmentation && caps.gso_v6,
            uso: segmentation && caps.uso_v4 && caps.uso_v6 && self.caps.uso_v4,
        })
    }

    /// Lets queues write TCP frames of a flow that continue each other as one, of at most `len_max`
    /// bytes; 0, as at first, to write each as it is. This can be called at any time.
    ///
    /// It is for a device whose frames end in this kernel, which then handles fewer. One that
    /// forwards them would have to cut them again. Linux before 6.3 takes at most 64 KiB.
    pub fn merge(&self, len_max: usize) {
        self.modes.merge_len.store(len_max, Ordering::Relaxed);
    }

    /// Lets queues merge TCP frames of a flow that continue each other as they read them, for a
    /// receiver that takes these offloads; [`OffloadCaps::NONE`], as at first, to read each as it
    /// is. This can be called at any time.
    ///
    /// It is for a device that gets its frames from a network without long ones, for one guest.
    pub fn merge_read(&self, caps: OffloadCaps) {
        let versions = [IpVersion::V4, IpVersion::V6];
        let taken = versions.into_iter().filter(|it| takes_gso(caps, GsoKind::tcp(*it)));
        let bits = taken.fold(0, |bits, version| bits | bit(version));
        self.modes.merged_versions.store(bits, Ordering::Relaxed);
    }

    /// Sets whether queues write what is marked valid with its checksum, as it would be on a wire,
    /// or, as at first, leave the checksum to this kernel. This can be called at any time.
    ///
    /// It is for a device from which a program takes frames without what the kernel knows of them,
    /// as a switch may. Frames that ask for work still leave it to the kernel, so who calls this
    /// completes those.
    pub fn set_plain(&self, is_plain: bool) {
        self.modes.is_plain.store(is_plain, Ordering::Relaxed);
    }

    /// Enables the first `count` queues and disables the others, so that a vif can reconnect with
    /// another number of queues while its device, addresses and connections stay. Frames that wait
    /// in a disabled queue are lost.
    ///
    /// # Errors
    /// If `count` is 0 or more than the number at creation, or the device was deleted.
    pub fn set_enabled(&mut self, count: u16) -> io::Result<()> {
        let count = usize::from(count);
        check_queue_count(count, self.files.len())?;
        // One by one, so that `enabled` is right even if a call fails. The first is never detached:
        // a device without a queue would lose its settings.
        while self.enabled < count {
            self.files[self.enabled].set_queue(QueueState::Attached)?;
            self.enabled += 1;
        }
        while self.enabled > count {
            self.files[self.enabled - 1].set_queue(QueueState::Detached)?;
            self.enabled -= 1;
        }
        Ok(())
    }

    /// Whether the device was deleted while its files were open.
    pub fn is_deleted(&self) -> bool {
        self.files.first().is_some_and(|file| file.name().is_err())
    }

    /// Sets whether the device is deleted with its last file.
    ///
    /// # Errors
    /// If the device was deleted.
    pub fn set_lifetime(&self, lifetime: Lifetime) -> io::Result<()> {
        self.files.first().map_or(Ok(()), |file| file.set_lifetime(lifetime))
    }

    /// A port queue for each enabled queue; `counters` returns the counters of a queue by its
    /// index.
    pub fn queues(
        &self,
        side: Side,
        counters: impl FnMut(usize) -> Arc<QueueCounters>,
    ) -> Vec<TapQueue> {
        let files = self.files.iter().take(self.enabled);
        let counters = (0..).map(counters);
        files
            .zip(counters)
            .map(|(file, counters)| {
                let (file, modes) = (Arc::clone(file), Arc::clone(&self.modes));
                TapQueue::new(file, side, self.caps, counters, modes)
            })
            .collect()
    }
}

/// A version of IP, as a bit.
fn bit(version: IpVersion) -> u8 {
    match version {
        IpVersion::V4 => 1,
        IpVersion::V6 => 2,
    }
}

fn is_detached(state: QueueState) -> bool {
    state == QueueState::Detached
}

/// What a device accepts: UDP segmentation only if the kernel is new enough.
fn caps_of(file: &TunFile) -> io::Result<OffloadCaps> {
    match file.set_offload(TunOffload { checksum: true, uso: true, ..TunOffload::default() }) {
        Ok(()) => Ok(OffloadCaps::ALL),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(OffloadCaps::NETIF),
        Err(error) => Err(error),
    }
}

/// The limit of the kernel's driver (`MAX_TAP_QUEUES`).
const QUEUES_MAX: usize = 256; // not a limit: the kernel's

fn check_queue_count(count: usize, max: usize) -> io::Result<()> {
    if (1..=max).contains(&count) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("TAP: {count} queues, where 1 to {max} are possible"),
    ))
}

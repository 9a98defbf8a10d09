//! The sessions of a network namespace: its network device, by the queues that another process has
//! opened there. What is served is decided by the host.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use ringway_datapath::{OffloadCaps, QueueCounters, Side};
use ringway_host::{Rings, Session, SessionHost, SessionPlace};
use ringway_tap::{Tap, TapFile, TapQueue};
use ringway_vhost::Backend;
use ringway_vhost_shell::{Obstacle, SessionSource};

use crate::session::{SessionEvent, VhostVif, VifPlace};

/// The sessions of a network namespace, one after another: each lasts as long as its device. `P`
/// learns that the next is wanted.
pub struct NamespaceSession<Q, P> {
    source: P,
    place: VifPlace,
    /// Work that the namespace may leave to the host.
    offloads: OffloadCaps,
    into_queue: IntoQueue<Q>,
    /// The queues of the next device.
    arrived: Option<Vec<OwnedFd>>,
    device: Option<TapRings<Q>>,
    /// Why it cannot be had.
    obstacle: Option<Obstacle>,
}

/// Makes a queue of the engines from one of a device.
type IntoQueue<Q> = fn(TapQueue) -> Q;

/// The queues of a device, as those of a guest.
struct TapRings<Q> {
    tap: Tap,
    offloads: OffloadCaps,
    into_queue: IntoQueue<Q>,
}

/// Opens the queues of a device, which are all enabled.
fn open(files: Vec<OwnedFd>, offloads: OffloadCaps) -> io::Result<(Tap, u16)> {
    let queues = u16::try_from(files.len()).unwrap_or(u16::MAX);
    let files = files.into_iter().map(|file| TapFile::from_fd(file).map(Arc::new));
    let tap = Tap::from_files(files.collect::<io::Result<_>>()?)?;
    tap.set_offloads(offloads)?;
    Ok((tap, queues))
}

impl<Q> Rings<Q> for TapRings<Q> {
    fn queue(&mut self, pair: u16, counters: &Arc<QueueCounters>) -> io::Result<(Q, OffloadCaps)> {
        let queues = self.tap.queues(Side::Guest, |_| Arc::clone(counters));
        let queue = queues.into_iter().nth(pair.into());
        let queue = queue.ok_or_else(|| io::Error::other("there is no such queue"))?;
        Ok(((self.into_queue)(queue), self.offloads))
    }

    fn taken_back(&mut self) {}
}

impl<Q, P: SessionSource> NamespaceSession<Q, P> {
    /// Waits for the device of a namespace.
    pub fn new(config: &VhostVif, source: P) -> NamespaceSession<Q, P>
    where
        TapQueue: Into<Q>,
    {
        let (place, offloads) = (config.place.clone(), config.wanted.offloads);
        NamespaceSession {
            source,
            place,
            offloads,
            into_queue: Into::into,
            arrived: None,
            device: None,
            obstacle: None,
        }
    }

    fn serve(&mut self, files: Vec<OwnedFd>, host: &mut impl SessionHost<Q>) -> Result<(), String> {
        self.leave(host);
        let NamespaceSession { offloads, into_queue, .. } = *self;
        let (tap, queues) = open(files, offloads).map_err(|error| error.to_string())?;
        self.obstacle = None;
        let device = self.device.insert(TapRings { tap, offloads, into_queue });
        for queue in 0..queues {
            host.start(queue, true, device);
        }
        host.log("its network device is attached");
        host.apply_changes(device)
    }

    fn leave(&mut self, host: &mut impl SessionHost<Q>) {
        if let Some(mut device) = self.device.take() {
            host.reset(&mut device);
        }
    }
}

impl<Q, P: SessionSource> Session<Q> for NamespaceSession<Q, P> {
    type Event = SessionEvent;

    fn turn(&mut self, host: &mut impl SessionHost<Q>, now: Instant) -> io::Result<bool> {
        // Another order for the source may have to be sent.
        self.source.poll_connection(now)?;
        let served = match self.arrived.take() {
            Some(files) => self.serve(files, host),
            None => self.device.as_mut().map_or(Ok(()), |device| host.apply_changes(device)),
        };
        if let Err(reason) = served {
            self.close(&reason, host, now);
        }
        Ok(false)
    }

    fn on(&mut self, event: SessionEvent, host: &mut impl SessionHost<Q>, _: Instant) {
        match event {
            // The next turn serves it, if the vif may be served.
            SessionEvent::Attached(files) => self.arrived = Some(files),
            SessionEvent::Waits(obstacle) => {
                host.log_end(&obstacle.reason);
                self.obstacle = Some(obstacle);
            }
            SessionEvent::Connected(_) | SessionEvent::AreaSent(_) => {}
        }
    }

    fn close(&mut self, reason: &str, host: &mut impl SessionHost<Q>, now: Instant) {
        self.leave(host);
        host.log_end(&format!("its network device is not served any more: {reason}"));
        // Who makes devices may have said more of it.
        self.obstacle.get_or_insert_with(|| Obstacle::fault(reason.to_owned()));
        self.source.disconnected(now);
    }

    fn end(&mut self, host: &mut impl SessionHost<Q>, _: Instant) {
        self.leave(host);
        host.log("the vif was removed");
    }

    fn due(&self) -> Option<Instant> {
        self.source.due()
    }

    fn is_serving(&self) -> bool {
        self.device.is_some()
    }

    fn said(&self) -> Option<&Backend> {
        None
    }

    fn error(&self) -> Option<String> {
        let known = self.obstacle.as_ref().map(|obstacle| obstacle.reason.as_str());
        let reason = known.unwrap_or("its network device is not made yet");
        self.device.is_none().then(|| reason.to_owned())
    }

    fn lacks_guest(&self) -> bool {
        let is_absence = self.obstacle.as_ref().is_none_or(|obstacle| obstacle.is_absence);
        self.device.is_none() && is_absence
    }

    fn blank_pairs(&self) -> Vec<u16> {
        Vec::new()
    }

    fn place(&self) -> SessionPlace {
        self.place.shown()
    }

    fn may_lose_memory(&self) -> bool {
        false
    }
}

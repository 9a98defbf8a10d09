//! A network namespace with a TAP device, and a thread that lives in it.

use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use ringway_datapath::{OffloadCaps, QueueCounters, QueueTotals};
use ringway_net::{LinkSetting, Netlink};
use ringway_sys::namespace::unshare_network;
use ringway_tap::{Side, Tap, TapQueue};

type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct Guest {
    number: u8,
    jobs: Sender<Job>,
    counters: Arc<QueueCounters>,
    pub(crate) tap: Tap,
}

impl Guest {
    /// The namespace and its thread go with the result.
    pub(crate) fn start(
        number: u8,
        queues: u16,
        caps: OffloadCaps,
    ) -> Result<Guest, Box<dyn Error>> {
        let (jobs, to_do) = channel::<Job>();
        let (ready, started) = channel();
        thread::spawn(move || {
            let device = unshare_network().and_then(|()| equip(number, queues, caps));
            let is_ready = device.is_ok();
            // If the receiver is gone, it has failed and reports that itself.
            let _ = ready.send(device);
            if is_ready {
                to_do.iter().for_each(|job| job());
            }
        });
        Ok(Guest { number, jobs, counters: Arc::default(), tap: started.recv()?? })
    }

    /// Does a job in the namespace. Sockets that it opens stay there.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Box<dyn Error>> {
        let (result, receiver) = channel();
        self.jobs.send(Box::new(move || {
            // As above.
            let _ = result.send(job());
        }))?;
        Ok(receiver.recv()?)
    }

    pub(crate) fn v4(&self) -> IpAddr {
        v4(self.number)
    }

    pub(crate) fn v6(&self) -> IpAddr {
        v6(self.number)
    }

    /// One thread owns them all, so they may share their counters.
    pub(crate) fn ports(&self) -> Vec<TapQueue> {
        self.tap.queues(Side::Guest, |_| Arc::clone(&self.counters))
    }

    pub(crate) fn totals(&self) -> QueueTotals {
        self.counters.totals()
    }
}

fn equip(number: u8, queues: u16, caps: OffloadCaps) -> io::Result<Tap> {
    let tap = Tap::create("eth0", queues)?;
    tap.set_offloads(caps)?;
    let mut net = Netlink::open()?;
    let address = LinkSetting::Address([2, 0, 0, 0, 0, number]);
    net.set("eth0", &[address, LinkSetting::GsoMaxSize(65535), LinkSetting::Up])?;
    net.add_address("eth0", v4(number), 24)?;
    net.add_address("eth0", v6(number), 64)?;
    Ok(tap)
}

fn v4(number: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, number])
}

fn v6(number: u8) -> IpAddr {
    IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number)])
}

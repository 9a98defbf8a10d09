//! What the guest of a scenario works with: its vif, the end of its time, and its targets.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fastrand::Rng;
use ringway_datapath::MacAddr;
use serde::{Deserialize, Serialize};

use crate::control_ring::ControlRing;
use crate::frame::{Route, arp_request};
use crate::guest::{Guest, state};
use crate::machine::SOON;
use crate::queue::{Prepared, Queue};

/// A station on the network, written `IP=MAC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The IP address.
    pub ip: Ipv4Addr,
    /// The Ethernet address.
    pub mac: MacAddr,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Peer, String> {
        let peer = text
            .split_once('=')
            .and_then(|(ip, mac)| Some(Peer { ip: ip.parse().ok()?, mac: MacAddr::parse(mac)? }));
        peer.ok_or_else(|| format!("{text:?}, expected such as 10.77.0.1=00:16:3e:40:01:00"))
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.ip, self.mac)
    }
}

/// The targets of a guest. `ringway-hostile run` sets all of them on the host that it creates.
#[derive(Debug, Clone, Copy, Default)]
pub struct Aim {
    /// The honest guest that others talk to.
    pub victim: Option<Peer>,
    /// The honest guest that talks to it.
    pub other: Option<Peer>,
    /// The host's own address on the network.
    pub host: Option<Peer>,
    /// An honest guest for which senders must segment frames.
    pub plain: Option<Peer>,
}

/// What happened to a guest's own vif and its traffic, for the verdict.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// The backend's reasons for closing its vif, one per closure.
    pub closed: Vec<String>,
    /// Whether the vif is served at the end.
    pub is_served: bool,
    /// Its counts: frames sent, reconnections, writes.
    pub counts: BTreeMap<String, u64>,
    /// Further notes.
    pub notes: Vec<String>,
    /// What it cannot do here, and why.
    pub skipped: Option<String>,
}

/// A running scenario.
#[derive(Debug)]
pub struct Stage {
    /// The guest.
    pub guest: Guest,
    /// Its targets.
    pub aim: Aim,
    /// When it ends.
    pub until: Instant,
    /// Its random choices, the same in each run.
    pub random: Rng,
    /// The results.
    pub account: Account,
}

impl Stage {
    /// A stage for `length`, with random choices from `seed`.
    pub fn new(guest: Guest, aim: Aim, length: Duration, seed: u64) -> Stage {
        let (until, random) = (Instant::now() + length, Rng::with_seed(seed));
        Stage { guest, aim, until, random, account: Account::default() }
    }

    /// Whether its time is up.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Counts something.
    pub fn count(&mut self, what: &str, by: u64) {
        *self.account.counts.entry(what.to_owned()).or_default() += by;
    }

    /// The victim.
    ///
    /// # Errors
    /// If none was given.
    pub fn victim(&self) -> Result<Peer> {
        self.aim.victim.context("the victim is unknown: give --victim IP=MAC")
    }

    /// The guest that talks to the victim.
    ///
    /// # Errors
    /// If none was given.
    pub fn other(&self) -> Result<Peer> {
        self.aim.other.context("the victim's peer is unknown: give --victim-peer IP=MAC")
    }

    /// The host.
    ///
    /// # Errors
    /// If none was given.
    pub fn host(&self) -> Result<Peer> {
        self.aim.host.context("the host's address is unknown: give --host IP=MAC")
    }

    /// The guest that takes no frames to be segmented, if there is one; otherwise the victim.
    ///
    /// # Errors
    /// If neither was given.
    pub fn plain(&self) -> Result<Peer> {
        self.aim.plain.map_or_else(|| self.victim(), Ok)
    }

    /// A route from an address of our own: the second to last of the receiver's /24.
    pub fn route_to(&self, to: Peer) -> Route {
        let [a, b, c, _] = to.ip.octets();
        Route { from: (self.guest.mac, Ipv4Addr::new(a, b, c, 253)), to: (to.mac, to.ip) }
    }

    /// The first queue.
    ///
    /// # Errors
    /// If the guest is not connected, which is an error of the scenario.
    pub fn queue(&mut self) -> Result<&mut Queue> {
        self.guest.queues.first_mut().context("the guest is not connected")
    }

    /// Connects as an honest frontend does that wants a control ring. Returns false, and says so in
    /// the account, if the backend offers none.
    ///
    /// # Errors
    /// If the backend does not connect.
    pub fn connect_with_control(&mut self, queues: u16, buffers: usize) -> Result<bool> {
        self.guest.start_over()?;
        if !self.guest.make_control()? {
            self.account.skipped = Some("the backend offers no control ring".to_owned());
            return Ok(false);
        }
        let queues = queues.min(self.guest.queues_max()?);
        self.guest.publish(queues, buffers, &[])?;
        self.guest.wait_for_backend(&[state::CONNECTED])?;
        Ok(true)
    }

    /// The control ring.
    ///
    /// # Errors
    /// If the guest has none, which is an error of the scenario.
    pub fn control(&mut self) -> Result<&mut ControlRing> {
        self.guest.control.as_mut().context("the guest has no control ring")
    }

    /// Sends one frame on the first queue, and counts it.
    ///
    /// # Errors
    /// If the guest is not connected.
    pub fn send(&mut self, frame: &[u8]) -> Result<()> {
        let until = self.until;
        let queue = self.queue()?;
        if queue.wait_for_room(1, until) {
            let prepared = Prepared::new(queue, 0, frame, 0, None);
            prepared.push(queue);
            queue.publish_tx();
            self.count("frames", 1);
        }
        Ok(())
    }

    /// Teaches a peer our addresses, so that it replies to us.
    ///
    /// # Errors
    /// If the guest is not connected.
    pub fn introduce(&mut self, to: Peer) -> Result<()> {
        let request = arp_request(self.route_to(to));
        self.send(&request)
    }

    /// Sends frames on all queues as fast as the backend takes them, until the end.
    ///
    /// # Errors
    /// If the guest is not connected.
    pub fn pump(&mut self, frames: &[Vec<Prepared>]) -> Result<()> {
        let until = self.until;
        let mut sent = 0;
        let mut turn = 0_usize;
        while Instant::now() < until {
            let mut has_sent = false;
            for (queue, frames) in self.guest.queues.iter_mut().zip(frames) {
                let mut pushed = 0;
                while let Some(frame) = frames.get(turn % frames.len().max(1)) {
                    if queue.tx_room() < frame.slots() || pushed == 64 {
                        break;
                    }
                    frame.push(queue);
                    pushed += 1;
                    turn = turn.wrapping_add(1);
                }
                if pushed > 0 {
                    queue.publish_tx();
                    sent += pushed;
                    has_sent = true;
                }
            }
            if !has_sent {
                if let (Some(queue), Some(frame)) =
                    (self.guest.queues.first(), frames.first().and_then(|all| all.first()))
                {
                    // Wait for half of the ring, or for the slots of the longest frame.
                    queue.wait_for_room(frame.slots(), until);
                }
            }
        }
        self.count("frames", sent);
        Ok(())
    }

    /// Connects, breaks a rule, and expects the backend to close the vif.
    ///
    /// # Errors
    /// If the backend does not.
    pub fn provoke(&mut self, break_it: impl FnOnce(&mut Queue)) -> Result<()> {
        self.guest.connect(1, 32)?;
        break_it(self.queue()?);
        let reason = self.guest.closed()?;
        self.account.closed.push(reason);
        Ok(())
    }

    /// Writes keys in place of the honest ones, and expects the backend to refuse them.
    ///
    /// # Errors
    /// If the backend does not.
    pub fn expect_refusal(&mut self, queues: u16, keys: &[(&str, Option<&str>)]) -> Result<()> {
        self.guest.start_over()?;
        self.guest.publish(queues, 4, keys)?;
        let reason = self.guest.closed()?;
        self.account.closed.push(reason);
        Ok(())
    }

    /// Does something after which the backend may close the vif or serve it, and waits until the
    /// backend has seen all of it.
    ///
    /// # Errors
    /// If the backend neither closes the vif nor consumes what is in its ring.
    pub fn try_out(&mut self, what: impl FnOnce(&mut Queue)) -> Result<()> {
        self.guest.connect(1, 32)?;
        what(self.queue()?);
        let deadline = Instant::now() + SOON;
        loop {
            if !self.guest.is_served()? {
                self.guest.wait_for_backend(&[state::CLOSING, state::CLOSED])?;
                let reason = self.guest.closed()?;
                self.account.closed.push(reason);
                return Ok(());
            }
            if self.queue()?.tx_room() == 256 {
                self.count("served", 1);
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("the backend neither responded to all requests nor closed the vif");
            }
            // waits: it reads again until all have a response, or the vif is closed.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

//! Announces the stations behind a port, in their name: the network learns where they are now.
//!
//! The control plane decides when. The frames enter by a queue of the port, as if its guest had
//! sent them: they go where the guest's own frames go, and the switch learns from them. What they
//! contain is not checked against the port's rules: a guest that may send no reverse ARP is
//! announced by it all the same.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringway_datapath::{BATCH, Frame, FrameBatch, FramePool, MacAddr, Verdict};
use ringway_switch::{Claim, PortPolicy};

/// Frames of each queue that are searched for further claims.
const WATCHED: usize = BATCH;

/// What is announced of the stations behind a port, by whichever of its queues is first.
#[derive(Debug, Default)]
pub struct Announcement {
    may_route: bool,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    claims: Vec<Claim>,
    /// The first of them that is to be announced.
    next: usize,
    /// An address that is to be announced besides.
    asked: Option<MacAddr>,
    /// How many more claims frames may add.
    unlearned: usize,
    sent: u64,
}

impl Announcement {
    /// Of these claims, and of up to so many more that the first frames of the port show.
    /// `may_route` says that a router may be among the stations.
    pub fn new(claims: Vec<Claim>, learned_max: usize, may_route: bool) -> Announcement {
        let known = Known { claims, next: 0, asked: None, unlearned: learned_max, sent: 0 };
        Announcement { may_route, known: Mutex::new(known) }
    }

    /// Has every claim announced, those that were announced before once more.
    pub fn repeat(&self) {
        self.known().next = 0;
    }

    /// Has this address announced. Several requests before it is sent become one.
    pub fn ask(&self, mac: MacAddr) {
        self.known().asked = Some(mac);
    }

    /// The next frame that is to be sent.
    pub fn next_frame(&self) -> Option<Vec<u8>> {
        let mut known = self.known();
        let asked = known.asked.take().map(|mac| Claim { mac, ip: None });
        let claim = match asked {
            Some(claim) => claim,
            None => {
                let claim = *known.claims.get(known.next)?;
                known.next += 1;
                claim
            }
        };
        known.sent += 1;
        Some(claim.announcement(self.may_route))
    }

    /// How many frames were made of it.
    pub fn sent(&self) -> u64 {
        self.known().sent
    }

    /// Adds what a frame has shown. Returns whether any of that is new.
    fn learn(&self, shown: Claim) -> bool {
        let mut known = self.known();
        let mut is_new = false;
        // The Ethernet address is announced by itself as well.
        for claim in [Claim { ip: None, ..shown }, shown] {
            if known.unlearned > 0 && !known.claims.contains(&claim) {
                known.claims.push(claim);
                known.unlearned -= 1;
                is_new = true;
            }
        }
        is_new
    }

    fn learns(&self) -> bool {
        self.known().unlearned > 0
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A queue's part in the announcement of its port. Nearly always it has none.
#[derive(Debug, Default)]
pub(crate) struct Announcing {
    announcement: Option<Arc<Announcement>>,
    /// Whether there may be frames to send.
    is_pending: bool,
    /// Frames that are still to be searched.
    watched: usize,
    /// The policy of the port, while announcements enter without its checks of contents.
    checked: Option<Arc<PortPolicy>>,
}

impl Announcing {
    /// Sends what is to be announced, and searches the next frames.
    pub(crate) fn begin(&mut self, announcement: Arc<Announcement>) {
        self.watched = if announcement.learns() { WATCHED } else { 0 };
        (self.announcement, self.is_pending) = (Some(announcement), true);
    }

    /// Fills an empty batch with announcements. Returns whether there are any: the policy does not
    /// check their contents then, until [`Announcing::watch`] is called. Without a buffer one is
    /// lost, as any frame may be. They are not counted as frames of the guest.
    #[inline]
    pub(crate) fn fill(
        &mut self,
        pool: &mut FramePool,
        into: &mut FrameBatch,
        policy: &mut Arc<PortPolicy>,
    ) -> bool {
        self.announcement.is_some() && self.fill_pending(pool, into, policy)
    }

    #[cold]
    fn fill_pending(
        &mut self,
        pool: &mut FramePool,
        into: &mut FrameBatch,
        policy: &mut Arc<PortPolicy>,
    ) -> bool {
        while self.is_pending && into.remaining_capacity() > 0 {
            let next = self.announcement.as_ref().and_then(|it| it.next_frame());
            let Some(bytes) = next else {
                self.is_pending = false;
                break;
            };
            let Some(mut frame) = pool.take(bytes.len()) else { continue };
            frame.bytes_mut().copy_from_slice(&bytes);
            into.push(frame);
        }
        if into.is_empty() {
            self.forget_if_done();
            return false;
        }
        let unchecked = Arc::new(policy.unchecked());
        self.checked = Some(std::mem::replace(policy, unchecked));
        true
    }

    /// Called with frames that have their verdicts. Searches those that were accepted for claims,
    /// or has the policy check contents again if they are announcements.
    #[inline]
    pub(crate) fn watch(&mut self, frames: &[Frame], policy: &mut Arc<PortPolicy>) {
        if self.announcement.is_some() {
            self.watch_active(frames, policy);
        }
    }

    #[cold]
    fn watch_active(&mut self, frames: &[Frame], policy: &mut Arc<PortPolicy>) {
        match self.checked.take() {
            Some(checked) => *policy = checked,
            None => self.learn_from(frames, policy),
        }
        self.forget_if_done();
    }

    /// An address that the port shares with others may be at another one by the time of its
    /// announcement.
    fn learn_from(&mut self, frames: &[Frame], policy: &PortPolicy) {
        let Some(announcement) = &self.announcement else { return };
        let searched = frames.iter().take(self.watched);
        let accepted = searched.filter(|frame| !matches!(frame.verdict, Verdict::Drop(_)));
        let shown = accepted.filter_map(|frame| Claim::of(frame.bytes()));
        for claim in shown.filter(|claim| !policy.may_take(claim.mac)) {
            self.is_pending |= announcement.learn(claim);
        }
        self.watched = self.watched.saturating_sub(frames.len());
    }

    fn forget_if_done(&mut self) {
        if self.watched == 0 && !self.is_pending {
            self.announcement = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(station: u8, ip: Option<[u8; 4]>) -> Claim {
        Claim { mac: MacAddr([2, 0, 0, 0, 0, station]), ip: ip.map(Into::into) }
    }

    fn frames(announcement: &Announcement) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| announcement.next_frame()).collect()
    }

    fn of(claims: &[Claim]) -> Vec<Vec<u8>> {
        claims.iter().map(|claim| claim.announcement(false)).collect()
    }

    #[test]
    fn what_frames_show_is_announced_once_up_to_a_number() {
        let known = [claim(1, None), claim(1, Some([10, 0, 0, 1]))];
        let announcement = Announcement::new(known.to_vec(), 3, false);
        assert_eq!(frames(&announcement), of(&known));
        for claim in known {
            assert!(!announcement.learn(claim), "it is known");
        }
        let shown = [claim(1, Some([10, 0, 0, 2])), claim(2, None), claim(2, Some([10, 0, 0, 3]))];
        assert!(announcement.learn(shown[0]) && announcement.learn(shown[2]));
        assert_eq!(frames(&announcement), of(&shown));
        assert!(!announcement.learn(claim(3, None)) && !announcement.learns());
        assert_eq!(frames(&announcement), of(&[]));
        announcement.repeat();
        assert_eq!(frames(&announcement), of(&[&known[..], &shown].concat()));
        assert_eq!(announcement.sent(), 2 + 3 + 5);
    }

    #[test]
    fn an_address_that_was_asked_for_is_announced_once() {
        let announcement = Announcement::default();
        announcement.ask(MacAddr([4; 6]));
        announcement.ask(MacAddr([2; 6]));
        assert_eq!(frames(&announcement), of(&[Claim { mac: MacAddr([2; 6]), ip: None }]));
        announcement.repeat();
        assert_eq!(frames(&announcement), of(&[]));
    }
}

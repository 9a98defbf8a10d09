//! How a worker waits when there is nothing to do.

use std::mem::MaybeUninit;
use std::time::Duration;

use ringway_datapath::{Pending, PortQueue, Wakers};
use rustix::event::epoll;

use super::{INBOX, Worker};
use crate::gauge::STALL;

/// Descriptors handled per look.
const EVENTS_MAX: usize = 64;
/// How long to wait for buffers that other workers have.
const SHORTAGE: Duration = Duration::from_millis(1);

impl<Q: PortQueue + Wakers> Worker<Q> {
    /// Waits a little where there is work but no buffer: they come back with our own events, or
    /// from another worker, which does not know that we wait.
    pub(super) fn wait_for_memory(&mut self) {
        if self.inbox.prepare_sleep() {
            self.wait(Some(SHORTAGE));
            self.inbox.awake();
        }
    }

    /// Arms every queue, makes sure that nothing came meanwhile, and waits.
    pub(super) fn sleep(&mut self) {
        if self.arm_all() == Pending::Work || !self.inbox.prepare_sleep() {
            return;
        }
        // A source that is held must see the pressure fall, or be nudged for it: it looks once
        // more after saying that it sleeps.
        let mut timeout = None;
        for slot in &self.active {
            let Some(attached) = self.slots[*slot].attached() else { continue };
            // Without credit it waits for nothing but the time.
            let due = attached.credit_due(self.now);
            if due.is_none() && !attached.is_held() {
                self.inbox.awake();
                return;
            }
            timeout = sooner(timeout, due);
        }
        // One that has stalled wakes us when it has room; only the others have a clock to watch.
        let slots = &mut self.slots;
        let is_timed =
            |slot: &usize| slots[*slot].attached().is_some_and(|attached| attached.has_clock());
        let stall = self.backlogged.iter().any(is_timed).then_some(STALL);
        self.wait(sooner(timeout, stall));
        self.inbox.awake();
        self.has_slept = true;
    }

    /// Arms the active queues and drops them from the list; those that are held, or are out of
    /// credit, stay in it.
    fn arm_all(&mut self) -> Pending {
        let mut pending = Pending::Nothing;
        let mut position = 0;
        while let Some(&slot) = self.active.get(position) {
            let Some(attached) = self.slots[slot].attached() else {
                self.active.swap_remove(position);
                continue;
            };
            if let Some(gauge) = attached.holder() {
                gauge.await_relief();
                position += 1;
                continue;
            }
            if attached.credit_due(self.now).is_some() {
                position += 1;
                continue;
            }
            if !attached.kept.is_empty() {
                pending = Pending::Work;
                position += 1;
                continue;
            }
            match attached.queue.arm() {
                Ok(Pending::Work) => {
                    pending = Pending::Work;
                    position += 1;
                }
                Ok(Pending::Nothing) => {
                    attached.is_active = false;
                    self.active.swap_remove(position);
                }
                Err(down) => {
                    self.active.swap_remove(position);
                    self.port_down(slot, down);
                    // The next round tells those whom it held.
                    pending = Pending::Work;
                }
            }
        }
        for position in 0..self.backlogged.len() {
            let slot = self.backlogged[position];
            let Some(attached) = self.slots[slot].attached() else { continue };
            if !matches!(attached.queue.arm(), Ok(Pending::Work)) {
                continue;
            }
            // While it waits, frames that could enter are no reason to stay awake; room is.
            let waits = attached.is_held() || attached.credit_due(self.now).is_some();
            let is_room = match waits {
                true => attached.egress(&mut self.pool, self.now).map_or(true, |sent| {
                    self.has_relieved |= sent.relieved;
                    sent.moved > 0 || sent.relieved
                }),
                false => true,
            };
            if is_room {
                pending = Pending::Work;
                self.activate(slot);
            }
        }
        pending
    }

    /// Handles descriptors that are readable now, or within `timeout`.
    pub(super) fn look(&mut self, timeout: Duration) {
        self.wait(Some(timeout));
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout| rustix::event::Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let mut space = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, timeout.as_ref()) else {
            // Interrupted: the next round looks again.
            return;
        };
        for event in events {
            match event.data.u64() {
                INBOX => self.inbox.clear(),
                slot => self.woken(usize::try_from(slot).unwrap_or(usize::MAX)),
            }
        }
    }
}

/// The shorter of two waits, of which there may be none.
fn sooner(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

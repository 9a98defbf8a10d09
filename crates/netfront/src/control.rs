//! The control ring of a vif, by which a guest has its backend hash and steer as it wishes, and
//! keep pages mapped.
//!
//! The first of the vif's queues owns it. One message is in flight at a time, and its key, mapping
//! or list is in a page of its own.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringway_datapath::QueueDown;
use ringway_hypervisor::{Access, EventChannel, GrantTable, StillInUse};
use ringway_ring::{Control, FrontRing, Notify, Waiting};
use ringway_wire::DomId;
use ringway_wire::netif::{CtrlRequest, CtrlResponse};
use ringway_xenbus::ControlConfig;

use crate::ResponseFault;
use crate::buffers::Buffers;
use crate::setup::{HashSetup, HashWish, WishRefused};
use crate::staging::{QueuePages, StagedCount, StagingSetup};

/// How far the backend has got with a wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It has carried it out, or there was none.
    Done,
    /// It has a message without a response.
    Waiting,
    /// It refused a message; those before it have been carried out.
    Refused(WishRefused),
}

/// Which message of the last wish the backend has refused, if it has. A copy shows the same, also
/// when the queue is with another thread.
#[derive(Debug, Clone, Default)]
pub struct Refusal(Arc<Mutex<Option<WishRefused>>>);

impl Refusal {
    /// The message, once its response has come.
    pub fn get(&self) -> Option<WishRefused> {
        *self.lock()
    }

    fn set(&self, refused: Option<WishRefused>) {
        *self.lock() = refused;
    }

    fn lock(&self) -> MutexGuard<'_, Option<WishRefused>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The guest's end of a control ring.
pub(crate) struct ControlRing<E> {
    ring: FrontRing<Control>,
    ring_page: Buffers,
    /// What a message names.
    message_page: Buffers,
    event: E,
    /// The messages of the newest wish.
    setup: Option<HashSetup>,
    /// The messages that have pages mapped, which follow those of a wish.
    staging: Option<StagingSetup>,
    /// The message without a response, and what it is for.
    outstanding: Option<(CtrlRequest, Purpose)>,
    last_id: u16,
    refusal: Refusal,
    staged: StagedCount,
}

/// What a message is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Wish,
    /// A wish that another has replaced.
    OlderWish,
    Staging,
}

impl<E: EventChannel> ControlRing<E> {
    /// Makes the ring and grants it to `backend`.
    pub(crate) fn new(
        grants: &mut impl GrantTable,
        backend: DomId,
        event: E,
    ) -> io::Result<ControlRing<E>> {
        // The backend may write statuses into a list of pages.
        let runs = [(1, Access::ReadWrite), (1, Access::ReadWrite)];
        let [ring_page, message_page] = Buffers::grant_each(grants, backend, runs)?;
        Ok(ControlRing {
            ring: FrontRing::new(ring_page.page(0)),
            ring_page,
            message_page,
            event,
            setup: None,
            staging: None,
            outstanding: None,
            last_id: 0,
            refusal: Refusal::default(),
            staged: StagedCount::default(),
        })
    }

    pub(crate) fn config(&self) -> ControlConfig {
        ControlConfig { ring_ref: self.ring_page.gref(0), event: self.event.port() }
    }

    pub(crate) fn event(&self) -> &E {
        &self.event
    }

    /// Begins to have the backend carry out a wish, in place of one that is in flight.
    pub(crate) fn wish(&mut self, wish: HashWish) -> Result<(), QueueDown> {
        self.setup = Some(HashSetup::new(wish));
        self.refusal.set(None);
        if let Some((_, purpose @ Purpose::Wish)) = &mut self.outstanding {
            *purpose = Purpose::OlderWish;
        }
        self.advance()
    }

    /// Begins to have the backend keep these pages mapped, those of each queue in order.
    pub(crate) fn stage(&mut self, queues: Vec<QueuePages>) -> Result<(), QueueDown> {
        self.staging = Some(StagingSetup::new(queues, self.staged.clone()));
        self.advance()
    }

    pub(crate) fn staged(&self) -> StagedCount {
        self.staged.clone()
    }

    pub(crate) fn refusal(&self) -> Refusal {
        self.refusal.clone()
    }

    pub(crate) fn progress(&self) -> Progress {
        match (&self.setup, self.refusal.get()) {
            (Some(_), _) => Progress::Waiting,
            (None, Some(refused)) => Progress::Refused(refused),
            (None, None) => Progress::Done,
        }
    }

    /// Takes the response to the message in flight, if it has come, and sends the next.
    pub(crate) fn advance(&mut self) -> Result<(), QueueDown> {
        self.take_response()?;
        self.send_next()
    }

    /// Asks for an event when the response comes.
    pub(crate) fn arm(&mut self) -> Waiting {
        match self.outstanding {
            Some(_) => self.ring.arm(1),
            None => Waiting::TooFew,
        }
    }

    /// Ends the grants and frees the pages.
    pub(crate) fn end(self, grants: &mut impl GrantTable) -> Result<(), StillInUse> {
        let ring = self.ring_page.end(grants);
        ring.and(self.message_page.end(grants))
    }

    fn take_response(&mut self) -> Result<(), QueueDown> {
        let mut response = [CtrlResponse::default()];
        if self.ring.peek_responses(&mut response).map_err(QueueDown::peer)? == 0 {
            return Ok(());
        }
        self.ring.consume(1);
        let [response] = response;
        //= netif.h:ctrl-response
        let asked = self.outstanding.take();
        let Some((_, purpose)) =
            asked.filter(|(request, _)| (request.id, request.kind) == (response.id, response.kind))
        else {
            return Err(QueueDown::peer(ResponseFault::NoMessage { id: response.id }));
        };
        match purpose {
            Purpose::Wish => {
                let refused = self.setup.as_mut().and_then(|setup| setup.respond(response).err());
                if let Some(refused) = refused {
                    self.setup = None;
                    self.refusal.set(Some(refused));
                }
            }
            Purpose::OlderWish => {}
            Purpose::Staging => {
                let goes_on = self.staging.as_mut().is_some_and(|it| it.respond(response));
                if !goes_on {
                    self.staging = None;
                }
            }
        }
        Ok(())
    }

    fn send_next(&mut self) -> Result<(), QueueDown> {
        if self.outstanding.is_some() {
            return Ok(());
        }
        let (id, page) = (self.last_id.wrapping_add(1), self.message_page.gref(0));
        let of_wish = self.setup.as_ref().and_then(|setup| setup.next(id, page));
        let purpose = if of_wish.is_some() { Purpose::Wish } else { Purpose::Staging };
        if of_wish.is_none() {
            self.setup = None;
        }
        let next = of_wish.or_else(|| self.staging.as_mut()?.next(id, page));
        let Some((request, bytes)) = next else {
            self.staging = None;
            return Ok(());
        };
        // No message is in flight, so the backend reads nothing of the page now.
        self.message_page.fill(0, &bytes);
        self.last_id = id;
        self.outstanding = Some((request, purpose));
        self.ring.push_request(request);
        if self.ring.publish_requests() == Notify::None {
            return Ok(());
        }
        match self.event.notify() {
            Err(error) if error.kind() != io::ErrorKind::NotConnected => Err(error.into()),
            _ => Ok(()),
        }
    }
}

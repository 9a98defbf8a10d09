//! The virtual machine monitor of a virtio guest: the front-end of its vif, which does what QEMU
//! does, and the guest's driver, as far as the front-end learns of it.
//!
//! The front-end belongs to a process, which outlives backends. What its guest and it negotiated
//! first stays until the process ends.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use ringway_vhost::frontend::{Event, Negotiated, Preferences};
use ringway_vhost::{Frontend, Request};
use ringway_vhost_shell::{Connection, Received};
use ringway_wire::vhost_user::Op;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::canary::Canary;
use crate::flaw::{Checked, Flaw, Rule, ensure};
use crate::marks::Mark;
use crate::plane::DataPlane;
use crate::socket::zeros;
use crate::traffic::announcement;
use crate::virtio_driver::Driver;

/// Messages that a front-end sends in one turn.
const MESSAGES_MAX: usize = 8;

/// A front-end and its guest.
pub(crate) struct Vmm {
    /// The name of its vif.
    pub(crate) name: String,
    /// Its guest, by its place among all.
    pub(crate) guest: usize,
    /// The process, while there is one.
    pub(crate) process: Option<u32>,
    processes: u32,
    wants: Preferences,
    /// What this process and its guest use, once the backend has confirmed that it knows.
    known: Option<Negotiated>,
    /// What was agreed with a backend that has just come, and with the ones before.
    pub(crate) agreed: Option<(Negotiated, Option<Negotiated>)>,
    /// Whether its guest starts by itself.
    pub(crate) must_start: bool,
    link: Option<Link>,
    driver: Option<Driver>,
    /// What the next message with descriptors loses.
    pub(crate) loss: Option<Loss>,
}

/// What a lack of resources does to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The kernel had no room for its descriptors.
    Descriptors,
    /// What it brings cannot be mapped.
    Memory,
}

/// A connection to a backend.
struct Link {
    connection: Connection,
    session: Frontend,
    negotiated: Option<Negotiated>,
    /// Whether memory was passed.
    has_memory: bool,
    /// Whether the rings were passed.
    has_rings: bool,
    /// What was said of the area that records what is in flight.
    area: AreaStage,
    /// What is yet to be asked, in order.
    requests: VecDeque<Request>,
    /// There may be messages to send.
    is_stirred: bool,
}

/// What was said over a connection of the area that records what is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AreaStage {
    Unknown,
    Asked,
    Passed,
}

/// What a front-end and its guest do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The guest's driver begins, with at most so many pairs.
    Start(u16),
    /// It ends, as when the guest reboots.
    Stop,
    /// The machine is paused.
    Pause,
    Resume,
    /// All rings are disabled.
    Disable,
    Enable,
}

impl Link {
    fn has_event(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::from_borrowed_fd(self.connection.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    /// Whether all was sent, and what needs a reply has one.
    fn is_quiet(&self) -> bool {
        let is_sent = self.requests.is_empty() && !self.is_stirred && !self.connection.has_unsent();
        is_sent && !self.session.is_waiting()
    }

    fn ask(&mut self, requests: impl IntoIterator<Item = Request>) {
        self.requests.extend(requests);
        self.is_stirred = true;
    }
}

impl Vmm {
    /// A front-end that waits for a backend.
    pub(crate) fn new(name: String, guest: usize, wants: Preferences) -> Vmm {
        Vmm {
            name,
            guest,
            process: Some(1),
            processes: 1,
            wants,
            known: None,
            agreed: None,
            must_start: false,
            link: None,
            driver: None,
            loss: None,
        }
    }

    /// The process, if it waits for a connection.
    pub(crate) fn waiting(&self) -> Option<u32> {
        self.process.filter(|_| self.link.is_none())
    }

    /// Whether its guest's driver is ready.
    pub(crate) fn is_started(&self) -> bool {
        self.driver.is_some()
    }

    /// The pairs by which frames should flow: none before all was passed.
    pub(crate) fn pairs_ready(&self) -> u16 {
        let has_rings = self.link.as_ref().is_some_and(|link| link.has_rings);
        let driver = self.driver.as_ref().filter(|it| !it.is_paused && it.is_enabled && has_rings);
        driver.map_or(0, |driver| driver.used)
    }

    /// What the backend says of a front-end that has come so far, if nothing went wrong.
    pub(crate) fn expected_error(&self) -> &'static str {
        let link = self.link.as_ref();
        match &self.driver {
            _ if link.is_none_or(|link| link.negotiated.is_none()) => "",
            None if link.is_some_and(|link| !link.has_memory) => "the front-end shares no memory",
            None => "",
            Some(driver) if driver.is_paused => "has no",
            Some(_) => "no queue is enabled",
        }
    }

    /// A connection to a backend.
    pub(crate) fn connected(&mut self, socket: OwnedFd) {
        let wants = self.known.map(|known| Preferences {
            features: known.features,
            protocol: known.protocol,
            pairs: known.pairs,
        });
        self.link = Some(Link {
            connection: Connection::new(socket),
            session: Frontend::new(wants.unwrap_or(self.wants)),
            negotiated: None,
            has_memory: false,
            has_rings: false,
            area: AreaStage::Unknown,
            requests: VecDeque::new(),
            is_stirred: true,
        });
    }

    /// The process ends, and its guest with it.
    pub(crate) fn kill(&mut self, plane: &mut DataPlane) {
        (self.process, self.known, self.agreed, self.loss) = (None, None, None, None);
        (self.driver, self.must_start) = (None, false);
        self.disconnect(plane);
        plane.guests[self.guest].release();
    }

    /// Another process starts, which wants this.
    pub(crate) fn start_process(&mut self, wants: Preferences) {
        self.processes += 1;
        (self.process, self.wants) = (Some(self.processes), wants);
    }

    /// The connection ends. If no one knows where the rings continue, the guest starts again.
    pub(crate) fn disconnect(&mut self, plane: &mut DataPlane) {
        self.link = None;
        self.carrier_down(plane);
        if self.driver.as_ref().is_some_and(|driver| !driver.outlives_backend()) {
            plane.marks.hit(Mark::PositionLost);
            (self.driver, self.must_start) = (None, true);
            plane.guests[self.guest].release();
        }
        if plane.canary == Some(Canary::EmptiedArea) {
            let area = self.driver.as_mut().and_then(|driver| driver.area.as_mut());
            area.into_iter().for_each(|area| area.file = zeros(area.len));
        }
    }

    /// Whether it would act by itself.
    pub(crate) fn has_work(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_stirred || link.has_event())
    }

    /// Handles what has come, and sends some of what is to be sent. Returns true if it did
    /// anything.
    pub(crate) fn turn(&mut self, plane: &mut DataPlane) -> Checked<bool> {
        if !self.has_work() {
            return Ok(false);
        }
        self.receive(plane)?;
        self.send(plane);
        let is_up = plane.guests[self.guest].is_up;
        let is_quiet = self.link.as_ref().is_some_and(Link::is_quiet);
        if !is_up && is_quiet && self.pairs_ready() > 0 {
            self.carrier_up(plane)?;
        }
        Ok(true)
    }

    fn receive(&mut self, plane: &mut DataPlane) -> Checked {
        let Vmm { name, link, .. } = self;
        let Some(link) = link else { return Ok(()) };
        match link.connection.receive() {
            Ok(Received::Nothing | Received::Part) => return Ok(()),
            Ok(Received::Message(message)) => link.session.take(message).map_err(|fault| {
                Flaw::new(Rule::Responses, format!("the front-end of {name} finds: {fault}"))
            })?,
            Ok(Received::End) | Err(_) => {
                plane.journal.note(|| format!("the front-end of {name} has lost its backend"));
                self.disconnect(plane);
                return Ok(());
            }
        }
        link.is_stirred = true;
        while let Some(event) = self.link.as_mut().and_then(|link| link.session.next_event()) {
            self.on(event, plane)?;
        }
        Ok(())
    }

    fn on(&mut self, event: Event, plane: &mut DataPlane) -> Checked {
        let Vmm { name, link, known, driver, agreed, .. } = self;
        let Some(link) = link else { return Ok(()) };
        plane.journal.note(|| match &event {
            Event::Area(_) => format!("the front-end of {name} has an inflight area"),
            other => format!("the front-end of {name}: {other:?}"),
        });
        match event {
            Event::Negotiated(negotiated) => {
                link.negotiated = Some(negotiated);
                *agreed = Some((negotiated, *known));
                self.pass(plane);
            }
            Event::Done(Op::SetFeatures) => *known = link.negotiated,
            Event::Stopped { ring, base } => {
                let is_rewound = plane.canary == Some(Canary::RewoundRing) && base & 0xff > 0;
                let base = base - u32::from(is_rewound);
                let stopped = driver.as_mut().map_or(Ok(()), |driver| driver.stopped(ring, base));
                ensure(stopped.is_ok(), Rule::Responses, || {
                    format!(
                        "ring {ring} of {name} was stopped at {base:#x}, and should be: {stopped:?}"
                    )
                })?;
            }
            Event::Area(area) => {
                plane.marks.hit(Mark::AreaMade);
                if let Some(driver) = driver {
                    driver.area = Some(area);
                }
                self.pass(plane);
            }
            _ => {}
        }
        Ok(())
    }

    /// Sends some messages; a backend may read each before the next one is sent.
    fn send(&mut self, plane: &mut DataPlane) {
        let Vmm { name, link, loss, .. } = self;
        let Some(link) = link else { return };
        for _ in 0..plane.choices.from_to(1, MESSAGES_MAX) {
            if link.connection.has_unsent() {
                break;
            }
            let next = link.session.next_message().or_else(|| {
                link.session.ask(link.requests.pop_front()?);
                link.session.next_message()
            });
            let Some(mut message) = next else {
                // A request of which nothing was agreed is left out.
                link.is_stirred = !link.requests.is_empty();
                break;
            };
            if plane.canary == Some(Canary::LostMessage)
                && message.name() == Op::SetVringEnable.into()
            {
                continue;
            }
            if !message.files.is_empty() {
                match loss.take() {
                    Some(Loss::Descriptors) => message.files.clear(),
                    Some(Loss::Memory) => message.files.iter_mut().for_each(|it| *it = zeros(0)),
                    None => {}
                }
            }
            plane.journal.note(|| format!("the front-end of {name} sends {}", message.name()));
            // That the backend has left is read next.
            let _ = link.connection.send(message);
        }
    }

    /// Passes what the guest shares, as far as the backend does not have it.
    fn pass(&mut self, plane: &mut DataPlane) {
        let DataPlane { choices, marks, .. } = plane;
        let (Some(link), Some(driver)) = (&mut self.link, &mut self.driver) else { return };
        let Some(negotiated) = link.negotiated.filter(|_| !link.has_rings) else { return };
        if let Some(requests) = driver.asks_for_area(negotiated.protocol) {
            // The rings follow once it is there.
            if std::mem::replace(&mut link.area, AreaStage::Asked) != AreaStage::Asked {
                link.ask(requests);
            }
            return;
        }
        // Memory of an earlier start of the guest is there until this replaces it.
        let had_memory = std::mem::replace(&mut link.has_memory, true);
        let (memory, rings) = driver.requests(negotiated.protocol, choices);
        // A front-end may pass an area once, or with each start of the rings.
        let was_passed = link.area == AreaStage::Passed;
        let is_left_out = driver.is_paused || (was_passed && choices.is_one_in(2));
        if !is_left_out {
            let was_made_before = link.area == AreaStage::Unknown && driver.area.is_some();
            marks.add(Mark::AreaPassedOn, u64::from(was_made_before));
            link.area = AreaStage::Passed;
            link.ask(driver.passes_area());
        }
        if had_memory || choices.is_one_in(2) {
            link.ask(memory);
            link.ask(rings);
        } else {
            link.ask(rings);
            link.ask(memory);
        }
        link.has_rings = !driver.is_paused;
    }

    /// What makes sense now. A driver that begins uses at most so many pairs.
    pub(crate) fn possible(&self, pairs: u16) -> Vec<Order> {
        match &self.driver {
            None => vec![Order::Start(pairs)],
            Some(driver) if driver.is_paused => vec![Order::Resume, Order::Stop],
            Some(driver) if !driver.is_enabled => vec![Order::Enable, Order::Stop],
            Some(_) => vec![Order::Stop, Order::Pause, Order::Disable],
        }
    }

    /// Does what it is to do, unless it waits for its backend or that makes no sense. Returns
    /// whether it does.
    pub(crate) fn follow(&mut self, order: Order, plane: &mut DataPlane) -> bool {
        let is_free = self.link.as_ref().is_none_or(Link::is_quiet);
        let negotiated = self.known.filter(|_| is_free && self.process.is_some());
        let Some(negotiated) = negotiated else { return false };
        match (order, &mut self.driver) {
            (Order::Start(pairs), driver @ None) => {
                let guest = &mut plane.guests[self.guest];
                *driver = Some(Driver::start(negotiated, pairs, guest));
                self.pass(plane);
            }
            (Order::Stop, Some(driver)) => {
                if let Some(link) = &mut self.link {
                    link.ask(driver.stops(link.has_rings));
                    link.ask(driver.ends(negotiated.protocol));
                    (link.has_rings, link.area) = (false, AreaStage::Unknown);
                }
                self.carrier_down(plane);
                self.driver = None;
                plane.guests[self.guest].release();
            }
            (Order::Pause, Some(driver)) if !driver.is_paused => {
                driver.is_paused = true;
                if let Some(link) = &mut self.link {
                    link.ask(driver.stops(link.has_rings));
                    link.has_rings = false;
                }
                self.carrier_down(plane);
            }
            (Order::Resume, Some(driver)) if driver.is_paused => {
                driver.is_paused = false;
                self.pass(plane);
            }
            (Order::Disable | Order::Enable, Some(driver)) => {
                let is_enabled = order == Order::Enable;
                if std::mem::replace(&mut driver.is_enabled, is_enabled) == is_enabled {
                    return false;
                }
                if let Some(link) = self.link.as_mut().filter(|link| link.has_rings) {
                    link.ask(driver.enables());
                }
                if !is_enabled {
                    self.carrier_down(plane);
                }
            }
            _ => return false,
        }
        plane.journal.note(|| format!("the guest of {}: {order:?}", self.name));
        true
    }

    fn carrier_up(&mut self, plane: &mut DataPlane) -> Checked {
        let number = self.guest;
        plane.journal.note(|| format!("guest {number} is up"));
        plane.marks.hit(Mark::VirtioUp);
        let is_packed = self.driver.as_ref().is_some_and(Driver::is_packed);
        plane.marks.add(Mark::PackedUp, u64::from(is_packed));
        let guest = &mut plane.guests[number];
        guest.is_up = true;
        // Pairs were served one after the other, so frames of a flow may be in any of them.
        for nic in &mut guest.nics {
            nic.discard(&mut guest.pool).map_err(|down| {
                Flaw::new(Rule::Responses, format!("guest {number} finds: {down}"))
            })?;
        }
        let announcement = announcement(guest.mac, &mut guest.pool);
        if let (Some(nic), Some(frame)) = (guest.nics.first_mut(), announcement) {
            nic.backlog.push_back(frame);
        }
        guest.nics.iter_mut().for_each(|nic| nic.is_awake = true);
        Ok(())
    }

    fn carrier_down(&mut self, plane: &mut DataPlane) {
        let number = self.guest;
        plane.journal.note(|| format!("guest {number} is down"));
        let guest = &mut plane.guests[number];
        (guest.is_up, guest.is_disturbed) = (false, true);
    }
}

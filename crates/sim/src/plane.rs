//! The data plane of a world: guests, engines, and the events between them. No XenStore.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_datapath::{FrameBatch, QueueDown};
use ringway_engine::{Credit, IfIdle, Wait};
use ringway_loopback::Loopback;
use ringway_steering::FlowKey;
use ringway_wire::DomId;

use crate::canary::Canary;
use crate::choices::Choices;
use crate::device::{Device, Station};
use crate::flaw::{Checked, Flaw, Rule, ensure};
use crate::guest::{BACKLOG_MAX, Guest, Pace};
use crate::hostile::Hostile;
use crate::journal::Journal;
use crate::ledger::{Ledger, Owner};
use crate::marks::{Mark, Marks};
use crate::scenario::{HOST, Scenario};
use crate::traffic::{Flow, Piece};
use crate::witness::{Reads, Witness};
use crate::worker::Worker;
use crate::workers::Workers;

/// Turns after which no work may be left. A turn moves at least a batch of each queue.
const TURNS_TO_REST_MAX: usize = 3000;
/// Turns after which every engine must have applied its commands.
const TURNS_TO_APPLY_MAX: usize = 1000;
/// Less than the size of a large buffer.
const BUDGET_LOW: usize = 64 << 10;
/// One round in so many is the last of its process, if that may be killed: about one in a world.
const KILLED_ONE_IN: usize = 256;
/// One round in so many, while a message of a guest has no response.
const KILLED_OVER_MESSAGE_ONE_IN: usize = 16;
/// Frames at which an inbox holds senders back.
const INBOX_HIGH: usize = 256;

/// Everything that moves frames, and the choices that drive it.
pub(crate) struct DataPlane {
    pub(crate) choices: Choices,
    pub(crate) journal: Journal,
    pub(crate) marks: Marks,
    pub(crate) machine: Loopback,
    pub(crate) now: Instant,
    /// Whether the backend's process lives. Its session of XenStore shares this flag.
    pub(crate) is_alive: Rc<Cell<bool>>,
    /// The engines of the backend's process, while it lives.
    pub(crate) workers: Option<Workers>,
    pub(crate) guests: Vec<Guest>,
    pub(crate) hostiles: Vec<Hostile>,
    /// Network devices of the backend's host, and the stations behind them. Flows number guests
    /// first, and these stations after them.
    pub(crate) devices: Vec<Device>,
    pub(crate) stations: Vec<Station>,
    pub(crate) flows: Vec<Flow>,
    pub(crate) ledger: Ledger,
    /// Drops that are already accounted for.
    pub(crate) dropped_before: u64,
    /// An engine has acted since the last census.
    pub(crate) is_census_due: bool,
    /// The key by which a queue of each flow is chosen, whichever process does that.
    pub(crate) flow_key: FlowKey,
    /// Whether flows leave queues that cannot keep up.
    pub(crate) balances_flows: bool,
    /// The most frames that a guest sends at once.
    pub(crate) burst_max: usize,
    /// An engine whose thread gets no CPU for now.
    pub(crate) paused: Option<usize>,
    /// All rate limits that ever existed.
    pub(crate) credits: Vec<Arc<Credit>>,
    /// Whether the machine injects no faults and no part dies.
    pub(crate) is_sound: bool,
    /// Whether the process may be killed while its control thread waits.
    pub(crate) may_die: bool,
    /// A port for whose queues there will be no engine: how many ports are attached before it.
    pub(crate) place_refused: Option<usize>,
    /// Events that were planned to be lost and not delivered late.
    pub(crate) event_losses: u64,
    pub(crate) canary: Option<Canary>,
    /// What the backend reads from the pages of honest guests.
    pub(crate) witness: Witness,
    /// A flaw that was found in code that cannot return it.
    pub(crate) flaw: Option<Flaw>,
}

/// How much a guest does in its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Something at random.
    Some,
    /// All pending work, and no new traffic.
    All,
}

impl DataPlane {
    /// A machine on which nothing runs yet.
    pub(crate) fn new(
        choices: Choices,
        journal: Journal,
        machine: Loopback,
        scenario: &Scenario,
    ) -> DataPlane {
        DataPlane {
            choices,
            journal,
            marks: Marks::default(),
            machine,
            now: Instant::now(),
            is_alive: Rc::new(Cell::new(false)),
            workers: None,
            guests: Vec::new(),
            hostiles: Vec::new(),
            devices: Vec::new(),
            stations: Vec::new(),
            flows: Vec::new(),
            ledger: Ledger::default(),
            dropped_before: 0,
            is_census_due: false,
            is_sound: !scenario.disturbances.have_faults() && !scenario.disturbances.have_deaths(),
            flow_key: scenario.flow_key,
            balances_flows: scenario.balances_flows,
            burst_max: scenario.burst_max,
            paused: None,
            credits: Vec::new(),
            may_die: false,
            place_refused: None,
            event_losses: 0,
            canary: scenario.canary,
            witness: Witness::default(),
            flaw: None,
        }
    }

    /// Makes one step.
    pub(crate) fn step(&mut self) -> Checked {
        self.journal.count_step();
        let (guests, devices) = (self.guests.len(), self.devices.len());
        match self.choices.below(32) {
            0..=13 => {
                let engines = self.workers.as_ref().map_or(0, |workers| workers.workers.len());
                let number = self.choices.below(engines.max(1));
                if number < engines && self.paused != Some(number) {
                    self.run_engine(number, Effort::Some)?;
                }
            }
            14..=29 if guests > 0 => match self.choices.below(guests + devices) {
                guest if guest < guests => self.run_guest(guest)?,
                device => self.run_device(device - guests)?,
            },
            30 if !self.hostiles.is_empty() => self.run_hostile(),
            _ => self.pass_time(),
        }
        self.check_step()
    }

    /// The checks after every step.
    pub(crate) fn check_step(&mut self) -> Checked {
        if self.is_census_due {
            self.take_census()?;
        }
        let (Reads { across, completed, of_dead }, flaw) = self.witness.take();
        self.marks.add(Mark::LentAcross, across);
        self.marks.add(Mark::LentCompleted, completed);
        self.marks.add(Mark::LenderDead, of_dead);
        if let Some(found) = flaw {
            return Err(Flaw::new(Rule::LentPages, found));
        }
        ensure(self.machine.copies_out_of_page(HOST) == 0, Rule::CopiesInPage, || {
            "the backend submitted a copy that leaves its page".to_owned()
        })
    }

    fn run_hostile(&mut self) {
        let number = self.choices.below(self.hostiles.len());
        let hostile = &mut self.hostiles[number];
        if !self.guests.is_empty() && self.choices.is_one_in(16) {
            let victim = self.choices.below(self.guests.len());
            if hostile.impersonate(self.guests[victim].mac, &mut self.choices) {
                self.guests[victim].is_impersonated = true;
                self.marks.hit(Mark::HostileAddress);
                self.journal.note(|| format!("hostile guest {number} poses as guest {victim}"));
            }
            return;
        }
        if let Some(mark) = hostile.act(&self.machine, &mut self.choices) {
            self.marks.hit(mark);
            self.journal.note(|| format!("{}, guest {number}", mark.name()));
        }
    }

    fn pass_time(&mut self) {
        let most = self.choices.pick(&[10, 1000, 10_000, 100_000]);
        let micros = self.choices.below(most) + 1;
        self.now += Duration::from_micros(u64::try_from(micros).unwrap_or(1));
        self.marks.hit(Mark::TimePassed);
        let is_spent = |credit: &Arc<Credit>| credit.due(self.now).is_some();
        if self.credits.last().is_some_and(is_spent) {
            self.marks.hit(Mark::OutOfCredit);
        }
        self.journal.note(|| format!("{micros} us pass"));
    }

    /// Runs one engine, if its thread would run.
    pub(crate) fn run_engine(&mut self, number: usize, effort: Effort) -> Checked<bool> {
        let pending = self.machine.pending_ports(HOST);
        let Some(workers) = &mut self.workers else { return Ok(false) };
        let worker = &mut workers.workers[number];
        if !worker.may_run(self.now, &pending) {
            return Ok(false);
        }
        let choices = &mut self.choices;
        if !worker.has_begun() {
            let is_in_time = || effort == Effort::All || !choices.is_one_in(4);
            worker.begin(&workers.directory, &pending, is_in_time);
            if effort == Effort::Some && choices.is_one_in(4) {
                self.journal.note(|| format!("engine {number} begins a round"));
                return Ok(true);
            }
        }
        let if_idle = match effort {
            Effort::Some if choices.is_one_in(3) => IfIdle::Poll,
            _ => IfIdle::Sleep,
        };
        let has_messages = self.witness.has_messages();
        let one_in = if has_messages { KILLED_OVER_MESSAGE_ONE_IN } else { KILLED_ONE_IN };
        let is_last = effort == Effort::Some && self.may_die && choices.is_one_in(one_in);
        let published = is_last.then(|| self.witness.published());
        worker.round(self.now, if_idle);
        if let Some(published) = published {
            self.journal.note(|| format!("engine {number} begins its last round"));
            self.kill_unpublished(published);
            return Ok(true);
        }
        self.is_census_due = true;
        let waited = worker.waited;
        let mut failed = Vec::new();
        while let Some(failure) = worker.next_failure() {
            let (port, down) = (failure.port_id, failure.down.to_string());
            self.journal
                .note(|| format!("engine {number} gives up a queue of port {port}: {down}"));
            failed.push((failure.queue.owner(), down));
            workers.failures.push_back(failure);
        }
        match waited {
            Wait::Event => self.marks.hit(Mark::EngineSleeps),
            Wait::Until(_) => self.marks.hit(Mark::EngineWaitsForTime),
            Wait::Now | Wait::Poll => {}
        }
        let waits = described(waited, self.now);
        self.journal.note(|| format!("engine {number} runs a round, then waits {waits}"));
        self.mark_what_is_full();
        for (owner, down) in failed {
            self.blame(owner, &down);
            owner.into_iter().for_each(|owner| self.disturb_owner(owner));
        }
        Ok(true)
    }

    fn mark_what_is_full(&mut self) {
        let Some(workers) = &self.workers else { return };
        if workers.budget.bytes_left() < BUDGET_LOW {
            self.marks.hit(Mark::NoBuffer);
        }
        if workers.workers.iter().any(|worker| worker.inbox.len() >= INBOX_HIGH) {
            self.marks.hit(Mark::InboxHigh);
        }
        if self.devices.iter().any(Device::take_fullness) {
            self.marks.hit(Mark::DeviceFull);
        }
    }

    fn run_guest(&mut self, guest: usize) -> Checked {
        self.deliver_orphans(guest, Effort::Some)?;
        let nics = self.guests[guest].nics.len();
        if nics == 0 || !self.guests[guest].is_up {
            return Ok(());
        }
        let nic = self.choices.below(nics);
        if self.choices.is_one_in(2) {
            self.send_burst(guest, nic)?;
        }
        self.run_nic(guest, nic, Effort::Some)?;
        Ok(())
    }

    /// Lets applications of a guest send on this queue.
    fn send_burst(&mut self, guest: usize, nic: usize) -> Checked {
        let count = self.guests[guest].nics.len();
        let own = |flow: &&mut Flow| flow.from == guest && usize::from(flow.number) % count == nic;
        let flows = self
            .flows
            .iter()
            .filter(|flow| flow.from == guest && usize::from(flow.number) % count == nic);
        let flows = flows.count();
        if flows == 0 {
            return Ok(());
        }
        let chosen = self.choices.below(flows);
        let Some(flow) = self.flows.iter_mut().filter(own).nth(chosen) else { return Ok(()) };
        let sender = &mut self.guests[guest];
        let first = flow.next();
        for _ in 0..=self.choices.below(self.burst_max) {
            if sender.nics[nic].backlog.len() >= BACKLOG_MAX {
                break;
            }
            let made = flow.make(&mut self.choices, sender.caps, &mut sender.pool);
            let Some((mut frame, made)) = made else { break };
            sender.stow(&mut frame);
            sender.nics[nic].backlog.push_back(frame);
            self.marks.hit(Mark::Sent);
            self.marks.add(Mark::SeveralSlots, u64::from(made.len > 4096));
            self.marks.add(Mark::ToSegment, u64::from(made.is_to_segment));
            self.marks.add(Mark::BlankChecksum, u64::from(made.is_blank));
        }
        let (number, next) = (flow.number, flow.next());
        self.journal
            .note(|| format!("guest {guest} queue {nic} sends {first} to {next} of flow {number}"));
        let sent = sender.nics[nic].send(&mut sender.pool).map(|_| ());
        self.unless_down(guest, sent)
    }

    /// Lets stations behind a device send, and receive pending frames.
    fn run_device(&mut self, device: usize) -> Checked {
        if self.choices.is_one_in(2) {
            self.send_from_station(device);
        }
        self.empty_device(device, Effort::Some)?;
        Ok(())
    }

    fn send_from_station(&mut self, device: usize) {
        let first = self.guests.len();
        let is_behind = |station: usize| {
            let station = station.checked_sub(first).and_then(|it| self.stations.get(it));
            station.is_some_and(|station| station.device == device)
        };
        let flows = self.flows.iter().enumerate().filter(|(_, flow)| is_behind(flow.from));
        let flows: Vec<usize> = flows.map(|(index, _)| index).collect();
        let queues = self.devices[device].queues();
        if flows.is_empty() || queues == 0 {
            return;
        }
        let flow = &mut self.flows[flows[self.choices.below(flows.len())]];
        let sender = &self.devices[device];
        let (began, queue) = (flow.next(), usize::from(flow.number) % queues);
        for _ in 0..=self.choices.below(self.burst_max) {
            let choices = &mut self.choices;
            if !sender.send(queue, |pool| Some(flow.make(choices, sender.caps, pool)?.0)) {
                break;
            }
            self.marks.hit(Mark::StationSent);
        }
        let (number, next) = (flow.number, flow.next());
        self.journal.note(|| {
            format!("a station behind device {device} sends {began} to {next} of flow {number}")
        });
    }

    /// Delivers received frames of a device to the stations behind it. Returns true if there were
    /// any.
    fn empty_device(&mut self, device: usize, effort: Effort) -> Checked<bool> {
        let budget = match (effort, self.devices[device].pace) {
            (Effort::Some, Pace::Stalled) => return Ok(false),
            (Effort::Some, Pace::Slow) => self.choices.from_to(1, 4),
            _ => ringway_datapath::BATCH,
        };
        let mut count = 0;
        for queue in 0..self.devices[device].queues() {
            let mut batch = FrameBatch::new();
            self.devices[device].receive(queue, budget, &mut batch);
            count += batch.len();
            for frame in batch {
                let to = self.station_of(device, frame.bytes());
                let piece = if to.is_some() { Piece::read(&frame)? } else { None };
                self.devices[device].recycle(frame);
                if let Some((to, piece)) = to.zip(piece) {
                    self.arrived(to, &piece)?;
                    self.marks.hit(Mark::StationReceived);
                }
            }
        }
        if count > 0 {
            self.journal.note(|| format!("device {device} has sent {count} frames"));
        }
        Ok(count > 0)
    }

    /// The station behind a device that is a frame's destination.
    fn station_of(&self, device: usize, frame: &[u8]) -> Option<usize> {
        let is_for =
            |station: &Station| station.device == device && frame.starts_with(&station.mac.0);
        Some(self.guests.len() + self.stations.iter().position(is_for)?)
    }

    pub(crate) fn arrived(&mut self, to: usize, piece: &Piece) -> Checked {
        let flow = self.flows.get_mut(usize::from(piece.flow));
        let Some(flow) = flow.filter(|flow| flow.to == to) else {
            let found = format!("station {to} received of flow {}", piece.flow);
            return Err(Flaw::new(Rule::Content, found));
        };
        for end in [flow.from, flow.to] {
            let is_cut_off = self.guests.get(end).is_some_and(|guest| guest.is_cut_off);
            ensure(!is_cut_off, Rule::Settings, || format!("a frame passes the link of {end}"))?;
        }
        flow.arrived(piece)
    }

    /// Whether neither end of a flow was disturbed in a way in which its frames may be lost
    /// uncounted.
    pub(crate) fn is_steady(&self, flow: &Flow) -> bool {
        [flow.from, flow.to].into_iter().all(|end| match self.guests.get(end) {
            Some(guest) => !guest.is_disturbed && !guest.is_impersonated,
            None => {
                let station = &self.stations[end - self.guests.len()];
                !self.devices[station.device].is_disturbed()
            }
        })
    }

    /// The owner of an end of a flow.
    pub(crate) fn owner_of_end(&self, end: usize) -> Owner {
        match end.checked_sub(self.guests.len()) {
            None => Owner::Guest(end),
            Some(station) => Owner::Device(self.stations[station].device),
        }
    }

    /// Lets a guest work on one of its queues, if it would. Returns true if it did.
    pub(crate) fn run_nic(&mut self, guest: usize, nic: usize, effort: Effort) -> Checked<bool> {
        let pending = self.machine.pending_ports(self.guests[guest].domid);
        let receiver = &mut self.guests[guest];
        if effort == Effort::Some && receiver.pace == Pace::Stalled {
            return Ok(false);
        }
        if nic >= receiver.nics.len() {
            return Ok(false);
        }
        let mut has_delivered = self.deliver(guest, nic, effort)?;
        if self.balances_flows {
            // What was taken from a ring is passed on before a later frame of its flow is taken
            // from another.
            for other in (0..self.guests[guest].nics.len()).filter(|other| *other != nic) {
                has_delivered |= self.deliver(guest, other, Effort::All)?;
            }
        }
        let receiver = &mut self.guests[guest];
        let Some(queue) = receiver.nics.get_mut(nic) else { return Ok(has_delivered) };
        if !queue.may_run(&pending) {
            return Ok(has_delivered);
        }
        let budget = match (effort, receiver.pace) {
            (Effort::Some, Pace::Slow) => self.choices.from_to(1, 4),
            _ => ringway_datapath::BATCH,
        };
        let mut batch = FrameBatch::new();
        let done = queue
            .wake(&pending)
            .and_then(|()| queue.send(&mut receiver.pool))
            .and_then(|sent| queue.receive(budget, &mut receiver.pool, &mut batch).map(|()| sent));
        let sent = match done {
            Ok(sent) => sent,
            Err(down) => return self.unless_down(guest, Err(down)).map(|()| false),
        };
        let received = batch.len();
        if sent == 0 && received == 0 {
            let armed = queue.doze();
            self.unless_down(guest, armed)?;
        }
        self.journal.note(|| {
            format!("guest {guest} queue {nic} runs: {sent} frames left, {received} came")
        });
        let receiver = &mut self.guests[guest];
        if receiver.is_in_pages() {
            receiver.nics[nic].received.extend(batch);
            return Ok(true);
        }
        self.take_frames(guest, Some(nic), batch)?;
        Ok(true)
    }

    /// An honest guest's queue must never blame its backend. The machine may inject faults.
    pub(crate) fn unless_down(&mut self, guest: usize, done: Result<(), QueueDown>) -> Checked {
        match done {
            Ok(()) => Ok(()),
            Err(QueueDown::Host(error)) => {
                self.journal.note(|| format!("guest {guest} gives its queues up: {error}"));
                self.guests[guest].fault = Some(error.to_string());
                self.guests[guest].is_up = false;
                Ok(())
            }
            Err(QueueDown::Peer(fault)) => {
                Err(Flaw::new(Rule::Responses, format!("guest {guest} finds: {fault}")))
            }
        }
    }

    /// Gives a turn to every part that would take one. Returns true if one did.
    pub(crate) fn turn(&mut self) -> Checked<bool> {
        self.journal.count_step();
        let mut has_run = false;
        let engines = self.workers.as_ref().map_or(0, |workers| workers.workers.len());
        for number in 0..engines {
            has_run |= self.run_engine(number, Effort::All)?;
        }
        for guest in 0..self.guests.len() {
            has_run |= self.deliver_orphans(guest, Effort::All)?;
            for nic in 0..self.guests[guest].nics.len() {
                if self.guests[guest].is_up {
                    has_run |= self.run_nic(guest, nic, Effort::All)?;
                }
            }
        }
        for device in 0..self.devices.len() {
            has_run |= self.empty_device(device, Effort::All)?;
        }
        self.check_step()?;
        Ok(has_run)
    }

    /// Runs everything until no part would act before time advances.
    pub(crate) fn come_to_rest(&mut self) -> Checked {
        for _ in 0..TURNS_TO_REST_MAX {
            if !self.turn()? {
                return Ok(());
            }
        }
        let waits = self.waits();
        Err(Flaw::new(Rule::Rest, format!("there is no rest; engines wait: {waits:?}")))
    }

    /// The wait of each engine, in words.
    pub(crate) fn waits(&self) -> Vec<String> {
        let workers = self.workers.iter().flat_map(|workers| &workers.workers);
        workers.map(|worker| described(worker.waited, self.now)).collect()
    }

    /// The next time that an engine waits for.
    pub(crate) fn next_time(&self) -> Option<Instant> {
        let until = |wait| match wait {
            Wait::Until(then) => Some(then),
            Wait::Now | Wait::Poll | Wait::Event => None,
        };
        let workers = self.workers.iter().flat_map(|workers| &workers.workers);
        workers.filter_map(|worker| until(worker.waited)).min()
    }

    /// Runs the world until a condition holds, as a thread does that waits for others. Returns
    /// false if it never will: the backend's process has ended, or there is a flaw.
    pub(crate) fn wait_until(&mut self, is_so: impl Fn(&Workers) -> bool) -> bool {
        for _ in 0..TURNS_TO_APPLY_MAX {
            match &self.workers {
                None => return false,
                Some(workers) if is_so(workers) => return self.flaw.is_none(),
                Some(_) if self.may_die && self.choices.is_one_in(100) => {
                    self.marks.hit(Mark::BackendKilledMidway);
                    self.kill_backend();
                    return false;
                }
                Some(_) => {}
            }
            let done = match self.choices.are_over() || self.choices.is_one_in(8) {
                true => self.turn().map(|_| ()),
                false => self.step(),
            };
            if let Err(flaw) = done {
                self.flaw = Some(flaw);
                return false;
            }
        }
        let found = format!("an engine takes no commands; engines wait: {:?}", self.waits());
        self.flaw = Some(Flaw::new(Rule::WakeUps, found));
        false
    }

    /// Makes every port of a domain pending that its guest or backend knows.
    pub(crate) fn raise_all(&self, domid: DomId) {
        let nics = self.guests.iter().filter(|it| it.domid == domid).flat_map(|it| &it.nics);
        let of_guests = nics.flat_map(|nic| &nic.events);
        let of_host = self.workers.iter().flat_map(|workers| &workers.workers);
        let of_host = of_host.flat_map(Worker::ports).filter(|_| domid == HOST);
        of_guests.chain(of_host).for_each(|port| self.machine.raise(domid, *port));
    }
}

/// A wait in words that are the same in every run.
fn described(waited: Wait, now: Instant) -> String {
    match waited {
        Wait::Now => "not at all".to_owned(),
        Wait::Poll => "not at all, for it polls".to_owned(),
        Wait::Event => "for an event".to_owned(),
        Wait::Until(then) => format!("for {:?}", then.saturating_duration_since(now)),
    }
}

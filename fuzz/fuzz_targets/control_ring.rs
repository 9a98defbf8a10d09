//! A vif's control ring, for a guest that sends any messages, writes anything into the ring and the
//! pages that messages name, and whose backend ends at any moment. Each message gets one response,
//! in order; one that is refused changes nothing; frames go to connected queues only; the next
//! backend steers as the one before did; and no page stays mapped behind its queues.

#![no_main]

use std::collections::VecDeque;
use std::str::from_utf8;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use libfuzzer_sys::fuzz_target;
use ringway_datapath::{Budget, FrameBatch, OffloadCaps, PortQueue, QueueDown};
use ringway_fuzz::Input;
use ringway_fuzz::machine::{GUEST, HOST, Machine, StalePool, scribble};
use ringway_hypervisor::{Access, GrantTable, GrantedPages, QueueEvents};
use ringway_loopback::{FaultPoint, LoopbackEvent, LoopbackMemory};
use ringway_netback::{
    Changes, ControlParts, ControlRole, FrontendFeatures, PageBudget, QueueParts, StagedPages,
    Staging, VifQueue,
};
use ringway_ring::{Control, FrontRing, Rx, Tx};
use ringway_steering::QueueIndex;
use ringway_steering::control::{HashControl, TEXT_LEN_MAX};
use ringway_sys::SharedPages;
use ringway_wire::PAGE_SIZE;
use ringway_wire::netif::{
    CTRL_RING_SLOTS, CTRL_STATUS_BUFFER_OVERFLOW, CTRL_STATUS_SUCCESS, CTRL_TYPE_ADD_GREF_MAPPING,
    CTRL_TYPE_DEL_GREF_MAPPING, CtrlRequest, CtrlResponse, GrefEntry,
};
use zerocopy::IntoBytes;

/// The most steps of one input.
const STEPS_MAX: usize = 128;
/// The most queues of a vif.
const QUEUES_MAX: usize = 9;
/// Pages of the guest: its rings, the page that messages may name, and some to be mapped.
const PAGES: usize = 24;
/// How many of them may stay mapped; fewer than could be.
const STAGED_MAX: usize = 40;
/// Numbers at the bounds of what messages may have.
const NUMBERS: [u32; 12] = [0, 1, 4, 8, 15, 16, 40, 41, 128, 129, 1 << 16, u32::MAX];

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    if input.flag() {
        return read_text(input.rest());
    }
    let machine = Machine::new();
    let mut pool = StalePool::new();
    let mut guest = Guest::new(&machine, &mut input);
    while !input.is_empty() && guest.steps < STEPS_MAX {
        match guest.step(&mut input, &mut pool) {
            Ok(()) => {}
            Err(QueueDown::Peer(_)) => {
                assert!(guest.expected.is_none(), "the ring was sound");
                break;
            }
            Err(QueueDown::Host(error)) => {
                assert!(guest.may_host_fail, "the host did nothing wrong: {error}");
                break;
            }
        }
        assert_eq!(machine.loopback.copies_out_of_page(HOST), 0, "a copy beyond its page");
    }
    drop(guest);
    assert_eq!(machine.loopback.holdings_of(HOST).mappings, 0, "a page is still mapped");
    pool.check_and_drop();
});

/// Whatever a note says, it is refused, or is the text of what was read.
fn read_text(bytes: &[u8]) {
    let Ok(text) = from_utf8(bytes) else { return };
    let Some(read) = HashControl::from_text(text) else { return };
    check_queues(&read, QUEUES_MAX);
    assert!(has_same_text(&read, &HashControl::from_text(&read.to_string())));
}

fn has_same_text(one: &HashControl, other: &Option<HashControl>) -> bool {
    let text = one.to_string();
    text.len() <= TEXT_LEN_MAX && other.as_ref().is_some_and(|other| other.to_string() == text)
}

/// Every hash leads to a queue that exists.
fn check_queues(settings: &HashControl, queues: usize) {
    let Some(steering) = settings.steering() else { return };
    for hash in (0..256).chain([u32::MAX - 1, u32::MAX]) {
        let QueueIndex(queue) = steering.queue_of(Some(hash), queues as u16);
        assert!(usize::from(queue) < queues, "queue {queue} of {queues}");
    }
}

struct Guest<'m> {
    machine: &'m Machine,
    back: VifQueue<LoopbackMemory, LoopbackEvent>,
    front: FrontRing<Control>,
    /// The rings: tx, rx, control. Then a page that messages may name, and those to be mapped.
    granted: GrantedPages,
    settings: Arc<Mutex<HashControl>>,
    changes: Arc<Changes>,
    /// What was noted last.
    noted: String,
    /// The ids and types of messages without a response, as long as nothing else is in the ring.
    expected: Option<VecDeque<(u16, u16)>>,
    may_host_fail: bool,
    steps: usize,
}

impl<'m> Guest<'m> {
    fn new(machine: &'m Machine, input: &mut Input<'_>) -> Guest<'m> {
        let granted = machine.grants().share(HOST, PAGES, Access::ReadWrite);
        let granted = granted.expect("a new guest has memory");
        let page = |number| page_of(&granted, number);
        drop((FrontRing::<Tx>::new(page(0)), FrontRing::<Rx>::new(page(1))));
        let start = if input.flag() { u32::MAX - u32::from(input.u8()) } else { 0 };
        let front = FrontRing::starting_at(page(2), start);
        let settings = Arc::<Mutex<HashControl>>::default();
        let changes = Arc::new(Changes::new(Waker::noop().clone()));
        let noted = lock(&settings).to_string();
        let back = attach(machine, &granted, &settings, &changes, 1 + input.below(QUEUES_MAX));
        let back = back.expect("new rings are sound");
        Guest {
            machine,
            back,
            front,
            granted,
            settings,
            changes,
            noted,
            expected: Some(VecDeque::new()),
            may_host_fail: false,
            steps: 0,
        }
    }

    fn step(&mut self, input: &mut Input<'_>, pool: &mut StalePool) -> Result<(), QueueDown> {
        self.steps += 1;
        match input.u8() % 16 {
            0..=5 => self.send(input),
            6..=9 => self.serve(pool)?,
            10 => self.changes.note(|| self.noted = lock(&self.settings).to_string()),
            11..=12 => self.write_page(input),
            13 => self.disturb(input),
            14 => self.replace_backend(input)?,
            _ if input.u8() < 64 => {
                scribble(&page_of(&self.granted, 2), input);
                self.expected = None;
            }
            _ => {
                self.back.arm()?;
            }
        }
        Ok(())
    }

    /// Pushes messages, mostly of known types.
    fn send(&mut self, input: &mut Input<'_>) {
        for _ in 0..(1 + input.below(8)).min(self.front.free()) {
            let kind = if input.u8() < 16 { input.u16() } else { u16::from(input.u8() % 12) };
            let named = [2, 3].map(|page| self.granted.grefs[page].0);
            let first = match input.u8() % 4 {
                0 => input.u32(),
                1 => input.choose(&NUMBERS),
                _ => input.choose(&named),
            };
            let number = |input: &mut Input<'_>| match input.u8() {
                0..16 => input.u32(),
                _ => input.choose(&NUMBERS),
            };
            let data = match kind {
                CTRL_TYPE_ADD_GREF_MAPPING | CTRL_TYPE_DEL_GREF_MAPPING if input.u8() >= 32 => {
                    [input.below(3) as u32, self.granted.grefs[3].0, input.below(PAGES) as u32]
                }
                _ => [first, number(input), number(input)],
            };
            let request = CtrlRequest { id: input.u16(), kind, data };
            if let Some(expected) = &mut self.expected {
                expected.push_back((request.id, kind));
            }
            self.front.push_request(request);
        }
        let _ = self.front.publish_requests();
    }

    /// Has the backend carry out one message, or respond to one, and compares the response with it.
    fn serve(&mut self, pool: &mut StalePool) -> Result<(), QueueDown> {
        let before = lock(&self.settings).to_string();
        let outcome = self.back.ingress(Budget::BATCH, &mut pool.pool, &mut FrameBatch::new());
        let after = lock(&self.settings).to_string();
        let Some(expected) = &mut self.expected else { return outcome };
        let mut responses = [CtrlResponse::default(); CTRL_RING_SLOTS];
        let count = self.front.peek_responses(&mut responses).expect("the backend is honest");
        self.front.consume(count);
        assert!(count <= 1, "a message takes the place of a guest's own frames");
        assert!(count == 0 || self.noted == after, "the note is older than the response");
        for CtrlResponse { id, kind, status, data } in responses[..count].iter().copied() {
            //= netif.h:ctrl-response
            assert_eq!(Some((id, kind)), expected.pop_front(), "responses in order");
            assert!(status <= CTRL_STATUS_BUFFER_OVERFLOW, "status {status}");
            assert!(status == CTRL_STATUS_SUCCESS || (data, &before) == (0, &after));
        }
        outcome
    }

    /// Writes a key, a mapping or a list: any bytes, small numbers, or grants.
    fn write_page(&self, input: &mut Input<'_>) {
        let page = page_of(&self.granted, 3);
        match input.u8() % 4 {
            0 => {
                let len = usize::from(input.u8());
                page.copy_from(input.below(PAGE_SIZE - len), input.bytes(len));
            }
            1 => {
                let first = input.below(128);
                let entries = input.bytes(32).iter().map(|byte| u32::from(byte % 12).to_le_bytes());
                page.copy_from(4 * first, &entries.collect::<Vec<_>>().concat());
            }
            _ => {
                let first = input.below(PAGES);
                let entries = input.bytes(PAGES).iter().enumerate().map(|(at, byte)| {
                    // Mostly one after the other, as a list is only good if none is there twice.
                    let number = if *byte < 8 { usize::from(*byte) } else { first + at };
                    let gref = self.granted.grefs[number % PAGES].0;
                    GrefEntry { gref, flags: u16::from(byte % 8 == 1), status: 0 }
                });
                page.copy_from(0, entries.collect::<Vec<_>>().as_bytes());
            }
        }
    }

    /// Makes a hypervisor call fail.
    fn disturb(&mut self, input: &mut Input<'_>) {
        let point = if input.flag() { FaultPoint::Copy } else { FaultPoint::CopyCall };
        self.may_host_fail |= point == FaultPoint::CopyCall;
        self.machine.loopback.fail_next(GUEST, point);
    }

    /// Ends the backend. The next one knows what was noted, and may serve another number of queues.
    fn replace_backend(&mut self, input: &mut Input<'_>) -> Result<(), QueueDown> {
        let read = HashControl::from_text(&self.noted);
        if !self.changes.has_unnoted() {
            let is_same = has_same_text(&lock(&self.settings), &read);
            assert!(is_same, "the next backend steers otherwise");
        }
        self.changes = Arc::new(Changes::new(Waker::noop().clone()));
        self.settings = Arc::new(Mutex::new(read.expect("it has a text")));
        let queues = 1 + input.below(QUEUES_MAX);
        self.back = attach(self.machine, &self.granted, &self.settings, &self.changes, queues)?;
        Ok(())
    }
}

/// A backend's queue that serves the control ring of a vif with `queues` queues.
fn attach(
    machine: &Machine,
    granted: &GrantedPages,
    settings: &Arc<Mutex<HashControl>>,
    changes: &Arc<Changes>,
    queues: usize,
) -> Result<VifQueue<LoopbackMemory, LoopbackEvent>, QueueDown> {
    let rings = [0, 1].map(|ring| machine.map(granted.grefs[ring]));
    let (memory, events) = (machine.memory(), machine.channels().1);
    let features = FrontendFeatures { caps: OffloadCaps::NONE, rx_notify: true };
    let mut back = VifQueue::attach(QueueParts::new(GUEST, memory, rings, events, features))?;
    let QueueEvents::Split { tx: event, .. } = machine.channels().1 else {
        unreachable!("the machine's channels are split")
    };
    back.join_control(ControlRole::Serves(ControlParts {
        ring: machine.map(granted.grefs[2]),
        event,
        settings: Arc::clone(settings),
        queues: queues as u16,
        publish: Box::new(move |settings| check_queues(settings, queues)),
        changes: Arc::clone(changes),
        staging: Some(Staging {
            queues: (0..queues).map(|_| Arc::<StagedPages>::default()).collect(),
            budget: Arc::new(PageBudget::new(STAGED_MAX)),
        }),
    }))?;
    Ok(back)
}

fn page_of(granted: &GrantedPages, number: usize) -> SharedPages {
    granted.pages.slice(number * PAGE_SIZE..(number + 1) * PAGE_SIZE)
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

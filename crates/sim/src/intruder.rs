//! A hostile front-end of virtio: it knows the protocol, breaks it in any way, and its guest writes
//! anything into its rings.

use std::os::fd::{AsFd, OwnedFd};

use ringway_sys::SharedPages;
use ringway_vhost::request::Ack;
use ringway_vhost::{Addresses, Region, RegionKey, Request};
use ringway_vhost_shell::{Connection, Received};
use ringway_wire::virtio::{Features, VHOST_USER_F_PROTOCOL_FEATURES, VIRTIO_F_VERSION_1};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendFlags, send};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::choices::Choices;
use crate::marks::Mark;

/// Entries of its rings.
const QUEUE_SIZE: u16 = 16;
/// Bytes of its memory, and where it begins.
const MEMORY_LEN: u64 = 16 << 12;
const START: u64 = 1 << 20;
/// Bytes between two areas of its rings.
const AREA: u64 = 1 << 12;
/// Messages in a flood: more than a backend reads in a turn, and than it keeps replies.
const FLOOD: usize = 200;
/// What a world has enough of.
const ENOUGH: &str = "a world needs few descriptors and little memory";

/// A hostile front-end.
pub(crate) struct Intruder {
    pub(crate) name: String,
    connection: Option<Connection>,
    memory: OwnedFd,
    kick: OwnedFd,
}

impl Intruder {
    pub(crate) fn new(name: String) -> Intruder {
        let kick = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect(ENOUGH);
        Intruder { name, connection: None, memory: memory(), kick }
    }

    /// Its process, if it waits for a connection.
    pub(crate) fn waiting(&self) -> Option<u32> {
        self.connection.is_none().then_some(1)
    }

    pub(crate) fn connected(&mut self, socket: OwnedFd) {
        self.connection = Some(Connection::new(socket));
    }

    /// Does something hostile.
    pub(crate) fn act(&mut self, choices: &mut Choices) -> Option<Mark> {
        self.read_replies();
        self.connection.as_ref()?;
        match choices.below(10) {
            0..=2 => {
                self.memory = memory();
                let requests = self.set_up();
                requests.into_iter().for_each(|request| self.ask(request));
                Some(Mark::IntruderServed)
            }
            3 => {
                let request = self.odd_request(choices);
                self.ask(request);
                Some(Mark::IntruderRequest)
            }
            4 => {
                let bytes: Vec<u8> =
                    (0..choices.from_to(1, 40)).map(|_| byte(choices.below(256))).collect();
                self.send_bytes(&bytes);
                Some(Mark::IntruderBytes)
            }
            5 => {
                let bytes = Request::SetStatus(1).write(Ack::No).bytes();
                self.send_bytes(&bytes[..choices.from_to(1, bytes.len() - 1)]);
                Some(Mark::IntruderPart)
            }
            6 => {
                (0..FLOOD).for_each(|_| self.ask(Request::GetFeatures));
                Some(Mark::IntruderFloods)
            }
            7 => {
                ftruncate(&self.memory, AREA).expect("it is not sealed");
                Some(Mark::IntruderTruncates)
            }
            8 => {
                self.write_rings(choices);
                Some(Mark::IntruderRings)
            }
            _ => {
                self.connection = None;
                Some(Mark::IntruderLeaves)
            }
        }
    }

    fn read_replies(&mut self) {
        for _ in 0..FLOOD {
            match self.connection.as_mut().map(Connection::receive) {
                Some(Ok(Received::Message(_) | Received::Part)) => {}
                Some(Ok(Received::End) | Err(_)) => self.connection = None,
                Some(Ok(Received::Nothing)) | None => return,
            }
        }
    }

    fn ask(&mut self, request: Request) {
        // The backend may have left, or may not read.
        if let Some(connection) = self.connection.as_mut().filter(|it| !it.has_unsent()) {
            let _ = connection.send(request.write(Ack::No));
        }
    }

    fn send_bytes(&mut self, bytes: &[u8]) {
        if let Some(connection) = &self.connection {
            let _ = send(connection.as_fd(), bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// All that a backend needs to serve it.
    fn set_up(&self) -> Vec<Request> {
        let features = Features::of(&[VIRTIO_F_VERSION_1, VHOST_USER_F_PROTOCOL_FEATURES]);
        let key = RegionKey {
            guest_address: START,
            size: MEMORY_LEN,
            user_address: START,
            file_offset: 0,
        };
        let file = || self.memory.try_clone().expect(ENOUGH);
        let mut requests = vec![
            Request::SetFeatures(features),
            Request::SetMemTable(vec![Region { key, file: file() }]),
        ];
        for ring in 0..2 {
            let first = START + u64::from(ring) * 3 * AREA;
            let [descriptor, available, used] = [first, first + AREA, first + 2 * AREA];
            let addresses = Addresses { descriptor, used, available, log: None };
            let kick = self.kick.try_clone().expect(ENOUGH);
            requests.extend([
                Request::GetVringBase { ring },
                Request::SetVringNum { ring, size: QUEUE_SIZE },
                Request::SetVringBase { ring, base: 0 },
                Request::SetVringAddr { ring, addresses },
                Request::SetVringKick { ring, file: Some(kick) },
                Request::SetVringEnable { ring, is_enabled: true },
            ]);
        }
        requests
    }

    /// A request that is wrong now, or always.
    fn odd_request(&self, choices: &mut Choices) -> Request {
        let ring = u16::try_from(choices.below(6)).unwrap_or(0);
        let (pipe, _) = pipe_with(PipeFlags::CLOEXEC).expect(ENOUGH);
        match choices.below(9) {
            0 => Request::SetFeatures(Features(1 << choices.below(64))),
            1 => Request::SetVringNum { ring, size: 3 },
            2 => Request::SetVringBase { ring, base: 0x1_0000 },
            3 => Request::SetVringKick { ring, file: None },
            4 => Request::SetVringKick { ring, file: Some(pipe) },
            5 => Request::SetMemTable(Vec::new()),
            6 => Request::SetStatus(0),
            7 => Request::SendRarp([1; 6]),
            _ => Request::SetVringEnable { ring, is_enabled: choices.is_one_in(2) },
        }
    }

    /// Writes anything into its rings, and kicks.
    fn write_rings(&mut self, choices: &mut Choices) {
        let len = usize::try_from(MEMORY_LEN).expect("it is short");
        // It may have been truncated.
        if rustix::fs::fstat(&self.memory)
            .is_ok_and(|found| found.st_size.unsigned_abs() < MEMORY_LEN)
        {
            return;
        }
        let pages = SharedPages::map(&self.memory, 0, len).expect(ENOUGH);
        for _ in 0..choices.from_to(1, 64) {
            let at = choices.below(len);
            pages.copy_from(at, &[byte(choices.below(256))]);
        }
        let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
    }
}

fn memory() -> OwnedFd {
    let memory = memfd_create("intruder", MemfdFlags::CLOEXEC).expect(ENOUGH);
    ftruncate(&memory, MEMORY_LEN).expect(ENOUGH);
    memory
}

fn byte(number: usize) -> u8 {
    u8::try_from(number).unwrap_or_default()
}

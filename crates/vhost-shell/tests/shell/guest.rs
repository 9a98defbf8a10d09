//! A guest with our front-end, over a socket.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use ringway_vhost::backend::{FEATURES, PROTOCOL_FEATURES};
use ringway_vhost::frontend::{Event, Preferences};
use ringway_vhost::request::Request;
use ringway_vhost::{Addresses, Frontend, Region, RegionKey};
use ringway_vhost_shell::{BackendEnd, Connection, Received, State};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::device::{Recorder, until};

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor")
}

pub(crate) fn region() -> Region {
    let key = RegionKey { guest_address: 0, size: 1 << 20, user_address: 1 << 40, file_offset: 0 };
    let file = memfd_create("memory", MemfdFlags::CLOEXEC).expect("a file");
    Region { key, file }
}

/// A front-end over a socket.
pub(crate) struct Guest {
    pub(crate) connection: Connection,
    pub(crate) session: Frontend,
    pub(crate) events: Vec<Event>,
}

impl Guest {
    pub(crate) fn new(socket: UnixStream) -> Guest {
        socket.set_nonblocking(true).expect("a socket of ours");
        let preferences = Preferences { features: FEATURES, protocol: PROTOCOL_FEATURES, pairs: 2 };
        let connection = Connection::new(socket.into());
        Guest { connection, session: Frontend::new(preferences), events: Vec::new() }
    }

    pub(crate) fn turn(&mut self) {
        while let Some(message) = self.session.next_message() {
            self.connection.send(message).expect("the back-end reads");
        }
        while let Received::Message(message) = self.connection.receive().expect("it is whole") {
            self.session.take(message).expect("it was asked for");
        }
        self.events.extend(std::iter::from_fn(|| self.session.next_event()));
    }

    pub(crate) fn hand_over(&mut self, rings: Range<u16>) {
        self.session.share(vec![region()]);
        for ring in rings {
            let addresses = Addresses {
                descriptor: 1 << 40,
                available: (1 << 40) + 0x1000,
                used: (1 << 40) + 0x2000,
                log: None,
            };
            for request in [
                Request::SetVringNum { ring, size: 256 },
                Request::SetVringBase { ring, base: 0 },
                Request::SetVringAddr { ring, addresses },
                Request::SetVringCall { ring, file: Some(event()) },
                Request::SetVringKick { ring, file: Some(event()) },
                Request::SetVringEnable { ring, is_enabled: true },
            ] {
                self.session.ask(request);
            }
        }
    }

    /// Begins a session, and continues until two pairs are served.
    pub(crate) fn serve(&mut self, end: &mut BackendEnd, device: &mut Recorder) {
        self.begin(end, device, 0..4, |end, device| {
            end.state() == State::Serving && device.served.len() == 2
        });
    }

    /// Begins a session with these rings, and continues until something is so.
    pub(crate) fn begin(
        &mut self,
        end: &mut BackendEnd,
        device: &mut Recorder,
        rings: Range<u16>,
        is_done: impl Fn(&BackendEnd, &Recorder) -> bool,
    ) {
        let mut rings = Some(rings);
        until(end, device, "done", |end, device| {
            self.turn();
            if self.events.iter().any(|it| matches!(it, Event::Negotiated(_))) {
                rings.take().into_iter().for_each(|rings| self.hand_over(rings));
            }
            is_done(end, device)
        });
    }
}

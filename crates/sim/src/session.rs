//! Sessions of virtio vifs.

use std::convert::Infallible;
use std::io;
use std::time::Instant;

use ringway_host::{Session, SessionHost, SessionPlace};
use ringway_vhost::Backend;

use crate::port::Port;

/// It has no value: no guest of a world is a virtio guest yet.
pub(crate) enum NoSession {}

impl Session<Port> for NoSession {
    type Event = Infallible;

    fn turn(&mut self, _host: &mut impl SessionHost<Port>, _now: Instant) -> io::Result<bool> {
        match *self {}
    }

    fn on(&mut self, event: Infallible, _host: &mut impl SessionHost<Port>, _now: Instant) {
        match event {}
    }

    fn close(&mut self, _reason: &str, _host: &mut impl SessionHost<Port>, _now: Instant) {
        match *self {}
    }

    fn end(&mut self, _host: &mut impl SessionHost<Port>, _now: Instant) {
        match *self {}
    }

    fn due(&self) -> Option<Instant> {
        match *self {}
    }

    fn said(&self) -> Option<&Backend> {
        match *self {}
    }

    fn error(&self) -> Option<String> {
        match *self {}
    }

    fn blank_pairs(&self) -> Vec<u16> {
        match *self {}
    }

    fn place(&self) -> SessionPlace {
        match *self {}
    }

    fn may_lose_memory(&self) -> bool {
        match *self {}
    }
}

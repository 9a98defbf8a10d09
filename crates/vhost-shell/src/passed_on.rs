//! The end of an [`Opener`](crate::Opener)'s link in the process that may open no socket: where its
//! sessions get their connections from.

use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use ringway_control::{AreaWanted, Link, OpenerOrder};
use ringway_vhost::backend::AreaRequest;

use crate::endpoint::{ConnectionSource, Obstacle};
use crate::opener::RESEND;

/// Where the connections of a vif come from, and who sends its front-ends descriptors.
pub trait SessionSource: ConnectionSource {
    /// A front-end has connected.
    fn connected(&mut self, connection: OwnedFd);

    /// There is no connection, for this reason.
    fn waits(&mut self, obstacle: Obstacle);

    /// Orders that an area is sent to the front-end. The session learns the outcome.
    ///
    /// # Errors
    /// It cannot be ordered.
    fn send_area_order(&self, wanted: AreaRequest) -> io::Result<()>;
}

/// The listener of one virtio vif: connections come from the opener.
#[derive(Debug)]
pub struct PassedOn {
    name: String,
    opener: Arc<Link>,
    connection: Option<OwnedFd>,
    obstacle: Option<Obstacle>,
    has_worked: bool,
    /// An order that the opener has not received.
    unsent: Option<OpenerOrder>,
    due: Option<Instant>,
}

impl PassedOn {
    /// That of the vif with this name, by the link to its opener.
    pub fn new(name: &str, opener: Arc<Link>) -> PassedOn {
        PassedOn {
            name: name.to_owned(),
            opener,
            connection: None,
            obstacle: None,
            has_worked: false,
            unsent: None,
            due: None,
        }
    }

    fn send(&mut self, now: Instant) -> io::Result<()> {
        let Some(order) = &self.unsent else { return Ok(()) };
        match self.opener.send(order, &[]) {
            Ok(()) => self.unsent = None,
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.due = Some(now + RESEND),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl SessionSource for PassedOn {
    fn connected(&mut self, connection: OwnedFd) {
        self.connection = Some(connection);
        self.obstacle = None;
    }

    fn waits(&mut self, obstacle: Obstacle) {
        self.obstacle = Some(obstacle);
    }

    fn send_area_order(&self, wanted: AreaRequest) -> io::Result<()> {
        let AreaRequest { rings, size, len } = wanted;
        let wanted = AreaWanted { rings, size, len };
        self.opener.send(&OpenerOrder::Area { name: self.name.clone(), wanted }, &[])
    }
}

impl ConnectionSource for PassedOn {
    fn poll_connection(&mut self, now: Instant) -> io::Result<Option<OwnedFd>> {
        self.due = None;
        self.send(now)?;
        Ok(self.connection.take())
    }

    fn defer_until(&mut self, until: Instant) {
        self.due = Some(until);
    }

    fn disconnected(&mut self, now: Instant) {
        let has_worked = std::mem::take(&mut self.has_worked);
        self.unsent = Some(OpenerOrder::Disconnected { name: self.name.clone(), has_worked });
        // The next turn handles this, and reports a link that has ended.
        self.due = Some(now);
    }

    fn worked(&mut self) {
        self.has_worked = true;
    }

    fn obstacle(&self) -> Option<&Obstacle> {
        self.obstacle.as_ref()
    }

    fn awaited(&self) -> Obstacle {
        Obstacle::absence("no front-end is connected".to_owned())
    }

    fn due(&self) -> Option<Instant> {
        self.due
    }

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use ringway_control::Received;

    use super::*;

    fn orders(theirs: &Link) -> Vec<OpenerOrder> {
        let next = || match theirs.receive().expect("it is there") {
            Received::Message(order, _) => Some(order),
            Received::Nothing | Received::End => None,
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_connection_is_that_of_the_opener_which_learns_of_its_end() {
        let (ours, theirs) = Link::pair().expect("sockets");
        let theirs = Link::new(theirs);
        let (mut place, now) = (PassedOn::new("vm1", Arc::new(ours)), Instant::now());
        let poll = |place: &mut PassedOn| place.poll_connection(now).expect("it is there");
        assert!(poll(&mut place).is_none());
        let missing = Obstacle::absence("the socket is missing".to_owned());
        place.waits(missing.clone());
        assert_eq!(place.obstacle(), Some(&missing));
        place.connected(std::fs::File::open("/dev/null").expect("it is there").into());
        assert_eq!(place.obstacle(), None);
        assert!(poll(&mut place).is_some() && poll(&mut place).is_none());
        place.worked();
        for worked in [true, false] {
            place.disconnected(now);
            assert_eq!(place.due(), Some(now), "the opener has to know");
            assert!(orders(&theirs).is_empty());
            poll(&mut place);
            assert_eq!(place.due(), None);
            let order = OpenerOrder::Disconnected { name: "vm1".to_owned(), has_worked: worked };
            assert_eq!(orders(&theirs), [order]);
        }
        let wanted = AreaRequest { rings: 2, size: 256, len: 4096 };
        place.send_area_order(wanted).expect("it is there");
        let wanted = AreaWanted { rings: 2, size: 256, len: 4096 };
        assert_eq!(orders(&theirs), [OpenerOrder::Area { name: "vm1".to_owned(), wanted }]);
        drop(theirs);
        // A process that another test is just starting has it, too, until it executes its program.
        let mut is_told = || {
            place.disconnected(now);
            place.poll_connection(now).is_ok()
        };
        while is_told() {
            std::thread::yield_now();
        }
    }
}

//! What a backend has open before it is confined: it makes no socket afterwards, and connects none.

use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_control::{AreaWanted, ControlSocket, Link, OpenerOrder, RunDir};
use ringway_net::Netlink;
use ringway_vhost::backend::Wanted;
use ringway_vhost_shell::Place;

/// When an order is sent again for which the opener had no room.
const RESEND: Duration = Duration::from_millis(10);

/// Sockets of a backend, beside those of XenStore, of the hypervisor and of
/// [`Service`](crate::Service).
#[derive(Debug)]
pub struct Sockets {
    pub(crate) control: ControlSocket,
    pub(crate) netlink: Netlink,
    /// The way to the process that opens the sockets of virtio's vifs.
    pub(crate) opener: Option<Arc<Link>>,
}

impl Sockets {
    /// Opens them: the control socket in `dir`, and the way to the links of this network namespace.
    ///
    /// # Errors
    /// What the system reports.
    pub fn open(dir: &RunDir) -> io::Result<Sockets> {
        ringway_sys::guest_memory::prepare();
        let control = ControlSocket::bind(&dir.backend())?;
        Ok(Sockets { control, netlink: Netlink::open()?, opener: None })
    }

    /// With vifs of virtio, whose sockets another process opens.
    pub fn with_opener(self, opener: Link) -> Sockets {
        Sockets { opener: Some(Arc::new(opener)), ..self }
    }
}

/// The place of one vif of virtio: connections come from the opener.
#[derive(Debug)]
pub(crate) struct PassedOn {
    name: String,
    opener: Arc<Link>,
    connection: Option<OwnedFd>,
    obstacle: Option<String>,
    was_good: bool,
    /// An order that the opener has not got.
    unsent: Option<OpenerOrder>,
    due: Option<Instant>,
}

impl PassedOn {
    pub(crate) fn new(name: &str, opener: Arc<Link>) -> PassedOn {
        PassedOn {
            name: name.to_owned(),
            opener,
            connection: None,
            obstacle: None,
            was_good: false,
            unsent: None,
            due: None,
        }
    }

    pub(crate) fn connected(&mut self, connection: OwnedFd) {
        self.connection = Some(connection);
        self.obstacle = None;
    }

    pub(crate) fn waits(&mut self, reason: String) {
        self.obstacle = Some(reason);
    }

    /// Has the opener send an area to the front-end.
    pub(crate) fn order_area(&self, wanted: Wanted) -> io::Result<()> {
        let Wanted { rings, size, len } = wanted;
        let wanted = AreaWanted { rings, size, len };
        self.opener.send(&OpenerOrder::Area { name: self.name.clone(), wanted }, &[])
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

impl Place for PassedOn {
    fn meet(&mut self, now: Instant) -> io::Result<Option<OwnedFd>> {
        self.due = None;
        self.send(now)?;
        Ok(self.connection.take())
    }

    fn put_off(&mut self, until: Instant) {
        self.due = Some(until);
    }

    fn again(&mut self, now: Instant) {
        let was_good = std::mem::take(&mut self.was_good);
        self.unsent = Some(OpenerOrder::Again { name: self.name.clone(), was_good });
        // Handled in the next turn, which reports a link that has ended.
        self.due = Some(now);
    }

    fn was_good(&mut self) {
        self.was_good = true;
    }

    fn obstacle(&self) -> Option<&str> {
        self.obstacle.as_deref()
    }

    fn awaited(&self) -> String {
        "no front-end is connected".to_owned()
    }

    fn due(&self) -> Option<Instant> {
        self.due
    }

    fn waker(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

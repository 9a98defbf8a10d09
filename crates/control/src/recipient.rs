//! Where this process reports about itself: to a service manager by sd_notify(3), as supported by
//! systemd and others, or to the supervisor of an isolated backend. If there is neither, it reports
//! nothing.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;

use crate::link::Link;
use crate::tenancy::ProcessReport;

/// Twice the interval between keep-alive messages to a supervisor.
const SUPERVISED_WATCHDOG: Duration = Duration::from_secs(2);
/// The most CPU time of a thread without progress, and the most time asleep of a thread that may
/// not sleep. Turns of the control thread and rounds of workers take milliseconds of either.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// The supervisor or service manager of this process.
#[derive(Debug, Clone)]
pub struct Recipient {
    /// The longest time between two keep-alive messages, if any are wanted.
    pub(crate) watchdog: Option<Duration>,
    /// How long a thread may make no progress, in CPU time or asleep: ten seconds, but no longer
    /// than the interval between two keep-alive messages.
    pub(crate) stuck_after: Duration,
    address: Address,
    /// What an administrator should know, after the number of vifs.
    notice: Option<Arc<str>>,
}

#[derive(Debug, Clone, Default)]
enum Address {
    #[default]
    None,
    /// Of a service manager.
    ServiceManager(Arc<UnixDatagram>),
    /// The supervisor of an isolated backend.
    Supervisor(Arc<Link>),
}

impl Default for Recipient {
    fn default() -> Recipient {
        let address = Address::None;
        Recipient { watchdog: None, stuck_after: STUCK_AFTER, address, notice: None }
    }
}

impl Recipient {
    /// The service manager that the environment names: `NOTIFY_SOCKET`, to which it connects, and
    /// `WATCHDOG_USEC` if it wants keep-alive messages, which are sent at half that interval. The
    /// minimum is two seconds, because the control thread's loop turns at least every half second.
    ///
    /// Call this before the process is confined.
    pub fn from_env() -> Recipient {
        let address = env::var_os("NOTIFY_SOCKET").filter(|address| !address.is_empty());
        let socket = address.and_then(|address| {
            connect(&address)
                .inspect_err(|error| tracing::warn!("NOTIFY_SOCKET={address:?}: {error}"))
                .ok()
        });
        let address =
            socket.map_or(Address::None, |socket| Address::ServiceManager(Arc::new(socket)));
        let watchdog = sd_notify::watchdog_enabled();
        let stuck_after = watchdog.map_or(STUCK_AFTER, |interval| interval.min(STUCK_AFTER));
        Recipient { watchdog, stuck_after, address, notice: None }
    }

    /// Adds something to the status that a service manager shows.
    pub fn with_notice(self, notice: Option<&str>) -> Recipient {
        Recipient { notice: notice.map(Arc::from), ..self }
    }

    /// Passes on what a child of this process has sent to what it took for the service manager.
    pub fn pass_on(&self, message: &[u8]) {
        let Address::ServiceManager(socket) = &self.address else { return };
        if let Err(error) = socket.send(message) {
            tracing::debug!("cannot pass on a report to the service manager: {error}");
        }
    }

    /// The supervisor at the other end of a link.
    pub fn of_supervisor(link: Arc<Link>) -> Recipient {
        let (watchdog, address) = (Some(SUPERVISED_WATCHDOG), Address::Supervisor(link));
        Recipient { watchdog, address, ..Recipient::default() }
    }

    /// Sends a report. A lost report is not an error.
    pub fn report(&self, report: &ProcessReport) {
        match (&self.address, report) {
            (Address::Supervisor(link), _) => log(link.send(report, &[])),
            (_, ProcessReport::Ready) => self.notify(&NotifyState::Ready),
            (_, ProcessReport::Alive) => self.notify(&NotifyState::Watchdog),
            (_, ProcessReport::Vifs { count, connected }) => {
                let notice = self.notice.as_ref();
                let notice = notice.map_or_else(String::new, |notice| format!("; {notice}"));
                let status = format!("{count} vifs, {connected} connected{notice}");
                self.notify(&NotifyState::Status(&status));
            }
            // What only a supervisor has to know.
            (_, ProcessReport::Attached { .. } | ProcessReport::CutOff { .. }) => {}
        }
    }

    /// Reports that an orderly stop has begun, unless a supervisor has requested it.
    pub fn stopping(&self) {
        self.notify(&NotifyState::Stopping);
    }

    /// Reports that the description is read again. [`ProcessReport::Ready`] ends that.
    pub fn reloading(&self) {
        let Address::ServiceManager(socket) = &self.address else { return };
        // One message, as systemd wants it.
        let now = NotifyState::monotonic_usec_now();
        let sent = now
            .and_then(|now| socket.send(format!("{}\n{now}\n", NotifyState::Reloading).as_bytes()));
        log(sent.map(drop));
    }

    fn notify(&self, state: &NotifyState<'_>) {
        let Address::ServiceManager(socket) = &self.address else { return };
        log(socket.send(format!("{state}\n").as_bytes()).map(drop));
    }
}

fn log(sent: io::Result<()>) {
    if let Err(error) = sent {
        tracing::debug!("cannot report to the supervisor or service manager: {error}");
    }
}

/// Connects to a path, or, after an `@`, to a name in the abstract namespace.
fn connect(address: &OsStr) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    let address = match address.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(address)?,
    };
    socket.connect_addr(&address)?;
    // Never block on a manager that does not read.
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service manager that listens here, and what it was sent.
    fn heard(socket: &UnixDatagram) -> Vec<String> {
        let mut buffer = [0; 200];
        let next = || {
            let len = socket.recv(&mut buffer).ok()?;
            Some(String::from_utf8_lossy(&buffer[..len]).into_owned())
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_service_manager_hears_what_concerns_it_in_its_own_words() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("notify");
        let abstract_name = format!("@{}", path.display());
        let name = SocketAddr::from_abstract_name(&abstract_name[1..]).expect("it is short");
        let sockets = [
            (UnixDatagram::bind(&path).expect("it is free"), path.as_os_str().to_owned()),
            (UnixDatagram::bind_addr(&name).expect("it is free"), abstract_name.into()),
        ];
        for (socket, address) in sockets {
            socket.set_nonblocking(true).expect("it is ours");
            let connected = connect(&address).expect("it listens");
            let address = Address::ServiceManager(Arc::new(connected));
            let recipient = Recipient { address, ..Recipient::default() };
            let vifs = ProcessReport::Vifs { count: 3, connected: 2 };
            for report in [ProcessReport::Ready, ProcessReport::Alive, vifs.clone()] {
                recipient.report(&report);
            }
            recipient.report(&ProcessReport::Attached { tenant: "red".to_owned() });
            recipient.stopping();
            recipient.pass_on(b"EXTEND_TIMEOUT_USEC=1");
            let expected = [
                "READY=1\n",
                "WATCHDOG=1\n",
                "STATUS=3 vifs, 2 connected\n",
                "STOPPING=1\n",
                "EXTEND_TIMEOUT_USEC=1",
            ];
            assert_eq!(heard(&socket), expected);
            recipient.clone().with_notice(Some("see the log")).report(&vifs);
            assert_eq!(heard(&socket), ["STATUS=3 vifs, 2 connected; see the log\n"]);
            recipient.reloading();
            let [reloading] = &heard(&socket)[..] else { panic!("it is one message") };
            assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
            // A message is lost rather than waited for.
            drop(socket);
            recipient.report(&ProcessReport::Ready);
        }
    }

    #[test]
    fn a_supervisor_hears_each_report_as_it_is() {
        let (ours, theirs) = Link::pair().expect("sockets");
        let theirs = Link::new(theirs);
        let recipient = Recipient::of_supervisor(Arc::new(ours));
        assert!(recipient.watchdog.is_some());
        let cut_off =
            ProcessReport::CutOff { tenant: "red".to_owned(), reason: "its ring".to_owned() };
        recipient.report(&cut_off);
        recipient.stopping();
        let found = theirs.receive::<ProcessReport>().expect("it is there");
        assert!(matches!(found, crate::link::Received::Message(it, _) if it == cut_off));
        let found = theirs.receive::<ProcessReport>().expect("it is there");
        assert!(matches!(found, crate::link::Received::Nothing), "it has requested that");
    }
}

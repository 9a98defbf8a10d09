//! What the service manager is told: sd_notify(3), which systemd speaks and others have taken up.
//! Where there is none, nothing happens.

use std::env;
use std::ffi::OsStr;
use std::fmt::Write;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;

/// The service manager that looks after this process, or none.
#[derive(Debug, Clone, Default)]
pub struct Service {
    pub(crate) watchdog: Option<Duration>,
    socket: Option<Arc<UnixDatagram>>,
}

impl Service {
    /// The one that the environment names: `NOTIFY_SOCKET`, to which it connects, and
    /// `WATCHDOG_USEC` if it wants signs of life, of which it gets one each half of that time. Two
    /// seconds are the least that works: the control thread looks every half second.
    ///
    /// To be called before the process is confined.
    pub fn from_env() -> Service {
        let address = env::var_os("NOTIFY_SOCKET").filter(|address| !address.is_empty());
        let socket = address.and_then(|address| {
            connect(&address)
                .inspect_err(|error| tracing::warn!("NOTIFY_SOCKET={address:?}: {error}"))
                .ok()
        });
        Service { watchdog: sd_notify::watchdog_enabled(), socket: socket.map(Arc::new) }
    }

    pub(crate) fn tell(&self, states: &[NotifyState<'_>]) {
        let Some(socket) = &self.socket else { return };
        let mut message = String::new();
        for state in states {
            // Text takes any text.
            let _ = writeln!(message, "{state}");
        }
        if let Err(error) = socket.send(message.as_bytes()) {
            tracing::debug!("the service manager: {error}");
        }
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
    // A manager that does not read must not stop us.
    socket.set_nonblocking(true)?;
    Ok(socket)
}

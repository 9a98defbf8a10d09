//! What a host reports to the process that started it, on standard output: sentences, or lines of
//! JSON.

use ringway_terminal::logging;
use serde::Serialize;
use tracing::Level;

/// Something that happened. The names and fields are for scripts, too.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum Event<'a> {
    /// All guests are connected, for the first time.
    Ready {
        /// The run directory.
        dir: &'a str,
        /// The guests.
        guests: Vec<ReadyGuest<'a>>,
    },
    /// A backend on Xen serves.
    Serving {
        /// The run directory.
        dir: &'a str,
        /// The domain whose vifs it serves.
        domid: u16,
    },
    /// The backend ended and is started again.
    BackendRestarted {
        /// How often that has happened.
        restarts: u64,
        /// Its process.
        pid: u32,
    },
    /// A process of an isolated backend ended and was started again.
    ProcessRestarted {
        /// The tenant that it serves, or `switch`.
        process: &'a str,
        /// How often that has happened.
        restarts: u64,
        /// Its process.
        pid: u32,
    },
    /// A guest ended.
    GuestEnded {
        /// Its name.
        name: &'a str,
        /// Its domain.
        domid: u16,
    },
    /// A guest was made again.
    GuestStarted {
        /// Its name.
        name: &'a str,
        /// Its domain.
        domid: u16,
        /// Its process.
        pid: u32,
    },
}

impl Event<'_> {
    /// Its level in a log.
    fn level(&self) -> Level {
        match self {
            Event::Ready { .. } | Event::Serving { .. } | Event::GuestStarted { .. } => Level::INFO,
            Event::BackendRestarted { .. }
            | Event::ProcessRestarted { .. }
            | Event::GuestEnded { .. } => Level::WARN,
        }
    }
}

/// A guest that is connected.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ReadyGuest<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Its domain.
    pub(crate) domid: u16,
    /// Its process.
    pub(crate) pid: u32,
    /// Its addresses.
    pub(crate) addresses: Vec<String>,
}

/// How events are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Show {
    /// As sentences.
    Sentences,
    /// As lines of JSON.
    Json,
}

impl Show {
    /// Shows an event; if our output is closed, it is not wanted.
    pub(crate) fn event(self, event: &Event<'_>) {
        use std::io::Write;
        let mut out = std::io::stdout().lock();
        let _ = match self {
            Show::Json => serde_json::to_string(event)
                .map_err(std::io::Error::from)
                .and_then(|line| writeln!(out, "{line}")),
            Show::Sentences => {
                let beginning = logging::beginning(&out, event.level());
                write!(out, "{beginning}{}", sentence(event))
            }
        };
        let _ = out.flush();
    }
}

fn sentence(event: &Event<'_>) -> String {
    match event {
        Event::Ready { dir, guests } => {
            let mut text = format!("ready in {dir}\n");
            for guest in guests {
                let addresses = guest.addresses.join(", ");
                text += &format!("  guest {} (domain {}): {addresses}\n", guest.name, guest.domid);
            }
            text += "try `ringway guest exec NAME -- CMD`, `ringway top`; Ctrl-C ends it\n";
            text
        }
        Event::Serving { dir, domid } => {
            format!("serving the vifs of domain {domid}, in {dir}; Ctrl-C ends it\n")
        }
        Event::BackendRestarted { restarts, .. } => {
            format!("the backend was restarted; restarts so far: {restarts}\n")
        }
        Event::ProcessRestarted { process, restarts, .. } => {
            format!("the process {process} was restarted; restarts so far: {restarts}\n")
        }
        Event::GuestEnded { name, .. } => format!("guest {name} has ended\n"),
        Event::GuestStarted { name, domid, .. } => {
            format!("guest {name} was restarted as domain {domid}\n")
        }
    }
}

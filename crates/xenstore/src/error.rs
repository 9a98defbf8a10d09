//! Why a request to XenStore failed: it was refused, or XenStore is gone.
//!
//! There are two types because the consequences differ. A refusal concerns one node, and with it
//! one vif at most. Only the loss of XenStore may end a process, so functions that run a whole
//! process return [`Lost`], which no refusal converts to.

use std::io::{self, ErrorKind};

use ringway_wire::xenstore::{Errno, Op};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum XsError {
    /// The store refused the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store did not respond.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// A request that the store refused, or whose reply the caller cannot use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("XenStore {op:?} {path}: {reason}")]
pub struct Refusal {
    /// The request.
    pub op: Op,
    /// Its path.
    pub path: String,
    /// Why not.
    pub reason: Reason,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The store's error: a missing right, a quota, no such node.
    #[error("{0}")]
    Errno(Errno),
    /// The caller wants text, and the value is not UTF-8.
    #[error("the value is not UTF-8")]
    NotText,
}

/// XenStore is gone: the connection has ended or failed, or carries another protocol.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Lost(io::Error);

impl XsError {
    /// Whether the store refused the request with this error.
    pub fn is(&self, errno: Errno) -> bool {
        matches!(self, XsError::Refused(refusal) if refusal.is(errno))
    }
}

impl Refusal {
    /// Whether the store refused with this error.
    pub fn is(&self, errno: Errno) -> bool {
        self.reason == Reason::Errno(errno)
    }
}

impl Lost {
    /// The connection has ended.
    pub(crate) fn closed() -> Lost {
        Lost(io::Error::new(ErrorKind::UnexpectedEof, "XenStore closed the connection"))
    }

    /// The store does not follow the protocol.
    pub(crate) fn sent(what: &str) -> Lost {
        Lost(io::Error::new(ErrorKind::InvalidData, format!("XenStore sent {what}")))
    }
}

/// The system reports the end of a connection in one of three ways, depending on the call.
impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Lost {
        match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                Lost::closed()
            }
            _ => Lost(error),
        }
    }
}

impl From<Lost> for io::Error {
    fn from(Lost(error): Lost) -> io::Error {
        error
    }
}

/// Separates errors that concern one request from those that concern the whole process.
///
/// # Errors
/// If the store is gone.
pub fn or_refusal<T>(outcome: Result<T, XsError>) -> Result<Result<T, Refusal>, Lost> {
    match outcome {
        Ok(value) => Ok(Ok(value)),
        Err(XsError::Refused(refusal)) => Ok(Err(refusal)),
        Err(XsError::Lost(lost)) => Err(lost),
    }
}

/// The outcome, or this value if the store refused.
///
/// # Errors
/// If the store is gone.
pub fn unless_refused<T>(outcome: Result<T, XsError>, otherwise: T) -> Result<T, Lost> {
    Ok(or_refusal(outcome)?.unwrap_or(otherwise))
}

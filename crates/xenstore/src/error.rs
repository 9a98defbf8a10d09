//! Why a request to XenStore failed: it was refused, or XenStore is gone.
//!
//! The two are types of their own, because they have different consequences. A refusal concerns
//! one node, and with it one vif at most. Only the loss of XenStore may end a process, so functions
//! that run a whole process return [`Lost`], which no refusal converts to.

use std::io::{self, ErrorKind};

use ringway_wire::xenstore::{Errno, Op};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum XsError {
    /// The store has responded, and said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store has not responded.
    #[error(transparent)]
    Lost(#[from] Lost),
}

/// A request that the store refused, or responded to in a way that is of no use to the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("XenStore {op:?} {path}: {reason}")]
pub struct Refusal {
    /// What was requested.
    pub op: Op,
    /// Of which path.
    pub path: String,
    /// Why not.
    pub reason: Reason,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The store says so: a missing right, a quota, no such node.
    #[error("{0}")]
    Errno(Errno),
    /// The caller wants text, and the value is something else.
    #[error("the value is not UTF-8")]
    NotText,
    /// The store's list of permissions does not follow the protocol.
    #[error("the permissions cannot be read")]
    NotPermissions,
}

/// XenStore is gone: the connection has ended or failed, or what it carries is not the protocol.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Lost(io::Error);

impl XsError {
    /// Whether the store refused the request for this reason.
    pub fn is(&self, errno: Errno) -> bool {
        matches!(self, XsError::Refused(refusal) if refusal.is(errno))
    }
}

impl Refusal {
    /// Whether the store gave this reason.
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

/// The system reports a connection that has ended in one of three ways, depending on what it was
/// doing.
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

/// Separates what concerns one request from what concerns the whole process.
///
/// # Errors
/// That the store is gone.
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
/// That the store is gone.
pub fn unless_refused<T>(outcome: Result<T, XsError>, otherwise: T) -> Result<T, Lost> {
    Ok(or_refusal(outcome)?.unwrap_or(otherwise))
}

//! The XenStore wire protocol (`xs_wire.h`): message header, operations, error names, limits.
//!
//! A message is a [`SockMsg`] followed by `len` bytes, mostly NUL-terminated strings. Integers are
//! in the host's byte order: the protocol never leaves a machine.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::operations::operations;

/// The header of every message in both directions (`struct xsd_sockmsg`).
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SockMsg {
    /// An [`Op`] (the C field is `type`); unchecked when it comes from a peer.
    pub kind: u32,
    /// Chosen by the requester, echoed in the reply; 0 in watch events.
    pub req_id: u32,
    /// The transaction, or 0 for none.
    pub tx_id: u32,
    /// Bytes that follow; at most [`XENSTORE_PAYLOAD_MAX`].
    pub len: u32,
}

/// Bytes of a header.
pub const SOCKMSG_LEN: usize = size_of::<SockMsg>();
/// The most bytes that may follow a header. Exceeding it breaks the connection.
pub const XENSTORE_PAYLOAD_MAX: usize = 4096;
/// The longest absolute path, in bytes. The store refuses longer ones with an error.
pub const XENSTORE_ABS_PATH_MAX: usize = 3072;
/// The longest path relative to a domain's own directory, in bytes.
pub const XENSTORE_REL_PATH_MAX: usize = 2048;

operations! {
    /// The type of a message (`enum xsd_sockmsg_type`), which [`SockMsg::kind`] has.
    pub enum Op {
        /// Debugging commands for the daemon (`XS_CONTROL`).
        Control = 0,
        /// Names of a node's children (`XS_DIRECTORY`).
        Directory = 1,
        /// The value of a node (`XS_READ`).
        Read = 2,
        /// The permissions of a node (`XS_GET_PERMS`).
        GetPerms = 3,
        /// Ask for events about changes at or below a path (`XS_WATCH`).
        Watch = 4,
        /// Withdraw a watch (`XS_UNWATCH`).
        Unwatch = 5,
        /// Begin a transaction (`XS_TRANSACTION_START`).
        TransactionStart = 6,
        /// Commit or abort a transaction (`XS_TRANSACTION_END`).
        TransactionEnd = 7,
        /// Introduce a new domain to the daemon (`XS_INTRODUCE`).
        Introduce = 8,
        /// Report to the daemon that a domain is gone (`XS_RELEASE`).
        Release = 9,
        /// The home directory of a domain (`XS_GET_DOMAIN_PATH`).
        GetDomainPath = 10,
        /// Set a value, making the node if needed (`XS_WRITE`).
        Write = 11,
        /// Make a node with an empty value unless it exists (`XS_MKDIR`).
        Mkdir = 12,
        /// Remove a node and all below it (`XS_RM`).
        Rm = 13,
        /// Set the permissions of a node (`XS_SET_PERMS`).
        SetPerms = 14,
        /// From the daemon only: something watched changed (`XS_WATCH_EVENT`).
        WatchEvent = 15,
        /// From the daemon only: a request failed; the payload names the reason (`XS_ERROR`).
        Error = 16,
        /// Whether the daemon knows a domain (`XS_IS_DOMAIN_INTRODUCED`).
        IsDomainIntroduced = 17,
        /// Forget that a domain was shut down (`XS_RESUME`).
        Resume = 18,
        /// Let one domain act for another (`XS_SET_TARGET`).
        SetTarget = 19,
        /// Drop all watches and transactions of the connection (`XS_RESET_WATCHES`).
        ResetWatches = 21,
        /// A part of a directory that is too long for one message (`XS_DIRECTORY_PART`).
        DirectoryPart = 22,
    }
}

/// Defines the error enum together with its wire names.
macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The reasons that travel in [`Op::Error`] messages, as strings (`xsd_errors`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Errno { $($(#[$doc])* $name,)* }

        impl Errno {
            /// Every error the header defines, in its order.
            pub const ALL: &'static [Errno] = &[$(Errno::$name,)*];

            /// Its spelling on the wire, without the terminating NUL.
            pub const fn name(self) -> &'static str {
                match self { $(Errno::$name => $text,)* }
            }

            /// The error with this spelling, if there is one.
            pub fn from_name(name: &str) -> Option<Errno> {
                match name { $($text => Some(Errno::$name),)* _ => None }
            }
        }
    };
}

errors! {
    /// The request makes no sense.
    Inval = "EINVAL",
    /// The permissions of the node forbid it.
    Acces = "EACCES",
    /// The object exists already.
    Exist = "EEXIST",
    /// Not used by the operations above.
    Isdir = "EISDIR",
    /// There is no such node, watch or transaction.
    Noent = "ENOENT",
    /// The daemon has no memory left.
    Nomem = "ENOMEM",
    /// A quota is used up.
    Nospc = "ENOSPC",
    /// The daemon's storage failed.
    Io = "EIO",
    /// Not used by the operations above.
    Notempty = "ENOTEMPTY",
    /// The operation is not supported.
    Nosys = "ENOSYS",
    /// Not used by the operations above.
    Rofs = "EROFS",
    /// A transaction was started inside another transaction.
    Busy = "EBUSY",
    /// The transaction met a conflict: run it again from its start.
    Again = "EAGAIN",
    /// The domain is connected already.
    Isconn = "EISCONN",
    /// The reply would be longer than a message may be.
    Toobig = "E2BIG",
    /// Only the owner or a privileged domain may do that.
    Perm = "EPERM",
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl core::error::Error for Errno {}

const _: () = {
    assert!(SOCKMSG_LEN == 16);
    assert!(Op::DirectoryPart.number() == 22 && Op::ResetWatches.number() == 21);
    assert!(Op::from_number(20).is_none() && Op::from_number(23).is_none());
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_and_error_survives_the_wire() {
        for &op in Op::ALL {
            assert_eq!(Op::from_number(op.number()), Some(op));
        }
        for &error in Errno::ALL {
            assert_eq!(Errno::from_name(error.name()), Some(error));
        }
        assert_eq!(Op::ALL.len(), 22);
        assert_eq!(Errno::ALL.len(), 16);
        assert_eq!(Errno::from_name("ENOTTY"), None);
    }

    #[test]
    fn the_header_has_the_bytes_of_the_c_structure() {
        let header = SockMsg { kind: 11, req_id: 0x0102_0304, tx_id: 5, len: 9 };
        let mut golden = Vec::new();
        for word in [11u32, 0x0102_0304, 5, 9] {
            golden.extend_from_slice(&word.to_ne_bytes());
        }
        assert_eq!(header.as_bytes(), golden);
        assert_eq!(SockMsg::read_from_bytes(&golden).ok(), Some(header));
    }
}

//! The file of a socket: dials it, or makes it and recognizes it later.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, chownat, fstat, openat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::trusted_path;

/// A group of the host that may connect to sockets that we create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketGroup {
    /// Its name, for messages.
    pub name: String,
    /// Its number.
    pub id: u32,
}

/// Rights of a socket to which its user and its group may connect.
const RIGHTS_WITH_GROUP: Mode = Mode::from_bits_truncate(0o660);
/// The end of the error about a socket that is not ours.
pub const LISTENED_AT: &str = "another process listens at it";
/// Connections that may wait while one is active.
const BACKLOG: i32 = 1;

/// A socket that we created and listen on.
#[derive(Debug)]
pub(crate) struct OwnSocket {
    pub(crate) socket: OwnedFd,
    path: PathBuf,
    /// The device and inode of its file. No other file can have them while the socket is open.
    file: (u64, u64),
}

/// What exists at the path of a socket of ours.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Ours,
    Nothing,
    Other,
}

impl OwnSocket {
    /// Creates it, replacing one that has no listener any more.
    pub(crate) fn make(path: &Path, group: Option<&SocketGroup>) -> io::Result<OwnSocket> {
        if is_other_file(path) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, not_a_socket(path)));
        }
        match dial(path) {
            Ok(_) | Err(Errno::AGAIN) => {
                let message = format!("{}: {LISTENED_AT}", path.display());
                return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
            }
            Err(Errno::PROTOTYPE) => {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, other_type(path)));
            }
            Err(Errno::CONNREFUSED) => remove_dead_socket(path)?,
            Err(_) => {}
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(at(path, "a socket"))?;
        let address = SocketAddrUnix::new(path).map_err(at(path, "a socket's path"))?;
        let umask = group.map(|_| rustix::process::umask(RIGHTS_WITH_GROUP.complement()));
        let bound = bind(&socket, &address);
        umask.map(rustix::process::umask);
        bound.map_err(|error| match missing_directory(path) {
            Some(missing) => io::Error::new(io::ErrorKind::NotFound, missing),
            None => at(path, "make the socket")(error),
        })?;
        // No one can connect before it listens.
        let given = group.map_or(Ok(()), |group| give(path, group));
        let ready = given.and_then(|()| listen(&socket, BACKLOG).map_err(at(path, "listen")));
        let ready = ready.and_then(|()| path.symlink_metadata());
        match ready {
            Ok(file) => {
                let file = (file.dev(), file.ino());
                Ok(OwnSocket { socket, path: path.to_owned(), file })
            }
            Err(error) => {
                let _ = remove_dead_socket(path);
                Err(error)
            }
        }
    }

    /// What exists at its path now.
    pub(crate) fn find(&self) -> Found {
        match self.path.symlink_metadata() {
            Ok(found) if (found.dev(), found.ino()) == self.file => Found::Ours,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Found::Nothing,
            _ => Found::Other,
        }
    }

    /// Removes its file, unless that is another one by now.
    pub(crate) fn remove(&self) -> io::Result<()> {
        if self.find() == Found::Ours { std::fs::remove_file(&self.path) } else { Ok(()) }
    }
}

/// Connects to the socket at a path, over no link of another user: see [`trusted_path`].
pub(crate) fn dial(path: &Path) -> Result<OwnedFd, Errno> {
    let found = trusted_path::find(path)?;
    // By its descriptor, as another file may have the name by now.
    let address = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connection = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&connection, &SocketAddrUnix::new(address)?)?;
    Ok(connection)
}

/// The message for a path with a link that is not followed.
pub(crate) fn foreign_link(path: &Path) -> String {
    let path = path.display();
    format!(
        "{path}: it is or leads over a symbolic link of another user, or too many links: name the \
         socket itself, or have root make the link"
    )
}

/// Removes a socket. Any other file stays, whatever path the administrator gave.
fn remove_dead_socket(path: &Path) -> io::Result<()> {
    if is_other_file(path) {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, not_a_socket(path)));
    }
    std::fs::remove_file(path)
}

/// Whether something other than a socket exists at a path; a link is not followed.
fn is_other_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| !found.file_type().is_socket())
}

pub(crate) fn not_a_socket(path: &Path) -> String {
    let path = path.display();
    format!("{path} exists and is not a socket: choose another path, or remove it")
}

/// The message for a socket that is not for streams.
pub(crate) fn other_type(path: &Path) -> String {
    let path = path.display();
    format!(
        "{path} is a socket of another program and has another type (expected SOCK_STREAM): choose \
         another path, or end that program"
    )
}

/// The message if the directory of a socket does not exist.
pub(crate) fn missing_directory(socket: &Path) -> Option<String> {
    let dir = socket.parent().filter(|dir| !dir.as_os_str().is_empty())?;
    let error = dir.metadata().err().filter(|error| error.kind() == io::ErrorKind::NotFound);
    let (path, dir) = (socket.display(), dir.display());
    error.map(|_| format!("{path}: the directory {dir} does not exist: create it"))
}

/// Gives a new socket to a group. It follows no link at the end of the path, and changes nothing
/// but a socket.
fn give(path: &Path, group: &SocketGroup) -> io::Result<()> {
    let given = || {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(CWD, path, flags, Mode::empty())?;
        if !FileType::from_raw_mode(fstat(&file)?.st_mode).is_socket() {
            return Err(Errno::NOTSOCK);
        }
        chownat(&file, "", None, Some(Gid::from_raw(group.id)), AtFlags::EMPTY_PATH)
    };
    given().map_err(|error| {
        let error = io::Error::from(error);
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => ": the user of ringway must be in this group",
            io::ErrorKind::InvalidInput => ": ringway's user namespace does not have this group",
            _ => "",
        };
        let (path, name) = (path.display(), &group.name);
        let message = format!("{path}: give it to the group {name}: {error}{remedy}");
        io::Error::new(error.kind(), message)
    })
}

pub(crate) fn at(path: &Path, what: &'static str) -> impl Fn(Errno) -> io::Error {
    let path = path.display().to_string();
    move |error| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("{path}: {what}: {error}"))
    }
}

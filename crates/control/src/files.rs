//! Files and sockets of the run directory: written whole or not at all, and with errors that name
//! the path.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// Gives a file other content. A reader finds the old content or the new one, also if the disk is
/// full or the process is killed.
///
/// # Errors
/// What the system reports, with the path.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let written = fs::write(&new, content).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written.map_err(|error| named(path, &error))
}

/// Listens at a path; the process's umask says who may connect.
///
/// # Errors
/// What the system reports, with the path.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    UnixListener::bind(path).map_err(|error| named(path, &error))
}

/// Listens at a path, for the user of this process only. Not for a confined process, which may not
/// change modes.
///
/// # Errors
/// As [`bind`].
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let listener = bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
        .map_err(|error| named(path, &error))?;
    Ok(listener)
}

/// A path as people are shown it: in full, also that of a file in the working directory of a
/// confined process.
pub fn shown(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("write {}: {error}", shown(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_keeps_its_content_and_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("state.json");
        replace(&file, b"old").expect("written");
        replace(&file, b"new").expect("written");
        assert_eq!(fs::read(&file).expect("kept"), b"new");
        // A directory is in the way, as a full disk would be.
        fs::create_dir(dir.path().join("state.new")).expect("ours");
        let error = replace(&file, b"newer").expect_err("in the way");
        assert!(error.to_string().contains(&*file.to_string_lossy()), "{error}");
        assert_eq!(fs::read(&file).expect("kept"), b"new");
        let error = listen(&file).expect_err("a file is there");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&*file.to_string_lossy()), "{error}");
    }
}

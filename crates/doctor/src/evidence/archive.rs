//! A saved host as a tar, written and read without touching a file system.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Component, Path};

use super::source::{NO_TEXT, PIECE_BYTES_MAX, PIECES_MAX, Source, text_of};

/// Bytes of all pieces of a tar together.
const ARCHIVE_BYTES_MAX: u64 = 256 << 20;

/// Reads a saved host: a directory or a tar.
pub fn open(path: &Path) -> io::Result<Source> {
    if path.is_dir() { Source::directory(path) } else { read(File::open(path)?) }
}

/// Reads a tar. A check that wants a file which is no text says so.
pub fn read(tar: impl Read) -> io::Result<Source> {
    let mut pieces = BTreeMap::new();
    let mut left = ARCHIVE_BYTES_MAX;
    for entry in tar::Archive::new(tar).entries()?.take(PIECES_MAX) {
        let mut entry = entry.map_err(|error| io::Error::other(format!("not a tar: {error}")))?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let Some(path) = plain(&entry.path()?) else { continue };
        let mut bytes = Vec::new();
        entry.by_ref().take(PIECE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        left = left.checked_sub(len).ok_or_else(|| {
            io::Error::other(format!("more than {} MiB of evidence", ARCHIVE_BYTES_MAX >> 20))
        })?;
        let text = text_of(bytes).unwrap_or_else(|why| format!("{NO_TEXT}{why}"));
        pieces.insert(path, text);
    }
    if pieces.is_empty() {
        return Err(io::Error::other("no evidence in it"));
    }
    Ok(Source::Memory(pieces))
}

/// Writes a collected host.
pub fn write(source: &Source, tar: impl Write) -> io::Result<()> {
    let Source::Memory(pieces) = source else {
        return Err(io::Error::other("this host is saved already"));
    };
    let mut builder = tar::Builder::new(tar);
    for (path, text) in pieces {
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(text.len()).unwrap_or(u64::MAX));
        header.set_mode(0o644);
        builder.append_data(&mut header, path, text.as_bytes())?;
    }
    builder.into_inner()?.flush()
}

/// A path without a leading `./`, if it stays below the root.
fn plain(path: &Path) -> Option<String> {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => parts.push(name.to_str()?),
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let pieces = [("proc/version".to_owned(), "Linux\n".to_owned()), ("a".into(), "".into())];
        let mut bytes = Vec::new();
        write(&Source::Memory(pieces.into()), &mut bytes).expect("written");
        let source = read(bytes.as_slice()).expect("read");
        assert_eq!(source.file("proc/version").expect("there").value(), "Linux");
        for len in 0..bytes.len() {
            // A truncated tar is refused or has less in it; it is no crash.
            let _ = read(&bytes[..len]);
        }
        assert!(read(b"no tar at all".as_slice()).is_err());
    }
}

//! A saved host as a tar, written and read without touching a file system.

mod folder;
mod links;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Component, Path};
use std::process::{Command, Stdio};

use super::source::{
    NO_TEXT, PIECE_BYTES_MAX, PIECES_MAX, REFUSED_FILE, REMARKS_FILE, Source, text_of,
};

/// Total bytes of all pieces of a tar.
const ARCHIVE_BYTES_MAX: u64 = 256 << 20;
/// Bytes of a block of a tar; zeros follow the last one.
const BLOCK_BYTES: usize = 512;
/// Bytes that a compressed archive may unpack to; a crafted one is endless.
const UNPACKED_BYTES_MAX: u64 = 4 << 30;
/// Magic numbers of compressed files, and the tools that unpack them, which all take the same
/// flags.
const COMPRESSED: [(&[u8], &str); 4] = [
    (&[0x1f, 0x8b], "gzip"),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd"),
    (b"BZh", "bzip2"),
];
const ZIP: &[u8] = &[b'P', b'K', 3, 4];

/// Reads a saved host: a directory or a tar, which may be compressed.
///
/// # Errors
/// The error of opening it. If it is not a tar, not a saved host, or in an unsupported compression,
/// the error says what it is and what was expected.
pub fn open(path: &Path) -> io::Result<Source> {
    if path.is_dir() {
        return folder::open(path);
    }
    let mut file = File::open(path)?;
    let mut start = Vec::new();
    (&file).take(8).read_to_end(&mut start)?;
    if start.starts_with(ZIP) {
        let what =
            "it is compressed with zip: unpack it first with `unzip FILE`, and use the result";
        return Err(io::Error::other(what));
    }
    file.rewind()?;
    match COMPRESSED.iter().find(|(magic, _)| start.starts_with(magic)) {
        Some((_, tool)) => unpacked(file, tool),
        None => read(file),
    }
}

/// Reads a file that a tool unpacks. The tool is a separate process, because a foreign archive may
/// be crafted to exploit the unpacker.
fn unpacked(file: File, tool: &str) -> io::Result<Source> {
    let mut unpack = Command::new(tool);
    unpack.arg("-dc").stdin(file).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = unpack.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::other(format!(
            "it is compressed with {tool}, which is not installed here: install it, or unpack the \
             file elsewhere"
        )),
        _ => error,
    })?;
    let source = match child.stdout.take() {
        Some(pipe) => read(pipe.take(UNPACKED_BYTES_MAX)),
        None => Err(io::Error::other(format!("{tool} has no output"))),
    };
    // The tool has ended, or its output has no reader any more.
    let _ = child.kill();
    child.wait()?;
    source
}

/// Reads a tar, up to where it is damaged. A check that needs a file which is not text reports
/// that.
///
/// # Errors
/// As [`open`].
pub fn read(tar: impl Read) -> io::Result<Source> {
    let mut tape = TrailingZeroReader { inner: tar, zeros: 0, is_over: false };
    let mut taken = Taken { left: ARCHIVE_BYTES_MAX, ..Taken::default() };
    let ended = taken.entries(&mut tape);
    let Taken { mut pieces, links, left, remark, .. } = taken;
    let remark = match ended {
        Ok(()) if remark.is_none() && !tape.has_end() => Some(early(pieces.len())),
        Ok(()) => remark,
        Err(Ended::Refused(error)) => return Err(error),
        // Its own words would repeat what is in the file, which may be no one's business.
        Err(Ended::Torn(_)) if pieces.is_empty() => {
            return Err(io::Error::other("not a tar of a saved host"));
        }
        Err(Ended::Torn(_)) if tape.is_over => Some(early(pieces.len())),
        Err(Ended::Torn(error)) => Some(format!(
            "the archive is damaged after its first {} files ({error}); the rest was not read",
            pieces.len()
        )),
    };
    links::follow(&mut pieces, &links, left);
    let mut pieces = folder::strip(pieces)?;
    pieces.remove(REMARKS_FILE);
    pieces.extend(remark.map(|remark| (REMARKS_FILE.to_owned(), remark + "\n")));
    Ok(Source::Memory(pieces))
}

fn early(count: usize) -> String {
    format!("the archive is truncated: {count} files were read, and there may have been more")
}

/// Why reading the entries of a tar ended early.
enum Ended {
    /// It is not a tar, or it is damaged.
    Torn(io::Error),
    /// It holds more than any saved host does.
    Refused(io::Error),
}

/// The content of a tar that was read.
#[derive(Default)]
struct Taken {
    pieces: BTreeMap<String, String>,
    /// Targets of links, by path.
    links: BTreeMap<String, String>,
    /// Bytes left of the limit.
    left: u64,
    remark: Option<String>,
}

impl Taken {
    fn entries(&mut self, tape: &mut TrailingZeroReader<impl Read>) -> Result<(), Ended> {
        let mut archive = tar::Archive::new(tape);
        let mut count = 0;
        for entry in archive.entries().map_err(Ended::Torn)? {
            let mut entry = entry.map_err(Ended::Torn)?;
            count += 1;
            if count > PIECES_MAX {
                self.remark = Some(format!("only the first {PIECES_MAX} files were read"));
                return Ok(());
            }
            let Some(path) = entry.path().ok().as_deref().and_then(plain) else { continue };
            let kind = entry.header().entry_type();
            if kind.is_symlink() || kind.is_hard_link() {
                let target = entry.link_name().ok().flatten();
                let target = target.as_deref().and_then(Path::to_str);
                let from = if kind.is_symlink() { path.as_str() } else { "" };
                let target = target.and_then(|target| links::target(from, target));
                self.links.extend(target.map(|target| (path, target)));
            } else if kind.is_file() {
                self.file(path, &mut entry)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: String, entry: &mut tar::Entry<'_, impl Read>) -> Result<(), Ended> {
        let size = entry.size();
        let mut bytes = Vec::new();
        entry.take(PIECE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(Ended::Torn)?;
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if len < size.min(PIECE_BYTES_MAX + 1) {
            // A truncated file is no evidence.
            let line = format!("{path}\tthe archive is truncated in this file\n");
            self.pieces.entry(REFUSED_FILE.to_owned()).or_default().push_str(&line);
            return Ok(());
        }
        self.left = self.left.checked_sub(len).ok_or_else(|| {
            let most = ARCHIVE_BYTES_MAX >> 20;
            Ended::Refused(io::Error::other(format!("more than {most} MiB of evidence")))
        })?;
        let text = text_of(bytes).unwrap_or_else(|why| format!("{NO_TEXT}{why}"));
        self.pieces.insert(path, text);
        Ok(())
    }
}

/// A reader that counts the zeros at the end: a complete tar ends in blocks of zeros.
struct TrailingZeroReader<R> {
    inner: R,
    /// How many of the last bytes were zero.
    zeros: usize,
    is_over: bool,
}

impl<R> TrailingZeroReader<R> {
    fn has_end(&self) -> bool {
        self.zeros >= BLOCK_BYTES
    }
}

impl<R: Read> Read for TrailingZeroReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.inner.read(buffer)?;
        self.is_over |= len == 0 && !buffer.is_empty();
        let read = &buffer[..len];
        let zeros = read.iter().rev().take_while(|byte| **byte == 0).count();
        self.zeros = if zeros == len { self.zeros.saturating_add(len) } else { zeros };
        Ok(len)
    }
}

/// Writes a collected host.
///
/// # Errors
/// The error of writing; `Other` for a host that is already in a directory.
pub fn write(source: &Source, tar: impl Write) -> io::Result<()> {
    let Source::Memory(pieces) = source else {
        return Err(io::Error::other("this host is a saved one already"));
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
    use crate::fact::{Host, Remarks};

    fn tar_of(pieces: &[(&str, &str)]) -> Vec<u8> {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        let mut bytes = Vec::new();
        write(&Source::Memory(pieces.iter().map(own).collect()), &mut bytes).expect("written");
        bytes
    }

    fn remarks(source: Source) -> Vec<String> {
        Host::new(source).fact().map(|Remarks(all)| all).expect("read")
    }

    #[test]
    fn what_is_written_is_read_again() {
        let bytes = tar_of(&[("proc/version", "Linux\n"), ("a", "")]);
        let source = read(bytes.as_slice()).expect("read");
        assert_eq!(source.file("proc/version").expect("there").value(), "Linux");
        assert_eq!(remarks(source), Vec::<String>::new());
        for len in 0..bytes.len() {
            // A truncated tar is refused or contains less; it never panics.
            let _ = read(&bytes[..len]);
        }
    }

    #[test]
    fn a_tar_that_ends_early_is_read_as_far_as_it_goes_and_says_so() {
        let stat = "cpu0 1 2 3\n".repeat(100);
        let bytes = tar_of(&[("proc/stat", &stat), ("proc/uptime", "1 1\n"), ("sys/x", "1\n")]);
        // Cut in the middle of the last file, of its header, and between two files.
        for len in [bytes.len() - 1025, bytes.len() - 1600, 3584] {
            let source = read(&bytes[..len]).expect("as far as it goes");
            assert_eq!(source.file("proc/stat").expect("whole").body(), stat);
            let said = remarks(source);
            assert!(said[0].contains("is truncated"), "{len}: {said:?}");
        }
        // Half of the first file is not a file.
        assert!(read(&bytes[..700]).is_err());
    }

    #[test]
    fn a_tar_of_something_else_is_refused_with_what_was_expected() {
        let foreign = tar_of(&[("src/main.rs", "fn main() {}\n"), ("Cargo.toml", "\n")]);
        let error = read(foreign.as_slice()).expect_err("no host").to_string();
        assert!(error.contains("no saved host"), "{error}");
        assert!(error.contains("ringway doctor record"), "{error}");
        let other = b"root:x:0:0:secret:/root:/bin/sh\n".repeat(20);
        let error = read(other.as_slice()).expect_err("no tar").to_string();
        assert!(error.contains("not a tar") && !error.contains("secret"), "{error}");
        assert!(read([7; 4096].as_slice()).expect_err("no tar").to_string().contains("not a tar"));
    }

    #[test]
    fn a_folder_around_a_saved_host_is_left_out() {
        let top = "sosreport-web1-2024-05-01-abcdefg";
        let (file, other) = (format!("{top}/proc/uptime"), format!("{top}/sos_commands/a/uptime"));
        let bytes = tar_of(&[(&file, "1 1\n"), (&other, "x\n"), ("checksum.sha256", "0\n")]);
        let source = read(bytes.as_slice()).expect("a sos archive");
        assert!(source.file("proc/uptime").is_ok());
        let deep = tar_of(&[("a/b/proc/uptime", "1 1\n"), ("a/b/etc/x", "x\n")]);
        assert!(read(deep.as_slice()).expect("a host").file("proc/uptime").is_ok());
        let two = tar_of(&[("web1/proc/uptime", "1 1\n"), ("web2/proc/uptime", "1 1\n")]);
        let error = read(two.as_slice()).expect_err("which of them").to_string();
        assert!(error.contains("web1") && error.contains("web2"), "{error}");
    }

    fn packed(tool: &str, path: &Path) -> io::Result<std::process::Output> {
        Command::new(tool).arg("-c").stdin(File::open(path)?).output()
    }

    #[test]
    fn a_compressed_archive_is_read_as_far_as_it_goes() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("host.tar");
        let stat = "cpu0 1 2 3\n".repeat(100);
        let bytes = tar_of(&[("proc/stat", &stat), ("proc/uptime", "1 1\n")]);
        for (magic, tool) in COMPRESSED {
            std::fs::write(&path, &bytes).expect("written");
            let Ok(packed) = packed(tool, &path) else {
                println!("SKIPPED: {tool} is not installed");
                continue;
            };
            assert!(packed.stdout.starts_with(magic), "{tool}");
            std::fs::write(&path, &packed.stdout).expect("written");
            let source = open(&path).unwrap_or_else(|error| panic!("{tool}: {error}"));
            assert_eq!(source.file("proc/stat").expect("there").body(), stat, "{tool}");
            assert_eq!(remarks(source), Vec::<String>::new(), "{tool}");
            std::fs::write(&path, &packed.stdout[..packed.stdout.len() - 1]).expect("written");
            // Any result is fine except a panic.
            let _ = open(&path);
            std::fs::write(&path, [magic, b"no such thing"].concat()).expect("written");
            assert!(open(&path).is_err(), "{tool}");
        }
        std::fs::write(&path, [ZIP, b"more of it"].concat()).expect("written");
        let error = open(&path).expect_err("another kind").to_string();
        assert!(error.contains("unzip"), "{error}");
    }

    #[test]
    fn a_compressed_archive_that_ends_early_says_so() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("host.tar.gz");
        // Random bytes, so that half of the compressed file is about half of the archive.
        let mut state = 1_u64;
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            format!("{:016x}\n", state >> 8)
        };
        let long: String = (0..60_000).map(|_| noise()).collect();
        let bytes = tar_of(&[("proc/uptime", "1 1\n"), ("sys/kernel/x", &long)]);
        std::fs::write(&path, &bytes).expect("written");
        let Ok(packed) = packed("gzip", &path) else {
            println!("SKIPPED: gzip is not installed");
            return;
        };
        std::fs::write(&path, &packed.stdout[..packed.stdout.len() / 2]).expect("written");
        let source = open(&path).expect("as far as it goes");
        assert!(source.file("proc/uptime").is_ok());
        let said = remarks(source);
        assert!(said[0].contains("is truncated"), "{said:?}");
    }
}

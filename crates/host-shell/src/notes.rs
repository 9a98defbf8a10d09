//! Notes for the next process, as files of the run directory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use ringway_control::{RunDir, files};
use ringway_host::{Note, Notes, Occupants, panic_line};
use ringway_switch::PortId;

/// The notes of a process.
#[derive(Debug)]
pub struct NoteFiles {
    dir: RunDir,
    /// Bytes in the file of each note that was read or written.
    lens: BTreeMap<Note, usize>,
}

impl NoteFiles {
    /// Notes in a run directory.
    pub fn new(dir: &RunDir) -> NoteFiles {
        NoteFiles { dir: dir.clone(), lens: BTreeMap::new() }
    }

    fn path(&self, note: &Note) -> PathBuf {
        match note {
            Note::Panics => self.dir.panics(),
            Note::Negotiated(name) => self.dir.vhost(name),
            Note::Settings(name) => self.dir.vhost_limits(name),
            Note::Hashing(name) => self.dir.hashing(name),
            Note::Multicast(name) => self.dir.multicast(name),
            Note::Devices => self.dir.devices(),
            Note::Traffic => self.dir.traffic(),
            Note::Restarts => self.dir.restarts(),
        }
    }
}

impl Notes for NoteFiles {
    fn read(&mut self, note: &Note, len_max: u64) -> Vec<u8> {
        let content = read_at_most(&self.path(note), len_max).unwrap_or_default();
        self.lens.insert(note.clone(), content.len());
        content
    }

    /// Writes in one call and without truncating.
    fn write(&mut self, note: &Note, content: &[u8]) -> io::Result<()> {
        let path = self.path(note);
        let len = self.lens.entry(note.clone()).or_default();
        *len = content.len().max(*len);
        let mut content = content.to_vec();
        content.resize(*len, b'\n');
        let file = File::options().write(true).create(true).truncate(false).open(&path);
        named(&path, file.and_then(|mut file| file.write_all(&content)))
    }

    fn remove(&mut self, note: &Note) -> io::Result<()> {
        let path = self.path(note);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => named(&path, Err(error)),
            _ => {
                self.lens.remove(note);
                Ok(())
            }
        }
    }

    fn seconds(&self) -> u64 {
        seconds()
    }
}

fn named<T>(path: &Path, outcome: io::Result<T>) -> io::Result<T> {
    outcome
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", files::shown(path))))
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Reads a file of the run directory, in which an earlier process may have left anything: at most
/// `len_max` bytes, whatever its reported length.
fn read_at_most(path: &Path, len_max: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(len_max).read_to_end(&mut content)?;
    Ok(content)
}

/// Called when a worker has panicked while serving this queue: leaves a note, and ends the process,
/// which is restarted and takes over the other vifs. If the process continued, it would serve them
/// with the state that the panic left inconsistent.
pub fn end_process(occupants: &Occupants, dir: &RunDir, serving: Option<(PortId, u16)>) -> ! {
    let vif = serving.and_then(|(port, _)| occupants.at(port));
    let queue = serving.map(|(_, queue)| queue);
    tracing::error!(
        vif = vif.as_ref().map(ToString::to_string),
        queue,
        "a worker has panicked: this process ends, and the next one serves all other vifs"
    );
    if let Some(vif) = vif {
        let path = dir.panics();
        let file = File::options().create(true).append(true).open(&path);
        let line = panic_line(seconds(), &vif);
        let noted = file.and_then(|mut file| file.write_all(line.as_bytes()));
        if let Err(error) = named(&path, noted) {
            tracing::error!("{error}");
        }
    }
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_note_replaces_a_longer_one_in_place_also_that_of_an_earlier_process() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = RunDir::new(place.path());
        let note = Note::Settings("vm1".to_owned());
        let mut notes = NoteFiles::new(&dir);
        assert_eq!(notes.read(&note, 100), b"");
        notes.write(&note, b"a longer note").expect("written");
        let mut next = NoteFiles::new(&dir);
        assert_eq!(next.read(&note, 100), b"a longer note");
        next.write(&note, b"short").expect("written");
        assert_eq!(next.read(&note, 100), b"short\n\n\n\n\n\n\n\n");
        next.remove(&note).expect("removed");
        next.remove(&note).expect("nothing is left");
        assert_eq!(next.read(&note, 100), b"");
        let nowhere = RunDir::new(place.path().join("nowhere"));
        let error = NoteFiles::new(&nowhere).write(&note, b"").expect_err("no directory");
        assert!(error.to_string().contains("nowhere/vhost-vm1.limits"), "{error}");
    }

    #[test]
    fn a_file_that_claims_a_large_size_takes_no_memory() {
        const LEN_MAX: u64 = 1 << 20; // not a limit: a test's
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("panics");
        let file = File::create(&path).expect("made");
        file.set_len(1 << 40).expect("a hole takes no room");
        let content = read_at_most(&path, LEN_MAX).expect("it is there");
        assert_eq!(u64::try_from(content.len()), Ok(LEN_MAX));
        assert!(u64::try_from(content.capacity()).is_ok_and(|it| it <= 2 * LEN_MAX));
    }
}

//! Records of panics: the next process reads which vif a worker was serving when it panicked, and
//! does not serve a vif with two panics.
//!
//! Otherwise, a guest that can trigger a defect could end the backend of all guests as often as it
//! likes. A note is a line in a file in the run directory: seconds since 1970, and the vif's
//! directory in XenStore, or `vhost/` and its name for a virtio vif.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringway_control::{RunDir, files};
use ringway_switch::PortId;
use ringway_xenbus::Vif;

use crate::purpose::vif_name;

/// Panics after which a vif is not served.
pub const PANICS_MAX: usize = 2;
/// How long a panic is remembered.
pub const QUARANTINE_DURATION: Duration = Duration::from_secs(6 * 3600);
/// The most bytes that are read of the file: far more than vifs can fill within that time.
const FILE_LEN_MAX: u64 = 1 << 20; // not a limit: our own file
/// The prefix of a virtio vif's name in a note, in place of a directory.
const VIRTIO: &str = "vhost/";

/// Panics of earlier processes.
#[derive(Debug)]
pub(crate) struct Quarantine {
    path: PathBuf,
    notes: Vec<Note>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Note {
    seconds: u64,
    vif: QuarantineKey,
}

/// The vif that a panic is charged to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum QuarantineKey {
    /// Of Xen.
    Xen(Vif),
    /// A virtio vif, by its name: its position may change with the description.
    Virtio(String),
}

impl QuarantineKey {
    /// Its name for people.
    fn name(&self) -> String {
        match self {
            QuarantineKey::Xen(vif) => vif_name(*vif),
            QuarantineKey::Virtio(name) => name.clone(),
        }
    }

    /// As in a note.
    fn place(&self) -> String {
        match self {
            QuarantineKey::Xen(vif) => vif.backend_dir(),
            QuarantineKey::Virtio(name) => format!("{VIRTIO}{name}"),
        }
    }

    fn read(place: &str) -> Option<QuarantineKey> {
        let vif = match place.strip_prefix(VIRTIO) {
            Some(name) => QuarantineKey::Virtio(name.to_owned()),
            None => QuarantineKey::Xen(Vif::from_backend_path(place)?),
        };
        (vif.place() == place).then_some(vif)
    }
}

impl From<Vif> for QuarantineKey {
    fn from(vif: Vif) -> QuarantineKey {
        QuarantineKey::Xen(vif)
    }
}

impl Quarantine {
    /// The notes of earlier processes in a run directory. An unreadable file counts as absent.
    pub(crate) fn read(dir: &RunDir) -> Quarantine {
        let path = dir.panics();
        let content = read_at_most(&path, FILE_LEN_MAX).unwrap_or_default();
        let text = String::from_utf8_lossy(&content);
        let mut quarantine = Quarantine { path, notes: text.lines().filter_map(parse).collect() };
        quarantine.forget_old(now());
        quarantine
    }

    /// Why a vif is not served, if so.
    pub(crate) fn reason(&self, vif: &QuarantineKey) -> Option<String> {
        let panics = self.notes.iter().filter(|note| note.vif == *vif).count();
        (panics >= PANICS_MAX).then(|| {
            let (name, hours) = (vif.name(), QUARANTINE_DURATION.as_secs() / 3600);
            format!(
                "{name} is quarantined for {hours} hours: the backend panicked {panics} times \
                 while serving it; `ringway vif release {name}` ends the quarantine"
            )
        })
    }

    /// Forgets the panics of a vif, on an administrator's request or because the vif was removed.
    /// Returns whether there were any.
    pub(crate) fn release(&mut self, vif: &QuarantineKey) -> bool {
        let before = self.notes.len();
        self.notes.retain(|note| note.vif != *vif);
        let is_any = self.notes.len() < before;
        if is_any {
            self.write();
        }
        is_any
    }

    /// Forgets old panics. Returns whether there were any.
    pub(crate) fn expire(&mut self) -> bool {
        self.forget_old(now())
    }

    fn forget_old(&mut self, now: u64) -> bool {
        let before = self.notes.len();
        self.notes.retain(|note| now.saturating_sub(note.seconds) < QUARANTINE_DURATION.as_secs());
        let is_any = self.notes.len() < before;
        if is_any {
            self.write();
        }
        is_any
    }

    fn write(&self) {
        let text: String = self.notes.iter().map(|note| line(note.seconds, &note.vif)).collect();
        let written = match text.is_empty() {
            true => fs::remove_file(&self.path),
            false => fs::write(&self.path, text),
        };
        if let Err(error) = written {
            tracing::warn!("{}: {error}", files::shown(&self.path));
        }
    }
}

/// The served vifs by port: for a panicking thread.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    vifs: Arc<Mutex<BTreeMap<PortId, QuarantineKey>>>,
    path: PathBuf,
}

impl Served {
    pub(crate) fn new(dir: &RunDir) -> Served {
        Served { vifs: Arc::default(), path: dir.panics() }
    }

    pub(crate) fn insert(&self, port: PortId, vif: QuarantineKey) {
        self.vifs.lock().unwrap_or_else(PoisonError::into_inner).insert(port, vif);
    }

    /// The name of the vif at a port.
    pub(crate) fn name(&self, port: PortId) -> Option<String> {
        let vifs = self.vifs.lock().unwrap_or_else(PoisonError::into_inner);
        vifs.get(&port).map(QuarantineKey::name)
    }

    pub(crate) fn remove(&self, port: PortId) {
        self.vifs.lock().unwrap_or_else(PoisonError::into_inner).remove(&port);
    }

    /// Called when a worker has panicked while serving this queue: leaves a note, and ends the
    /// process, which is restarted and takes over the other vifs. If the process continued, it
    /// would serve them with the state that the panic left inconsistent.
    pub(crate) fn end_process(&self, serving: Option<(PortId, u16)>) -> ! {
        let vifs = self.vifs.lock().unwrap_or_else(PoisonError::into_inner);
        let vif = serving.and_then(|(port, _)| vifs.get(&port));
        let queue = serving.map(|(_, queue)| queue);
        tracing::error!(
            vif = vif.map(QuarantineKey::name),
            queue,
            "a worker has panicked: this process ends, and the next one serves all other vifs"
        );
        if let Some(vif) = vif {
            if let Err(error) = self.note(vif) {
                tracing::error!("{}: {error}", files::shown(&self.path));
            }
        }
        std::process::abort()
    }

    fn note(&self, vif: &QuarantineKey) -> io::Result<()> {
        let mut file = File::options().create(true).append(true).open(&self.path)?;
        file.write_all(line(now(), vif).as_bytes())
    }
}

/// Reads a file of the run directory, in which an earlier process may have left anything: at most
/// `len_max` bytes, whatever its reported length.
pub(crate) fn read_at_most(path: &Path, len_max: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(len_max).read_to_end(&mut content)?;
    Ok(content)
}

fn line(seconds: u64, vif: &QuarantineKey) -> String {
    format!("{seconds} {}\n", vif.place())
}

fn parse(line: &str) -> Option<Note> {
    let (seconds, place) = line.split_once(' ')?;
    Some(Note { seconds: seconds.parse().ok()?, vif: QuarantineKey::read(place)? })
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use ringway_wire::DomId;

    use super::*;

    fn vif(guest: u16) -> QuarantineKey {
        Vif { backend: DomId(0), frontend: DomId(guest), handle: 0 }.into()
    }

    #[test]
    fn a_vif_is_not_served_after_its_second_panic_until_it_is_released() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = RunDir::new(place.path());
        let served = Served::new(&dir);
        for vif in [vif(1), vif(2), vif(1)] {
            assert_eq!(Quarantine::read(&dir).reason(&vif), None);
            served.note(&vif).expect("written");
        }
        let mut quarantine = Quarantine::read(&dir);
        let reason = quarantine.reason(&vif(1)).expect("twice is too often");
        assert!(reason.contains("ringway vif release vif1.0"), "{reason}");
        assert_eq!(quarantine.reason(&vif(2)), None);
        assert!(quarantine.release(&vif(1)) && !quarantine.release(&vif(1)));
        assert_eq!(quarantine.reason(&vif(1)), None);
        assert_eq!(Quarantine::read(&dir).notes.len(), 1);
        quarantine.release(&vif(2));
        assert!(!dir.panics().exists());
    }

    #[test]
    fn panics_are_forgotten_after_some_hours_and_odd_lines_at_once() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = RunDir::new(place.path());
        let (now, old) = (now(), now() - QUARANTINE_DURATION.as_secs());
        let text = format!(
            "{}{}{}nonsense\n\n5 /local/domain/0/backend/vif/1/0/state\n",
            line(old, &vif(1)),
            line(old + 100, &vif(1)),
            line(now, &vif(1)),
        );
        fs::write(dir.panics(), text).expect("written");
        let mut quarantine = Quarantine::read(&dir);
        assert!(quarantine.reason(&vif(1)).is_some());
        quarantine.forget_old(old + 100 + QUARANTINE_DURATION.as_secs());
        assert_eq!(quarantine.reason(&vif(1)), None);
        fs::write(dir.panics(), [0xff; 100]).expect("written");
        assert_eq!(Quarantine::read(&dir).notes, []);
    }

    #[test]
    fn a_virtio_vif_is_identified_by_its_name() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = RunDir::new(place.path());
        let (served, vm) = (Served::new(&dir), QuarantineKey::Virtio("vm 1".to_owned()));
        for _ in 0..PANICS_MAX {
            served.note(&vm).expect("written");
        }
        let quarantine = Quarantine::read(&dir);
        let reason = quarantine.reason(&vm).expect("twice is too often");
        assert!(reason.contains("ringway vif release vm 1"), "{reason}");
        assert_eq!(quarantine.reason(&QuarantineKey::Virtio("vm 2".to_owned())), None);
    }

    #[test]
    fn a_file_that_claims_a_large_size_takes_no_memory() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("panics");
        let file = File::create(&path).expect("made");
        file.set_len(1 << 40).expect("a hole takes no room");
        let content = read_at_most(&path, FILE_LEN_MAX).expect("it is there");
        assert_eq!(u64::try_from(content.len()), Ok(FILE_LEN_MAX));
        assert!(u64::try_from(content.capacity()).is_ok_and(|it| it <= 2 * FILE_LEN_MAX));
    }
}

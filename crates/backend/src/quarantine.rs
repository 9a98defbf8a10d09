//! What is remembered of panics: the next process finds the vif that a worker was busy with, and
//! does not serve one with which that has happened twice.
//!
//! A defect that one guest can trigger would otherwise end the backend of all again and again, as
//! often as that guest likes. A note is a line of a file in the run directory: seconds since 1970,
//! and the vif's directory in XenStore, or its name after `vhost/` if it is of virtio.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringway_control::RunDir;
use ringway_switch::PortId;
use ringway_xenbus::Vif;

use crate::device::vif_name;

/// Panics after which a vif is not served.
pub const PANICS_MAX: usize = 2;
/// How long a panic is remembered.
pub const REMEMBERED: Duration = Duration::from_secs(6 * 3600);
/// Bytes of the file that are read: far more than vifs can fill within that time.
const FILE_LEN_MAX: u64 = 1 << 20;
/// What names a vif of virtio begins with, where another has its directory.
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
    vif: Charged,
}

/// The vif that a panic is charged to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Charged {
    /// Of Xen.
    Xen(Vif),
    /// Of virtio, by its name: its place among others may be another after a change of the
    /// description.
    Virtio(String),
}

impl Charged {
    /// What people call it.
    fn name(&self) -> String {
        match self {
            Charged::Xen(vif) => vif_name(*vif),
            Charged::Virtio(name) => name.clone(),
        }
    }

    /// As in a note.
    fn place(&self) -> String {
        match self {
            Charged::Xen(vif) => vif.backend_dir(),
            Charged::Virtio(name) => format!("{VIRTIO}{name}"),
        }
    }

    fn read(place: &str) -> Option<Charged> {
        let vif = match place.strip_prefix(VIRTIO) {
            Some(name) => Charged::Virtio(name.to_owned()),
            None => Charged::Xen(Vif::from_backend_path(place)?),
        };
        (vif.place() == place).then_some(vif)
    }
}

impl From<Vif> for Charged {
    fn from(vif: Vif) -> Charged {
        Charged::Xen(vif)
    }
}

impl Quarantine {
    /// What earlier processes have left in a run directory. A file that cannot be read is as good
    /// as no file.
    pub(crate) fn read(dir: &RunDir) -> Quarantine {
        let path = dir.panics();
        let content = read_at_most(&path, FILE_LEN_MAX).unwrap_or_default();
        let text = String::from_utf8_lossy(&content);
        let mut quarantine = Quarantine { path, notes: text.lines().filter_map(parse).collect() };
        quarantine.forget_old(now());
        quarantine
    }

    /// Why a vif is not served, if it is not.
    pub(crate) fn reason(&self, vif: &Charged) -> Option<String> {
        let panics = self.notes.iter().filter(|note| note.vif == *vif).count();
        (panics >= PANICS_MAX).then(|| {
            let (name, hours) = (vif.name(), REMEMBERED.as_secs() / 3600);
            format!(
                "{name} is quarantined for {hours} hours: the backend has panicked {panics} times \
                 while it served it; `ringway vif release {name}` has it served again"
            )
        })
    }

    /// Forgets the panics of a vif, because an administrator wants that or the vif was removed.
    pub(crate) fn release(&mut self, vif: &Charged) {
        let before = self.notes.len();
        self.notes.retain(|note| note.vif != *vif);
        if self.notes.len() < before {
            self.write();
        }
    }

    /// Forgets what is old. Returns whether there was any.
    pub(crate) fn expire(&mut self) -> bool {
        self.forget_old(now())
    }

    fn forget_old(&mut self, now: u64) -> bool {
        let before = self.notes.len();
        self.notes.retain(|note| now.saturating_sub(note.seconds) < REMEMBERED.as_secs());
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
            tracing::warn!("{}: {error}", self.path.display());
        }
    }
}

/// The vifs that are served, by their ports: for the thread that panics.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    vifs: Arc<Mutex<BTreeMap<PortId, Charged>>>,
    path: PathBuf,
}

impl Served {
    pub(crate) fn new(dir: &RunDir) -> Served {
        Served { vifs: Arc::default(), path: dir.panics() }
    }

    pub(crate) fn insert(&self, port: PortId, vif: Charged) {
        self.vifs.lock().unwrap_or_else(PoisonError::into_inner).insert(port, vif);
    }

    pub(crate) fn remove(&self, port: PortId) {
        self.vifs.lock().unwrap_or_else(PoisonError::into_inner).remove(&port);
    }

    /// A worker has panicked, busy with this queue: leaves a note, and ends the process, which is
    /// started again and takes the other vifs up where they are. To go on would be to serve them
    /// with whatever the panic has left half done.
    pub(crate) fn end_process(&self, serving: Option<(PortId, u16)>) -> ! {
        let vifs = self.vifs.lock().unwrap_or_else(PoisonError::into_inner);
        let vif = serving.and_then(|(port, _)| vifs.get(&port));
        let queue = serving.map(|(_, queue)| queue);
        tracing::error!(
            vif = vif.map(Charged::name),
            queue,
            "a worker has panicked: the process ends, and the next one serves all other vifs"
        );
        if let Some(vif) = vif {
            if let Err(error) = self.note(vif) {
                tracing::error!("{}: {error}", self.path.display());
            }
        }
        std::process::abort()
    }

    fn note(&self, vif: &Charged) -> io::Result<()> {
        let mut file = File::options().create(true).append(true).open(&self.path)?;
        file.write_all(line(now(), vif).as_bytes())
    }
}

/// Reads a file of the run directory, which an earlier process may have left as it liked: no more
/// than so many bytes of it, however long it says that it is.
pub(crate) fn read_at_most(path: &Path, len_max: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(len_max).read_to_end(&mut content)?;
    Ok(content)
}

fn line(seconds: u64, vif: &Charged) -> String {
    format!("{seconds} {}\n", vif.place())
}

fn parse(line: &str) -> Option<Note> {
    let (seconds, place) = line.split_once(' ')?;
    Some(Note { seconds: seconds.parse().ok()?, vif: Charged::read(place)? })
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use ringway_wire::DomId;

    use super::*;

    fn vif(guest: u16) -> Charged {
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
        quarantine.release(&vif(1));
        assert_eq!(quarantine.reason(&vif(1)), None);
        assert_eq!(Quarantine::read(&dir).notes.len(), 1);
        quarantine.release(&vif(2));
        assert!(!dir.panics().exists());
    }

    #[test]
    fn panics_are_forgotten_after_some_hours_and_odd_lines_at_once() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = RunDir::new(place.path());
        let (now, old) = (now(), now() - REMEMBERED.as_secs());
        let text = format!(
            "{}{}{}nonsense\n\n5 /local/domain/0/backend/vif/1/0/state\n",
            line(old, &vif(1)),
            line(old + 100, &vif(1)),
            line(now, &vif(1)),
        );
        fs::write(dir.panics(), text).expect("written");
        let mut quarantine = Quarantine::read(&dir);
        assert!(quarantine.reason(&vif(1)).is_some());
        quarantine.forget_old(old + 100 + REMEMBERED.as_secs());
        assert_eq!(quarantine.reason(&vif(1)), None);
        fs::write(dir.panics(), [0xff; 100]).expect("written");
        assert_eq!(Quarantine::read(&dir).notes, []);
    }

    #[test]
    fn a_vif_of_virtio_is_known_by_its_name() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = RunDir::new(place.path());
        let (served, vm) = (Served::new(&dir), Charged::Virtio("vm 1".to_owned()));
        for _ in 0..PANICS_MAX {
            served.note(&vm).expect("written");
        }
        let quarantine = Quarantine::read(&dir);
        let reason = quarantine.reason(&vm).expect("twice is too often");
        assert!(reason.contains("ringway vif release vm 1"), "{reason}");
        assert_eq!(quarantine.reason(&Charged::Virtio("vm 2".to_owned())), None);
    }

    #[test]
    fn a_file_that_says_it_is_long_takes_no_memory() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("panics");
        let file = File::create(&path).expect("made");
        file.set_len(1 << 40).expect("a hole takes no room");
        let content = read_at_most(&path, FILE_LEN_MAX).expect("it is there");
        assert_eq!(u64::try_from(content.len()), Ok(FILE_LEN_MAX));
        assert!(u64::try_from(content.capacity()).is_ok_and(|it| it <= 2 * FILE_LEN_MAX));
    }
}

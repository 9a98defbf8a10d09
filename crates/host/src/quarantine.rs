//! Records of panics: the next process reads which vif an engine was serving when it panicked, and
//! does not serve a vif with two panics.
//!
//! Otherwise, a guest that can trigger a defect could end the backend of all guests as often as it
//! likes. Each panic is a line: seconds since 1970, and the vif's directory in XenStore, or
//! `vhost/` and its name for a virtio vif.

use std::fmt;
use std::time::Duration;

use ringway_xenbus::Vif;

use crate::notes::{Note, Notes};

/// Panics after which a vif is not served.
pub const PANICS_MAX: usize = 2;
/// How long a panic is remembered.
pub const QUARANTINE_DURATION: Duration = Duration::from_secs(6 * 3600);
/// The most bytes that are read of the note: far more than vifs can fill within that time.
const FILE_LEN_MAX: u64 = 1 << 20; // not a limit: our own file
/// The prefix of a virtio vif's name in a note, in place of a directory.
const VIRTIO: &str = "vhost/";

/// Panics of earlier processes.
#[derive(Debug)]
pub struct Quarantine {
    panics: Vec<Panic>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Panic {
    seconds: u64,
    vif: Charged,
}

/// The vif that a panic is charged to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Charged {
    /// Of Xen.
    Xen(Vif),
    /// A virtio vif, by its name: its position may change with the description.
    Virtio(String),
}

/// The name by which people and scripts know a vif.
pub fn vif_name(vif: Vif) -> String {
    format!("vif{}.{}", vif.frontend, vif.handle)
}

impl fmt::Display for Charged {
    /// Its name for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Charged::Xen(vif) => f.write_str(&vif_name(*vif)),
            Charged::Virtio(name) => f.write_str(name),
        }
    }
}

impl Charged {
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
    /// The panics of earlier processes. An unreadable note counts as absent.
    pub fn read(notes: &mut impl Notes) -> Quarantine {
        let content = notes.read(&Note::Panics, FILE_LEN_MAX);
        let text = String::from_utf8_lossy(&content);
        let mut quarantine = Quarantine { panics: text.lines().filter_map(parse).collect() };
        quarantine.expire(notes);
        quarantine
    }

    /// Why a vif is not served, if so.
    pub fn reason(&self, vif: &Charged) -> Option<String> {
        let panics = self.panics.iter().filter(|panic| panic.vif == *vif).count();
        (panics >= PANICS_MAX).then(|| {
            let hours = QUARANTINE_DURATION.as_secs() / 3600;
            format!(
                "{vif} is quarantined for {hours} hours: the backend panicked {panics} times \
                 while serving it; `ringway vif release {vif}` ends the quarantine"
            )
        })
    }

    /// How long ago a quarantined vif's last panic was at this time, and for how long it is still
    /// not served.
    pub(crate) fn times(&self, vif: &Charged, seconds: u64) -> Option<[Duration; 2]> {
        let of_vif = self.panics.iter().filter(|panic| panic.vif == *vif);
        let mut panics: Vec<u64> = of_vif.map(|panic| panic.seconds).collect();
        panics.sort_unstable();
        // When this one is forgotten, too few are left.
        let decisive = panics.len().checked_sub(PANICS_MAX)?;
        let since = seconds.saturating_sub(*panics.last()?);
        let end = panics[decisive].saturating_add(QUARANTINE_DURATION.as_secs());
        Some([since, end.saturating_sub(seconds)].map(Duration::from_secs))
    }

    /// Forgets the panics of a vif, on an administrator's request or because the vif was removed.
    /// Returns whether there were any.
    pub fn release(&mut self, vif: &Charged, notes: &mut impl Notes) -> bool {
        self.keep_if(|panic| panic.vif != *vif, notes)
    }

    /// Forgets old panics. Returns whether there were any.
    pub fn expire(&mut self, notes: &mut impl Notes) -> bool {
        let now = notes.seconds();
        let is_recent =
            |panic: &Panic| now.saturating_sub(panic.seconds) < QUARANTINE_DURATION.as_secs();
        self.keep_if(is_recent, notes)
    }

    fn keep_if(&mut self, keep: impl FnMut(&Panic) -> bool, notes: &mut impl Notes) -> bool {
        let before = self.panics.len();
        self.panics.retain(keep);
        let is_any = self.panics.len() < before;
        if is_any {
            self.write(notes);
        }
        is_any
    }

    fn write(&self, notes: &mut impl Notes) {
        let text: String = self.panics.iter().map(|it| panic_line(it.seconds, &it.vif)).collect();
        let written = match text.is_empty() {
            true => notes.remove(&Note::Panics),
            false => notes.write(&Note::Panics, text.as_bytes()),
        };
        if let Err(error) = written {
            tracing::warn!("{error}");
        }
    }
}

/// A panic over a vif, to be added to the [note](Note::Panics).
pub fn panic_line(seconds: u64, vif: &Charged) -> String {
    format!("{seconds} {}\n", vif.place())
}

fn parse(line: &str) -> Option<Panic> {
    let (seconds, place) = line.split_once(' ')?;
    Some(Panic { seconds: seconds.parse().ok()?, vif: Charged::read(place)? })
}

#[cfg(test)]
mod tests {
    use ringway_wire::DomId;

    use super::*;
    use crate::notes::tests::Kept;

    fn vif(guest: u16) -> Charged {
        Vif { backend: DomId(0), frontend: DomId(guest), handle: 0 }.into()
    }

    fn panic_over(vif: &Charged, notes: &mut Kept) {
        let line = panic_line(notes.seconds, vif);
        notes.notes.entry(Note::Panics).or_default().extend(line.as_bytes());
    }

    #[test]
    fn a_vif_is_not_served_after_its_second_panic_until_it_is_released() {
        let mut notes = Kept::default();
        for vif in [vif(1), vif(2), vif(1)] {
            assert_eq!(Quarantine::read(&mut notes).reason(&vif), None);
            panic_over(&vif, &mut notes);
        }
        let mut quarantine = Quarantine::read(&mut notes);
        let reason = quarantine.reason(&vif(1)).expect("twice is too often");
        assert!(reason.contains("ringway vif release vif1.0"), "{reason}");
        assert_eq!(quarantine.reason(&vif(2)), None);
        let now = notes.seconds + 60;
        let left = QUARANTINE_DURATION - Duration::from_secs(60);
        assert_eq!(quarantine.times(&vif(1), now), Some([Duration::from_secs(60), left]));
        assert_eq!(quarantine.times(&vif(2), now), None);
        assert!(quarantine.release(&vif(1), &mut notes));
        assert!(!quarantine.release(&vif(1), &mut notes));
        assert_eq!(quarantine.reason(&vif(1)), None);
        let mut next = Quarantine::read(&mut notes);
        assert_eq!(next.panics.len(), 1);
        panic_over(&vif(2), &mut notes);
        assert!(Quarantine::read(&mut notes).reason(&vif(2)).is_some(), "behind a shorter note");
        next.release(&vif(2), &mut notes);
        assert_eq!(notes.notes.len(), 0);
    }

    #[test]
    fn panics_are_forgotten_after_some_hours_and_odd_lines_at_once() {
        let hours = QUARANTINE_DURATION.as_secs();
        let mut notes = Kept { seconds: hours, ..Kept::default() };
        let text = format!(
            "{}{}{}nonsense\n\n5 /local/domain/0/backend/vif/1/0/state\n",
            panic_line(0, &vif(1)),
            panic_line(100, &vif(1)),
            panic_line(hours, &vif(1)),
        );
        notes.notes.insert(Note::Panics, text.into_bytes());
        let mut quarantine = Quarantine::read(&mut notes);
        assert!(quarantine.reason(&vif(1)).is_some());
        assert!(!quarantine.expire(&mut notes));
        // The panic at 0 is forgotten already, and two are left until that at 100 is.
        let times = [0, 100].map(Duration::from_secs);
        assert_eq!(quarantine.times(&vif(1), hours), Some(times));
        notes.seconds += 100;
        assert!(quarantine.expire(&mut notes));
        assert_eq!(quarantine.reason(&vif(1)), None);
        notes.notes.insert(Note::Panics, vec![0xff; 100]);
        assert_eq!(Quarantine::read(&mut notes).panics, []);
    }

    #[test]
    fn a_virtio_vif_is_identified_by_its_name() {
        let (mut notes, vm) = (Kept::default(), Charged::Virtio("vm 1".to_owned()));
        for _ in 0..PANICS_MAX {
            panic_over(&vm, &mut notes);
        }
        let quarantine = Quarantine::read(&mut notes);
        let reason = quarantine.reason(&vm).expect("twice is too often");
        assert!(reason.contains("ringway vif release vm 1"), "{reason}");
        assert_eq!(quarantine.reason(&Charged::Virtio("vm 2".to_owned())), None);
    }
}

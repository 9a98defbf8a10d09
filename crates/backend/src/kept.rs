//! What a front-end of virtio and its guest have negotiated, kept in the run directory for the next
//! process of a backend.
//!
//! QEMU and the driver of its guest decide when the guest starts what they use. A successor that
//! offered less, because its configuration has changed meanwhile, would leave the guest without a
//! network. So it offers at least the same to the same front-end. Another process at the other end
//! of the socket is another start of the guest, for which only the configuration counts.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ringway_control::files;
use ringway_vhost::backend::{Negotiated, PAIRS_MAX};
use ringway_wire::virtio::{Features, VHOST_F_LOG_ALL};

use crate::quarantine::read_at_most;

/// The largest MTU of a network device on Linux: the kernel counts the 14 bytes of Ethernet, too.
const MTU_MAX: u16 = u16::MAX - 14; // not a limit: the kernel's
/// Bytes of a file.
const LEN_MAX: u64 = 128; // not a limit: our own file
/// Characters of its five numbers and of the spaces after them: always as many, so that nothing is
/// left of a longer text.
const TEXT_LEN: usize = 80;

/// The least that is offered to the front-end of a vif.
#[derive(Debug)]
pub(crate) struct Floor {
    file: PathBuf,
    kept: Kept,
    /// The process at the other end of the present connection, if it is known.
    front_end: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kept {
    negotiated: Negotiated,
    /// The process that negotiated it.
    front_end: Option<u32>,
}

impl Floor {
    /// Reads what a former process has kept.
    pub(crate) fn read(file: PathBuf) -> Floor {
        let text = read_at_most(&file, LEN_MAX).ok().and_then(|text| String::from_utf8(text).ok());
        let kept = text.as_deref().and_then(Kept::parse);
        let nothing = Kept { negotiated: Negotiated::NONE, front_end: None };
        Floor { file, kept: kept.unwrap_or(nothing), front_end: None }
    }

    /// The least to offer to the front-end that has connected.
    ///
    /// A process that is not known could be the same as before.
    pub(crate) fn of(&mut self, front_end: Option<u32>) -> Negotiated {
        self.front_end = front_end;
        match (self.kept.front_end, front_end) {
            (Some(before), Some(now)) if before != now => Negotiated::NONE,
            _ => self.kept.negotiated,
        }
    }

    /// The pairs that a former process has offered: the next front-end could be the same, so the
    /// vif's network device has to have a queue for each.
    pub(crate) fn pairs(&self) -> u16 {
        self.kept.negotiated.pairs
    }

    /// The MTU that the front-end of a former process has set, which could be the next one, or 0.
    pub(crate) fn mtu(&self) -> u16 {
        self.kept.negotiated.mtu
    }

    /// Keeps what the present front-end has negotiated.
    ///
    /// # Errors
    /// The reason why the next process will not know it, as text.
    pub(crate) fn keep(&mut self, negotiated: Negotiated) -> Result<(), String> {
        // The front-end sets this feature when a migration begins and clears it when it ends.
        let features = negotiated.features.without(Features::of(&[VHOST_F_LOG_ALL]));
        let negotiated = Negotiated { features, ..negotiated };
        let kept = Kept { negotiated, front_end: self.front_end };
        if kept == self.kept {
            return Ok(());
        }
        self.kept = kept;
        write(&self.file, &kept.text())
            .map_err(|error| format!("{}: {error}", files::shown(&self.file)))
    }

    /// Forgets it: the vif has ended.
    ///
    /// # Errors
    /// The reason why a later vif with this name will offer it, as text.
    pub(crate) fn forget(&self) -> Result<(), String> {
        match fs::remove_file(&self.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("{}: {error}", files::shown(&self.file)))
            }
            _ => Ok(()),
        }
    }
}

impl Kept {
    fn text(self) -> String {
        let Negotiated { features, protocol, pairs, mtu } = self.negotiated;
        let front_end = self.front_end.unwrap_or(0);
        let numbers = format!("{} {protocol} {pairs} {front_end} {mtu}", features.0);
        format!("{numbers:TEXT_LEN$}\n")
    }

    fn parse(text: &str) -> Option<Kept> {
        let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let features = Features(next()?);
        // Earlier versions kept fewer numbers.
        let protocol = next().unwrap_or(0);
        let pairs = next().and_then(|pairs| u16::try_from(pairs).ok());
        let pairs = pairs.filter(|pairs| *pairs <= PAIRS_MAX).unwrap_or(0);
        let front_end = next().and_then(|process| u32::try_from(process).ok());
        let front_end = front_end.filter(|process| *process != 0);
        let mtu = next().and_then(|mtu| u16::try_from(mtu).ok());
        let mtu = mtu.filter(|mtu| *mtu <= MTU_MAX).unwrap_or(0);
        Some(Kept { negotiated: Negotiated { features, protocol, pairs, mtu }, front_end })
    }
}

/// Writes in one call and without truncating, so that a killed process leaves the whole text or the
/// former one.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(false).open(file)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const USED: Negotiated =
        Negotiated { features: Features(1 << 32 | 7), protocol: 9, pairs: 4, mtu: 4000 };

    #[test]
    fn the_next_process_offers_the_same_to_the_same_front_end_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("vhost-vm1.features");
        let mut floor = Floor::read(file.clone());
        assert_eq!(floor.of(Some(70)), Negotiated::NONE);
        floor.keep(USED).expect("kept");
        let mut next = Floor::read(file.clone());
        assert_eq!(next.pairs(), USED.pairs, "whichever front-end connects");
        assert_eq!(next.of(Some(70)), USED);
        assert_eq!(next.of(None), USED, "it may be the same");
        assert_eq!(next.of(Some(71)), Negotiated::NONE, "its guest starts");
        next.keep(Negotiated { pairs: 2, ..USED }).expect("kept");
        let mut last = Floor::read(file.clone());
        assert_eq!((last.of(Some(71)).pairs, last.of(Some(70)).pairs), (2, 0));
        last.keep(Negotiated::NONE).expect("kept");
        assert_eq!(Floor::read(file.clone()).of(Some(70)), Negotiated::NONE, "all is overwritten");
        last.forget().expect("forgotten");
        last.forget().expect("nothing is left");
        assert_eq!(Floor::read(file).of(Some(71)), Negotiated::NONE);
    }

    #[test]
    fn a_migration_in_progress_is_not_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("vhost-vm1.features");
        let features = USED.features.or(Features::of(&[VHOST_F_LOG_ALL]));
        Floor::read(file.clone()).keep(Negotiated { features, ..USED }).expect("kept");
        assert_eq!(Floor::read(file).of(Some(1)), USED);
    }

    #[test]
    fn files_of_earlier_versions_and_damaged_ones_are_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("vhost-vm1.features");
        for (text, features, pairs, mtu) in [
            ("4294967296\n", 1 << 32, 0, 0),
            ("5 1 128 3", 5, 128, 0),
            ("5 1 2 0 1400", 5, 2, 1400),
            ("5 1 2 0 65521", 5, 2, 65521),
            ("5 1 2 0 65522", 5, 2, 0),
            ("5 1 129 3 70000", 5, 0, 0),
            ("5 1 70000 3", 5, 0, 0),
            ("x 1 2 3", 0, 0, 0),
            ("", 0, 0, 0),
        ] {
            fs::write(&file, text).expect("written");
            let mut floor = Floor::read(file.clone());
            assert_eq!((floor.pairs(), floor.mtu()), (pairs, mtu), "{text:?}");
            let floor = floor.of(None);
            assert_eq!((floor.features, floor.pairs), (Features(features), pairs), "{text:?}");
        }
    }
}

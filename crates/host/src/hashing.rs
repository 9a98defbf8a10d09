//! What the guest of a Xen vif has set over its control ring, noted for the next process of a
//! backend: the guest sets it only once.

use std::io;

use ringway_steering::control::{HashControl, TEXT_LEN_MAX};
use ringway_xenbus::{Keys, XenbusState};

use crate::notes::{self, Note, Notes};

/// What an earlier process that has served the vif has noted, if there was one.
pub(crate) fn known(name: &str, keys: &Keys, notes: &mut impl Notes) -> HashControl {
    // A toolstack has just made the vif.
    if keys.state() == XenbusState::Initialising {
        notes::forget(&note(name), notes);
    }
    read(name, notes)
}

/// Notes what the guest sets before it gets the response: the next process steers by it as soon as
/// it serves the guest. What could not be noted once is noted when it is passed again.
pub(crate) fn keep(
    name: String,
    notes: &mut impl Notes,
) -> impl FnMut(&HashControl) + Send + 'static {
    let mut noted = read(&name, notes).to_string();
    let mut writer = notes.writer(&note(&name));
    let mut is_logged = false;
    move |settings| {
        let text = settings.to_string();
        if text == noted {
            return;
        }
        let written = match &mut writer {
            Ok(writer) => writer(text.as_bytes()),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        match written {
            Ok(()) => noted = text,
            // A guest may set as much as it likes.
            Err(_) if is_logged => {}
            Err(error) => {
                is_logged = true;
                tracing::warn!(
                    vif = name,
                    %error,
                    "what the guest sets over its control ring is lost when this process ends"
                );
            }
        }
    }
}

fn read(name: &str, notes: &mut impl Notes) -> HashControl {
    HashControl::from_text(&notes::text_of(&note(name), TEXT_LEN_MAX, notes)).unwrap_or_default()
}

/// The note of a vif.
pub(crate) fn note(name: &str) -> Note {
    Note::Hashing(name.to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::notes::Writer;

    /// A disk with one note, or a full one.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(Vec<u8>, bool)>>);

    impl Disk {
        fn set_full(&self, is_full: bool) {
            self.0.lock().expect("no test panics").1 = is_full;
        }
    }

    impl Notes for Disk {
        fn read(&mut self, _: &Note, _: u64) -> Vec<u8> {
            self.0.lock().expect("no test panics").0.clone()
        }

        fn write(&mut self, _: &Note, content: &[u8]) -> io::Result<()> {
            let (kept, is_full) = &mut *self.0.lock().expect("no test panics");
            if *is_full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            *kept = content.to_vec();
            Ok(())
        }

        fn writer(&mut self, note: &Note) -> io::Result<Writer> {
            let (mut disk, note) = (self.clone(), note.clone());
            Ok(Box::new(move |content| disk.write(&note, content)))
        }

        fn remove(&mut self, _: &Note) -> io::Result<()> {
            self.0.lock().expect("no test panics").0.clear();
            Ok(())
        }

        fn seconds(&self) -> u64 {
            0
        }
    }

    #[test]
    fn what_a_full_disk_has_refused_is_noted_when_the_guest_connects_again() {
        let mut disk = Disk::default();
        let wish = HashControl::from_text("1 3 key=0102 mapping=0,1").expect("it is valid");
        disk.set_full(true);
        keep("vif1.0".to_owned(), &mut disk)(&wish);
        assert_eq!(read("vif1.0", &mut disk).to_string(), HashControl::default().to_string());
        disk.set_full(false);
        // Its next connection is given what it has set in the last one.
        keep("vif1.0".to_owned(), &mut disk)(&wish);
        assert_eq!(read("vif1.0", &mut disk).to_string(), wish.to_string());
    }
}

//! What must be so of virtio vifs.

use ringway_calls::BackendStatus;
use ringway_host::{Note, Notes as _};

use crate::flaw::{Checked, Rule, ensure};
use crate::world::World;

impl World {
    /// At rest, a virtio vif is shown as it was set, and says why no one connects.
    pub(crate) fn check_virtio(&mut self, status: &BackendStatus) -> Checked {
        for (name, opener) in self.virtio.names.iter().zip(&self.virtio.openers) {
            let shown = status.vifs.iter().find(|shown| shown.name == *name);
            let is_right = shown.is_some_and(|shown| {
                shown.state == "Waiting"
                    && shown.attached_to == "switch"
                    && self.settings.are_limits_shown(shown)
            });
            ensure(is_right, Rule::Calls, || format!("{name} is shown as {shown:?}"))?;
            let (error, expected) =
                (shown.and_then(|shown| shown.error.as_deref()), opener.reported());
            ensure(error == expected, Rule::Explanation, || {
                format!("{name} says {error:?}, not {expected:?}")
            })?;
        }
        Ok(())
    }

    /// A vif that was removed leaves no note.
    pub(crate) fn check_virtio_release(&mut self) -> Checked {
        for name in &self.virtio.names {
            for note in [Note::Negotiated(name.clone()), Note::Settings(name.clone())] {
                let left = self.notes.read(&note, 1);
                ensure(left.is_empty(), Rule::Release, || format!("{note:?} is left"))?;
            }
        }
        Ok(())
    }
}

//! Keys of an earlier version, which are accepted and have no effect.

use super::{Source, start};
use crate::section::FileSection;

/// What to say of a `completion`, wherever it stands.
pub const COMPLETION_OBSOLETE: &str = "`completion` has no effect any more, because the backend \
                                       responds when it has copied a frame: remove it";

impl Source<'_> {
    /// What is to be said of each.
    pub(super) fn obsolete(&self, sections: &FileSection) -> Vec<String> {
        let vifs = sections.guest.iter().flat_map(|guest| &guest.get_ref().vif);
        let of_vifs = vifs.filter_map(|vif| vif.get_ref().completion.as_ref());
        let keys = sections.host.completion.iter().chain(of_vifs);
        let lines = keys.filter_map(|key| self.line(start(key)));
        lines.map(|line| format!("{}, line {line}: {COMPLETION_OBSOLETE}", self.file)).collect()
    }
}

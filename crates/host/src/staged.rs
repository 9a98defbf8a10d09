//! The pages of guests of Xen that stay mapped.

use std::sync::{Arc, Weak};

use ringway_netback::{PageBudget, StagedPages, Staging};

/// The most of them in a process, of all guests together: half of the mappings that Linux permits a
/// process (`vm.max_map_count`), as each page is one.
pub(crate) const PAGES_MAX: usize = 32 << 10;

/// The most of a vif: those of eight queues.
const PAGES_OF_VIF_MAX: usize = 8 << 10;

/// Those of a vif.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    /// Whether its guest may have any mapped.
    may_stage: bool,
    /// The pages of each queue. They are the queues', and are unmapped with these.
    queues: Vec<Weak<StagedPages>>,
}

impl Staged {
    /// None yet.
    pub(crate) fn new(may_stage: bool) -> Staged {
        Staged { may_stage, queues: Vec::new() }
    }

    /// What a guest that connects with so many queues may have mapped.
    pub(crate) fn connect(&mut self, queues: usize, budget: &Arc<PageBudget>) -> Option<Staging> {
        let queues: Vec<_> = (0..queues).map(|_| Arc::<StagedPages>::default()).collect();
        self.queues = queues.iter().map(Arc::downgrade).collect();
        let budget = Arc::new(budget.part(PAGES_OF_VIF_MAX));
        self.may_stage.then_some(Staging { queues, budget })
    }

    /// How many are mapped now.
    pub(crate) fn count(&self) -> usize {
        self.queues.iter().filter_map(Weak::upgrade).map(|pages| pages.count()).sum()
    }
}

//! Makes the changes of a transaction in steps; the process may end between any two of them.

use std::io;

use super::journal::{Entry, Journal, State, Step, Transaction};
use super::settings::{Settings, is_same};

/// A transaction that is being made.
#[derive(Debug)]
pub struct Apply<'a> {
    settings: &'a Settings,
    journal: &'a Journal,
    transaction: Transaction,
    /// Index of the current change.
    at: usize,
    next: Next,
}

/// The next action on the current change.
#[derive(Debug, Clone, Copy)]
enum Next {
    Announce,
    Set,
    Verify,
}

/// Whether more steps follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// More steps follow.
    More,
    /// All changes are made and read back.
    Done,
}

/// Why a change could not be made. Earlier changes of the transaction must be reverted.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// It was refused.
    #[error("{name} cannot be set to {value:?}: {source}")]
    Refused {
        /// The setting.
        name: String,
        /// The requested value.
        value: String,
        /// The error of the kernel or the tool.
        source: io::Error,
    },
    /// It was accepted, but a different value was read back.
    #[error("{name} was set to {wanted:?} and is {found:?}")]
    NotTaken {
        /// The setting.
        name: String,
        /// The requested value.
        wanted: String,
        /// What was read back.
        found: String,
    },
    /// The journal cannot be written; nothing is done without it.
    #[error("the journal cannot be written: {0}")]
    Journal(io::Error),
}

impl<'a> Apply<'a> {
    /// Begins a transaction in which nothing has been done.
    pub fn new(settings: &'a Settings, journal: &'a Journal, transaction: Transaction) -> Self {
        Apply { settings, journal, transaction, at: 0, next: Next::Announce }
    }

    /// Does one step.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub fn step(&mut self) -> Result<Progress, ApplyError> {
        let Some(entry) = self.transaction.entries.get_mut(self.at) else {
            self.transaction.state = State::Applied;
            self.journal.write(&self.transaction).map_err(ApplyError::Journal)?;
            return Ok(Progress::Done);
        };
        match self.next {
            Next::Announce => {
                entry.step = Step::Setting;
                self.journal.write(&self.transaction).map_err(ApplyError::Journal)?;
                self.next = Next::Set;
            }
            Next::Set => {
                let set = self.settings.set(&entry.knob, &entry.new);
                set.map_err(|source| refused(entry, source))?;
                self.next = Next::Verify;
            }
            Next::Verify => {
                let found = self.settings.get(&entry.knob);
                let found = found.map_err(|source| refused(entry, source))?;
                let is_taken = is_same(&entry.knob, &entry.new, &found);
                let wanted = std::mem::replace(&mut entry.new, found.clone());
                if !is_taken {
                    let name = entry.knob.name();
                    // The value read back is recorded as ours, so that it is reverted, too.
                    self.journal.write(&self.transaction).map_err(ApplyError::Journal)?;
                    return Err(ApplyError::NotTaken { name, wanted, found });
                }
                entry.step = Step::Set;
                self.journal.write(&self.transaction).map_err(ApplyError::Journal)?;
                self.at += 1;
                self.next = Next::Announce;
            }
        }
        Ok(Progress::More)
    }

    /// Does all remaining steps.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub fn run(&mut self) -> Result<(), ApplyError> {
        while self.step()? == Progress::More {}
        Ok(())
    }

    /// The transaction in its present state.
    pub fn into_transaction(self) -> Transaction {
        self.transaction
    }
}

fn refused(entry: &Entry, source: io::Error) -> ApplyError {
    ApplyError::Refused { name: entry.knob.name(), value: entry.new.clone(), source }
}

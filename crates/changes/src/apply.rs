//! Makes the changes of a transaction, in steps between which anything may end.

use std::io;

use super::journal::{Entry, Journal, State, Step, Transaction};
use super::settings::{Settings, is_same};

/// A transaction that is being made.
#[derive(Debug)]
pub struct Apply<'a> {
    settings: &'a Settings,
    journal: &'a Journal,
    transaction: Transaction,
    /// Index of the change at hand.
    at: usize,
    next: Next,
}

/// What is done next to the change at hand.
#[derive(Debug, Clone, Copy)]
enum Next {
    Announce,
    Set,
    Verify,
}

/// Whether there is more to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Call again.
    More,
    /// All is made and read back.
    Done,
}

/// Why a change could not be made. What was made before it is to be taken back.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// It was refused.
    #[error("{name} cannot be set to {value:?}: {source}")]
    Refused {
        /// What was to be set.
        name: String,
        /// To what.
        value: String,
        /// What the kernel or the tool said.
        source: io::Error,
    },
    /// It was taken and is something else.
    #[error("{name} was set to {wanted:?} and is {found:?}")]
    NotTaken {
        /// What was set.
        name: String,
        /// To what.
        wanted: String,
        /// What was read back.
        found: String,
    },
    /// The journal cannot be written; nothing is done without it.
    #[error("the journal cannot be written: {0}")]
    Journal(io::Error),
}

impl<'a> Apply<'a> {
    /// Of a transaction of which nothing is done.
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
                    // What it became is ours to take back as well.
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

    /// Does all that is left.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub fn run(&mut self) -> Result<(), ApplyError> {
        while self.step()? == Progress::More {}
        Ok(())
    }

    /// The transaction as far as it is.
    pub fn into_transaction(self) -> Transaction {
        self.transaction
    }
}

fn refused(entry: &Entry, source: io::Error) -> ApplyError {
    ApplyError::Refused { name: entry.knob.name(), value: entry.new.clone(), source }
}

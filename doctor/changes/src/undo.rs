//! Reverts those changes of a transaction that are still ours.

use std::io;

use super::journal::{Entry, Journal, State, Step, Transaction};
use super::settings::{Settings, is_same};

/// What happened to one change.
#[derive(Debug)]
pub enum Outcome {
    /// It was never made, or was already reverted.
    Nothing,
    /// The old value was restored and read back.
    Restored,
    /// Something else has set it since; it was left at this value.
    Left(String),
    /// The interface is gone, or another one has its name.
    Gone,
    /// The old value was refused, or another value was read back.
    Failed(io::Error),
}

/// A change and its outcome.
#[derive(Debug)]
pub struct Undone {
    /// The change.
    pub entry: Entry,
    /// What happened to it.
    pub outcome: Outcome,
}

/// Reverts all changes, the last first, because an offload may depend on an earlier one. It may be
/// called again after any interruption.
///
/// # Errors
/// If the transaction belongs to another boot or network namespace, or if the journal cannot be
/// written. A change that cannot be reverted is no error of the whole: the others are tried, and
/// the next call tries it again.
pub fn undo(
    settings: &Settings,
    journal: &Journal,
    transaction: &mut Transaction,
) -> io::Result<Vec<Undone>> {
    check_place(settings, transaction)?;
    let mut all = Vec::new();
    for index in (0..transaction.entries.len()).rev() {
        let entry = &mut transaction.entries[index];
        let outcome = restore(settings, entry);
        match outcome {
            Outcome::Restored | Outcome::Nothing => entry.step = Step::Undone,
            Outcome::Left(_) | Outcome::Gone => entry.step = Step::Left,
            Outcome::Failed(_) => {}
        }
        all.push(Undone { entry: entry.clone(), outcome });
        journal.write(transaction)?;
    }
    if !all.iter().any(|one| matches!(one.outcome, Outcome::Failed(_))) {
        transaction.state = State::Undone;
        journal.write(transaction)?;
    }
    Ok(all)
}

/// Settings from before a reboot are gone, and the old values may be outdated.
fn check_place(settings: &Settings, transaction: &Transaction) -> io::Result<()> {
    let id = transaction.id;
    if settings.boot()? != transaction.boot {
        return Err(io::Error::other(format!(
            "transaction {id} was made before the last restart, which reset its settings; its old \
             values are in the journal, and nothing was changed"
        )));
    }
    if settings.netns() != transaction.netns {
        return Err(io::Error::other(format!(
            "transaction {id} belongs to another network namespace: {}",
            transaction.netns
        )));
    }
    Ok(())
}

fn restore(settings: &Settings, entry: &Entry) -> Outcome {
    if matches!(entry.step, Step::Planned | Step::Undone) {
        return Outcome::Nothing;
    }
    let nic = entry.knob.nic();
    if entry.interface_index.is_some()
        && nic.and_then(|nic| settings.interface_index(nic)) != entry.interface_index
    {
        return Outcome::Gone;
    }
    let found = match settings.get(&entry.knob) {
        Ok(found) => found,
        Err(error) => return Outcome::Failed(error),
    };
    if is_same(&entry.knob, &entry.old, &found) {
        return Outcome::Restored;
    }
    if !is_same(&entry.knob, &entry.new, &found) {
        return Outcome::Left(found);
    }
    let verified = settings.set(&entry.knob, &entry.old).and_then(|()| settings.get(&entry.knob));
    match verified {
        Ok(found) if is_same(&entry.knob, &entry.old, &found) => Outcome::Restored,
        Ok(found) => Outcome::Failed(io::Error::other(format!("it was set, but is {found:?}"))),
        Err(error) => Outcome::Failed(error),
    }
}

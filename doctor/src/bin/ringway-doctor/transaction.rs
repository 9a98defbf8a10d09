//! The life of a transaction: made, confirmed, reverted.

use std::io;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ringway_doctor::changes::journal::{self, Entry, Journal, State, Transaction};
use ringway_doctor::changes::settings::Settings;
use ringway_doctor::changes::{Apply as Applying, Outcome, Undone, undo};

/// Makes a transaction. `arm` starts the process that reverts it, before any change is made.
pub(super) fn make(
    dir: &Path,
    entries: Vec<Entry>,
    arm: impl FnOnce(u64) -> Result<()>,
) -> Result<Transaction> {
    let settings = Settings::live();
    let journal = open(dir)?;
    let begun = journal.begin(settings.boot()?, settings.netns(), entries);
    let begun = begun.context("write the journal; nothing was changed")?;
    arm(begun.id).context("nothing was changed")?;
    let mut applying = Applying::new(&settings, &journal, begun);
    let result = applying.run();
    let mut transaction = applying.into_transaction();
    if let Err(error) = result {
        let undone = undo(&settings, &journal, &mut transaction)?;
        bail!("{error}; all of transaction {} was undone:\n{}", transaction.id, outcomes(&undone));
    }
    Ok(transaction)
}

pub(super) fn open(dir: &Path) -> Result<Journal> {
    Journal::open(dir).with_context(|| format!("the journal {}", dir.display()))
}

/// Advances a transaction's state, unless another process has already done so.
pub(super) fn set_state(dir: &Path, id: u64, from: &[State], to: State) -> Result<()> {
    let journal = open(dir)?;
    let mut transaction = journal::read(dir, id)?;
    if !from.contains(&transaction.state) {
        bail!("transaction {id} is {}", state(transaction.state));
    }
    transaction.state = to;
    Ok(journal.write(&transaction)?)
}

/// Reverts a transaction if it is still unconfirmed.
pub(super) fn give_up(dir: &Path, id: u64) -> io::Result<Vec<Undone>> {
    let journal = Journal::open(dir)?;
    let mut transaction = journal::read(dir, id)?;
    if !matches!(transaction.state, State::Applying | State::Applied) {
        return Ok(Vec::new());
    }
    undo(&Settings::live(), &journal, &mut transaction)
}

/// The outcome of each change, one line each.
pub(super) fn outcomes(undone: &[Undone]) -> String {
    let line = |Undone { entry, outcome }: &Undone| {
        let (name, old) = (entry.knob.name(), &entry.old);
        match outcome {
            Outcome::Nothing => format!("  {name}: nothing to undo\n"),
            Outcome::Restored => format!("  {name}: restored to {old}\n"),
            Outcome::Left(found) => {
                format!("  {name}: kept at {found}, which another process set; it was {old}\n")
            }
            Outcome::Gone => format!("  {name}: the interface is gone or was replaced\n"),
            Outcome::Failed(error) => {
                format!("  {name}: {error}; by hand: {}\n", entry.knob.command(old))
            }
        }
    };
    undone.iter().map(line).collect()
}

pub(super) fn state(state: State) -> &'static str {
    match state {
        State::Applying => "being applied, or interrupted",
        State::Applied => "waiting to be confirmed",
        State::Confirmed => "confirmed",
        State::Undone => "undone",
    }
}

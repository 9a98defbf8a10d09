//! A device's directory: what both ends' shells read and write for the xenbus handshake.

use ringway_xenbus::{KeyChange, Keys, XenbusState};

use crate::{Client, Errno, Transaction, Transport, XsError};

/// Nodes that are read of one directory. A guest's quota bounds them too; this is for a store that
/// has none.
const NODES_MAX: usize = 1024;

/// Reads a device's directory and the directories in it, at one moment. `None` if it is not there.
///
/// Values that are no text read as empty, which no key accepts.
///
/// # Errors
/// What the store refuses.
pub fn read_keys<T: Transport>(store: &mut Client<T>, dir: &str) -> Result<Option<Keys>, XsError> {
    store.transaction(|tx| {
        let Some(names) = list(tx, dir)? else { return Ok(None) };
        let mut values = Vec::new();
        for name in names {
            if values.len() >= NODES_MAX {
                break;
            }
            let path = format!("{dir}/{name}");
            if name.starts_with("queue-") {
                for key in list(tx, &path)?.unwrap_or_default().into_iter().take(NODES_MAX) {
                    let value = text(tx, &format!("{path}/{key}"))?;
                    values.push((format!("{name}/{key}"), value));
                }
            } else {
                values.push((name, text(tx, &path)?));
            }
        }
        Ok(Some(Keys::new(dir, values)))
    })
}

/// Makes changes in a device's directory, all or none; none if the toolstack has removed the
/// device meanwhile: to write then would make its directory again.
///
/// # Errors
/// What the store refuses.
pub fn change<T: Transport>(
    store: &mut Client<T>,
    dir: &str,
    changes: &[KeyChange],
) -> Result<(), XsError> {
    store.transaction(|tx| {
        if tx.read_bytes(dir)?.is_none() {
            return Ok(());
        }
        changes.iter().try_for_each(|change| match change {
            KeyChange::Set(key, value) => tx.write(&format!("{dir}/{key}"), value),
            KeyChange::Remove(key) => tx.remove(&format!("{dir}/{key}")),
        })
    })
}

/// Writes a device's state, unless the toolstack has removed the device meanwhile: to write then
/// would make its directory again.
///
/// # Errors
/// What the store refuses.
pub fn set_state<T: Transport>(
    store: &mut Client<T>,
    node: &str,
    state: XenbusState,
) -> Result<(), XsError> {
    store.transaction(|tx| match tx.read_bytes(node)? {
        Some(_) => tx.write(node, state.value()),
        None => Ok(()),
    })
}

/// The state that a node says.
///
/// # Errors
/// What the store refuses.
pub fn state<T: Transport>(store: &mut Client<T>, node: &str) -> Result<XenbusState, XsError> {
    let value = store.read_bytes(node)?;
    let text = value.and_then(|value| String::from_utf8(value).ok());
    Ok(XenbusState::parse(text.as_deref()))
}

fn list<T: Transport>(
    tx: &mut Transaction<'_, T>,
    dir: &str,
) -> Result<Option<Vec<String>>, XsError> {
    match tx.directory(dir) {
        Ok(names) => Ok(Some(names)),
        Err(error) if error.is(Errno::Noent) => Ok(None),
        Err(error) => Err(error),
    }
}

fn text<T: Transport>(tx: &mut Transaction<'_, T>, path: &str) -> Result<String, XsError> {
    let value = tx.read_bytes(path)?.unwrap_or_default();
    Ok(String::from_utf8(value).unwrap_or_default())
}

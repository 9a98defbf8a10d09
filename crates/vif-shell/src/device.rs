//! A device's directory in XenStore: how it is made, its known keys, changes of them, its state.
//!
//! Only keys that mean something are read, each by its name, so what a guest pays for in its own
//! directory (a thousand nodes, long names) costs no other guest anything.

use ringway_xenbus::{Device, KeyChange, KeySet, Keys, Vif, XenbusState};
use ringway_xenstore::{
    Client, DomId, Errno, Lost, Permissions, Rights, Transaction, Transport, XsError,
    unless_refused,
};

/// Reads known keys of a device's directory, at one moment. `None` if the directory is not there.
///
/// Values that are not text read as empty, which no key accepts.
///
/// # Errors
/// What the store refuses.
pub fn read_keys<T: Transport>(
    store: &mut Client<T>,
    dir: &str,
    set: KeySet,
) -> Result<Option<Keys>, XsError> {
    store.transaction(|tx| keys(|path| tx.read_bytes(path), dir, set))
}

/// The same, but a guest that changes the keys all the time must not keep us here.
///
/// # Errors
/// What the store refuses; `EAGAIN` if one of the keys was changed meanwhile.
pub fn read_keys_once<T: Transport>(
    store: &mut Client<T>,
    dir: &str,
    set: KeySet,
) -> Result<Option<Keys>, XsError> {
    store.attempt(|tx| keys(|path| tx.read_bytes(path), dir, set))
}

/// The same, reading each key at another moment.
///
/// # Errors
/// What the store refuses.
pub fn read_keys_apart<T: Transport>(
    store: &mut Client<T>,
    dir: &str,
    set: KeySet,
) -> Result<Option<Keys>, XsError> {
    keys(|path| store.read_bytes(path), dir, set)
}

fn keys(
    mut read: impl FnMut(&str) -> Result<Option<Vec<u8>>, XsError>,
    dir: &str,
    set: KeySet,
) -> Result<Option<Keys>, XsError> {
    if read(dir)?.is_none() {
        return Ok(None);
    }
    let mut keys = Keys::new(dir, []);
    let mut add = |keys: &mut Keys, key: &str| {
        let value = match read(&keys.path(key)) {
            // A node that we may not read is as good as absent.
            Err(error) if error.is(Errno::Acces) => None,
            value => value?,
        };
        if let Some(value) = value {
            keys.insert(key, String::from_utf8(value).unwrap_or_default());
        }
        Ok::<(), XsError>(())
    };
    for key in set.names() {
        add(&mut keys, key)?;
    }
    for key in set.queue_keys(&keys) {
        add(&mut keys, &key)?;
    }
    Ok(Some(keys))
}

/// Makes a vif as a toolstack does: both directories, each with its owner and the other end as a
/// reader, and their first keys.
///
/// # Errors
/// What the store refuses.
pub fn make<T: Transport>(tx: &mut Transaction<'_, T>, device: &Device) -> Result<(), XsError> {
    let Vif { backend, frontend, .. } = device.vif;
    let ends = [
        (device.vif.frontend_dir(), frontend, backend, device.frontend_changes()),
        (device.vif.backend_dir(), backend, frontend, device.backend_changes()),
    ];
    for (dir, owner, reader, changes) in ends {
        tx.mkdir(&dir)?;
        let permissions = Permissions::new(owner, Rights::None).with(reader, Rights::Read);
        tx.set_permissions(&dir, &permissions)?;
        apply(tx, &dir, &changes)?;
    }
    Ok(())
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
        apply(tx, dir, changes)
    })
}

/// Makes changes in a device's directory as part of a transaction.
///
/// # Errors
/// What the store refuses.
pub fn apply<T: Transport>(
    tx: &mut Transaction<'_, T>,
    dir: &str,
    changes: &[KeyChange],
) -> Result<(), XsError> {
    changes.iter().try_for_each(|change| match change {
        KeyChange::Set(key, value) => tx.write(&format!("{dir}/{key}"), value),
        KeyChange::Remove(key) => tx.remove(&format!("{dir}/{key}")),
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

/// Removes what an earlier backend of this domain has said of vifs that went while no backend ran.
/// What it said of those that are there is for their ends to remove.
///
/// # Errors
/// That XenStore is lost.
pub fn remove_stale_errors<T: Transport>(
    store: &mut Client<T>,
    backend: DomId,
) -> Result<(), Lost> {
    let (root, vifs) = (Vif::backend_errors_root(backend), Vif::backend_root(backend));
    // A driver domain has no such directory.
    for guest in unless_refused(store.directory(&root), Vec::new())? {
        let of_guest = format!("{root}/{guest}");
        let handles = unless_refused(store.directory(&of_guest), Vec::new())?;
        let mut is_used = false;
        for handle in handles {
            let found =
                store.read_bytes(&format!("{vifs}/{guest}/{handle}")).map(|it| it.is_some());
            // One that may not be read is there.
            match unless_refused(found, true)? {
                true => is_used = true,
                false => unless_refused(store.remove(&format!("{of_guest}/{handle}")), ())?,
            }
        }
        if !is_used {
            unless_refused(store.remove(&of_guest), ())?;
        }
    }
    Ok(())
}

/// Removes what a backend has said of a vif that is not in its care: another one before it was
/// killed.
///
/// # Errors
/// That XenStore is lost.
pub fn remove_error<T: Transport>(store: &mut Client<T>, vif: Vif) -> Result<(), Lost> {
    let [for_tools, _] = vif.backend_errors();
    unless_refused(store.remove(&for_tools), ())
}

/// The state of a device in a removed domain may not be readable: it counts as absent.
pub(crate) fn unknown_if_refused(state: Result<XenbusState, XsError>) -> Result<XenbusState, Lost> {
    unless_refused(state, XenbusState::Unknown)
}

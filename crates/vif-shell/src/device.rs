//! A device's directory in XenStore: its creation, known keys and their changes, and its state.
//!
//! Only known keys are read, each by its name, so the contents of a guest's own directory (a
//! thousand nodes, long names) cost other guests nothing.

use ringway_xenbus::{Device, KeyChange, KeySet, Keys, Vif, XenbusState};
use ringway_xenstore::{
    Client, DomId, Errno, Found, Lost, Permissions, Rights, Transaction, Transport, XsError,
    domain_path, unless_refused,
};

/// Reads the known keys of a device's directory atomically. `None` if the directory does not exist.
///
/// Values that are not text read as empty, which no key accepts.
///
/// # Errors
/// A refusal of the store.
pub fn read_keys<T: Transport>(
    store: &mut Client<T>,
    dir: &str,
    set: KeySet,
) -> Result<Option<Keys>, XsError> {
    store.transaction(|tx| keys(|paths| tx.read_all(paths), dir, set))
}

/// Reads the known keys of a device's directory atomically, in a single attempt, so that a guest
/// that changes its keys continuously cannot keep us here. `None` if the directory does not exist.
///
/// # Errors
/// A refusal of the store; `EAGAIN` if one of the keys was changed meanwhile.
pub fn read_keys_once<T: Transport>(
    store: &mut Client<T>,
    dir: &str,
    set: KeySet,
) -> Result<Option<Keys>, XsError> {
    store.attempt(|tx| keys(|paths| tx.read_all(paths), dir, set))
}

/// Reads the known keys of a device's directory, not atomically. `None` if the directory
/// does not exist.
///
/// # Errors
/// A refusal of the store.
pub fn read_keys_apart<T: Transport>(
    store: &mut Client<T>,
    dir: &str,
    set: KeySet,
) -> Result<Option<Keys>, XsError> {
    keys(|paths| store.read_all(paths), dir, set)
}

/// Reads the known keys of several devices' directories side by side, each as
/// [`read_keys_once`] does.
///
/// # Errors
/// The loss of the store.
pub fn read_keys_together<T: Transport>(
    store: &mut Client<T>,
    wanted: &[(String, KeySet)],
) -> Result<Vec<Result<Option<Keys>, XsError>>, Lost> {
    let (read, outcomes) = store.snapshots(wanted.len(), |snapshots| {
        let known: Vec<Vec<String>> =
            wanted.iter().map(|(dir, set)| known_paths(dir, *set)).collect();
        let found = snapshots.read(&known)?.into_iter().zip(wanted);
        let mut read: Vec<Result<Option<Keys>, XsError>> =
            found.map(|(found, (dir, set))| known_keys(dir, *set, found)).collect();
        let more = read.iter().zip(wanted).map(|(keys, (_, set))| match keys {
            Ok(Some(keys)) => set.queue_keys(keys).iter().map(|name| keys.path(name)).collect(),
            _ => Vec::new(),
        });
        let more: Vec<Vec<String>> = more.collect();
        let found = snapshots.read(&more)?;
        for ((keys, (_, set)), found) in read.iter_mut().zip(wanted).zip(found) {
            if let Ok(Some(known)) = keys {
                let names = set.queue_keys(known);
                if let Err(error) = add(known, &names, found) {
                    *keys = Err(error);
                }
            }
        }
        Ok(read)
    })?;
    let read = read.into_iter().zip(outcomes);
    Ok(read.map(|(keys, outcome)| outcome.map_err(XsError::from).and(keys)).collect())
}

/// Reads the keys whose names are known beforehand together, and then those that depend on them.
fn keys(
    mut read: impl FnMut(&[String]) -> Result<Vec<Found>, Lost>,
    dir: &str,
    set: KeySet,
) -> Result<Option<Keys>, XsError> {
    let found = read(&known_paths(dir, set))?;
    let Some(mut keys) = known_keys(dir, set, found)? else { return Ok(None) };
    let more = set.queue_keys(&keys);
    if !more.is_empty() {
        let paths: Vec<String> = more.iter().map(|name| keys.path(name)).collect();
        add(&mut keys, &more, read(&paths)?)?;
    }
    Ok(Some(keys))
}

/// The directory, and its keys whose names are known beforehand.
pub(crate) fn known_paths(dir: &str, set: KeySet) -> Vec<String> {
    let keys = Keys::new(dir, []);
    [dir.to_owned()].into_iter().chain(set.names().map(|name| keys.path(name))).collect()
}

/// The keys among what was found there; `None` if the directory does not exist.
pub(crate) fn known_keys(
    dir: &str,
    set: KeySet,
    found: Vec<Found>,
) -> Result<Option<Keys>, XsError> {
    let mut found = found.into_iter();
    if found.next().transpose()?.flatten().is_none() {
        return Ok(None);
    }
    let mut keys = Keys::new(dir, []);
    let names: Vec<String> = set.names().map(str::to_owned).collect();
    add(&mut keys, &names, found)?;
    Ok(Some(keys))
}

/// Adds keys that exist.
fn add(
    keys: &mut Keys,
    names: &[String],
    found: impl IntoIterator<Item = Found>,
) -> Result<(), XsError> {
    for (name, found) in names.iter().zip(found) {
        match found {
            // A node that we may not read counts as absent.
            Err(error) if error.is(Errno::Acces) => {}
            found => {
                if let Some(value) = found? {
                    keys.insert(name, String::from_utf8(value).unwrap_or_default());
                }
            }
        }
    }
    Ok(())
}

/// Makes a vif as a toolstack does: both directories, each with its owner and the other end as a
/// reader, and their first keys.
///
/// # Errors
/// A refusal of the store.
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

/// Makes the nodes of a domain without devices, as a toolstack does: its home, which it can read,
/// and `data` in it, which it owns.
///
/// # Errors
/// A refusal of the store.
pub fn make_domain<T: Transport>(
    tx: &mut Transaction<'_, T>,
    toolstack: DomId,
    domid: DomId,
    name: &str,
) -> Result<(), XsError> {
    let home = domain_path(domid);
    tx.mkdir(&home)?;
    let read = Permissions::new(toolstack, Rights::None).with(domid, Rights::Read);
    tx.set_permissions(&home, &read)?;
    tx.write(&format!("{home}/name"), name)?;
    tx.write(&format!("{home}/domid"), domid.to_string())?;
    make_own(tx, domid, "data")
}

/// Makes a directory in the home of a domain, which owns it.
///
/// # Errors
/// A refusal of the store.
pub fn make_own<T: Transport>(
    tx: &mut Transaction<'_, T>,
    domid: DomId,
    name: &str,
) -> Result<(), XsError> {
    let dir = format!("{}/{name}", domain_path(domid));
    tx.mkdir(&dir)?;
    tx.set_permissions(&dir, &Permissions::new(domid, Rights::None))
}

/// Removes all nodes of a domain, whose vifs the `backend` serves.
///
/// # Errors
/// A refusal of the store.
pub fn remove_domain<T: Transport>(
    tx: &mut Transaction<'_, T>,
    backend: DomId,
    domid: DomId,
) -> Result<(), XsError> {
    for of_backend in [Vif::backend_root(backend), Vif::backend_errors_root(backend)] {
        tx.remove(&format!("{of_backend}/{domid}"))?;
    }
    tx.remove(&domain_path(domid))
}

/// Makes changes in a device's directory, all or none; none if the toolstack has removed the device
/// meanwhile: a write would recreate its directory.
///
/// # Errors
/// A refusal of the store.
pub fn change<T: Transport>(
    store: &mut Client<T>,
    dir: &str,
    changes: &[KeyChange],
) -> Result<(), XsError> {
    write(store, dir, changes, None)
}

/// Makes changes in a device's directory as [`change`] does, and then writes its state, if one is
/// given and it has one; all or nothing.
///
/// # Errors
/// A refusal of the store.
pub fn write<T: Transport>(
    store: &mut Client<T>,
    dir: &str,
    changes: &[KeyChange],
    state: Option<XenbusState>,
) -> Result<(), XsError> {
    let node = Vif::state_in(dir);
    store.transaction(|tx| {
        if !changes.is_empty() && tx.read_bytes(dir)?.is_some() {
            apply(tx, dir, changes)?;
        }
        match state {
            Some(state) if tx.read_bytes(&node)?.is_some() => tx.write(&node, state.value()),
            _ => Ok(()),
        }
    })
}

/// Makes changes in a device's directory as part of a transaction.
///
/// # Errors
/// A refusal of the store.
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

/// The state in a node.
///
/// # Errors
/// A refusal of the store.
pub fn state<T: Transport>(store: &mut Client<T>, node: &str) -> Result<XenbusState, XsError> {
    let value = store.read_bytes(node)?;
    let text = value.and_then(|value| String::from_utf8(value).ok());
    Ok(XenbusState::parse(text.as_deref()))
}

/// Removes the error nodes that an earlier backend of this domain left for vifs that were removed
/// while no backend ran. The ends of existing vifs remove their own.
///
/// # Errors
/// The loss of XenStore.
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
            // A vif whose keys may not be read exists.
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

/// Removes the error node of a vif that this backend does not serve; an earlier backend left it
/// when it was killed.
///
/// # Errors
/// The loss of XenStore.
pub fn remove_error<T: Transport>(store: &mut Client<T>, vif: Vif) -> Result<(), Lost> {
    let [for_tools, _] = vif.backend_errors();
    unless_refused(store.remove(&for_tools), ())
}

/// The state of a device in a removed domain may not be readable: it counts as absent.
pub(crate) fn unknown_if_refused(state: Result<XenbusState, XsError>) -> Result<XenbusState, Lost> {
    unless_refused(state, XenbusState::Unknown)
}

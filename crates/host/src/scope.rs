//! Which vifs of Xen a host serves, and its watches for them.

use std::collections::BTreeSet;

use ringway_wire::DomId;
use ringway_xenbus::Vif;
use ringway_xenstore::{Client, Errno, Lost, Refusal, Transport, or_refusal, unless_refused};

/// The token of the watch for new vifs.
pub(crate) const ROOT_TOKEN: &str = "vifs";

/// Which vifs of Xen a host serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All of its domain.
    Domain,
    /// These.
    Only(BTreeSet<Vif>),
}

impl Scope {
    /// Whether a vif of this domain is in it.
    pub(crate) fn has(&self, vif: Vif) -> bool {
        match self {
            Scope::Domain => true,
            Scope::Only(vifs) => vifs.contains(&vif),
        }
    }
}

/// Watches for vifs of Xen in a scope.
///
/// # Errors
/// The loss of XenStore, or its refusal.
pub fn watch<T: Transport>(
    store: &mut Client<T>,
    scope: &Scope,
    backend: DomId,
) -> Result<Result<(), Refusal>, Lost> {
    match scope {
        Scope::Domain => {
            let root = Vif::backend_root(backend);
            match or_refusal(store.mkdir(&root))? {
                // In a driver domain, the toolstack may not have created the directory or granted
                // access yet.
                Err(refusal) if refusal.is(Errno::Acces) => {}
                Err(refusal) => return Ok(Err(refusal)),
                Ok(()) => {}
            }
            or_refusal(store.watch(&root, ROOT_TOKEN))
        }
        Scope::Only(vifs) => {
            for vif in vifs {
                if let Err(refusal) = watch_vif(store, *vif)? {
                    return Ok(Err(refusal));
                }
            }
            Ok(Ok(()))
        }
    }
}

/// Watches the directory of one vif.
pub(crate) fn watch_vif<T: Transport>(
    store: &mut Client<T>,
    vif: Vif,
) -> Result<Result<(), Refusal>, Lost> {
    or_refusal(store.watch(&vif.backend_dir(), ROOT_TOKEN))
}

/// Ends the watch of the directory of one vif.
pub(crate) fn unwatch_vif<T: Transport>(
    store: &mut Client<T>,
    vif: Vif,
) -> Result<Result<(), Refusal>, Lost> {
    or_refusal(store.unwatch(&vif.backend_dir(), ROOT_TOKEN))
}

/// Logs that a watch was refused.
pub(crate) fn log_refusal(vif: Vif, watched: Result<(), Refusal>) {
    if let Err(refusal) = watched {
        tracing::warn!(dir = vif.backend_dir(), "{refusal}");
    }
}

/// The entries of a directory; empty if it does not exist or may not be read.
pub(crate) fn list<T: Transport>(store: &mut Client<T>, dir: &str) -> Result<Vec<String>, Lost> {
    unless_refused(store.directory(dir), Vec::new())
}

#[cfg(test)]
mod tests {
    use ringway_xenstore::{LocalStore, Quota};

    use super::*;

    #[test]
    fn a_driver_domain_watches_a_directory_that_its_toolstack_has_yet_to_make() {
        let (store, own) = (LocalStore::new(Quota::default()), DomId(5));
        store.introduce(own);
        let mut client = store.connect(own).expect("a guest may have a session");
        let watched = watch(&mut client, &Scope::Domain, own).expect("XenStore is there");
        watched.expect("it may watch");
    }

    #[test]
    fn a_scope_has_all_vifs_or_those_that_it_lists() {
        let vif = |guest| Vif { backend: DomId(0), frontend: DomId(guest), handle: 0 };
        let only = Scope::Only(BTreeSet::from([vif(1)]));
        assert!(only.has(vif(1)) && !only.has(vif(2)) && Scope::Domain.has(vif(2)));
        let store = LocalStore::new(Quota::default());
        let mut client = store.connect(DomId(0)).expect("the first");
        watch(&mut client, &only, DomId(0)).expect("it is there").expect("it may watch");
        let mut watches = || client.next_watch().expect("it is there");
        assert!(watches().is_some() && watches().is_none(), "one for each vif");
    }
}

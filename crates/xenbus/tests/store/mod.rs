//! A XenStore in memory, with a vif that a toolstack has just created.

use std::collections::BTreeMap;

use ringway_datapath::MacAddr;
use ringway_wire::DomId;
use ringway_xenbus::{Device, KeyChange, Keys, Vif};

pub(crate) const VIF: Vif = Vif { backend: DomId(0), frontend: DomId(2), handle: 0 };

/// Values by path.
pub(crate) type Store = BTreeMap<String, String>;

/// The keys that the toolstack writes for [`VIF`].
pub(crate) fn with_vif() -> Store {
    let device = Device::new(VIF, MacAddr([0, 0x16, 0x3e, 0, 0, 2]));
    let mut store = Store::new();
    change(&mut store, &VIF.backend_dir(), device.backend_changes());
    change(&mut store, &VIF.frontend_dir(), device.frontend_changes());
    store
}

/// Applies changes of keys in a directory; removing a node removes everything below it.
pub(crate) fn change(store: &mut Store, dir: &str, changes: Vec<KeyChange>) {
    for change in changes {
        match change {
            KeyChange::Set(key, value) => {
                store.insert(format!("{dir}/{key}"), value);
            }
            KeyChange::Remove(key) => {
                let node = format!("{dir}/{key}");
                let below = format!("{node}/");
                store.retain(|path, _| *path != node && !path.starts_with(&below));
            }
        }
    }
}

/// The keys in a directory.
pub(crate) fn keys(store: &Store, dir: &str) -> Keys {
    let prefix = format!("{dir}/");
    let below = store.iter().filter_map(|(path, value)| {
        path.strip_prefix(&prefix).map(|key| (key.to_owned(), value.clone()))
    });
    Keys::new(dir, below)
}

//! The toolstack: creates and removes vifs.

use std::collections::VecDeque;

use ringway_datapath::MacAddr;
use ringway_vif_shell::device;
use ringway_xenbus::{Device, KeyChange, Vif, XenbusState};
use ringway_xenstore::{
    Client, DomId, LocalStore, LocalTransport, Lost, Permissions, Rights, XsError,
};

use crate::choices::Choices;
use crate::scenario::HOST;

/// The most of a network device: frames of flows are of any length.
const MTU: u16 = u16::MAX - 14;

/// The limits that a toolstack changes while a vif is served, by their keys, with some values.
pub(crate) const LIMITS: [(&str, &[&str]); 5] = [
    (LINK, &["0", "0", "1", ""]),
    ("rate", &["", "65536,50000", "20000,1000", "1000000,50000"]),
    ("ringway-rate-rx", &["", "65536,50000", "1000000,50000"]),
    (WEIGHT, &["1", "3", "1000", "none"]),
    (OFFLOADS, &["none", "none", "all", "auto", ""]),
];
/// The key of a vif's link.
pub(crate) const LINK: &str = "carrier";
/// The key of a vif's offloads.
pub(crate) const OFFLOADS: &str = "ringway-offloads";
/// The key of a vif's share.
pub(crate) const WEIGHT: &str = "ringway-weight";

/// A toolstack, with its session of XenStore.
pub(crate) struct Toolstack(Client<LocalTransport>);

impl Toolstack {
    pub(crate) fn new(store: &LocalStore) -> Toolstack {
        let mut client = store.connect(HOST).expect("domain 0 has no limit of sessions");
        client.mkdir(&Vif::backend_root(HOST)).expect("domain 0 may");
        Toolstack(client)
    }

    /// Writes a vif's two directories.
    pub(crate) fn make(
        &mut self,
        vif: Vif,
        mac: MacAddr,
        (bridge, weight): (Option<String>, &str),
    ) -> Result<(), XsError> {
        let made = described(vif, mac, bridge);
        self.0.transaction(|tx| {
            device::make(tx, &made)?;
            tx.write(&format!("{}/{WEIGHT}", vif.backend_dir()), weight)
        })
    }

    /// Writes the guest's directory of a vif, and creates the backend's. Returns what is to be
    /// written there, in some order, and some of it twice: a toolstack may be several scripts, of
    /// which one is run again.
    pub(crate) fn begin(
        &mut self,
        (vif, mac): (Vif, MacAddr),
        (bridge, weight): (Option<String>, &str),
        choices: &mut Choices,
    ) -> Result<VecDeque<KeyChange>, XsError> {
        let made = described(vif, mac, bridge);
        self.0.transaction(|tx| {
            device::make(tx, &made)?;
            tx.remove(&vif.backend_dir())?;
            tx.mkdir(&vif.backend_dir())?;
            let permissions = Permissions::new(HOST, Rights::None).with(vif.frontend, Rights::Read);
            tx.set_permissions(&vif.backend_dir(), &permissions)
        })?;
        let mut all = made.backend_changes();
        all.push(KeyChange::Set(WEIGHT.to_owned(), weight.to_owned()));
        for _ in 0..choices.below(3) {
            all.push(all[choices.below(all.len())].clone());
        }
        let mut keys = VecDeque::new();
        while !all.is_empty() {
            keys.push_back(all.swap_remove(choices.below(all.len())));
        }
        // What a vif is attached to cannot change once it is served.
        if let Some(bridge) = keys.iter().position(|key| is_of(key, "bridge")) {
            let bridge = keys.remove(bridge);
            bridge.into_iter().for_each(|bridge| keys.push_front(bridge));
        }
        Ok(keys)
    }

    /// Writes one key of a vif that is being made.
    pub(crate) fn write(&mut self, vif: Vif, key: &KeyChange) -> Result<(), XsError> {
        let dir = vif.backend_dir();
        self.0.transaction(|tx| device::apply(tx, &dir, std::slice::from_ref(key)))
    }

    /// Asks the backend to release a vif.
    pub(crate) fn ask_to_remove(&mut self, vif: Vif) -> Result<(), XsError> {
        device::change(&mut self.0, &vif.backend_dir(), &Device::removal_changes())
    }

    /// Asks the backend to close a vif, which stays.
    pub(crate) fn ask_to_close(&mut self, vif: Vif) -> Result<(), XsError> {
        device::write(&mut self.0, &vif.backend_dir(), &[], Some(XenbusState::Closing))
    }

    /// Whether the backend has released a vif.
    pub(crate) fn is_let_go(&mut self, vif: Vif) -> Result<bool, XsError> {
        Ok(device::state(&mut self.0, &vif.backend_state())?.is_gone())
    }

    /// Removes both directories.
    pub(crate) fn remove(&mut self, vif: Vif) -> Result<(), XsError> {
        self.0.remove(&vif.backend_dir())?;
        let guest_root = format!("{}/{}", Vif::backend_root(HOST), vif.frontend);
        self.0.remove(&guest_root)?;
        self.0.remove(&vif.frontend_dir())
    }

    /// Shows that the links of all connected vifs are down, as who stops their backend for good.
    /// Returns how many were up.
    pub(crate) fn cut_links(&mut self) -> Result<usize, Lost> {
        ringway_host::cut_links(&mut self.0, HOST)
    }

    /// Sets a limit of a vif.
    pub(crate) fn limit(&mut self, vif: Vif, key: &str, value: &str) -> Result<(), XsError> {
        self.0.write(&format!("{}/{key}", vif.backend_dir()), value)
    }

    /// Nodes of vifs left in the backend's directory and in its error nodes.
    pub(crate) fn leftovers(&mut self) -> Result<Vec<String>, XsError> {
        let mut left = self.0.directory(&Vif::backend_root(HOST))?;
        let errors = Vif::backend_errors_root(HOST);
        for guest in list(&mut self.0, &errors) {
            for handle in list(&mut self.0, &format!("{errors}/{guest}")) {
                let names = list(&mut self.0, &format!("{errors}/{guest}/{handle}"));
                left.extend(names.into_iter().map(|name| format!("{guest}/{handle}/{name}")));
            }
        }
        Ok(left)
    }

    /// The backend's state of a vif.
    pub(crate) fn backend_state(&mut self, vif: Vif) -> XenbusState {
        device::state(&mut self.0, &vif.backend_state()).unwrap_or(XenbusState::Unknown)
    }

    /// The backend's error report on a vif.
    pub(crate) fn error(&mut self, vif: Vif) -> Option<String> {
        let nodes = vif.backend_errors();
        nodes.iter().find_map(|node| self.0.read(node).ok().flatten())
    }

    /// Writes a node without an owner, to test whether anything still watches it.
    pub(crate) fn touch(&mut self, node: &str) -> Result<(), XsError> {
        self.0.write(node, "")?;
        self.0.remove(node)
    }
}

/// Whether this is a value of this key.
pub(crate) fn is_of(change: &KeyChange, key: &str) -> bool {
    matches!(change, KeyChange::Set(other, _) if other == key)
}

fn described(vif: Vif, mac: MacAddr, bridge: Option<String>) -> Device {
    Device { mtu: MTU, bridge, staging: true, ..Device::new(vif, mac) }
}

fn list(store: &mut Client<LocalTransport>, dir: &str) -> Vec<String> {
    store.directory(dir).unwrap_or_default()
}

/// The one vif of a guest.
pub(crate) fn vif_of(guest: DomId) -> Vif {
    Vif { backend: HOST, frontend: guest, handle: 0 }
}

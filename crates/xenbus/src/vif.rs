//! The directories of a vif's two ends in XenStore, and the keys with which a toolstack creates a
//! vif.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};

use ringway_wire::DomId;

use crate::keys::{
    BACKEND, BACKEND_ID, BIND, BRIDGE, BadKeys, CARRIER, ERROR, FRONTEND, FRONTEND_ID, HANDLE,
    HOTPLUG_STATUS, IFACE_ID, KeyChange, Keys, MAC, MAX_QUEUES_WANTED, MTU, ONLINE, RATE,
    REQUEST_MULTICAST_CONTROL, RULE_KEYS, STAGING_WANTED, STATE, TENANT, TYPE,
};
use crate::limits::LIMITS;
use crate::rules;
use crate::state::XenbusState;
use ringway_datapath::{MacAddr, PortRules};

/// One virtual interface: `handle` counts from 0 in each guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vif {
    /// The domain that serves it.
    pub backend: DomId,
    /// The guest.
    pub frontend: DomId,
    /// The number of the guest's interface.
    pub handle: u32,
}

impl Vif {
    /// The directory of all vifs that a domain serves, with one directory per guest. Watch it for
    /// new vifs.
    pub fn backend_root(backend: DomId) -> String {
        format!("/local/domain/{backend}/backend/vif")
    }

    /// The directory of all vifs of a guest, on the guest's side.
    pub fn frontend_root(frontend: DomId) -> String {
        format!("/local/domain/{frontend}/device/vif")
    }

    /// The backend's directory.
    pub fn backend_dir(self) -> String {
        format!("{}/{}/{}", Vif::backend_root(self.backend), self.frontend, self.handle)
    }

    /// The frontend's directory.
    pub fn frontend_dir(self) -> String {
        format!("{}/{}", Vif::frontend_root(self.frontend), self.handle)
    }

    /// The node of the state of the end with this directory.
    pub fn state_in(dir: &str) -> String {
        format!("{dir}/{STATE}")
    }

    /// The node to watch for the backend's state.
    pub fn backend_state(self) -> String {
        Vif::state_in(&self.backend_dir())
    }

    /// The node to watch for the backend's link.
    pub fn backend_carrier(self) -> String {
        format!("{}/{CARRIER}", self.backend_dir())
    }

    /// The node to watch for the frontend's state.
    pub fn frontend_state(self) -> String {
        Vif::state_in(&self.frontend_dir())
    }

    /// The node to watch for the frontend's request of multicast control.
    pub fn multicast_request(self) -> String {
        format!("{}/{REQUEST_MULTICAST_CONTROL}", self.frontend_dir())
    }

    /// The node with which the toolstack asks to remove the vif.
    pub fn online(self) -> String {
        format!("{}/{ONLINE}", self.backend_dir())
    }

    /// The node with which a toolstack limits what the guest may transmit.
    pub fn rate(self) -> String {
        format!("{}/{RATE}", self.backend_dir())
    }

    /// Whether a path is the backend's directory, or a node in it with which a toolstack or its
    /// script changes a running vif.
    pub fn is_toolstacks(self, path: &str) -> bool {
        let dir = self.backend_dir();
        match path.strip_prefix(&dir) {
            Some("") => true,
            Some(rest) => rest.strip_prefix('/').is_some_and(is_changeable),
            None => false,
        }
    }

    /// The node in which the toolstack may name the vif's tenant (`ringway-tenant`, ours).
    pub fn tenant(self) -> String {
        format!("{}/{TENANT}", self.backend_dir())
    }

    /// The directory where Xen's tools expect errors of the vifs that a domain serves, with one
    /// directory per guest and vif.
    pub fn backend_errors_root(backend: DomId) -> String {
        format!("/local/domain/{backend}/error/backend/vif")
    }

    /// The nodes to which a backend writes its errors: one for Xen's tools, and one next to its
    /// other keys, for people.
    pub fn backend_errors(self) -> [String; 2] {
        let root = Vif::backend_errors_root(self.backend);
        [
            format!("{root}/{}/{}/{ERROR}", self.frontend, self.handle),
            format!("{}/{ERROR}", self.backend_dir()),
        ]
    }

    /// The node to which a frontend writes its errors.
    pub fn frontend_error(self) -> String {
        let Vif { frontend, handle, .. } = self;
        format!("/local/domain/{frontend}/error/device/vif/{handle}/{ERROR}")
    }

    /// The vif whose backend's directory is `path` or contains it.
    pub fn from_backend_path(path: &str) -> Option<Vif> {
        let rest = path.strip_prefix("/local/domain/")?;
        let (backend, rest) = rest.split_once("/backend/vif/")?;
        let mut parts = rest.split('/');
        let frontend = parts.next()?.parse().ok()?;
        let handle = parts.next()?.parse().ok()?;
        let vif = Vif { backend: DomId(backend.parse().ok()?), frontend: DomId(frontend), handle };
        // Signs and leading zeros are refused: another node has the plain number.
        let dir = vif.backend_dir();
        let tail = path.strip_prefix(&dir)?;
        (tail.is_empty() || tail.starts_with('/')).then_some(vif)
    }

    /// The guest whose vifs are in the directory `path` of a backend.
    pub fn guest_from_backend_path(path: &str) -> Option<DomId> {
        let (_, guest) = path.strip_prefix("/local/domain/")?.split_once("/backend/vif/")?;
        guest.parse().ok().map(DomId)
    }

    /// The vif that a guest finds in its directory `handle`, from the toolstack's keys there;
    /// `None` as long as `backend`, `backend-id` or `mac` is missing.
    ///
    /// # Errors
    /// [`BadKeys::Unreadable`] if `backend-id` is not a domain, or `backend` is not this vif's
    /// directory in that domain.
    pub fn from_frontend_keys(
        frontend: DomId,
        handle: u32,
        keys: &Keys,
    ) -> Result<Option<Vif>, BadKeys> {
        let (Some(dir), Some(id)) = (keys.text(BACKEND), keys.text(BACKEND_ID)) else {
            return Ok(None);
        };
        let bad_id = || keys.unreadable(BACKEND_ID, id, "the number of a domain");
        let number = keys.number(BACKEND_ID)?.and_then(|id| u16::try_from(id).ok());
        let backend = DomId(number.ok_or_else(bad_id)?);
        let vif = Vif { backend, frontend, handle };
        if dir != vif.backend_dir() {
            let expected = "this vif's directory in the domain of backend-id";
            return Err(keys.unreadable(BACKEND, dir, expected));
        }
        Ok(keys.has(MAC).then_some(vif))
    }
}

/// Keys of the toolstack and its scripts that take effect while a vif is served, besides its
/// rules and its limits.
const CHANGEABLE: [&str; 4] = [ONLINE, HOTPLUG_STATUS, MAC, MTU];

fn is_changeable(key: &str) -> bool {
    let is_limit = || LIMITS.iter().any(|limit| limit.key == key);
    CHANGEABLE.contains(&key) || RULE_KEYS.contains(&key) || is_limit()
}

/// What a toolstack knows about a vif that it creates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its two domains and its handle.
    pub vif: Vif,
    /// The guest's Ethernet address on it.
    pub mac: MacAddr,
    /// Its MTU in bytes.
    pub mtu: u16,
    /// The bridge to which the backend attaches it, if any: one of Linux, or of Open vSwitch.
    pub bridge: Option<String>,
    /// `iface-id` of its port on the latter, if the toolstack has chosen it.
    pub iface_id: Option<String>,
    /// When it has that port, if the toolstack has chosen that.
    pub bind: Option<String>,
    /// The most queues that the backend offers, if the toolstack sets it. The key is ours
    /// (`ringway-max-queues`): a stock toolstack has none.
    pub max_queues: Option<u16>,
    /// Whether the backend keeps pages mapped that the guest asks for. The key is ours
    /// (`ringway-staging`).
    pub staging: bool,
    /// The rules for what its guest may send.
    pub rules: PortRules,
}

impl Device {
    /// A vif as toolstacks describe it without any settings.
    pub fn new(vif: Vif, mac: MacAddr) -> Device {
        Device {
            vif,
            mac,
            mtu: 1500,
            bridge: None,
            iface_id: None,
            bind: None,
            max_queues: None,
            staging: false,
            rules: PortRules::default(),
        }
    }

    /// The backend's first keys. Its directory belongs to its domain; the guest may read it.
    pub fn backend_changes(&self) -> Vec<KeyChange> {
        let mut changes = vec![
            KeyChange::set(FRONTEND, self.vif.frontend_dir()),
            KeyChange::number(FRONTEND_ID, self.vif.frontend.0),
            KeyChange::flag(ONLINE, true),
            // The type that Xen's tools use for a vif without an emulated network card.
            KeyChange::set(TYPE, "vif"),
            KeyChange::number(MTU, self.mtu),
        ];
        let place = [(BRIDGE, &self.bridge), (IFACE_ID, &self.iface_id), (BIND, &self.bind)];
        let place = place.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?)));
        changes.extend(place.map(|(key, value)| KeyChange::set(key, value)));
        changes.extend(self.max_queues.map(|queues| KeyChange::number(MAX_QUEUES_WANTED, queues)));
        changes.extend(self.staging.then(|| KeyChange::flag(STAGING_WANTED, true)));
        let rules = rules::keys_of(&self.rules).into_iter();
        changes.extend(rules.map(|(key, value)| KeyChange::set(key, value)));
        changes.extend(self.common());
        changes
    }

    /// The frontend's first keys. Its directory belongs to the guest; the backend may read it.
    pub fn frontend_changes(&self) -> Vec<KeyChange> {
        let mut changes = vec![
            KeyChange::set(BACKEND, self.vif.backend_dir()),
            KeyChange::number(BACKEND_ID, self.vif.backend.0),
            KeyChange::number(MTU, self.mtu),
        ];
        changes.extend(self.common());
        changes
    }

    /// The changes of the backend's directory that request the permanent removal of the vif.
    pub fn removal_changes() -> Vec<KeyChange> {
        vec![KeyChange::flag(ONLINE, false), KeyChange::set(STATE, XenbusState::Closing.value())]
    }

    fn common(&self) -> [KeyChange; 3] {
        [
            KeyChange::number(HANDLE, self.vif.handle),
            KeyChange::set(MAC, self.mac.to_string()),
            KeyChange::set(STATE, XenbusState::Initialising.value()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_reads_the_configuration_of_a_toolstack() {
        let vif = Vif { backend: DomId(0), frontend: DomId(2), handle: 1 };
        let plain = Device::new(vif, MacAddr([2; 6]));
        let text = |text: &str| Some(text.to_owned());
        let wishful = Device {
            bridge: text("br-int.7"),
            iface_id: text("lsp1"),
            bind: text("plugged"),
            max_queues: Some(3),
            staging: true,
            ..plain.clone()
        };
        let listed = |last: u8| vec![MacAddr([0, 0, 0x5e, 0, 1, last]), MacAddr([2; 6])];
        let rules = PortRules {
            allowed_macs: listed(1),
            shared_macs: listed(2),
            link_local_to: Some("vif3.0".to_owned()),
            ..PortRules::default()
        };
        let clustered = Device { rules, ..plain.clone() };
        let read = |device: &Device| {
            let values = device.backend_changes().into_iter().map(|change| match change {
                KeyChange::Set(key, value) => (key, value),
                KeyChange::Remove(key) => panic!("{key} was never there"),
            });
            Keys::new(&vif.backend_dir(), values)
        };
        assert_eq!(read(&clustered).rules(), Ok(clustered.rules.clone()));
        assert_eq!(read(&wishful).bridge(), Some("br-int.7"));
        let port = |device: &Device| {
            let keys = read(device);
            (keys.iface_id().map(str::to_owned), keys.bind().map(str::to_owned))
        };
        assert_eq!(port(&wishful), (text("lsp1"), text("plugged")));
        assert_eq!(read(&wishful).max_queues_limit(), Ok(Some(3)));
        let staging = [&plain, &wishful].map(|device| read(device).wants_staging());
        assert_eq!(staging, [Ok(false), Ok(true)]);
        assert_eq!(read(&plain).bridge(), None);
        assert_eq!(port(&plain), (None, None));
        assert_eq!(read(&plain).max_queues_limit(), Ok(None));
        assert_eq!(read(&plain).text(TYPE), Some("vif"));
    }

    #[test]
    fn a_guest_finds_its_vif_once_the_toolstack_has_written_it() {
        let vif = Vif { backend: DomId(3), frontend: DomId(2), handle: 1 };
        let find = |values: &[(&str, &str)]| {
            let values = values.iter().map(|(key, value)| ((*key).into(), (*value).into()));
            Vif::from_frontend_keys(DomId(2), 1, &Keys::new(&vif.frontend_dir(), values))
        };
        let all = [
            ("backend", "/local/domain/3/backend/vif/2/1"),
            ("backend-id", "3"),
            ("mac", "00:16:3e:00:00:02"),
        ];
        assert_eq!(find(&all), Ok(Some(vif)));
        for missing in 0..all.len() {
            let mut some = all.to_vec();
            some.remove(missing);
            assert_eq!(find(&some), Ok(None), "without {:?}", all[missing]);
        }
        for (key, value) in [
            ("backend", "/local/domain/0/backend/vif/2/1"),
            ("backend", "/local/domain/3/backend/vif/2/0"),
            ("backend", "/local/domain/3/backend/vif/4/1"),
            ("backend", ""),
            ("backend-id", "65536"),
            ("backend-id", "-1"),
        ] {
            let changed = all.map(|(old, text)| (old, if old == key { value } else { text }));
            let error = find(&changed).expect_err("it is invalid").to_string();
            assert!(error.contains(&format!("/{key} is \"{value}\", expected")), "{error}");
        }
    }

    #[test]
    fn paths_are_those_of_a_stock_host() {
        let vif = Vif { backend: DomId(0), frontend: DomId(2), handle: 1 };
        assert_eq!(vif.backend_dir(), "/local/domain/0/backend/vif/2/1");
        assert_eq!(vif.frontend_dir(), "/local/domain/2/device/vif/1");
        assert_eq!(Vif::from_backend_path(&vif.backend_dir()), Some(vif));
        assert_eq!(Vif::from_backend_path(&vif.backend_state()), Some(vif));
        for other in [
            "/local/domain/0/backend/vif",
            "/local/domain/0/backend/vif/2",
            "/local/domain/0/backend/vif/02/1",
            "/local/domain/0/backend/vif/2/+1",
            "/local/domain/0/backend/vbd/2/1",
            "/local/domain/70000/backend/vif/2/1",
        ] {
            assert_eq!(Vif::from_backend_path(other), None, "{other}");
        }
        assert_eq!(Vif::guest_from_backend_path("/local/domain/0/backend/vif/2"), Some(DomId(2)));
        for other in ["/local/domain/0/backend/vif", "/local/domain/0/backend/vbd/2"] {
            assert_eq!(Vif::guest_from_backend_path(other), None, "{other}");
        }
    }
}

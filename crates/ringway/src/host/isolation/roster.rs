//! Which vif belongs to which tenant, according to the toolstack's nodes in XenStore.
//!
//! A vif keeps the tenant that it was created with. The roster reads a vif when its directory
//! appears and disappears, and ignores what its backend writes there.

use std::collections::{BTreeMap, BTreeSet};

use ringway_control::{Permitted, TrunkRules};
use ringway_datapath::{LockingMode, MacAddr, PortRules, Vid};
use ringway_description::{Host, TenantName, Vhost};
use ringway_host::Purpose;
use ringway_vif_shell::device::read_keys;
use ringway_xenbus::{KeySet, Keys, Vif, XenbusState};
use ringway_xenstore::{Client, DomId, Lost, unless_refused};

/// Vifs of one tenant: as many as a message has room for.
const VIFS_PER_TENANT_MAX: usize = 1024;

/// Addresses that the vifs of one tenant may list in allowed-macs, and in shared-macs, for the same
/// reason.
const MACS_PER_TENANT_MAX: usize = 512;

/// All vifs that are served.
#[derive(Debug)]
pub(super) struct Roster {
    backend: DomId,
    defaults: Defaults,
    vifs: BTreeMap<Vif, Entry>,
    /// Virtio vifs, by their names.
    vhosts: BTreeMap<String, Entry>,
    /// Vifs to read again.
    changed: BTreeSet<Vif>,
    must_scan: bool,
}

/// The defaults for vifs without rules of their own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Defaults {
    pub(crate) locking: Option<LockingMode>,
    /// Ethernet addresses of a vif.
    pub(crate) addresses_max: u32,
    /// Queues of a vif.
    pub(crate) queues_max: u16,
}

impl Defaults {
    pub(crate) fn of(host: &Host) -> Defaults {
        let locking = host.switch.locking();
        let addresses_max = host.switch.addresses_per_vif;
        Defaults { locking, addresses_max, queues_max: host.max_queues }
    }
}

#[derive(Debug)]
struct Entry {
    tenant: TenantName,
    mac: Option<MacAddr>,
    rules: Rules,
    /// Whether the toolstack is removing it, and waits until it is closed.
    is_leaving: bool,
}

impl Entry {
    /// That of a virtio vif; `None` if it has no tenant.
    fn of_vhost(vhost: &Vhost, defaults: Defaults) -> Option<Entry> {
        let mut rules = Rules::of(&vhost.vif.rules(), defaults);
        if vhost.vif.bridge.is_some() {
            rules.leave_trunk();
        }
        let mac = vhost.mac.map(|mac| mac.0);
        Some(Entry { tenant: vhost.tenant()?, mac, rules, is_leaving: false })
    }
}

/// The part of a vif's rules that concerns other processes than its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Rules {
    /// Whether other addresses may be behind it as well.
    is_open: bool,
    vlans: BTreeSet<Vid>,
    is_private: bool,
    allowed_macs: Vec<MacAddr>,
    shared_macs: Vec<MacAddr>,
}

impl Rules {
    fn of(rules: &PortRules, defaults: Defaults) -> Rules {
        let addresses_max = rules.addresses_max.unwrap_or(defaults.addresses_max);
        let mode = rules.mode(defaults.locking);
        Rules {
            is_open: mode == Some(LockingMode::Unlocked) || addresses_max > 1,
            vlans: rules.vlan.untagged.iter().chain(&rules.vlan.tagged).copied().collect(),
            is_private: rules.is_private,
            allowed_macs: rules.allowed_macs.clone(),
            shared_macs: rules.shared_macs.clone(),
        }
    }

    /// On a bridge VLANs and private vifs are refused, and they concern no trunk.
    fn leave_trunk(&mut self) {
        self.vlans.clear();
        self.is_private = false;
    }
}

/// A change that [`poll`](Roster::poll) found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// A tenant has gained a vif, which has these keys.
    Added(TenantName, Vif, Keys),
    /// The toolstack may have changed its keys to these.
    Keys(TenantName, Vif, Keys),
    /// A tenant has lost a vif.
    Removed(TenantName, Vif),
    /// The rules of its vifs have changed.
    Rules(TenantName),
}

impl Roster {
    pub(super) fn new(backend: DomId, defaults: Defaults) -> Roster {
        Roster {
            backend,
            defaults,
            vifs: BTreeMap::new(),
            vhosts: BTreeMap::new(),
            changed: BTreeSet::new(),
            must_scan: true,
        }
    }

    /// Adds a virtio vif, and returns its tenant. Without one, it is not added.
    pub(super) fn add_vhost(&mut self, vhost: &Vhost) -> Option<TenantName> {
        let entry = Entry::of_vhost(vhost, self.defaults)?;
        let tenant = entry.tenant.clone();
        self.vhosts.insert(vhost.name.0.clone(), entry);
        Some(tenant)
    }

    pub(super) fn remove_vhost(&mut self, name: &str) {
        self.vhosts.remove(name);
    }

    /// A node below the backend's root has changed.
    pub(super) fn note(&mut self, path: &str) {
        match Vif::from_backend_path(path) {
            None => self.must_scan = true,
            Some(vif) if !self.vifs.contains_key(&vif) => drop(self.changed.insert(vif)),
            Some(vif) if vif.is_toolstacks(path) => drop(self.changed.insert(vif)),
            Some(vif) if path == vif.backend_state() && self.is_leaving(vif) => {
                self.changed.insert(vif);
            }
            Some(_) => {}
        }
    }

    /// Whether the toolstack is removing a vif, and waits until it is closed.
    fn is_leaving(&self, vif: Vif) -> bool {
        self.vifs.get(&vif).is_some_and(|entry| entry.is_leaving)
    }

    /// Anything may have changed.
    pub(super) fn note_all(&mut self) {
        self.must_scan = true;
    }

    /// Reads what has changed.
    pub(super) fn poll(&mut self, store: &mut Client) -> Result<Vec<Change>, Lost> {
        if std::mem::take(&mut self.must_scan) {
            self.scan(store)?;
        }
        let mut changes = Vec::new();
        for vif in std::mem::take(&mut self.changed) {
            let read = read_keys(store, &vif.backend_dir(), KeySet::BackendDevice);
            let keys = unless_refused(read, None)?;
            // The toolstack writes the state last, so a vif with a state is complete.
            let is_there = keys.as_ref().is_some_and(|it| it.state() != XenbusState::Unknown);
            let mac = keys.as_ref().and_then(|keys| keys.mac().ok().flatten());
            let rules = keys.as_ref().and_then(|keys| self.rules_of(keys));
            match (self.vifs.get_mut(&vif), keys.filter(|_| is_there)) {
                (None, Some(keys)) => {
                    let tenant = self.tenant_of(store, vif)?;
                    if self.of_tenant(&tenant).count() >= VIFS_PER_TENANT_MAX {
                        let dir = vif.backend_dir();
                        tracing::warn!(dir, "not served: {tenant} has {VIFS_PER_TENANT_MAX} vifs");
                        continue;
                    }
                    let rules = rules.unwrap_or_default();
                    let is_leaving = !keys.is_online();
                    let entry = Entry { tenant: tenant.clone(), mac, rules, is_leaving };
                    self.vifs.insert(vif, entry);
                    changes.push(Change::Added(tenant, vif, keys));
                }
                (None, None) => {}
                (Some(_), None) => {
                    if let Some(Entry { tenant, .. }) = self.vifs.remove(&vif) {
                        changes.push(Change::Removed(tenant, vif));
                    }
                }
                (Some(entry), Some(keys)) => {
                    entry.is_leaving = !keys.is_online();
                    // The first address counts for the lifetime of the vif, and unreadable rules
                    // change nothing.
                    let mac = entry.mac.or(mac);
                    let rules = rules.unwrap_or_else(|| entry.rules.clone());
                    if (mac, &rules) != (entry.mac, &entry.rules) {
                        (entry.mac, entry.rules) = (mac, rules);
                        changes.push(Change::Rules(entry.tenant.clone()));
                    }
                    changes.push(Change::Keys(entry.tenant.clone(), vif, keys));
                }
            }
        }
        Ok(changes)
    }

    /// Whether a vif is there.
    pub(super) fn has(&self, vif: Vif) -> bool {
        self.vifs.contains_key(&vif)
    }

    /// The tenant of a vif.
    pub(super) fn tenant(&self, vif: &Purpose) -> Option<&TenantName> {
        let entry = match vif {
            Purpose::Xen(vif) => self.vifs.get(vif),
            Purpose::Virtio(name) => self.vhosts.get(name),
            Purpose::Uplink => None,
        };
        entry.map(|entry| &entry.tenant)
    }

    /// The vifs of a tenant.
    pub(super) fn of_tenant(&self, tenant: &TenantName) -> impl Iterator<Item = Vif> {
        let own = self.vifs.iter().filter(move |(_, entry)| entry.tenant == *tenant);
        own.map(|(vif, _)| *vif)
    }

    /// The tenants of virtio vifs, each once for each of its vifs.
    pub(super) fn tenants_of_vhosts(&self) -> impl Iterator<Item = &TenantName> {
        self.vhosts.values().map(|entry| &entry.tenant)
    }

    /// The names of a tenant's virtio vifs.
    pub(super) fn vhosts_of(&self, tenant: &TenantName) -> impl Iterator<Item = &str> {
        let own = self.vhosts.iter().filter(move |(_, entry)| entry.tenant == *tenant);
        own.map(|(name, _)| name.as_str())
    }

    /// Whether a tenant has a vif.
    pub(super) fn has_any(&self, tenant: &TenantName) -> bool {
        self.entries_of(tenant).next().is_some()
    }

    fn entries_of(&self, tenant: &TenantName) -> impl Iterator<Item = &Entry> {
        let all = self.vifs.values().chain(self.vhosts.values());
        all.filter(move |entry| entry.tenant == *tenant)
    }

    /// What a tenant may use. Its trunk carries the VLANs of its vifs, if any is in some.
    pub(super) fn permitted(&self, tenant: &TenantName) -> Permitted {
        let vifs = || self.entries_of(tenant);
        let is_open = vifs().any(|entry| entry.mac.is_none() || entry.rules.is_open);
        let listed = vifs().flat_map(|entry| &entry.rules.allowed_macs).take(MACS_PER_TENANT_MAX);
        let own = vifs().flat_map(|entry| &entry.mac).chain(listed).map(|mac| mac.0);
        let shared = vifs().flat_map(|entry| &entry.rules.shared_macs).map(|mac| mac.0);
        let shared: BTreeSet<[u8; 6]> = shared.collect();
        let vlans: BTreeSet<Vid> = vifs().flat_map(|entry| &entry.rules.vlans).copied().collect();
        Permitted {
            own: (!is_open).then(|| own.collect()),
            shared: shared.into_iter().take(MACS_PER_TENANT_MAX).collect(),
            trunk: TrunkRules {
                vlans: vlans.into_iter().map(Vid::get).collect(),
                is_private: vifs().any(|entry| entry.rules.is_private),
            },
        }
    }

    /// The rules of a vif; `None` if they cannot be read. Such a vif is not served, or keeps the
    /// rules that it has.
    fn rules_of(&self, keys: &Keys) -> Option<Rules> {
        let mut rules = Rules::of(&keys.rules().ok()?, self.defaults);
        if keys.script().is_some() || keys.bridge().is_some() {
            rules.leave_trunk();
        }
        Some(rules)
    }

    fn scan(&mut self, store: &mut Client) -> Result<(), Lost> {
        let root = Vif::backend_root(self.backend);
        self.changed.extend(self.vifs.keys());
        for guest in unless_refused(store.directory(&root), Vec::new())? {
            let dir = format!("{root}/{guest}");
            for handle in unless_refused(store.directory(&dir), Vec::new())? {
                self.changed.extend(Vif::from_backend_path(&format!("{dir}/{handle}")));
            }
        }
        Ok(())
    }

    fn tenant_of(&self, store: &mut Client, vif: Vif) -> Result<TenantName, Lost> {
        let own = TenantName::of_domain(vif.frontend.0);
        let Some(text) = read(store, &vif.tenant())? else { return Ok(own) };
        Ok(text.parse().unwrap_or_else(|error| {
            tracing::warn!("{}: {error}; its domain gets its own process", vif.tenant());
            own
        }))
    }
}

fn read(store: &mut Client, path: &str) -> Result<Option<String>, Lost> {
    unless_refused(store.read(path), None)
}

//! The nodes themselves: values, children and permissions, with no session, watch or transaction.
//!
//! Nodes are shared between copies of a [`Store`] until one copy changes them, so a snapshot costs
//! one reference count. Every change gives the node it touches a new generation number; a node's
//! record is its value, its permissions and the names of its children, so making a child is a
//! change of its directory, and writing to the child is not.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringway_wire::DomId;
use ringway_wire::xenstore::Errno;

use crate::path::NodePath;
use crate::permissions::{Permissions, Rights};
use crate::quota::Quota;

/// A tree of nodes, cheap to copy.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    root: Arc<Node>,
    /// The number of nodes per owner.
    owned: BTreeMap<DomId, usize>,
    generation: u64,
}

/// One node.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) value: Vec<u8>,
    pub(crate) permissions: Permissions,
    children: BTreeMap<Arc<str>, Arc<Node>>,
    pub(crate) generation: u64,
}

/// A change of one node, as a client asks for it.
#[derive(Debug)]
pub(crate) struct Edit {
    pub(crate) path: NodePath,
    pub(crate) mutation: Mutation,
}

/// What is done to a node.
#[derive(Debug)]
pub(crate) enum Mutation {
    /// Sets the value; creates the node and its parent directories if needed.
    Write(Vec<u8>),
    /// Creates the node with an empty value unless it exists.
    MakeDirectory,
    /// Removes the node and all below it.
    Remove,
    /// Replaces the permissions.
    SetPermissions(Permissions),
}

impl Mutation {
    /// Bytes that the mutation itself occupies.
    pub(crate) fn len(&self) -> usize {
        match self {
            Mutation::Write(value) => value.len(),
            Mutation::SetPermissions(permissions) => {
                permissions.entry_count() * PERMISSION_ENTRY_LEN
            }
            Mutation::MakeDirectory | Mutation::Remove => 0,
        }
    }
}

/// A change that watches may report.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) path: NodePath,
    pub(crate) reach: Reach,
    /// Clients that may read one of these may know of the change: the node's own permissions before
    /// and after, and those of its directory.
    visible_by: Vec<Permissions>,
}

/// Which watches a change fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Those of the node and of all directories above it.
    Lineage,
    /// Those of the node only: it was removed with a directory above it.
    Exact,
}

impl Change {
    pub(crate) fn is_visible_to(&self, domain: DomId) -> bool {
        self.visible_by.iter().any(|p| p.rights_of(domain).include(Rights::Read))
    }
}

impl Node {
    /// Names of the children, in alphabetical order.
    pub(crate) fn child_names(&self) -> impl Iterator<Item = &str> {
        self.children.keys().map(|name| &**name)
    }

    /// Bytes that count against the quota of a node.
    fn record_len(&self) -> usize {
        let names: usize = self.children.keys().map(|name| name.len() + 1).sum();
        self.value.len() + names + self.permissions.entry_count() * PERMISSION_ENTRY_LEN
    }
}

/// Bytes that one entry of the permissions takes in the stock daemon's records.
const PERMISSION_ENTRY_LEN: usize = 8;

impl Store {
    /// A root that belongs to domain 0 and that no other domain may read.
    pub(crate) fn new() -> Store {
        let root = Node {
            value: Vec::new(),
            permissions: Permissions::new(DomId(0), Rights::None),
            children: BTreeMap::new(),
            generation: 0,
        };
        Store { root: Arc::new(root), owned: BTreeMap::from([(DomId(0), 1)]), generation: 0 }
    }

    /// The node at `path`, without a check of permissions.
    pub(crate) fn node(&self, path: &NodePath) -> Option<&Node> {
        path.components().try_fold(&*self.root, |node, name| node.children.get(name).map(|n| &**n))
    }

    /// The node at `path`, if `who` has the rights.
    ///
    /// # Errors
    /// `EACCES` without them. For a missing node the nearest existing directory decides: only a
    /// domain with the rights there may know that it is missing (`ENOENT`).
    pub(crate) fn get(&self, who: DomId, path: &NodePath, wanted: Rights) -> Result<&Node, Errno> {
        let (nearest, missing) = self.nearest(path);
        if !nearest.permissions.rights_of(who).include(wanted) {
            return Err(Errno::Acces);
        }
        if missing == 0 { Ok(nearest) } else { Err(Errno::Noent) }
    }

    /// Whether nothing has changed since `before`, an earlier copy of this store.
    pub(crate) fn is_unchanged_since(&self, before: &Store) -> bool {
        self.generation == before.generation
    }

    /// Whether the node at `path` is as it is in `before`, an earlier copy of this store; a node
    /// missing in both counts as the same.
    pub(crate) fn agrees(&self, before: &Store, path: &NodePath) -> bool {
        let generation = |store: &Store| store.node(path).map(|node| node.generation);
        generation(self) == generation(before)
    }

    /// All nodes below the one at `path`.
    pub(crate) fn paths_below(&self, path: &NodePath) -> Vec<NodePath> {
        let mut below = Vec::new();
        let mut pending: Vec<_> =
            self.node(path).map(|node| (path.clone(), node)).into_iter().collect();
        while let Some((path, node)) = pending.pop() {
            for (name, child) in &node.children {
                let path = path.child(name);
                below.push(path.clone());
                pending.push((path, child));
            }
        }
        below
    }

    /// How many names at the end of `path` have no node.
    pub(crate) fn missing_count(&self, path: &NodePath) -> usize {
        self.nearest(path).1
    }

    /// Carries out an edit, wholly or not at all.
    ///
    /// # Errors
    /// As the protocol defines for the request; `ENOSPC` if it would exceed a quota.
    pub(crate) fn apply(
        &mut self,
        who: DomId,
        Edit { path, mutation }: &Edit,
        quota: &Quota,
    ) -> Result<Vec<Change>, Errno> {
        match mutation {
            Mutation::Write(value) => match self.get(who, path, Rights::Write) {
                Ok(node) => self.overwrite(path, node.record_len(), value, quota),
                Err(Errno::Noent) => self.create(who, path, value, quota),
                Err(error) => Err(error),
            },
            Mutation::MakeDirectory => match self.get(who, path, Rights::Write) {
                Ok(_) => Ok(Vec::new()),
                Err(Errno::Noent) => self.create(who, path, &[], quota),
                Err(error) => Err(error),
            },
            Mutation::Remove => self.remove(who, path),
            Mutation::SetPermissions(new) => self.set_permissions(who, path, new, quota),
        }
    }

    /// Removes the nodes that a domain owns, and its rights on others. Otherwise a later domain
    /// with the same number would inherit both.
    pub(crate) fn forget_domain(&mut self, gone: DomId) -> Vec<Change> {
        let mut owned = Vec::new();
        let mut named = Vec::new();
        let mut pending = vec![(NodePath::root(), Arc::clone(&self.root))];
        while let Some((path, node)) = pending.pop() {
            if node.permissions.owner() == gone && !path.is_root() {
                owned.push(path);
                continue;
            }
            pending.extend(node.children.iter().map(|(n, c)| (path.child(n), Arc::clone(c))));
            if let Some(left) = node.permissions.without(gone) {
                named.push((path, left));
            }
        }
        for (path, left) in named {
            self.replace_permissions(&path, &left);
        }
        owned.iter().flat_map(|path| self.remove_subtree(path)).collect()
    }

    fn overwrite(
        &mut self,
        path: &NodePath,
        record_len: usize,
        value: &[u8],
        quota: &Quota,
    ) -> Result<Vec<Change>, Errno> {
        let old_len = self.node(path).map_or(0, |node| node.value.len());
        if record_len - old_len + value.len() > quota.node_len {
            return Err(Errno::Nospc);
        }
        let generation = self.next_generation();
        if let Some(node) = self.node_mut(path) {
            node.value = value.to_vec();
            node.generation = generation;
        }
        Ok(vec![self.changed(path)])
    }

    fn create(
        &mut self,
        who: DomId,
        path: &NodePath,
        value: &[u8],
        quota: &Quota,
    ) -> Result<Vec<Change>, Errno> {
        let (nearest, missing) = self.nearest(path);
        let permissions = nearest.permissions.inherited_by(who);
        let owner = permissions.owner();
        let found = path.components().count() - missing;
        let name_len = path.components().nth(found).map_or(0, str::len);
        if self.owned_by(owner) + missing > quota.nodes
            || nearest.record_len() + name_len + 1 > quota.node_len
            || value.len() + permissions.entry_count() * PERMISSION_ENTRY_LEN > quota.node_len
        {
            return Err(Errno::Nospc);
        }
        let generation = self.next_generation();
        let mut node = Arc::make_mut(&mut self.root);
        for name in path.components() {
            if !node.children.contains_key(name) {
                node.generation = generation;
                let (value, permissions) = (Vec::new(), permissions.clone());
                let child = Node { value, permissions, children: BTreeMap::new(), generation };
                node.children.insert(name.into(), Arc::new(child));
            }
            let child = node.children.get_mut(name).expect("it is there or was made");
            node = Arc::make_mut(child);
        }
        node.value = value.to_vec();
        *self.owned.entry(owner).or_default() += missing;
        Ok(vec![self.changed(path)])
    }

    fn remove(&mut self, who: DomId, path: &NodePath) -> Result<Vec<Change>, Errno> {
        match self.get(who, path, Rights::Write) {
            Ok(_) if path.is_root() => Err(Errno::Inval),
            Ok(_) => Ok(self.remove_subtree(path)),
            // Removing a missing node succeeds if its directory exists.
            Err(Errno::Noent) => match path.parent().and_then(|parent| self.node(&parent)) {
                Some(_) => Ok(Vec::new()),
                None => Err(Errno::Noent),
            },
            Err(error) => Err(error),
        }
    }

    fn set_permissions(
        &mut self,
        who: DomId,
        path: &NodePath,
        new: &Permissions,
        quota: &Quota,
    ) -> Result<Vec<Change>, Errno> {
        let node = self.get(who, path, Rights::Write)?;
        let old = node.permissions.clone();
        let is_privileged = who == DomId(0);
        if !is_privileged && old.owner() != who {
            return Err(Errno::Acces);
        }
        if !is_privileged && new.owner() != who {
            return Err(Errno::Perm);
        }
        if new.entry_count() > quota.permission_entries {
            return Err(Errno::Nospc);
        }
        self.replace_permissions(path, new);
        let mut change = self.changed(path);
        change.visible_by.push(old);
        Ok(vec![change])
    }

    fn replace_permissions(&mut self, path: &NodePath, new: &Permissions) {
        let generation = self.next_generation();
        if let Some(node) = self.node_mut(path) {
            let old_owner = node.permissions.owner();
            node.permissions = new.clone();
            node.generation = generation;
            self.disown(old_owner);
            *self.owned.entry(new.owner()).or_default() += 1;
        }
    }

    fn remove_subtree(&mut self, path: &NodePath) -> Vec<Change> {
        let generation = self.next_generation();
        let Some((parent, name)) = path.split_last() else { return Vec::new() };
        let Some(directory) = self.node_mut(&parent) else { return Vec::new() };
        let Some(removed) = directory.children.remove(name) else { return Vec::new() };
        directory.generation = generation;
        let above = directory.permissions.clone();

        let mut changes = Vec::new();
        let mut pending = vec![(path.clone(), removed, above, Reach::Lineage)];
        while let Some((path, node, above, reach)) = pending.pop() {
            self.disown(node.permissions.owner());
            for (name, child) in &node.children {
                let above = node.permissions.clone();
                pending.push((path.child(name), Arc::clone(child), above, Reach::Exact));
            }
            let visible_by = vec![node.permissions.clone(), above];
            changes.push(Change { path, reach, visible_by });
        }
        changes
    }

    /// The change of an existing node.
    fn changed(&self, path: &NodePath) -> Change {
        let parent = path.parent();
        let visible_by = [Some(path), parent.as_ref()]
            .into_iter()
            .flatten()
            .filter_map(|path| self.node(path))
            .map(|node| node.permissions.clone())
            .collect();
        Change { path: path.clone(), reach: Reach::Lineage, visible_by }
    }

    /// The deepest existing node on the way to `path`, and how many names are missing.
    fn nearest(&self, path: &NodePath) -> (&Node, usize) {
        let mut node = &*self.root;
        let mut names = path.components();
        while let Some(name) = names.next() {
            match node.children.get(name) {
                Some(child) => node = child,
                None => return (node, 1 + names.count()),
            }
        }
        (node, 0)
    }

    fn node_mut(&mut self, path: &NodePath) -> Option<&mut Node> {
        path.components().try_fold(Arc::make_mut(&mut self.root), |node, name| {
            node.children.get_mut(name).map(Arc::make_mut)
        })
    }

    fn owned_by(&self, domain: DomId) -> usize {
        self.owned.get(&domain).copied().unwrap_or(0)
    }

    fn disown(&mut self, owner: DomId) {
        if let Some(count) = self.owned.get_mut(&owner) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.owned.remove(&owner);
            }
        }
    }

    fn next_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }
}

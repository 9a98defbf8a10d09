//! A transaction: a snapshot to work on, and a log to repeat the work on the live store.
//!
//! It commits only if every node that it read or changed is as it was when the transaction began,
//! so the outcome is as if there were no other client. Then its changes are repeated on the live
//! store, which also enforces quotas and finds the watches to fire.

use std::collections::BTreeSet;

use ringway_wire::DomId;
use ringway_wire::xenstore::Errno;

use crate::path::NodePath;
use crate::permissions::Rights;
use crate::quota::Quota;
use crate::store::{Change, Edit, Mutation, Node, Store};

/// A transaction that has neither committed nor aborted.
#[derive(Debug)]
pub(crate) struct Transaction {
    base: Store,
    work: Store,
    touched: BTreeSet<NodePath>,
    log: Vec<Edit>,
    /// Bytes in `touched` and `log`.
    bytes: usize,
}

impl Transaction {
    pub(crate) fn new(live: &Store) -> Transaction {
        let (base, work) = (live.clone(), live.clone());
        Transaction { base, work, touched: BTreeSet::new(), log: Vec::new(), bytes: 0 }
    }

    /// As [`Store::get`], inside the transaction.
    ///
    /// # Errors
    /// As there, and `ENOSPC` if the transaction has touched too many nodes, or keeps too much.
    pub(crate) fn get(
        &mut self,
        who: DomId,
        path: &NodePath,
        wanted: Rights,
        quota: &Quota,
    ) -> Result<&Node, Errno> {
        self.touch(path, quota)?;
        self.work.get(who, path, wanted)
    }

    /// As [`Store::apply`], inside the transaction.
    ///
    /// # Errors
    /// As there, and `ENOSPC` if the transaction has touched too many nodes, or keeps too much.
    pub(crate) fn apply(&mut self, who: DomId, edit: Edit, quota: &Quota) -> Result<(), Errno> {
        let Edit { path, mutation } = &edit;
        if self.log.len() >= quota.transaction_nodes {
            return Err(Errno::Nospc);
        }
        self.keep(path.as_str().len() + mutation.len(), quota)?;
        // Creating a node changes the nearest existing directory; removing one changes its own.
        let changed_above = match mutation {
            Mutation::Remove => 1,
            _ => self.work.missing_count(path),
        };
        for path in path.lineage().take(1 + changed_above) {
            self.touch(&path, quota)?;
        }
        if matches!(mutation, Mutation::Remove) && self.work.get(who, path, Rights::Write).is_ok() {
            for below in self.work.paths_below(path) {
                self.touch(&below, quota)?;
            }
        }
        self.work.apply(who, &edit, quota)?;
        self.log.push(edit);
        Ok(())
    }

    /// The store after the transaction, and the changes.
    ///
    /// # Errors
    /// `EAGAIN` if another client changed a node that the transaction touched; `ENOSPC` if others
    /// used up the quota meanwhile.
    pub(crate) fn commit(
        self,
        who: DomId,
        live: &Store,
        quota: &Quota,
    ) -> Result<(Store, Vec<Change>), Errno> {
        if !live.is_unchanged_since(&self.base)
            && self.touched.iter().any(|p| !live.agrees(&self.base, p))
        {
            return Err(Errno::Again);
        }
        let mut next = live.clone();
        let mut changes = Vec::new();
        for edit in &self.log {
            changes.extend(next.apply(who, edit, quota)?);
        }
        Ok((next, changes))
    }

    fn touch(&mut self, path: &NodePath, quota: &Quota) -> Result<(), Errno> {
        if self.touched.contains(path) {
            return Ok(());
        }
        if self.touched.len() >= quota.transaction_nodes {
            return Err(Errno::Nospc);
        }
        self.keep(path.as_str().len(), quota)?;
        self.touched.insert(path.clone());
        Ok(())
    }

    /// Counts bytes that are kept until the transaction ends.
    fn keep(&mut self, bytes: usize, quota: &Quota) -> Result<(), Errno> {
        if self.bytes + bytes > quota.transaction_bytes {
            return Err(Errno::Nospc);
        }
        self.bytes += bytes;
        Ok(())
    }
}

//! A description that is read again: the opener reads it, and the host takes it over.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use ringway_control::{Link, OpenerOrder};
use ringway_host::{DescriptionChanges, VirtioWanted};
use ringway_hypervisor::Hypervisor;
use ringway_sys::hangup::Hangup;
use ringway_xenstore::Lost;
use serde_json::Value;

use crate::Backend;
use crate::config::Common;
use crate::process::Process;

/// What is known of a description while it comes.
#[derive(Debug)]
pub(crate) struct Reloading {
    /// Has the opener read it. Without it a supervisor does, which also reports about it.
    hangup: Option<Hangup>,
    /// Whether the service manager waits for the end.
    is_reported: bool,
    /// Its vifs that have come.
    described: Vec<Value>,
}

impl Reloading {
    pub(crate) fn on(hangup: Option<Hangup>) -> Reloading {
        Reloading { hangup, is_reported: false, described: Vec::new() }
    }

    pub(crate) fn waker(&self) -> Option<&Hangup> {
        self.hangup.as_ref()
    }

    /// Notes a vif.
    pub(crate) fn describe(&mut self, vhost: Value) {
        self.described.push(vhost);
    }
}

impl<H: Hypervisor> Backend<H> {
    /// Has the opener read the description again, if a signal asks for that.
    pub(crate) fn order_reload(&mut self) -> io::Result<()> {
        let is_asked = self.reloading.hangup.as_ref().map_or(Ok(false), Hangup::take)?;
        let Some(opener) = self.opener.as_ref().filter(|_| is_asked) else { return Ok(()) };
        self.process.reports.reloading();
        self.reloading.is_reported = true;
        if let Err(error) = opener.send(&OpenerOrder::Reload, &[]) {
            tracing::error!("the description is not read again: {error}: try again");
            self.end_reload();
        }
        Ok(())
    }

    /// Takes over the description that has come, with what it says of the switch and its uplink.
    /// There, `changed` are the names of the keys with other values.
    pub(crate) fn reload(
        &mut self,
        (common, changed): (Value, Vec<String>),
        opener: &Arc<Link>,
    ) -> io::Result<()> {
        let outcome = self.take_over(common, changed)?;
        let error = outcome.as_ref().err().cloned();
        let DescriptionChanges { added, removed, .. } = outcome.unwrap_or_default();
        opener.send(&OpenerOrder::Reloaded { added, removed, error }, &[])?;
        self.end_reload();
        Ok(())
    }

    /// Returns what has changed, or why nothing can.
    fn take_over(
        &mut self,
        common: Value,
        changed: Vec<String>,
    ) -> Result<Result<DescriptionChanges, String>, Lost> {
        let Backend { host, store, process, reloading, .. } = self;
        let Process { config, machinery, reports, .. } = process;
        let described = std::mem::take(&mut reloading.described).into_iter();
        let described = described.map(|vhost| (config.read_vhost)(vhost).map(|vif| vif.wanted));
        let described = described.collect::<Result<Vec<VirtioWanted>, String>>();
        let now = Instant::now();
        let taken_over = described.and_then(|described| {
            let Common { defaults, uplink } = (config.read_common)(common)?;
            let parts = &mut machinery.parts(store);
            Ok((defaults, host.reload(described, uplink.as_ref(), now, parts)?))
        });
        let (defaults, changes) = match taken_over {
            Ok(taken_over) => taken_over,
            Err(reason) => return Ok(Err(reason)),
        };
        let mut changes = DescriptionChanges { common: changed, ..changes };
        if changes.uplink_refused.is_some() {
            changes.common.retain(|key| !key.starts_with("uplink."));
        }
        host.set_defaults(defaults, now, &mut machinery.parts(store))?;
        tracing::info!("the description was read again: {changes}");
        reports.described();
        changes.kept().iter().for_each(|line| tracing::warn!("{line}"));
        Ok(Ok(changes))
    }

    /// The description is in force, or nothing has changed.
    pub(crate) fn end_reload(&mut self) {
        if std::mem::take(&mut self.reloading.is_reported) {
            self.process.reports.reloaded();
        }
    }
}

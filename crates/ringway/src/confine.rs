//! Confinement of the processes of a host.

use std::env;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ringway_confine::{Confinement, FileRules, Role};

/// `off` leaves the process unconfined: for a debugger, or until a system call that serving needs
/// is added to the list.
const SWITCH: &str = "RINGWAY_CONFINE";

/// Confines a process to its role: its run directory, `devices`, and the capabilities and system
/// calls on the role's list. Call it once the connections are open and before any thread is
/// started.
pub(crate) fn confine(dir: &Path, devices: &[&str], role: Role) -> Result<()> {
    match env::var(SWITCH).as_deref() {
        Ok("off") => {
            tracing::warn!("{SWITCH}=off: this process keeps all its rights");
            return Ok(());
        }
        Ok("on" | "") | Err(env::VarError::NotPresent) => {}
        other => bail!("{SWITCH} is {other:?}, expected \"on\" or \"off\""),
    }
    let confinement = Confinement { dir, devices, role };
    let rules = confinement.apply().with_context(|| {
        format!("confine this process ({SWITCH}=off continues without confinement)")
    })?;
    match rules {
        FileRules::Full | FileRules::Partial => tracing::debug!(?rules, "confined"),
        FileRules::Missing => tracing::info!("no Landlock: access to files is unrestricted"),
    }
    Ok(())
}

//! Confinement of the processes of a host.

use std::env;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ringway_confine::{Confinement, FileRules, Role};

/// For a debugger, or for the time until a call that serving turned out to need is on the list:
/// `off` leaves the process as it is.
const SWITCH: &str = "RINGWAY_CONFINE";

/// Confines a process to its role: to its run directory, the devices, the capabilities and calls on
/// its list. To be called once its connections are open, and before it starts a thread.
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
    let rules = confinement
        .apply()
        .with_context(|| format!("confine this process ({SWITCH}=off continues without)"))?;
    match rules {
        FileRules::Full | FileRules::Partial => tracing::debug!(?rules, "confined"),
        FileRules::Missing => tracing::info!("no Landlock: which files are opened is unrestricted"),
    }
    Ok(())
}

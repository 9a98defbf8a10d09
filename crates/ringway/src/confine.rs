//! Confinement of the processes of a host.

use std::env;

use anyhow::{Context, Result, bail};
use ringway_confine::{Confinement, FileRules};

/// `off` leaves the process unconfined: for a debugger, or until a system call that serving needs
/// is added to the list.
const SWITCH: &str = "RINGWAY_CONFINE";

/// The directory of a confined process's files, as the process reaches it: the directories above
/// may be closed to its user.
pub(crate) const FILES: &str = ".";

/// Confines a process to its directories, its devices, and the capabilities and system calls of
/// its role. Call it once the connections are open and before any thread is started.
///
/// The directory of its files becomes its working directory, see [`FILES`].
pub(crate) fn confine(confinement: &Confinement<'_>) -> Result<()> {
    if let Some(files) = confinement.files {
        env::set_current_dir(files).with_context(|| files.display().to_string())?;
    }
    match env::var(SWITCH).as_deref() {
        Ok("off") => {
            tracing::warn!("{SWITCH}=off: this process keeps all its rights");
            return Ok(());
        }
        Ok("on" | "") | Err(env::VarError::NotPresent) => {}
        other => bail!("{SWITCH} is {other:?}, expected \"on\" or \"off\""),
    }
    let rules = confinement.apply().with_context(|| {
        format!("confine this process ({SWITCH}=off continues without confinement)")
    })?;
    match rules {
        FileRules::Full | FileRules::Partial => tracing::debug!(?rules, "confined"),
        FileRules::Missing => tracing::info!("no Landlock: access to files is unrestricted"),
    }
    Ok(())
}

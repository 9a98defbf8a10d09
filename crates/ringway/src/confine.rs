//! Confinement of the processes of a host.

use std::env;
use std::ffi::OsStr;

use anyhow::{Context, Result, bail};
use ringway_confine::{Confinement, FileRules, has_landlock};

/// `off` leaves the process unconfined: for a debugger, or until a system call that serving needs
/// is added to the list.
const SWITCH: &str = "RINGWAY_CONFINE";
/// A value of [`SWITCH`], and a key of `[host]`.
const WITHOUT_LANDLOCK: &str = "without-landlock";

/// What the environment says of confinement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Full,
    WithoutLandlock,
    Off,
}

fn wish() -> Result<Wish> {
    match env::var(SWITCH).as_deref() {
        Ok("on" | "") | Err(env::VarError::NotPresent) => Ok(Wish::Full),
        Ok(WITHOUT_LANDLOCK) => Ok(Wish::WithoutLandlock),
        Ok("off") => Ok(Wish::Off),
        other => bail!("{SWITCH} is {other:?}, expected \"on\", \"{WITHOUT_LANDLOCK}\" or \"off\""),
    }
}

/// Whether files stay reachable for confined processes, because this kernel has no Landlock. The
/// administrator has to want that by name, here or by the key that `is_wanted` is the value of.
///
/// # Errors
/// It is not wanted.
pub(crate) fn is_without_landlock(is_wanted: bool) -> Result<bool> {
    let wish = wish()?;
    if wish == Wish::Off || has_landlock() {
        return Ok(false);
    }
    let risk = "a guest that takes over a process can read and change all files of its user";
    if !is_wanted && wish != Wish::WithoutLandlock {
        bail!(
            "this kernel has no Landlock (Linux 5.13, `lsm=` in its command line), so {risk}: to \
             serve nevertheless, set {WITHOUT_LANDLOCK} = true in [host] of the description, or \
             {SWITCH}={WITHOUT_LANDLOCK} in the environment"
        );
    }
    tracing::warn!("{WITHOUT_LANDLOCK}, and this kernel has no Landlock: {risk}");
    Ok(true)
}

/// The variable by which processes do without Landlock where it is missing, for those whose guests
/// are this program's own. The user's is left as it is.
pub(crate) fn variable_of_own_guests() -> Option<(&'static str, &'static OsStr)> {
    env::var_os(SWITCH).is_none().then(|| (SWITCH, OsStr::new(WITHOUT_LANDLOCK)))
}

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
    if wish()? == Wish::Off {
        tracing::warn!("{SWITCH}=off: this process keeps all its rights");
        return Ok(());
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

//! What a backend can reach that a guest has broken into: a process that is confined as the backend
//! is, and tries.

use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::Result;
use ringway_confine::{BACKEND_DEVICES, Confinement, Role};

use crate::stage::Stage;

/// The verb of this program.
pub(crate) const BROKEN_INTO: &str = "broken-into";
/// What the process says when it is confined.
pub(crate) const CONFINED: &str = "confined";
/// What it says when it got what it should not.
pub(crate) const REACHED: &str = "reached";

/// Confines this process to a run directory, and connects to a socket outside of it.
pub(crate) fn broken_into(dir: &Path, socket: &Path) -> Result<()> {
    Confinement { role: Role::Vifs, dir, devices: BACKEND_DEVICES }.apply()?;
    println!("{CONFINED}");
    if UnixStream::connect(socket).is_ok() {
        println!("{REACHED} {}", socket.display());
    }
    Ok(())
}

/// There is no guest in this.
pub(crate) fn no_guest(stage: &mut Stage) -> Result<()> {
    stage.account.skipped = Some("no guest does this: `ringway-hostile run` has it".to_owned());
    Ok(())
}

//! What a guest can reach after it has compromised the backend: tested with a process that is
//! confined like the backend.

use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::Result;
use ringway_confine::{BACKEND_DEVICES, Confinement, Role};

use crate::stage::Stage;

/// The subcommand of this program.
pub(crate) const COMPROMISED: &str = "broken-into";
/// The process's output once it is confined.
pub(crate) const CONFINED: &str = "confined";
/// Its output if it reached what it should not.
pub(crate) const REACHED: &str = "reached";

/// Confines this process to a run directory, and connects to a socket outside of it.
pub(crate) fn compromised(dir: &Path, socket: &Path) -> Result<()> {
    let (files, sockets, user_of) = (Some(dir), None, None);
    Confinement { files, sockets, user_of, devices: BACKEND_DEVICES, role: Role::Vifs }.apply()?;
    println!("{CONFINED}");
    if UnixStream::connect(socket).is_ok() {
        println!("{REACHED} {}", socket.display());
    }
    Ok(())
}

/// This scenario has no guest.
pub(crate) fn no_guest(stage: &mut Stage) -> Result<()> {
    stage.account.skipped = Some("no guest does this: use `ringway-hostile run`".to_owned());
    Ok(())
}

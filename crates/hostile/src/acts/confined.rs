//! What a guest can reach after it has compromised the backend: tested with a process that is
//! confined like the backend.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result};
use ringway_confine::{BACKEND_DEVICES, Confinement, Role};
use ringway_control::RunDir;

use crate::stage::Stage;

/// The subcommand of this program.
pub(crate) const COMPROMISED: &str = "broken-into";
/// The tenant whose process it is.
pub(crate) const ATTACKER: &str = "hostile";
/// The process's output once it is confined.
pub(crate) const CONFINED: &str = "confined";
/// Its output if it reached what it should not.
pub(crate) const REACHED: &str = "reached";

/// The name of a scenario, and an attempt: with the run directory of the host, and the socket of
/// another program. It is fine if the attempt fails or ends the process.
type Attempt = (&'static str, fn(&RunDir, &Path) -> io::Result<()>);

const ATTEMPTS: [Attempt; 3] = [
    ("foreign-socket", |_, socket| UnixStream::connect(socket).map(drop)),
    ("foreign-files", |dir, _| {
        // What the next `ringway run` kills, and which sockets the next opener opens.
        for file in [dir.state(), dir.vhosts()] {
            if File::options().write(true).open(file).is_ok_and(|mut it| it.write(b"").is_ok()) {
                return Ok(());
            }
        }
        fs::write(dir.path().join("other"), "")
    }),
    ("set-uid-program", |_, _| {
        fs::write("program", "")?;
        fs::set_permissions("program", Permissions::from_mode(0o4755))
    }),
];

/// Confines this process as the backend of the host with this run directory, and makes the attempt
/// of a scenario.
pub(crate) fn compromised(scenario: &str, dir: &Path, socket: &Path) -> Result<()> {
    let (_, attempt) = *ATTEMPTS.iter().find(|(name, _)| *name == scenario).context("its name")?;
    let dir = RunDir::new(dir);
    let own = dir.tenant(ATTACKER);
    own.make()?;
    std::env::set_current_dir(own.path())?;
    let files = Some(own.path());
    let (devices, role) = (BACKEND_DEVICES, Role::Vifs);
    Confinement { files, user_of: files, devices, ..Confinement::of(role) }.apply()?;
    println!("{CONFINED}");
    if attempt(&dir, socket).is_ok() {
        println!("{REACHED}");
    }
    Ok(())
}

/// This scenario has no guest.
pub(crate) fn no_guest(stage: &mut Stage) -> Result<()> {
    stage.account.skipped = Some("no guest does this: use `ringway-hostile run`".to_owned());
    Ok(())
}

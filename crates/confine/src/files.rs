//! Files: one directory and some devices, by Landlock (`Documentation/userspace-api/landlock.rst`).
//!
//! Sockets that are not files, and those that others listen on, are not its business.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, BitFlags, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, make_bitflags, path_beneath_rules,
};

/// How far the kernel restricts which files can be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileRules {
    /// To the directory and the devices.
    Full,
    /// The kernel knows some of the rights only: an older Landlock.
    Partial,
    /// Not at all: a kernel without Landlock, or with it turned off.
    Missing,
}

/// The newest rights that are asked for (Linux 6.10); older kernels enforce those they know.
const KNOWN: ABI = ABI::V5;

/// In the directory: sockets and files of our own, but no programs and no devices.
const IN_DIR: BitFlags<AccessFs> = make_bitflags!(AccessFs::{
    ReadFile | ReadDir | WriteFile | Truncate | MakeReg | MakeSock | RemoveFile
});

/// What the kernel says of the threads of this process, for the watchdog: files that are read.
const OWN_THREADS: &str = "/proc/self/task";

/// On a device.
const ON_DEVICE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | WriteFile | IoctlDev});

/// Anywhere, for who makes sockets there: no content of a file.
const SOCKETS: BitFlags<AccessFs> = make_bitflags!(AccessFs::{MakeSock | RemoveFile});

pub(crate) fn restrict(
    dir: &Path,
    devices: &[&str],
    makes_sockets: bool,
) -> Result<FileRules, RulesetError> {
    let everywhere: &[&str] = if makes_sockets { &["/"] } else { &[] };
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(KNOWN))?
        .create()?
        .add_rules(path_beneath_rules([dir], IN_DIR))?
        .add_rules(path_beneath_rules(devices, ON_DEVICE))?
        .add_rules(path_beneath_rules(everywhere, SOCKETS))?
        .add_rules(path_beneath_rules([OWN_THREADS], AccessFs::ReadFile))?
        .restrict_self()?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => FileRules::Full,
        RulesetStatus::PartiallyEnforced => FileRules::Partial,
        RulesetStatus::NotEnforced => FileRules::Missing,
    })
}

//! Files: limits access to a directory of the process's own and some devices with Landlock
//! (`Documentation/userspace-api/landlock.rst`).
//!
//! Newer kernels (6.12) also keep it from signals to other processes and from abstract sockets. It
//! does not cover connections to other sockets that other processes listen on.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, make_bitflags, path_beneath_rules,
};

use crate::{Confinement, Role, devices};

/// How far the kernel restricts which files can be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileRules {
    /// Full: only the directory and the devices.
    Full,
    /// The kernel supports only some of the rights: an older Landlock.
    Partial,
    /// Not at all: the kernel has no Landlock, or it is turned off.
    Missing,
}

/// The newest rights to request (Linux 6.12); older kernels enforce the ones they support.
const KNOWN: ABI = ABI::V6;

/// In its own directory: files, no programs, no sockets and no devices.
const OWN: BitFlags<AccessFs> = make_bitflags!(AccessFs::{
    ReadFile | ReadDir | WriteFile | Truncate | MakeReg | RemoveFile
});

/// The kernel's status files of this process's threads, which the watchdog reads.
const OWN_THREADS: &str = "/proc/self/task";

/// On a device.
const ON_DEVICE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | WriteFile | IoctlDev});

/// Where its sockets are: no access to the contents of files.
const SOCKETS: BitFlags<AccessFs> = make_bitflags!(AccessFs::{RemoveFile});

/// Whether this kernel can limit which files a process reaches: it has Landlock, turned on.
pub fn has_landlock() -> bool {
    let strict = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let handled = strict.handle_access(AccessFs::from_all(ABI::V1));
    handled.is_ok_and(|ruleset| ruleset.create().is_ok())
}

pub(crate) fn restrict(to: &Confinement<'_>) -> Result<FileRules, RulesetError> {
    let any_path = to.role.is_for_any_path().then_some(Path::new("/"));
    let create =
        if to.role.creates_sockets() { AccessFs::MakeSock.into() } else { BitFlags::EMPTY };
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()?
        .add_rules(path_beneath_rules(to.files.into_iter().chain(to.accepted), OWN))?
        .add_rules(path_beneath_rules(to.description, AccessFs::ReadFile))?
        .add_rules(path_beneath_rules(to.sockets.into_iter().chain(any_path), SOCKETS | create))?
        .add_rules(path_beneath_rules(to.devices, ON_DEVICE))?
        .add_rules(path_beneath_rules([OWN_THREADS], AccessFs::ReadFile))?
        .restrict_self()?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => FileRules::Full,
        RulesetStatus::PartiallyEnforced => FileRules::Partial,
        RulesetStatus::NotEnforced => FileRules::Missing,
    })
}

/// The names of a role's rights and where it has them: `ReadFile in its directory`.
pub(crate) fn names(role: Role) -> impl Iterator<Item = String> {
    let if_it = |is_so: bool, rights: BitFlags<AccessFs>| {
        if is_so { rights } else { BitFlags::EMPTY }
    };
    let with_new = SOCKETS | if_it(role.creates_sockets(), AccessFs::MakeSock.into());
    let places = [
        (if_it(role.has_files(), OWN), "in its directory"),
        (if_it(role.reads_description(), AccessFs::ReadFile.into()), "where the description is"),
        (if_it(role.reads_description(), OWN), "where the accepted description is"),
        (if_it(role.has_sockets(), with_new), "where its sockets are"),
        (if_it(role.is_for_any_path(), with_new), "anywhere"),
        (if_it(!devices(role).is_empty(), ON_DEVICE), "on its devices"),
        (AccessFs::ReadFile.into(), "in /proc/self/task"),
    ];
    let names = |(rights, place): (BitFlags<AccessFs>, &'static str)| {
        rights.iter().map(move |right| format!("{right:?} {place}"))
    };
    places.into_iter().flat_map(names)
}

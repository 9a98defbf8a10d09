//! What a study needs, checked before anything starts: a sentence with the remedy for each lack.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use ringway_net::{LinkSetting, Netlink};

use crate::setup::Setup;
use crate::study::{Study, Subject};
use crate::topology::{Attached, Blueprint, Encapsulation, ovs, router, unsupported, wire};
use crate::word::Offloads;
use ringway_rig::launcher::{self, Launcher};
use ringway_rig::tools::Tool;

/// Free bytes that records and a report have room in.
const FREE_BYTES_MIN: u64 = 64 << 20;
const TUN: &str = "/dev/net/tun";

/// Moves this process where it disturbs nothing: into a network of its own, and who is not root
/// into a user namespace first. Must be called before the first thread is started.
///
/// # Errors
/// If the kernel forbids it; the message names the setting to change.
pub fn isolate() -> std::io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        ringway_sys::namespace::enter_user_namespace()?;
    }
    ringway_sys::namespace::unshare_network()?;
    Netlink::open()?.set("lo", &[LinkSetting::Up])
}

/// What is missing to run a study into a directory; nothing if it can begin.
pub fn missing(launcher: &Launcher, study: &Study, dir: &Path) -> Vec<String> {
    if let Some(sentence) = unsupported(study) {
        return vec![sentence];
    }
    let mut missing = Vec::new();
    for (program, package) in programs(study) {
        if launcher::find(program).is_none() {
            missing.push(format!("{program} is not installed: apt-get install {package}"));
        }
    }
    if let Err(error) = OpenOptions::new().read(true).write(true).open(TUN) {
        missing.push(format!("{TUN}: {error}; load the module tun and let this user open it"));
    }
    missing.extend(no_room(dir));
    if missing.is_empty() {
        missing.extend(no_shaping(launcher, study));
        missing.extend(no_tunnels(launcher, study));
    }
    missing
}

/// The study without what this machine has no Open vSwitch for, and what to say about that; as it
/// is if Open vSwitch is there, or all that is asked for.
pub fn without_absent_switch(study: &Study) -> (Study, Option<String>) {
    let is_absent = ovs::PROGRAMS.iter().any(|program| launcher::find(program).is_none());
    let mut left = study.clone();
    let Some(axis) = left.axis.iter_mut().find(|axis| axis.name == "switch") else {
        return (left, None);
    };
    let all = axis.values.len();
    axis.values.retain(|value| !is_absent || value.to_string() != "ovs");
    if axis.values.is_empty() || axis.values.len() == all {
        return (study.clone(), None);
    }
    left.leave_out_impossible();
    let package = ovs::PACKAGE;
    let said = format!("Open vSwitch is left out, it is not installed: apt-get install {package}");
    (left, Some(said))
}

/// The tools that a study needs.
pub fn tools(study: &Study) -> BTreeSet<Tool> {
    setups(study).map(|(_, setup)| setup.tool).collect()
}

/// Programs with the packages that have them.
fn programs(study: &Study) -> BTreeSet<(&'static str, &'static str)> {
    let of_tool = |tool: Tool| tool.programs().map(|program| (program, tool.package()));
    let mut programs: BTreeSet<_> = tools(study).into_iter().flat_map(of_tool).collect();
    if line(study).is_some() {
        programs.insert(("tc", "iproute2"));
    }
    let blueprints = blueprints(study);
    if blueprints.iter().any(|blueprint| blueprint.attached == Attached::OpenVswitch) {
        programs.extend(ovs::PROGRAMS.map(|program| (program, ovs::PACKAGE)));
    }
    if blueprints.iter().any(|blueprint| blueprint.encapsulation == Encapsulation::Vxlan) {
        programs.insert(("ip", "iproute2"));
    }
    let sets_gso = study.settings.values().any(|settings| settings.contains_key("gso"));
    let is_limited = |blueprint: &Blueprint| blueprint.offloads != Offloads::All;
    if sets_gso || blueprints.iter().any(is_limited) {
        programs.insert(("ethtool", "ethtool"));
    }
    programs
}

/// What the cells of a study mean, as far as they mean something.
fn setups(study: &Study) -> impl Iterator<Item = (Subject, Setup)> + '_ {
    study.matrix().filter_map(|(subject, cell)| Some((subject, Setup::of(study, &cell).ok()?)))
}

/// What the cells of a study need to be built.
fn blueprints(study: &Study) -> Vec<Blueprint> {
    let kind = study.topology.kind;
    setups(study).filter_map(|(subject, setup)| Blueprint::of(kind, subject, &setup).ok()).collect()
}

fn line(study: &Study) -> Option<u64> {
    setups(study).find_map(|(_, setup)| setup.line_bps)
}

fn no_shaping(launcher: &Launcher, study: &Study) -> Option<String> {
    let error = wire::try_shaping(launcher, line(study)?).err()?;
    Some(format!("a line rate needs the queueing discipline tbf: {error}; load sch_tbf"))
}

fn no_tunnels(launcher: &Launcher, study: &Study) -> Option<String> {
    let is_tunnelled = |blueprint: &Blueprint| blueprint.encapsulation == Encapsulation::Vxlan;
    blueprints(study).iter().find(|one| is_tunnelled(one))?;
    let error = router::try_tunnel(launcher).err()?;
    Some(format!("encapsulation needs VXLAN: {error}; load the module vxlan"))
}

fn no_room(dir: &Path) -> Option<String> {
    let dir = std::path::absolute(dir).ok()?;
    let existing: PathBuf = dir.ancestors().find(|path| path.is_dir())?.to_owned();
    let stat = rustix::fs::statvfs(&existing).ok()?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    (free < FREE_BYTES_MIN).then(|| {
        format!(
            "{} has {} MiB free; make room for {} MiB or choose another directory",
            existing.display(),
            free >> 20,
            FREE_BYTES_MIN >> 20
        )
    })
}

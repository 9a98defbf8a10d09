//! Checks a study's requirements before anything starts: each missing one gives a sentence with the
//! remedy.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use ringway_net::{LinkSetting, Netlink};
use ringway_rig::child::PartError;
use ringway_rig::host::PROGRAM;
use ringway_rig::launcher::{self, Launcher};
use ringway_rig::tools::Tool;

use crate::setup::Setup;
use crate::study::{LeftOut, Study, Subject};
use crate::topology::{
    Attached, Blueprint, Driver, Encapsulation, Lines, machine, ovs, router, tuning, unsupported,
    wire,
};
use crate::value::{Cell, Value};
use crate::word::{LOADER, Offloads, name_of};

/// Free disk space in bytes that suffices for records and a report.
const FREE_BYTES_MIN: u64 = 64 << 20;
const TUN: &str = "/dev/net/tun";

/// Moves this process where it disturbs nothing: into a network namespace of its own and, without
/// root, first into a user namespace. Must be called before the first thread is started.
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

/// What is missing to run a study into a directory; empty if it can begin.
pub fn missing(
    launcher: &Launcher,
    study: &Study,
    dir: &Path,
    image: Option<&Path>,
) -> Vec<String> {
    if let Some(sentence) = unsupported(study) {
        return vec![sentence];
    }
    let mut missing = absent(programs(study));
    if let Err(error) = OpenOptions::new().read(true).write(true).open(TUN) {
        missing.push(format!("{TUN}: {error}; load the module tun and let this user open it"));
    }
    missing.extend(no_room(dir));
    if has_machine(study) {
        missing.extend(no_image(image));
    }
    if missing.is_empty() {
        missing.extend(most_lines(study).and_then(|lines| no_shaping(launcher, lines)));
        missing.extend(no_tunnels(launcher, study));
        missing.extend(no_lro(launcher, study));
    }
    missing
}

/// What this machine lacks to run a study with a peer into a directory. `ssh` is the program of
/// that connection and its package.
pub fn missing_beside_peer(study: &Study, dir: &Path, ssh: (&str, &str)) -> Vec<String> {
    let mut missing = absent_tools(&tools(study));
    missing.extend(absent([ssh]));
    missing.extend(no_room(dir));
    missing
}

/// A sentence for each program of the tools that is not installed.
pub fn absent_tools(tools: &BTreeSet<Tool>) -> Vec<String> {
    absent(tools.iter().flat_map(|tool| of_tool(*tool)).collect::<BTreeSet<_>>())
}

/// A sentence for each program that is not installed, with its package.
fn absent<'a>(programs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let all = programs.into_iter().filter(|(program, _)| launcher::find_ours(program).is_none());
    let sentence =
        |(program, package)| format!("{program} is not installed: apt-get install {package}");
    all.map(sentence).collect()
}

/// The programs of a tool, with their package.
fn of_tool(tool: Tool) -> [(&'static str, &'static str); 2] {
    tool.programs().map(|program| (program, tool.package()))
}

/// The study without the values for which this machine lacks a program or image, and what to report
/// about them. It is unchanged if nothing is missing, or if it asks for nothing else.
pub fn without_absent(study: &Study, image: Option<&Path>) -> (Study, Vec<String>) {
    let is_installed = |program: &str| launcher::find(program).is_some();
    let mut absent = Vec::new();
    if !ovs::programs().all(is_installed) {
        let what = "Open vSwitch is left out, because it is not installed: apt-get install";
        absent.push((("switch", "ovs"), format!("{what} {}", ovs::PACKAGE)));
    }
    let (program, package) = machine::PROGRAM;
    if !is_installed(program) {
        let what =
            "the virtual machine is left out, because QEMU is not installed: apt-get install";
        absent.push((("driver", "qemu"), format!("{what} {package}")));
    } else if let Some(reason) = no_image(image) {
        absent.push((("driver", "qemu"), format!("the virtual machine is left out: {reason}")));
    }
    without_all(study, absent)
}

/// Tools that a study with others can do without: Debian has the first only outside of its main
/// section, and few machines have the second.
const OPTIONAL: [Tool; 2] = [Tool::Netperf, Tool::Nbd];

/// The study without the values for which such a tool is not installed, and what to report about
/// them.
pub fn without_absent_tools(study: &Study) -> (Study, Vec<String>) {
    without_tools(study, |program| launcher::find_ours(program).is_some())
}

fn without_tools(study: &Study, is_installed: impl Fn(&str) -> bool) -> (Study, Vec<String>) {
    let is_absent = |tool: &Tool| !tool.programs().into_iter().all(&is_installed);
    let absent = OPTIONAL.into_iter().filter(is_absent).map(|tool| {
        let (name, package) = (name_of(tool), tool.package());
        let what = "is left out, because it is not installed: apt-get install";
        (("tool", name), format!("{name} {what} {package}"))
    });
    without_all(study, absent.collect())
}

/// The study without the tunnels, lines and offloads that this kernel does not support, and what
/// was left out.
pub fn without_unsupported(launcher: &Launcher, study: &Study) -> (Study, Vec<String>) {
    let absent = TUNNELS.into_iter().filter_map(|tunnel| {
        let parameter = ("encapsulation", tunnel.word);
        blueprints(study).iter().find(|one| one.encapsulation == tunnel.encapsulation)?;
        let error = router::try_tunnel(launcher, tunnel.encapsulation).err()?;
        Some((parameter, format!("{} is left out: {}", tunnel.name, tunnel.complaint(&error))))
    });
    let lines = most_lines(study).filter(|lines| lines.count > 1);
    let lines = lines.and_then(|lines| {
        let what = format!("a second line is left out: {}", no_shaping(launcher, lines)?);
        Some((("lines", "2"), what))
    });
    let lro = no_lro(launcher, study);
    let lro = lro.map(|why| (("offloads", "lro"), format!("LRO is left out: {why}")));
    without_all(study, absent.chain(lines).chain(lro).collect())
}

/// The study without the cells in which a parameter has a given value, for several such values,
/// each with the message to report.
fn without_all(study: &Study, absent: Vec<((&str, &str), String)>) -> (Study, Vec<String>) {
    let (mut left, mut said) = (study.clone(), Vec::new());
    for ((parameter, value), notice) in absent {
        if let Some(less) = without(&left, parameter, value, &notice) {
            left = less;
            said.push(notice);
        }
    }
    (left, said)
}

/// The study without the values of axes that give a parameter this value; `None` if no axis has
/// such a value, or has no other one. The study keeps the reason.
fn without(study: &Study, parameter: &str, value: &str, reason: &str) -> Option<Study> {
    let mut left = study.clone();
    let mut is_less = false;
    for axis in &mut left.axis {
        let is_absent = |one: &Value| {
            let cell = Cell::default().with(&axis.name, one.clone());
            study.setup(&cell).get(parameter).is_some_and(|one| one.to_string() == value)
        };
        let (absent, present): (Vec<Value>, Vec<Value>) =
            axis.values.iter().cloned().partition(is_absent);
        if present.is_empty() {
            return None;
        }
        is_less |= !absent.is_empty();
        left.left_out.extend(absent.into_iter().map(|value| LeftOut {
            axis: axis.name.clone(),
            value,
            reason: reason.to_owned(),
        }));
        axis.values = present;
    }
    left.leave_out_impossible();
    is_less.then_some(left)
}

/// A tunnel that a kernel may support, and its module in Linux.
#[derive(Clone, Copy)]
struct Tunnel {
    encapsulation: Encapsulation,
    word: &'static str,
    name: &'static str,
    module: &'static str,
}

const TUNNELS: [Tunnel; 2] = [
    Tunnel { encapsulation: Encapsulation::Vxlan, word: "vxlan", name: "VXLAN", module: "vxlan" },
    Tunnel { encapsulation: Encapsulation::Gre, word: "gre", name: "GRE", module: "ip_gre" },
];

impl Tunnel {
    fn complaint(self, error: &PartError) -> String {
        format!("{error}; load the module {}", self.module)
    }
}

/// The tools that a study needs.
pub fn tools(study: &Study) -> BTreeSet<Tool> {
    let of = |setup: Setup| {
        let loader = (setup.load > 0).then_some(LOADER);
        std::iter::once(setup.tool).chain(loader)
    };
    setups(study).flat_map(|(_, setup)| of(setup)).collect()
}

/// Programs with the packages that contain them.
fn programs(study: &Study) -> BTreeSet<(&'static str, &'static str)> {
    let mut programs: BTreeSet<_> = tools(study).into_iter().flat_map(of_tool).collect();
    if most_lines(study).is_some() {
        programs.insert(("tc", "iproute2"));
    }
    let blueprints = blueprints(study);
    if blueprints.iter().any(|blueprint| blueprint.subject == Subject::Ringway) {
        programs.insert((PROGRAM, PROGRAM));
    }
    if blueprints.iter().any(|blueprint| blueprint.attached == Attached::OpenVswitch) {
        programs.extend(ovs::programs().map(|program| (program, ovs::PACKAGE)));
    }
    if blueprints.iter().any(|blueprint| blueprint.encapsulation != Encapsulation::None) {
        programs.insert(("ip", "iproute2"));
    }
    if has_machine(study) {
        programs.insert(machine::PROGRAM);
    }
    let offloads = ["gso", "gro"];
    let sets_offload = |name| study.settings.values().any(|settings| settings.contains_key(name));
    let is_limited = |blueprint: &Blueprint| blueprint.offloads != Offloads::All;
    if offloads.into_iter().any(sets_offload) || blueprints.iter().any(is_limited) {
        programs.insert(("ethtool", "ethtool"));
    }
    programs
}

/// The set-ups of the cells of a study, without invalid ones.
fn setups(study: &Study) -> impl Iterator<Item = (Subject, Setup)> + '_ {
    study.matrix().filter_map(|(subject, cell)| Some((subject, Setup::of(study, &cell).ok()?)))
}

/// What the cells of a study need to be built.
fn blueprints(study: &Study) -> Vec<Blueprint> {
    let kind = study.topology.kind;
    setups(study).filter_map(|(subject, setup)| Blueprint::of(kind, subject, &setup).ok()).collect()
}

/// The wire with a rate that asks most of the kernel.
fn most_lines(study: &Study) -> Option<Lines> {
    blueprints(study).iter().filter_map(Blueprint::lines).max_by_key(|lines| lines.count)
}

fn no_shaping(launcher: &Launcher, lines: Lines) -> Option<String> {
    let error = wire::try_shaping(launcher, lines).err()?;
    Some(format!("a line rate needs queueing disciplines: {error}; load {}", lines.modules()))
}

fn no_tunnels(launcher: &Launcher, study: &Study) -> Option<String> {
    let blueprints = blueprints(study);
    let mut wanted = TUNNELS
        .into_iter()
        .filter(|tunnel| blueprints.iter().any(|one| one.encapsulation == tunnel.encapsulation));
    wanted.find_map(|tunnel| {
        let error = router::try_tunnel(launcher, tunnel.encapsulation).err()?;
        Some(format!("encapsulation needs {}: {}", tunnel.name, tunnel.complaint(&error)))
    })
}

/// Why LRO cannot be measured; `None` if it can, or is not wanted.
fn no_lro(launcher: &Launcher, study: &Study) -> Option<String> {
    blueprints(study).iter().find(|blueprint| blueprint.offloads == Offloads::Lro)?;
    let why = "devices within one machine have no LRO: --peer measures real ones";
    tuning::try_lro(launcher).is_err().then(|| why.to_owned())
}

/// Whether a study has a virtual machine.
fn has_machine(study: &Study) -> bool {
    blueprints(study).iter().any(|blueprint| blueprint.driver == Driver::Machine)
}

/// A notice if a study uses no image, though the user names one.
pub fn unused_image(study: &Study, image: Option<&Path>) -> Option<String> {
    image.filter(|_| !has_machine(study)).map(|image| {
        format!(
            "--machine {} is not used: no cell that this command selects has driver = \"qemu\"",
            image.display()
        )
    })
}

/// Why a machine has nothing to boot.
fn no_image(image: Option<&Path>) -> Option<String> {
    let remedy = "tests/virtio/image in ringway's sources builds one in target/virtio";
    let Some(image) = image else {
        return Some(format!("--machine names no image: {remedy}"));
    };
    let lacks = |name: &&str| !image.join(name).is_file();
    let missing = machine::IMAGE_FILES.into_iter().find(lacks)?;
    Some(format!("--machine {}: it has no file {missing}: {remedy}", image.display()))
}

fn no_room(dir: &Path) -> Option<String> {
    let dir = std::path::absolute(dir).ok()?;
    let existing: PathBuf = dir.ancestors().find(|path| path.is_dir())?.to_owned();
    let stat = rustix::fs::statvfs(&existing).ok()?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    (free < FREE_BYTES_MIN).then(|| {
        format!(
            "{} has {} MiB free; free {} MiB or choose another directory",
            existing.display(),
            free >> 20,
            FREE_BYTES_MIN >> 20
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::shipped;

    #[test]
    fn a_study_with_other_tools_does_without_rare_ones() {
        let study = shipped("latency").expect("it is shipped");
        let (same, notices) = without_tools(&study, |_| true);
        assert!(same == study && notices.is_empty());
        let (less, notices) = without_tools(&study, |program| program != "netserver");
        let [notice] = &notices[..] else { panic!("one notice: {notices:?}") };
        assert!(notice.contains("apt-get install netperf"), "{notice}");
        assert!(!tools(&less).contains(&Tool::Netperf) && tools(&less).len() > 2);
        // The figures of the source have a counterpart all the same.
        let of_source = |one: &&crate::study::Published| one.source.ends_with(":netperf");
        assert_eq!(study.published.iter().filter(of_source).count(), 4);
        assert_eq!(less.published.iter().filter(of_source).count(), 2);
        let storage = shipped("scenarios").expect("it is shipped");
        let (less, notices) = without_tools(&storage, |program| program != "nbdkit");
        assert!(notices[0].starts_with("nbd is left out"), "{notices:?}");
        assert_eq!(less.matrix().count() + 2, storage.matrix().count());
        // A study that has no other tool is refused later, with the package.
        let only = shipped("network-node-vxlan").expect("it is shipped");
        let (same, notices) = without_tools(&only, |_| false);
        assert!(same == only && notices.is_empty());
    }
}

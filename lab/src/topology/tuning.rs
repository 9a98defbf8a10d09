//! Settings of an existing topology: MTU, offloads, TCP, and the CPUs of threads.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::time::Duration;

use ringway_net::LinkSetting;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::wire::PORT;
use super::{Blueprint, End, Layout, Topology, near_address};
use crate::setup::MTU_DEFAULT;
use crate::study::Subject;
use crate::word::Offloads;
use ringway_rig::child::PartError;
use ringway_rig::launcher::Launcher;
use ringway_rig::namespace::{Namespace, configure, inside};
use ringway_rig::veth;

const PATIENCE: Duration = Duration::from_secs(60);

/// Most readings of the threads of a process that keeps starting new ones.
const ROUNDS_MAX: usize = 16;

/// Applies the blueprint's settings. Returns notes about those that could not be applied.
pub(crate) fn tune(
    launcher: &Launcher,
    topology: &Topology,
    blueprint: &Blueprint,
) -> Result<Vec<String>, PartError> {
    let mut notes = Vec::new();
    if blueprint.mtu != MTU_DEFAULT {
        topology.pids().try_for_each(|pid| set_mtu(pid, blueprint.mtu))?;
    }
    for end in topology.near.iter().chain(&topology.far) {
        set_offloads(launcher, end, blueprint.offloads)?;
        if blueprint.sends_from_host && end.interface != veth::DEVICE {
            // What arrives is merged at the port, before the bridge on which this end is.
            set_offloads(launcher, &End::new(end.pid, end.address, PORT), blueprint.offloads)?;
        }
        for (name, value) in &blueprint.settings {
            if let Some(note) = set(launcher, end, name, value)? {
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
        }
    }
    if let Some(host) = &topology.host {
        let backend = host.backend()?.pid;
        let guests = topology.frontends();
        place(backend, &guests, blueprint).map_err(PartError::at("place threads on CPUs"))?;
    }
    if blueprint.subject != Subject::Ringway && blueprint.layout != Layout::Free {
        notes.push("the layout of threads is ringway's alone".to_owned());
    }
    Ok(notes)
}

/// Sets the MTU on all links of a namespace except loopback.
fn set_mtu(pid: u32, mtu: u16) -> Result<(), PartError> {
    configure(pid, |net| {
        for link in net.links()?.into_iter().filter(|link| link.name != "lo") {
            net.set(&link.name, &[LinkSetting::Mtu(u32::from(mtu))])?;
        }
        Ok(())
    })
}

fn set_offloads(launcher: &Launcher, end: &End, offloads: Offloads) -> Result<(), PartError> {
    let off: &[&str] = match offloads {
        Offloads::All => return Ok(()),
        Offloads::Lro => return ethtool(launcher, end, &["lro", "on"]),
        Offloads::NoSg => &["sg"],
        Offloads::NoTso => &["tso"],
        Offloads::NoGso => &["gso"],
        Offloads::NoGro => &["gro"],
        Offloads::NoCsum => &["tx"],
        Offloads::None => &["tx", "sg", "tso", "gso", "gro"],
    };
    let words: Vec<&str> = off.iter().flat_map(|name| [*name, "off"]).collect();
    ethtool(launcher, end, &words)
}

/// Checks that the devices between hosts here have LRO, in a namespace where that disturbs nothing.
pub(crate) fn try_lro(launcher: &Launcher) -> Result<(), PartError> {
    let place = Namespace::new(launcher)?;
    configure(place.pid(), |net| net.add_veth(PORT, veth::DEVICE))?;
    set_offloads(launcher, &End::new(place.pid(), near_address(0), PORT), Offloads::Lro)
}

fn ethtool(launcher: &Launcher, end: &End, words: &[&str]) -> Result<(), PartError> {
    let mut command = launcher.command_in(end.pid, "ethtool");
    command.args(["-K", &end.interface]).args(words);
    launcher.start("ethtool", command)?.output(PATIENCE).map(drop)
}

/// Applies one kernel setting; returns a note if that is impossible.
fn set(
    launcher: &Launcher,
    end: &End,
    name: &str,
    value: &str,
) -> Result<Option<String>, PartError> {
    match name {
        "gso" | "gro" => ethtool(launcher, end, &[name, value]).map(|()| None),
        "txqueuelen" => {
            let len = value.parse().map_err(|_| {
                PartError::Failed(format!("txqueuelen = {value}: expected a number"))
            })?;
            configure(end.pid, |net| net.set(&end.interface, &[LinkSetting::TxQueueLen(len)]))?;
            Ok(None)
        }
        _ => set_sysctl(end.pid, name, value),
    }
}

fn set_sysctl(pid: u32, name: &str, value: &str) -> Result<Option<String>, PartError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    if !name.starts_with("net.") || !name.chars().all(is_plain) || name.contains("..") {
        return Err(PartError::Failed(format!("`{name}` is not a network setting")));
    }
    let file = format!("/proc/sys/{}", name.replace('.', "/"));
    let written = inside(pid, || fs::write(&file, value));
    match written {
        Ok(()) => Ok(None),
        // Some settings belong to the machine and not to the namespace, and we do not change the
        // machine.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
            ) =>
        {
            Ok(Some(format!(
                "{name} is not {value}: with this kernel it applies to the whole machine, or has \
                 no such value"
            )))
        }
        Err(error) => Err(PartError::Io { what: format!("set {name} to {value}"), error }),
    }
}

/// Pins the threads of the backend and of the guests to CPUs.
fn place(backend: u32, guests: &[u32], blueprint: &Blueprint) -> io::Result<()> {
    let cpus = ringway_sys::process::allowed_cpus()?;
    let of = |number: usize| vec![cpus[number % cpus.len()]];
    let workers = threads(backend, "worker")?;
    for (number, thread) in workers.iter().enumerate() {
        match blueprint.layout {
            Layout::Free | Layout::GuestOneCpu => {}
            Layout::OneCpu => pin(*thread, &of(0))?,
            Layout::Paired | Layout::Spread => pin(*thread, &of(number))?,
        }
    }
    for guest in guests {
        if let Some(count) = blueprint.cpus {
            pin_process(*guest, count)?;
        }
        for (number, thread) in threads(*guest, "guest")?.iter().enumerate() {
            match blueprint.layout {
                Layout::Free => {}
                Layout::OneCpu | Layout::GuestOneCpu => pin(*thread, &of(0))?,
                Layout::Paired => pin(*thread, &of(number))?,
                Layout::Spread => pin(*thread, &of(workers.len() + number))?,
            }
        }
    }
    Ok(())
}

/// The threads of a process whose names are this word and a number, in the order of the numbers.
fn threads(pid: u32, word: &str) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let path = entry?.path();
        let name = match fs::read_to_string(path.join("comm")) {
            Ok(name) => name,
            // The thread has ended since; none of those that we pin does.
            Err(error) if is_gone(&error) => continue,
            Err(error) => return Err(error),
        };
        let number: Option<u32> = name.trim().strip_prefix(word).and_then(|n| n.parse().ok());
        let thread = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        found.extend(number.zip(thread));
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, thread)| thread).collect())
}

/// Whether the error means that a thread is gone: its file no longer exists, or the open file
/// belongs to no thread any more.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// Restricts a thread to CPUs.
fn pin(thread: i32, cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    Ok(sched_setaffinity(Pid::from_raw(thread), &set)?)
}

/// Restricts a process of a guest to its CPUs, with all of its threads. Those that it starts later
/// inherit them.
pub(crate) fn pin_process(pid: u32, count: usize) -> io::Result<()> {
    let cpus = ringway_sys::process::allowed_cpus()?;
    let cpus = &cpus[..count.min(cpus.len())];
    let mut pinned = BTreeSet::new();
    // A thread may start another before it is restricted itself, so repeat until there is no new
    // one.
    for _ in 0..ROUNDS_MAX {
        let mut is_new = false;
        for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
            let thread = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
            let Some(thread) = thread.filter(|thread| pinned.insert(*thread)) else { continue };
            is_new = true;
            match pin(thread, cpus) {
                Err(error) if is_gone(&error) => {}
                other => other?,
            }
        }
        if !is_new {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    #[ignore = "not a test, but the process that the next one restricts"]
    fn threads_that_wait_for_the_end_of_their_input() {
        let input_ends = || io::copy(&mut io::stdin(), &mut io::sink()).map(drop);
        thread::spawn(input_ends).join().expect("no panic").expect("the input is a pipe");
    }

    #[test]
    fn a_guest_of_fewer_cpus_has_them_with_all_of_its_threads() {
        let all = ringway_sys::process::allowed_cpus().expect("some");
        let this = std::env::current_exe().expect("it has a file");
        let mut child = std::process::Command::new(this)
            .args([
                "--ignored",
                "--exact",
                "topology::tuning::tests::threads_that_wait_for_the_end_of_their_input",
            ])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("it starts");
        let tasks = format!("/proc/{}/task", child.id());
        let statuses = || -> io::Result<Vec<String>> {
            let tasks = fs::read_dir(&tasks)?;
            tasks.map(|task| fs::read_to_string(task?.path().join("status"))).collect()
        };
        let begun = std::time::Instant::now();
        while statuses().is_ok_and(|threads| threads.len() < 3) {
            assert!(begun.elapsed() < PATIENCE, "its threads do not start");
            thread::yield_now();
        }
        let pinned = pin_process(child.id(), 1);
        let statuses = statuses();
        let _ = child.kill().and_then(|()| child.wait());
        pinned.expect("it runs");
        let statuses = statuses.expect("it runs");
        assert!(statuses.len() >= 3, "{} threads", statuses.len());
        let allowed = format!("Cpus_allowed_list:\t{}\n", all[0]);
        assert!(statuses.iter().all(|status| status.contains(&allowed)), "{statuses:?}");
    }

    #[test]
    fn threads_that_end_meanwhile_are_no_trouble() {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        thread::spawn(|| {});
                    }
                });
            }
            let looked = (0..2000).try_for_each(|_| threads(std::process::id(), "none").map(drop));
            is_over.store(true, Ordering::Relaxed);
            looked.expect("they are left out");
        });
    }
}

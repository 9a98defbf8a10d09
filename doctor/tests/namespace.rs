//! Printed commands work in a network namespace.
//!
//! Each sick fixture is examined again with the settings of a real network namespace, to which its
//! own settings were applied first, as far as the namespace has them. Every command that belongs to
//! a change then runs there: it must succeed and take effect. What cannot be tried there is listed.

mod saved;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::process::Command;
use std::time::Duration;

use ringway_doctor::check::{CATALOGUE, pieces};
use ringway_doctor::evidence::{Netns, Piece, Source, collect};
use ringway_doctor::fact::Host;
use ringway_doctor::finding::{Advice, Change, Knob};
use ringway_doctor::parse::cpus::masked_cpus;
use ringway_sys::namespace::{enter_user_namespace, remount_sysfs, unshare_network};
use saved::Pieces;

type Outcome = Result<(), Box<dyn Error>>;

/// Checks whose commands once failed in a namespace.
const ONCE_WRONG: [&str; 4] = ["D18", "D19", "D26", "D31"];

/// Parts of texts that say why a setting has no command.
const REASONS: [&str; 3] =
    ["This cannot be done here", "is set for the whole machine", "network namespace may only use"];

fn main() -> Outcome {
    let is_root = unshare_network().is_ok();
    if !is_root {
        if let Err(error) = enter_user_namespace() {
            println!("SKIPPED: everything: {error}");
            return Ok(());
        }
    }
    if let Err(error) = remount_sysfs() {
        println!("SKIPPED: everything: {error}");
        return Ok(());
    }
    for tool in ["ip", "ethtool", "sysctl"] {
        if Command::new(tool).arg("--version").output().is_err() {
            println!("SKIPPED: everything: {tool} is not installed");
            return Ok(());
        }
    }
    if Netns::live() != Some(Netns::Other) {
        return Err("this is not a namespace of its own".into());
    }
    let mut tried = Tried::default();
    for (name, pieces) in saved::hosts().into_iter().filter(|(name, _)| name.contains("-sick")) {
        tried.fixture(&name, pieces)?;
    }
    for (what, count) in &tried.skipped {
        println!("SKIPPED: {what}: {count} commands");
    }
    for (what, count) in &tried.ran {
        println!("ok: {what}: {count} commands");
    }
    for check in ONCE_WRONG {
        let ran =
            tried.ran.iter().filter(|(what, _)| what.starts_with(check)).map(|(_, count)| count);
        let (ran, explained) = (ran.sum::<usize>(), tried.explained.get(check).copied());
        println!("{check}: {ran} commands ran; {} say where to set it", explained.unwrap_or(0));
        if ran == 0 && explained.unwrap_or(0) == 0 {
            return Err(format!("{check} neither prints a command nor says why not").into());
        }
    }
    // The settings of TCP and of an interface are every namespace's own.
    for kind in ["D19 sysctl", "D19 tx-queue-len", "D13 offload"] {
        if !tried.ran.contains_key(kind) {
            return Err(format!("no command of {kind} was tried").into());
        }
    }
    Ok(())
}

/// The commands that were tried, and those that could not be, by check and kind of setting.
#[derive(Default)]
struct Tried {
    ran: BTreeMap<String, usize>,
    skipped: BTreeMap<String, usize>,
    /// Advice that says why something cannot be set here, by check.
    explained: BTreeMap<&'static str, usize>,
}

impl Tried {
    fn fixture(&mut self, name: &str, mut pieces: Pieces) -> Outcome {
        let id = name.split('-').next().unwrap_or_default().to_uppercase();
        let check = CATALOGUE.iter().find(|check| check.id == id).ok_or("a check of that id")?;
        for (path, value) in pieces.iter().filter(|(path, _)| path.starts_with("proc/sys/")) {
            // The namespace may not have it, or may not set it: that is what is examined.
            let _ = fs::write(format!("/{path}"), value);
        }
        pieces.retain(|path, _| !path.starts_with("proc/sys/"));
        pieces.extend(settings_here()?);
        for finding in check.run(&Host::new(Source::Memory(pieces))) {
            for advice in &finding.advice {
                let is_explained = REASONS.iter().any(|reason| advice.text.contains(reason));
                *self.explained.entry(check.id).or_default() += usize::from(is_explained);
                self.advice(check.id, name, advice)?;
            }
        }
        Ok(())
    }

    fn advice(&mut self, check: &str, name: &str, advice: &Advice) -> Outcome {
        for (change, command) in advice.changes.iter().zip(&advice.commands) {
            let kind = serde_json::to_value(&change.knob)?["kind"].as_str().map(str::to_owned);
            let what = format!("{check} {}", kind.unwrap_or_default());
            if let Err(why) = prepare(change) {
                *self.skipped.entry(format!("{what}, {why}")).or_default() += 1;
                continue;
            }
            run(command).map_err(|error| format!("{name}: {command}: {error}"))?;
            took_effect(change).map_err(|error| format!("{name}: {command}: {error}"))?;
            *self.ran.entry(what).or_default() += 1;
        }
        // Advice by hand: what it sets must be settable, unless a module has to be loaded first.
        let sets = advice.commands.iter().filter(|line| line.starts_with("sysctl "));
        let needs_module = advice.commands.iter().any(|line| line.starts_with("modprobe "));
        for line in sets.filter(|_| advice.changes.is_empty() && !needs_module) {
            run(line).map_err(|error| format!("{name}: {line}: {error}"))?;
            *self.ran.entry(format!("{check} by hand")).or_default() += 1;
        }
        Ok(())
    }
}

/// The settings of this namespace, and which of them can only be read.
fn settings_here() -> Result<Pieces, Box<dyn Error>> {
    let is_setting = |piece: &Piece| match piece {
        Piece::File(path) | Piece::Counters(path) => path.starts_with("proc/sys/"),
        _ => false,
    };
    let mut wanted = Piece::each(&pieces());
    wanted.retain(is_setting);
    let Source::Memory(mut found) = collect(Duration::ZERO, &wanted) else {
        return Err("expected a host in memory".into());
    };
    found.retain(|path, _| {
        path.starts_with("proc/sys/") || ["read-only", "netns"].contains(&path.as_str())
    });
    Ok(found)
}

/// Makes the interface of a change, if a namespace can have one like it.
fn prepare(change: &Change) -> Result<(), &'static str> {
    match &change.knob {
        Knob::Sysctl { .. } => return Ok(()),
        Knob::TxQueueLen { .. } | Knob::Mtu { .. } | Knob::Offload { .. } => {}
        Knob::Rps { .. } | Knob::Xps { .. } if has_cpus(&change.proposed) => {}
        Knob::Rps { .. } | Knob::Xps { .. } => return Err("for CPUs that are not here"),
        Knob::Channels { .. } | Knob::Ring { .. } => return Err("which needs a card"),
        Knob::IrqAffinity { .. } | Knob::Governor { .. } => return Err("which is the machine's"),
        Knob::Parameter { .. } | Knob::VirtualFunctions { .. } => {
            return Err("which is the machine's");
        }
        Knob::Qdisc { .. } => return Err("whose module may be missing"),
        Knob::MaxQueues { .. } => return Err("which needs a running ringway"),
    }
    let nic = change.knob.nic().ok_or("without an interface")?;
    if fs::exists(format!("/sys/class/net/{nic}")).unwrap_or_default() {
        return Ok(());
    }
    let link = format!("ip link add {nic} numtxqueues 8 numrxqueues 8 type veth");
    run(&link).map_err(|_| "whose interface could not be made")?;
    if let Knob::TxQueueLen { .. } = change.knob {
        let current = change.current.clone().unwrap_or_default();
        run(&format!("ip link set dev {nic} txqueuelen {current}"))
            .map_err(|_| "not set before")?;
    }
    Ok(())
}

/// Whether this machine has all CPUs of a mask.
fn has_cpus(mask: &str) -> bool {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    masked_cpus(mask).is_some_and(|cpus| cpus.iter().all(|cpu| *cpu < count))
}

/// Compares the value, if a file shows it and the kernel does not print it in another form.
fn took_effect(change: &Change) -> Outcome {
    let is_mask = matches!(change.knob, Knob::Rps { .. } | Knob::Xps { .. });
    let Some(path) = change.knob.path()?.filter(|_| !is_mask) else { return Ok(()) };
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let now = fs::read_to_string(format!("/{path}"))?;
    match words(&now) == words(&change.proposed) {
        true => Ok(()),
        false => Err(format!("it is {now}").into()),
    }
}

fn run(line: &str) -> Result<(), Box<dyn Error>> {
    let output = Command::new("sh").args(["-c", line]).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned().into()),
    }
}

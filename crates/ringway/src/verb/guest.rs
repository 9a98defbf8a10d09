//! `ringway guest`: the process of a guest, and commands for running guests.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use ringway_confine::{Confinement, FRONTEND_DEVICES, Role, TAP_DEVICES};
use ringway_control::{GuestRequest, GuestStatus, RunDir};
use ringway_emu::EmuHypervisor;
use ringway_frontend::{FrontendConfig, Interface, Sockets};
use ringway_net::{LinkSetting, Netlink};
use ringway_sys::namespace;
use ringway_sys::poll::wait_readable;
use ringway_terminal::options::number;
use ringway_terminal::output::{print, print_json};
use ringway_terminal::stop::Stop;
use ringway_terminal::table;
use ringway_xenstore::{Client, DomId};
use rustix::process::{Pid, Signal, kill_process};

use crate::confine::confine;
use crate::description::{self, Guest as Description, Host};
use crate::host::{ProcessEnd, ProcessRecord, default_dir, read_description, xen};
use crate::kernel;
use crate::target::{List, Target};
use crate::verb::vhost_guest::{self, VhostGuest};

const EXEC_EXAMPLES: &str = "Examples:
  ringway guest exec a -- ping -c 3 10.77.0.2
  ringway guest exec b -- iperf3 -s
  ringway guest exec a -- bash";

/// List guests, run commands in them, change their queues; or be a guest
///
/// With --hypervisor xen it drives the vifs of this domain and replaces the kernel's module
/// xen-netfront: each vif becomes a TAP device, `eth0`, `eth1`, ... by its handle, until Ctrl-C.
///
/// With --vhost it takes the place of QEMU and its guest on a vhost-user socket: it creates a
/// device `eth0` whose frames go to the back-end behind the socket.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
#[command(after_help = "Examples:\n  ringway guest list\n  ringway guest --hypervisor xen\n\
                        \x20 ringway guest --vhost /run/ringway/vm1.sock --address 10.77.0.9/24")]
pub(crate) struct Guest {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    here: Here,
    #[command(flatten)]
    vhost: VhostGuest,
}

/// The frontend of the domain where this runs.
#[derive(Debug, Args)]
struct Here {
    /// Be the frontend of this domain's vifs
    #[arg(long, value_name = "KIND")]
    hypervisor: Option<RealHypervisor>,
    /// Run directory; the default is /run/ringway/default for root
    #[arg(long, value_name = "DIR", env = "RINGWAY_DIR", requires = "hypervisor")]
    dir: Option<PathBuf>,
    /// Worker threads [default: one per CPU]
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=1024))]
    workers: Option<u16>,
    /// The maximum number of queues to request [default: one per CPU]
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=64))]
    queues: Option<u16>,
    /// Have a backend that can do it keep the pages of all vifs mapped (staging grants)
    #[arg(long)]
    staging: bool,
    /// Prefix of the devices' names, before the handle
    #[arg(long, value_name = "NAME", default_value = "eth")]
    prefix: String,
}

/// Where a guest that ringway did not create may run.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum RealHypervisor {
    /// Xen
    Xen,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show the guests, their processes and vifs
    List(List),
    /// Run a command in a guest's network namespace
    ///
    /// The exit status is that of the command. When the guest ends, the command is killed;
    /// processes that it has started are not.
    #[command(after_help = EXEC_EXAMPLES)]
    Exec(Exec),
    #[command(hide = true)]
    Become(Become),
    /// Change a vif of a guest, in place of `ethtool -L` and `-X`, which TAP devices do not have
    #[command(after_help = "The guest reconnects; `ringway guest list` shows the outcome.\n\n\
                            Examples:\n  ringway guest set a queues 2\n  \
                            ringway guest set a hash 6d5a56da255b0ec2 --mapping 0,1,1,1\n  \
                            ringway guest set a hash none")]
    Set(Set),
    #[command(hide = true)]
    Run(RunOne),
}

#[derive(Debug, Args)]
struct Exec {
    #[command(flatten)]
    target: Target,
    /// The guest's name
    name: String,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct Set {
    #[command(flatten)]
    target: Target,
    /// The guest's name
    name: String,
    /// Handle of the vif: eth0 has 0
    #[arg(long, value_name = "H", default_value_t = 0, value_parser = number(0..=u32::MAX))]
    vif: u32,
    /// What to change
    setting: Setting,
    /// A number of queues; a key of up to 40 bytes in hexadecimal digits, or `none`
    value: String,
    /// The queue of each hash, modulo the number of entries [default: modulo the queues]
    #[arg(long, value_name = "Q,Q,...", value_delimiter = ',', value_parser = number(0..=u16::MAX))]
    mapping: Vec<u16>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Setting {
    /// Queues to request
    Queues,
    /// The key by which the backend chooses a queue, with `--mapping`
    Hash,
}

/// What becomes the command of `guest exec`, so that it dies with it.
#[derive(Debug, Args)]
struct Become {
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// The process of one guest. `ringway run` starts it.
#[derive(Debug, Args)]
struct RunOne {
    /// The guest's name in the host's description
    name: String,
    /// Run directory
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The guest's domain
    #[arg(long, value_name = "N")]
    domid: u16,
}

impl Guest {
    /// What the log calls this process.
    pub(crate) fn process_name(&self) -> String {
        match &self.verb {
            Some(Verb::Run(args)) => format!("guest {}", args.name),
            _ => String::new(),
        }
    }
}

pub(crate) fn run(args: &Guest) -> Result<ExitCode> {
    match &args.verb {
        None => match args.vhost.socket() {
            Some(socket) => {
                let Here { workers, queues, prefix, .. } = &args.here;
                vhost_guest::run(&args.vhost, socket, (format!("{prefix}0"), *workers, *queues))?;
            }
            None => run_frontend(&args.here)?,
        },
        Some(Verb::List(args)) => list(args)?,
        Some(Verb::Exec(args)) => return exec(args),
        Some(Verb::Become(args)) => return exec_command(args),
        Some(Verb::Set(args)) => set(args)?,
        Some(Verb::Run(args)) => run_one(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list(args: &List) -> Result<()> {
    let names = args.target.guest_names()?;
    // A guest that does not run has no process.
    let statuses: Vec<GuestStatus> = names
        .into_iter()
        .map(|name| {
            let absent = GuestStatus { name: name.clone(), ..GuestStatus::default() };
            args.target.guest(&name).unwrap_or(absent)
        })
        .collect();
    if args.json {
        return print_json(&statuses);
    }
    let head = ["GUEST", ">DOMAIN", ">PID", "INTERFACE", "STATE", ">QUEUES", ">OF", "ERROR"];
    let mut rows = Vec::new();
    for guest in statuses {
        let (domid, pid) = match guest.pid {
            0 => ("-".to_owned(), "-".to_owned()),
            pid => (guest.domid.to_string(), pid.to_string()),
        };
        let mut first = vec![guest.name.clone(), domid, pid];
        if guest.vifs.is_empty() {
            let state = if guest.pid == 0 { "not running" } else { "no vif" };
            first.extend(["-", state, "-", "-", "-"].map(str::to_owned));
            rows.push(first.clone());
        }
        for vif in guest.vifs {
            let mut row = first.clone();
            row.extend([
                vif.interface,
                vif.state,
                vif.queues.len().to_string(),
                vif.max_queues.to_string(),
                vif.error.unwrap_or_else(|| "-".to_owned()),
            ]);
            rows.push(row);
        }
    }
    print(&table::render(&head, rows))
}

/// Runs a command, and ends with it or with the guest.
fn exec(args: &Exec) -> Result<ExitCode> {
    let name = &args.name;
    let guest = args.target.guest(name)?;
    let is_gone = || format!("guest {name} is not running");
    let record = ProcessRecord::of(name, guest.pid).with_context(is_gone)?;
    namespace::enter(guest.pid).with_context(|| format!("guest {name}"))?;
    // It was the same process all along.
    let process = record.open().with_context(is_gone)?;
    // Errors are ignored: a container may forbid it, and few commands read /sys.
    let _ = namespace::remount_sysfs();
    let stop = Stop::on_signals_ignoring_terminal()?;
    // Not the command itself, which would not die with us: the parent-death signal must be set
    // inside the final namespaces, since entering them clears it.
    let mut child = Command::new("/proc/self/exe")
        .arg0("ringway")
        .arg("--parent")
        .arg(std::process::id().to_string())
        .args(["guest", "become", "--"])
        .args(&args.command)
        .spawn()
        .context("start a process")?;
    let pid = Pid::from_child(&child);
    let end = ProcessEnd::of_child(pid)?;
    loop {
        stop.wait_beside(&[end.as_fd(), process.as_fd()], None)?;
        if let Some(status) = child.try_wait()? {
            return Ok(exit_code(status));
        }
        if wait_readable(&process, Some(Duration::ZERO))? {
            child.kill()?;
            child.wait()?;
            bail!("guest {name} has ended, which killed the command");
        }
        if stop.take()? {
            // It was not waited for, so the PID is still its own.
            kill_process(pid, Signal::TERM)?;
        }
    }
}

/// Executes a command in the namespaces of this process.
fn exec_command(args: &Become) -> Result<ExitCode> {
    let (program, arguments) = args.command.split_first().context("CMD is missing")?;
    let error = Command::new(program).args(arguments).exec();
    let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    eprintln!("ringway: run {}: {error}", program.to_string_lossy());
    Ok(ExitCode::from(code))
}

/// The exit code as in a shell: 128 plus the number of a signal.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}

fn set(args: &Set) -> Result<()> {
    let (handle, value) = (args.vif, args.value.as_str());
    let request = match args.setting {
        Setting::Queues if !args.mapping.is_empty() => bail!("--mapping is only for hash"),
        Setting::Queues => {
            let queues = value.parse();
            let queues =
                queues.with_context(|| format!("queues is {value:?}, expected a number"))?;
            GuestRequest::SetQueues { handle, queues }
        }
        Setting::Hash if value == "none" && !args.mapping.is_empty() => {
            bail!("--mapping is only for a hash with a key")
        }
        Setting::Hash => {
            let hash = hash_key(value)?.map(|key| (key, args.mapping.clone()));
            GuestRequest::SetHash { handle, hash }
        }
    };
    args.target.ask_guest(&args.name, &request)
}

/// The key of a hash, or `None`.
fn hash_key(text: &str) -> Result<Option<Vec<u8>>> {
    if text == "none" {
        return Ok(None);
    }
    // As ethtool prints it.
    let digits: Vec<char> = text.chars().filter(|it| *it != ':').collect();
    let octet = |pair: &[char]| match pair {
        [high, low] => u8::try_from(high.to_digit(16)? << 4 | low.to_digit(16)?).ok(),
        _ => None,
    };
    let key: Option<Vec<u8>> = digits.chunks(2).map(octet).collect();
    let key = key.filter(|key| !key.is_empty());
    let expected = || format!("hash is {text:?}, expected `none` or pairs of hexadecimal digits");
    key.with_context(expected).map(Some)
}

fn run_one(args: &RunOne) -> Result<()> {
    let stop = Stop::on_signals_of_child()?;
    ringway_sys::process::raise_open_files_limit()?;
    let dir = RunDir::new(&args.dir);
    let host = read_description(&dir)?;
    let guest = host
        .guests
        .iter()
        .find(|guest| guest.name.0 == args.name)
        .with_context(|| format!("the host has no guest {:?}", args.name))?;
    namespace::unshare_network()?;
    Netlink::open()?.set("lo", &[LinkSetting::Up])?;
    let hypervisor = EmuHypervisor::connect(dir.path(), DomId(args.domid))
        .with_context(|| format!("connect to the broker as domain {}", args.domid))?;
    let store = Client::connect(&dir.xenstore_of(args.domid))?;
    let config = FrontendConfig {
        name: args.name.clone(),
        workers: host.guest_workers()?,
        device_prefix: "eth".to_owned(),
        interfaces: interfaces(guest),
        others: Interface::default(),
    };
    let sockets = Sockets::open(&dir.guest(&args.name))?;
    confine(&Confinement {
        user_of: Some(&dir.guest(&args.name)),
        devices: TAP_DEVICES,
        ..Confinement::of(Role::EmulatedGuest)
    })?;
    ringway_frontend::run(hypervisor, store, config, sockets, stop)?;
    Ok(())
}

/// Drives the vifs of this domain until Ctrl-C.
fn run_frontend(args: &Here) -> Result<()> {
    kernel::check(false)?;
    let stop = Stop::on_signals()?;
    ringway_sys::process::raise_open_files_limit()?;
    let domain = xen::Guest::of_this_domain()?;
    let dir = std::path::absolute(args.dir.clone().unwrap_or_else(default_dir))?;
    let mut host = Host::empty(description::Usage::default())?;
    host.workers.count = args.workers.map(usize::from);
    host.workers.poll_us = Some(0);
    host.guests = vec![domain.description()];
    let _claim = xen::claim(&dir, &mut host)?;
    let config = FrontendConfig {
        name: domain.name.0.clone(),
        workers: host.guest_workers()?,
        device_prefix: args.prefix.clone(),
        interfaces: BTreeMap::new(),
        others: Interface { queues: args.queues, staging: args.staging, ..Interface::default() },
    };
    // No thread has been started, and this opens the last things that need more privileges.
    let sockets = Sockets::open(&RunDir::new(&dir).guest(&domain.name.0))?;
    confine(&Confinement {
        sockets: Some(&dir),
        devices: FRONTEND_DEVICES,
        ..Confinement::of(Role::Vifs)
    })?;
    ringway_frontend::run(domain.hypervisor, domain.store, config, sockets, stop)?;
    Ok(())
}

fn interfaces(guest: &Description) -> BTreeMap<u32, Interface> {
    let interface = |vif: &crate::description::GuestVif| Interface {
        addresses: vif.addresses.iter().map(|cidr| (cidr.address, cidr.prefix_len)).collect(),
        gateway: vif.gateway,
        queues: vif.queues,
        max_unanswered: vif.max_unanswered,
        hash: None,
        offloads: vif.offloads.caps(),
        staging: vif.staging,
        gro: vif.gro,
    };
    (0..).zip(guest.vifs.iter().map(interface)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_pairs_of_digits_as_ethtool_prints_it() {
        let key = |text| hash_key(text).map_err(|error| error.to_string());
        assert_eq!(key("6d5A"), Ok(Some(vec![0x6d, 0x5a])));
        assert_eq!(key("6d:5a"), Ok(Some(vec![0x6d, 0x5a])));
        assert_eq!(key("none"), Ok(None));
        for text in ["", ":", "6", "6d5", "6dx5", "no", "\u{e9}\u{e9}"] {
            assert!(key(text).is_err_and(|error| error.contains("pairs of hexadecimal")), "{text}");
        }
    }

    #[test]
    fn an_exit_status_is_passed_on_as_a_shell_does() {
        let shown = |raw| format!("{:?}", exit_code(ExitStatus::from_raw(raw)));
        let code = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(shown(0), code(0));
        assert_eq!(shown(3 << 8), code(3));
        assert_eq!(shown(9), code(137));
    }
}

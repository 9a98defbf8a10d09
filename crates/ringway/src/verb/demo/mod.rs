//! `ringway demo`: runs real iperf3 traffic between two guests, shows what each queue did, and
//! leaves nothing behind.

mod iperf;
mod leftovers;
mod payload;
mod ping;
mod report;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use leftovers::Before;
use report::{CpuReport, Json, Report};
use ringway_control::{
    BackendRequest, BackendStatus, GuestRequest, GuestStatus, RunDir, send_request,
};
use ringway_steering::placement::{split_of, spread};
use ringway_sys::poll::wait_readable;
use ringway_terminal::options::{Common, number, seconds};
use ringway_terminal::stop::Stop;

use crate::confine;
use crate::host::{Process, ProcessRecord, read_state};

/// How long the host may take until its guests are connected.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a command in a guest may take beyond its requested duration.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the frames of a ping may take to be counted, and the pause before the next reading.
const COUNT_TIMEOUT: Duration = Duration::from_secs(5);
const COUNT_PAUSE: Duration = Duration::from_millis(5);
/// How often to check whether a guest is connected.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The socket of a guest of virtio.
const SOCKET: &str = "b.sock";
/// How long the host may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(45);
/// The profile that the program is built with.
const PROFILE: &str = env!("RINGWAY_PROFILE");
/// Bytes that a command may print.
const OUTPUT_LEN_MAX: u64 = 64 << 20;

/// Run a demonstration: two guests, iperf3 between them, packets per queue
///
/// It runs in its own network namespaces, which end with it. iperf3 must be installed. A virtio
/// guest is a process that takes the place of QEMU and its guest: no virtual machine starts. The
/// exit status is not 0 if it leaves anything behind, or if bytes arrive changed.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ringway demo\n  ringway demo --queues 2 --seconds 10 --json -\n  \
                  ringway demo --guests xen,virtio"
)]
pub(crate) struct Demo {
    /// The kinds of both guests: with a Xen vif, or behind a vhost-user socket
    #[arg(long, value_name = "KINDS", default_value = "xen,xen")]
    guests: Kinds,
    /// Queues of each guest
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = number::<u16>(1..=64))]
    queues: u16,
    /// TCP streams [default: one per queue]
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=128))]
    streams: Option<u16>,
    /// Seconds of traffic in each direction
    #[arg(long, value_name = "SECONDS", default_value_t = 3,
          value_parser = seconds::<u32>(1..=3600))]
    seconds: u32,
    /// Write the results as JSON to this file; - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Send back what comes over a connection, in a guest
    #[arg(long, hide = true, value_name = "ADDRESS")]
    echo: Option<SocketAddr>,
    /// Send bytes to an echo, and compare what comes back
    #[arg(long, hide = true, value_name = "ADDRESS")]
    talk: Option<SocketAddr>,
    /// Send one echo request, and wait for its reply
    #[arg(long, hide = true, value_name = "ADDRESS")]
    ping: Option<Ipv4Addr>,
}

/// What guest a and guest b are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kinds {
    /// Both have a vif of Xen
    #[value(name = "xen,xen")]
    Xen,
    /// Guest b has queues of virtio
    #[value(name = "xen,virtio")]
    XenAndVirtio,
}

pub(crate) fn run(args: &Demo, common: &Common) -> Result<ExitCode> {
    match (args.echo, args.talk, args.ping) {
        (Some(at), ..) => return payload::echo(at).map(|()| ExitCode::SUCCESS),
        (_, Some(at), _) => return payload::check_echo(at).map(|()| ExitCode::SUCCESS),
        (.., Some(to)) => return ping::ping(to).map(|()| ExitCode::SUCCESS),
        _ => {}
    }
    let caution = match PROFILE {
        "release" => "",
        _ => ": its rates are not those of a release build",
    };
    say(format_args!("ringway {}, {PROFILE} build{caution}", env!("CARGO_PKG_VERSION")));
    iperf::require()?;
    let json = Json::to(args.json.as_deref())?;
    let stop = Stop::on_signals()?;
    let before = Before::read()?;
    let place = std::env::temp_dir().join(format!("ringway-demo-{}", std::process::id()));
    let demo = Running::start(args, common, &place, &stop);
    let outcome = demo.and_then(|demo| demo.measure(args));
    // Whatever happened, the host has ended by now.
    let _ = fs::remove_dir_all(&place);
    let (mut report, processes) = match outcome {
        Ok(measured) => measured,
        Err(_) if stop.wait(Duration::ZERO)? => bail!("ended before it was finished"),
        Err(error) => return Err(error),
    };
    report.leftovers = before.leftovers(&place, &processes)?;
    let is_clean = report.leftovers.is_empty();
    report.print(json)?;
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A host that runs for the demonstration.
struct Running<'a> {
    host: Process,
    dir: RunDir,
    common: &'a Common,
    stop: &'a Stop,
    place: PathBuf,
    /// The guest behind a socket, if there is one. It ends with the demonstration.
    virtio: Option<Process>,
}

impl<'a> Running<'a> {
    fn start(args: &Demo, common: &'a Common, place: &Path, stop: &'a Stop) -> Result<Running<'a>> {
        say(format_args!("starting a host with two guests of {} queues each", args.queues));
        fs::create_dir(place).with_context(|| format!("make {}", place.display()))?;
        let config = place.join("host.toml");
        fs::write(&config, description(args, &place.join(SOCKET)))
            .with_context(|| format!("write {}", config.display()))?;
        let dir = place.join("run");
        let arguments: [&OsStr; 6] = [
            "run".as_ref(),
            "--config".as_ref(),
            config.as_ref(),
            "--dir".as_ref(),
            dir.as_ref(),
            "--json".as_ref(),
        ];
        let mut host = start("host", common, &arguments)?;
        let stdout = host.stdout().context("the host has no standard output")?;
        let dir = RunDir::new(dir);
        let place = place.to_owned();
        let mut running = Running { host, dir, common, stop, place, virtio: None };
        running.await_line(
            stdout,
            "\"ready\"",
            READY_TIMEOUT,
            "the guests of the host to connect",
        )?;
        if args.guests == Kinds::XenAndVirtio {
            running.start_virtio(args.queues)?;
        }
        Ok(running)
    }

    /// Drives queues of virtio in the namespace of guest b, which has no vif of Xen.
    fn start_virtio(&mut self, queues: u16) -> Result<()> {
        let socket = self.place.join(SOCKET).display().to_string();
        let (address, queues) = (format!("{}/24", iperf::SERVER), queues.to_string());
        let key = iperf::FLOW_KEY.to_string();
        let guest = ["/proc/self/exe", "guest", "--vhost", &socket, "--address", &address];
        let command = [&guest[..], &["--queues", &queues, "--flow-key", &key]].concat();
        self.virtio = Some(self.start_in_guest("b", &command)?.0);
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            let backend = self.backend()?;
            let vif = backend.vifs.iter().find(|vif| vif.kind == "virtio");
            match vif {
                Some(vif) if vif.state == "Connected" => return Ok(()),
                Some(vif) if Instant::now() > deadline => {
                    let reason = vif.error.as_deref().unwrap_or("it gives no reason");
                    bail!("guest b has not connected: {reason}");
                }
                _ if self.stop.wait(POLL_INTERVAL)? => bail!("stopped"),
                _ => {}
            }
        }
    }

    /// Moves traffic, and ends the host.
    fn measure(mut self, args: &Demo) -> Result<(Report, Vec<leftovers::Watched>)> {
        let streams = args.streams.unwrap_or(args.queues);
        let watched = self.watch_processes()?;
        say(format_args!("one ping from a to b, with the ARP before it"));
        let idle = self.backend()?;
        self.in_guest("a", &["/proc/self/exe", "demo", "--ping", iperf::SERVER], ping::SECONDS)?;
        let pinged = self.backend_after_ping(&idle)?;
        let cpu_before = self.cpu_times()?;
        let mut results = Vec::new();
        for way in [iperf::Way::Forward, iperf::Way::Reverse] {
            let (port, queues) = iperf::first_port(streams, args.queues, way);
            if split_of(&queues) != split_of(&spread(usize::from(streams), args.queues)) {
                say(format_args!(
                    "no choice of ports spreads {streams} streams evenly; this is close to even"
                ));
            }
            say(format_args!("iperf3 {way}, {streams} TCP streams, {} s", args.seconds));
            // Each way has its own: a server closes its socket between two runs.
            let _server = self.start_server(iperf::server_port(way))?;
            let command = iperf::client(streams, args.seconds, port, way);
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            let output = self.in_guest("a", &command, args.seconds)?;
            results.push(iperf::bits_per_second(&output)?);
        }
        let payload = payload::exchange(&self)?;
        let cpu = cpu_between(&cpu_before, &self.cpu_times()?);
        let backend = self.backend()?;
        let guests = [self.guest("a")?, self.guest("b")?];
        let mut report =
            Report::new(args, streams, &results, (&idle, &pinged), &backend, &guests, cpu);
        report.payload_bytes = payload;
        say(format_args!("ending the host"));
        if let Some(mut virtio) = self.virtio.take() {
            virtio.terminate();
            virtio.wait_or_kill(Instant::now() + END_TIMEOUT);
        }
        self.host.terminate();
        self.host.wait_or_kill(Instant::now() + END_TIMEOUT);
        Ok((report, watched))
    }

    /// The state when the ping and its ARP are counted, which is a moment after their arrival.
    fn backend_after_ping(&self, idle: &BackendStatus) -> Result<BackendStatus> {
        let deadline = Instant::now() + COUNT_TIMEOUT;
        loop {
            let pinged = self.backend()?;
            if report::has_pinged(idle, &pinged) || Instant::now() >= deadline {
                return Ok(pinged);
            }
            std::thread::sleep(COUNT_PAUSE);
        }
    }

    fn backend(&self) -> Result<BackendStatus> {
        Ok(send_request(&self.dir.backend(), &BackendRequest::Status)?)
    }

    fn guest(&self, name: &str) -> Result<GuestStatus> {
        Ok(send_request(&self.dir.guest(name), &GuestRequest::Status)?)
    }

    /// The processes that the supervisor has started, and the one that the backend has: the opener.
    fn processes(&self) -> Vec<ProcessRecord> {
        let mut processes = read_state(&self.dir).processes;
        let backend = processes.iter().find(|process| process.name == "backend");
        let children = backend.map(|backend| children_of(backend.pid)).unwrap_or_default();
        processes.extend(children.into_iter().filter_map(|pid| {
            // It may have ended meanwhile.
            ProcessRecord::of("opener", pid).ok()
        }));
        processes
    }

    fn watch_processes(&self) -> Result<Vec<leftovers::Watched>> {
        self.processes().into_iter().map(leftovers::Watched::new).collect()
    }

    fn cpu_times(&self) -> Result<Vec<CpuReport>> {
        let mut times = Vec::new();
        for process in self.processes() {
            let mut pids = vec![process.pid];
            if process.name == "guest b" {
                pids.extend(self.virtio_pids());
            }
            let mut report = CpuReport { process: process.name, ..CpuReport::default() };
            for pid in pids {
                let time = ringway_sys::process::cpu_time(pid)?;
                report.user_seconds += time.user.as_secs_f64();
                report.system_seconds += time.system.as_secs_f64();
            }
            times.push(report);
        }
        Ok(times)
    }

    /// The processes in the namespace of guest b that drive its queues of virtio.
    fn virtio_pids(&self) -> Vec<u32> {
        let Some(virtio) = &self.virtio else { return Vec::new() };
        let first = virtio.record().pid;
        [first].into_iter().chain(children_of(first)).collect()
    }

    fn start_in_guest(&self, guest: &str, command: &[&str]) -> Result<(Process, ChildStdout)> {
        let dir = self.dir.path().as_os_str();
        let arguments: [&OsStr; 6] = [
            "guest".as_ref(),
            "exec".as_ref(),
            "--dir".as_ref(),
            dir,
            guest.as_ref(),
            "--".as_ref(),
        ];
        let command = command.iter().map(AsRef::<OsStr>::as_ref);
        let arguments: Vec<&OsStr> = arguments.into_iter().chain(command).collect();
        let mut process = start("command", self.common, &arguments)?;
        let stdout = process.stdout().context("a command without standard output")?;
        Ok((process, stdout))
    }

    /// Runs a command in a guest to its end, and returns what it prints.
    fn in_guest(&self, guest: &str, command: &[&str], seconds: u32) -> Result<String> {
        let deadline = Instant::now() + Duration::from_secs(seconds.into()) + COMMAND_TIMEOUT;
        let (mut process, stdout) = self.start_in_guest(guest, command)?;
        // Read on a thread of its own, because the command prints while we wait for its end or for
        // Ctrl-C.
        let reader = std::thread::spawn(move || {
            let mut output = String::new();
            stdout.take(OUTPUT_LEN_MAX).read_to_string(&mut output).map(|_| output)
        });
        let left = deadline.saturating_duration_since(Instant::now());
        let is_stopped = self.stop.wait_beside(&[process.as_fd()], Some(left))?;
        let status = process.ended()?;
        drop(process);
        let output = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
        match status {
            Some(status) if status.success() => Ok(output),
            Some(status) => bail!("{} in guest {guest}: {status}\n{output}", command.join(" ")),
            None if is_stopped => bail!("stopped"),
            None => bail!("{} in guest {guest} did not finish in time", command.join(" ")),
        }
    }

    fn start_server(&self, port: u16) -> Result<Process> {
        let port = port.to_string();
        let command = ["iperf3", "-s", "-4", "-p", &port, "--forceflush"];
        let (server, stdout) = self.start_in_guest("b", &command)?;
        self.await_line(stdout, "listening", COMMAND_TIMEOUT, "iperf3 to listen")?;
        Ok(server)
    }

    /// Waits until a process prints a line that contains some text; discards what follows.
    fn await_line(
        &self,
        stdout: ChildStdout,
        text: &'static str,
        timeout: Duration,
        what: &str,
    ) -> Result<()> {
        let (done, is_done) = std::os::unix::net::UnixStream::pair()?;
        std::thread::spawn(move || {
            let mut done = Some(done);
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if line.contains(text) {
                    if let Some(done) = done.take() {
                        // The other end is closed only if no thread waits any more.
                        let _ = std::io::Write::write_all(&mut &done, b"!");
                    }
                }
            }
        });
        if self.stop.wait_beside(&[is_done.as_fd()], Some(timeout))? {
            bail!("stopped")
        }
        match wait_readable(&is_done, Some(Duration::ZERO))? {
            true if matches!((&is_done).read(&mut [0]), Ok(1)) => Ok(()),
            true => bail!("waited for {what}, but the process ended; see the reason above"),
            false => bail!("waited {} s for {what}", timeout.as_secs()),
        }
    }
}

/// Processes that any thread of a process has started.
fn children_of(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let pids = children.flat_map(|text| {
        text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
    });
    pids.collect()
}

/// Runs this program with other arguments, for guests that are its own.
fn start(name: &str, common: &Common, arguments: &[&OsStr]) -> Result<Process> {
    let files = [Stdio::null(), Stdio::piped()];
    Process::start_in(name, common.quiet(), arguments, files, confine::variable_of_own_guests())
}

fn say(what: std::fmt::Arguments<'_>) {
    eprintln!("demo: {what}");
}

fn description(args: &Demo, socket: &Path) -> String {
    let queues = args.queues;
    let guest = |name: &str, address: &str| {
        format!(
            "[[guest]]\nname = \"{name}\"\n[[guest.vif]]\naddresses = [\"{address}/24\"]\n\
             queues = {queues}\n"
        )
    };
    let other = match args.guests {
        Kinds::Xen => guest("b", iperf::SERVER),
        Kinds::XenAndVirtio => format!(
            "[[guest]]\nname = \"b\"\n[[vhost]]\nname = \"vhost-b\"\nsocket = {socket:?}\n\
             mode = \"server\"\nqueues = {queues}\n"
        ),
    };
    let first = guest("a", iperf::CLIENT);
    let key = iperf::FLOW_KEY;
    format!(
        "[host]\nnetwork = \"private\"\nmax-queues = {queues}\nflow-key = \"{key}\"\n{first}{other}"
    )
}

fn cpu_between(before: &[CpuReport], after: &[CpuReport]) -> Vec<CpuReport> {
    after
        .iter()
        .map(|after| {
            let zero = CpuReport::default();
            let before =
                before.iter().find(|before| before.process == after.process).unwrap_or(&zero);
            CpuReport {
                process: after.process.clone(),
                user_seconds: after.user_seconds - before.user_seconds,
                system_seconds: after.system_seconds - before.system_seconds,
            }
        })
        .collect()
}

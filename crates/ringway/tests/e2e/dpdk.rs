//! Guests of DPDK: its driver half of virtio (`net_virtio_user`) with every layout of rings; and
//! DPDK's device (`net_vhost`) with our guests.
//!
//! DPDK's `testpmd` is the wire between two guests, each in a VLAN of its own: it has a port in
//! each, and forwards frames between them. So all traffic between the guests crosses our device
//! four times per round trip, in both directions, and the data that come back are compared with
//! those that were sent. TCP tolerates that `testpmd` drops frames when a ring is full.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use ringway_e2e::host::{Host, Running, SOON, describe};
use ringway_e2e::machine::EchoConnection;
use ringway_e2e::virtio_guest::kill_backend;
use ringway_e2e::virtio_guest::{Maker, guest_of};
use rustix::thread::{CpuSet, gettid, sched_getaffinity};

/// From Debian's package `dpdk-dev`; its drivers are separate packages.
const TESTPMD: &str = "dpdk-testpmd";
/// The second guest.
const ECHO: &str = "10.77.0.2";
/// Concurrent connections, so that several queues have some.
const CONNECTIONS: usize = 3;

/// One combination of the options of DPDK's driver.
#[derive(Debug, Clone, Copy)]
struct Case {
    packed: bool,
    mrg_rxbuf: bool,
    in_order: bool,
    vectorized: bool,
    /// Whether DPDK creates the sockets.
    server: bool,
    queues: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { packed, mrg_rxbuf, in_order, vectorized, server, queues } = *self;
        let [packed, mrg_rxbuf, in_order, vectorized] =
            [packed, mrg_rxbuf, in_order, vectorized].map(u8::from);
        write!(f, "packed_vq={packed},mrg_rxbuf={mrg_rxbuf},in_order={in_order},")?;
        write!(f, "vectorized={vectorized},queues={queues},queue_size=256")?;
        if server { f.write_str(",server=1") } else { Ok(()) }
    }
}

const QUEUES: [usize; 3] = [1, 2, 8];

/// All combinations.
fn all_cases() -> impl Iterator<Item = Case> {
    (0..16_usize).flat_map(|number| {
        let [vectorized, in_order, mrg_rxbuf, packed] =
            [0, 1, 2, 3].map(|bit| number >> bit & 1 == 1);
        [false, true].into_iter().flat_map(move |server| {
            QUEUES.map(|queues| Case { packed, mrg_rxbuf, in_order, vectorized, server, queues })
        })
    })
}

/// A few of them: both layouts, with each number of queues, whichever end creates the sockets.
fn few_cases() -> impl Iterator<Item = Case> {
    let case = |[packed, mrg_rxbuf, in_order, vectorized, server]: [bool; 5], queues| Case {
        packed,
        mrg_rxbuf,
        in_order,
        vectorized,
        server,
        queues,
    };
    [
        case([false, false, false, true, false], 1),
        case([false, true, true, false, true], 2),
        case([true, false, true, true, false], 2),
        case([true, true, false, false, true], 8),
    ]
    .into_iter()
}

/// `testpmd` with two ports, between which it forwards frames. It ends when dropped.
struct Wire {
    process: Running,
    commands: ChildStdin,
    lines: Receiver<String>,
    output: Vec<String>,
}

impl Wire {
    /// Starts it with both ports on the sockets in `dir`.
    fn start(dir: &Path, case: Case) -> Wire {
        let names = names(case.server);
        let device = |port: usize| {
            let path = dir.join(names[port]).display().to_string();
            format!("net_virtio_user{port},path={path},{case}")
        };
        // A frame then takes several buffers.
        let more: &[_] =
            if case.mrg_rxbuf { &["--mbuf-size=640", "--enable-scatter"] } else { &[] };
        Wire::between([&device(0), &device(1)], case.queues, more)
    }

    /// Starts it with two devices.
    fn between([first, second]: [&str; 2], queues: usize, more: &[&str]) -> Wire {
        let queues = queues.to_string();
        // Each test has a thread of its own.
        let prefix = format!("ringway-{}", gettid().as_raw_nonzero());
        // Otherwise it would write to a pipe in blocks of 4 KiB.
        let mut command = Command::new("stdbuf");
        command.args(["-oL", TESTPMD, "--lcores", &lcores(), "--no-huge", "-m", "256"]);
        command.args(["--no-pci", "--no-telemetry", "--no-shconf", "--file-prefix", &prefix]);
        command.args(["--log-level=pmd.net.virtio.init:info", "--force-max-simd-bitwidth=512"]);
        command.args(["--vdev", first, "--vdev", second]);
        command.args(["--", "-i", "--nb-cores=1"]);
        command.args(["--rxq", &queues, "--txq", &queues, "--rxd=256", "--txd=256"]);
        command.args(["--total-num-mbufs=16384", "--no-flush-rx", "--portlist=0,1"]);
        command.args(more).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Running::start(&mut command);
        let commands = process.0.stdin.take().expect("it was piped");
        let lines = lines_of(&mut process.0);
        Wire { process, commands, lines, output: Vec::new() }
    }

    fn send(&mut self, command: &str) {
        // It may have ended; the missing reply shows that.
        let _ = writeln!(self.commands, "{command}");
    }

    /// Waits for a line; false if the output ends first.
    fn wait_for_line(&mut self, text: &str) -> bool {
        // waits: this limit only ends a test that hangs.
        while let Ok(line) = self.lines.recv_timeout(6 * SOON) {
            let is_it = line.contains(text);
            self.output.push(line);
            if is_it {
                return true;
            }
        }
        false
    }

    /// Waits until it forwards; returns the reason if its drivers are missing.
    fn start_forwarding(&mut self, case: &dyn fmt::Display) -> Result<(), String> {
        // The prompt is not a complete line, so this sends a command whose output is.
        self.send("show port summary all");
        if !self.wait_for_line("Number of available ports: 2") {
            let output = self.output.join("\n");
            if output.contains("failed to parse device") {
                let drivers = "librte-net-virtio or librte-net-vhost";
                return Err(format!("{TESTPMD}: the driver {drivers} is missing"));
            }
            panic!("{case}: {TESTPMD} has not started:\n{output}");
        }
        self.send("start");
        Ok(())
    }

    /// Ends it in order; returns its output.
    fn end(mut self) -> Vec<String> {
        self.send("quit");
        self.process.wait("testpmd to end", 6 * SOON);
        self.output.extend(self.lines.iter());
        self.output
    }
}

/// Two threads, on all CPUs available to us: one reads commands, one moves frames.
fn lcores() -> String {
    let cpus = sched_getaffinity(None).expect("a process has CPUs");
    let ours = (0..CpuSet::MAX_CPU).filter(|cpu| cpus.is_set(*cpu));
    let ours: Vec<String> = ours.map(|cpu| cpu.to_string()).collect();
    format!("(0,1)@({})", ours.join(","))
}

fn lines_of(process: &mut Child) -> Receiver<String> {
    let (sender, lines) = channel();
    let stdout = BufReader::new(process.stdout.take().expect("it was piped"));
    let stderr = BufReader::new(process.stderr.take().expect("it was piped"));
    let other = sender.clone();
    // They end with the process, or with the test.
    thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|it| sender.send(it)));
    thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|it| other.send(it)));
    lines
}

/// The vifs of a wire, by the end that creates the sockets.
fn names(is_dpdk_server: bool) -> [&'static str; 2] {
    if is_dpdk_server { ["vm1", "vm2"] } else { ["vm3", "vm4"] }
}

/// Two guests that are connected only by a wire between their VLANs.
fn description(dir: &Path) -> String {
    let guests = [("a", "", "queues = 4\nvlan = 5"), ("b", "", "queues = 4\nvlan = 6")];
    let mut text = describe("max-queues = 4", &guests);
    for (server, mode) in [(true, "client"), (false, "server")] {
        for (name, vlan) in names(server).into_iter().zip([5, 6]) {
            text += &format!(
                "[[vhost]]\nname = \"{name}\"\nsocket = \"{}\"\nqueues = 8\nmode = \"{mode}\"\n\
                 vlan = {vlan}\nfeatures = [\"ring_packed\"]\n",
                dir.join(name).display()
            );
        }
    }
    text
}

/// The negotiated features match the options of the driver.
fn check_agreed(host: &Host, case: Case) {
    let name = names(case.server)[0];
    let virtio = host.vif(name).and_then(|vif| vif.virtio).expect("it is there");
    for (feature, is_wanted) in
        [("ring_packed", case.packed), ("mrg_rxbuf", case.mrg_rxbuf), ("in_order", case.in_order)]
    {
        let is_used = virtio.features.iter().any(|it| it == feature);
        assert_eq!(is_used, is_wanted, "{case}: {feature} in {virtio:?}");
    }
}

/// What the tests of its driver need.
const DRIVER_TOOLS: [&str; 3] = [TESTPMD, "stdbuf", "socat"];

#[test]
fn dpdk_drivers_pass_data_with_split_and_packed_rings() {
    let Some(_turn) = ringway_e2e::shared_turn(&DRIVER_TOOLS) else { return };
    pass_data(few_cases());
}

#[test]
fn dpdk_drivers_pass_data_with_every_ring_layout() {
    let why = "96 combinations take two minutes";
    let Some(_turn) = ringway_e2e::nightly_turn(why, &DRIVER_TOOLS) else { return };
    pass_data(all_cases());
}

fn pass_data(cases: impl Iterator<Item = Case>) {
    let place = tempfile::tempdir().expect("a directory");
    let host = Host::start(&description(place.path()));
    let mut echo = host.in_guest("b", &["socat", "TCP-LISTEN:7,fork,reuseaddr", "EXEC:cat,nofork"]);
    let _echo = Running::start(echo.stderr(Stdio::null()));
    for case in cases {
        let mut wire = Wire::start(place.path(), case);
        if let Err(reason) = wire.start_forwarding(&case) {
            let _ = writeln!(std::io::stderr(), "SKIPPED: {reason}");
            return;
        }
        host.wait(&format!("{case}"), 6 * SOON, |host| {
            let count = |name| host.vif(name).map_or(0, |vif| vif.queues.len());
            names(case.server).into_iter().all(|it| count(it) == case.queues).then_some(())
        });
        check_agreed(&host, case);
        let connections: Vec<EchoConnection> =
            (0..CONNECTIONS).map(|_| EchoConnection::start_with(&host, "a", ECHO)).collect();
        connections.iter().for_each(|echo| echo.expect_progress(&host, &case.to_string()));
        // As a server DPDK accepts another back-end; as a client it does not reconnect.
        if case.server && case.queues == 2 {
            kill_backend(&host);
            let what = format!("{case} after the backend was killed");
            connections.iter().for_each(|echo| echo.expect_progress(&host, &what));
        }
        drop(connections);
        let output = wire.end();
        let paths = paths(&output);
        // With packed rings, or to transmit, it needs AVX512 as well.
        if case.vectorized && !(case.packed || case.mrg_rxbuf || case.in_order) {
            assert!(paths.iter().any(|path| path.contains("vectorized")), "{case}: {paths:?}");
        }
        println!("{case}: {}", paths.join(", "));
    }
}

/// The code paths that DPDK's driver has chosen for the first port, as its log names them.
fn paths(output: &[String]) -> Vec<&str> {
    let lines = output.iter().filter_map(|line| line.split_once("virtio: using "));
    lines.filter_map(|(_, path)| path.strip_suffix(" path on port 0")).collect()
}

/// Pause between two checks whether guests are done.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Bytes that one guest sends and the other returns.
const SENT: usize = 4 << 20;
/// The addresses of the guests.
const GUESTS: [(&str, &str); 2] = [("vm1", "10.77.0.1"), ("vm2", "10.77.0.2")];

/// Two of our guests at two ports of DPDK's device.
fn exchange_over_dpdk(queues: usize, maker: Maker) -> Result<(), String> {
    let what = format!("net_vhost, {queues} queues, {maker:?} makes the sockets");
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let sent: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(SENT).collect();
    std::fs::write(dir.join("sent"), &sent).expect("written");
    let [(first, address), (second, other)] = GUESTS;
    let echo = format!(
        "(socat -t600 - TCP:{other}:7,retry=3000,interval=0.1 < {0}/sent > {0}/back 2> {0}/output; \
         touch {0}/done) & ",
        dir.display()
    );
    // DPDK's device claims 128 queue pairs, and serves as many as its options set.
    let start = |name, address, beside| guest_of(queues, address, dir, name, maker, beside);
    let device = |port: usize| {
        let (path, client) = (dir.join(GUESTS[port].0), u8::from(maker == Maker::Guest));
        format!("net_vhost{port},iface={},queues={queues},client={client}", path.display())
    };
    let mut wire = Wire::between([&device(0), &device(1)], queues, &[]);
    let _guests = [start(second, other, ""), start(first, address, &echo)];
    wire.start_forwarding(&what)?;
    // waits: this limit only ends a test that hangs.
    let limit = Instant::now() + 6 * SOON;
    while !dir.join("done").exists() {
        if Instant::now() > limit {
            wire.output.extend(wire.lines.try_iter());
            panic!("{what}: nothing came back\n{}", wire.output.join("\n"));
        }
        // waits: the guests are other processes.
        thread::sleep(POLL_INTERVAL);
    }
    let back = std::fs::read(dir.join("back")).expect("it was written");
    let output = std::fs::read_to_string(dir.join("output")).unwrap_or_default();
    assert_eq!(back.len(), sent.len(), "{what}: {output}");
    assert!(back == sent, "{what}: it came back changed");
    wire.end();
    println!("{what}");
    Ok(())
}

#[test]
fn our_guests_pass_data_over_a_dpdk_device() {
    let Some(_turn) = ringway_e2e::shared_turn(&[TESTPMD, "stdbuf", "socat", "unshare"]) else {
        return;
    };
    for (queues, maker) in
        [(1, Maker::Backend), (2, Maker::Backend), (1, Maker::Guest), (4, Maker::Guest)]
    {
        if let Err(reason) = exchange_over_dpdk(queues, maker) {
            let _ = writeln!(std::io::stderr(), "SKIPPED: {reason}");
            return;
        }
    }
}

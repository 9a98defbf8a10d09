//! The test host: honest guests on an emulated host, and hostile ones that come and go.

use std::net::Ipv4Addr;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ringway_control::{BackendRequest, BackendStatus, RunDir, open};
use ringway_datapath::MacAddr;
use ringway_rig::child::Child;
use ringway_rig::host::RunningHost;
use ringway_rig::launcher::Launcher;
use ringway_xenbus::Vif;

use crate::acts::confined::{ATTACKER, COMPROMISED, CONFINED, REACHED};
use crate::guest::wait;
use crate::machine::SOON;
use crate::measure::ping::Pings;
use crate::measure::tcp::{Transfer, now};
use crate::measure::{backend, burner};
use crate::place::Toolstack;
use crate::record::{FRAME_MEMORY_MIB, Round, Window};
use crate::scenario::{Beside, Control, Lives, Net, Scenario};
use crate::stage::{Account, Aim, Peer};

const A: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The address of a guest without offloads, for which frames are segmented.
const PLAIN: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);
const BRIDGE: &str = "rwhostile0";
/// Extra time in which a hostile guest must connect and report.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait for a guest that ends early.
const LIFE_PATIENCE: Duration = Duration::from_secs(30);

/// The lengths of the parts of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lengths {
    /// The part without an attack.
    pub(crate) idle: Duration,
    /// The part with the attack, and the one with the control.
    pub(crate) act: Duration,
}

/// A host with two honest guests that exchange TCP all the time, and a third one.
pub(crate) struct TestHost<'a> {
    launcher: &'a Launcher,
    // The fields are dropped in this order: first the users of the host, then the host.
    transfer: Transfer,
    toolstack: Toolstack,
    host: RunningHost,
    net: Net,
    aim: Aim,
    honest: Vec<u16>,
    /// The last measurement without an attack, and its time.
    rest: Option<(Instant, Window)>,
    seed: u64,
}

/// The output of a hostile guest when it begins.
pub(crate) const STARTED: &str = "started";

impl<'a> TestHost<'a> {
    /// Starts a host with ringway's program.
    pub(crate) fn new(launcher: &'a Launcher, ringway: &Path, net: Net) -> Result<TestHost<'a>> {
        let host = RunningHost::start(launcher, ringway, &describe(net))?;
        let dir = host.dir();
        let status = backend::status(&dir).context("the backend does not reply")?;
        let honest = status.vifs.iter().filter_map(|vif| vif.domid).collect();
        let address = |name: &str| mac_of(&status, name);
        let (a, b) = (Peer { ip: A, mac: address("a")? }, Peer { ip: B, mac: address("b")? });
        let plain = Peer { ip: PLAIN, mac: address("plain")? };
        let [from, to, _] = *host.guests() else { bail!("the host does not have three guests") };
        let known = wait("the host's address", || {
            Pings::start(launcher, from, HOST, Duration::from_millis(20))?.finish()?;
            Ok(neighbour(from, HOST))
        })?;
        let host_peer = Peer { ip: HOST, mac: known };
        let aim =
            Aim { victim: Some(a), other: Some(b), host: Some(host_peer), plain: Some(plain) };
        let transfer = Transfer::start(launcher, [from, to], B)?;
        let toolstack = Toolstack::join(dir.path())?;
        let host =
            TestHost { launcher, transfer, toolstack, host, net, aim, honest, rest: None, seed: 0 };
        if !host.moves() {
            bail!("no TCP connection between honest guests within {} s", SOON.as_secs());
        }
        Ok(host)
    }

    /// The network that it uses.
    pub(crate) fn net(&self) -> Net {
        self.net
    }

    fn dir(&self) -> RunDir {
        self.host.dir()
    }

    fn memory_kib(&self) -> u64 {
        let status = backend::status(&self.dir());
        status.and_then(|status| backend::memory_kib(status.pid)).unwrap_or(0)
    }

    /// Whether TCP makes progress, if need be within 60 s, and the backend replies.
    fn moves(&self) -> bool {
        let (before, deadline) = (self.transfer.total(), Instant::now() + SOON);
        while Instant::now() < deadline && !self.launcher.stop().is_due() {
            if self.transfer.total() > before + (1 << 20) {
                return backend::status(&self.dir()).is_some();
            }
            // waits: it counts again until more has arrived.
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    /// Measures honest guests during an attack, or without one.
    fn window(
        &self,
        length: Duration,
        mut happen: impl FnMut(Instant) -> Result<()>,
    ) -> Result<Window> {
        let from = self.host.guests()[0];
        let pings = [B, HOST].map(|to| Pings::start(self.launcher, from, to, length));
        let (start, deadline) = (now(), Instant::now() + length);
        happen(deadline)?;
        // waits: this is the time that is measured.
        std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
        let end = now();
        let [to_guest, to_host] = pings;
        let (to_guest, to_host) = (to_guest?.finish()?, to_host?.finish()?);
        Ok(Window { tcp: self.transfer.between(start, end), to_guest, to_host })
    }

    /// The measurement without an attack: taken now, or a moment ago.
    fn rest(&mut self, length: Duration) -> Result<Window> {
        if let Some((when, window)) = self.rest {
            if when.elapsed() < 2 * length {
                return Ok(window);
            }
        }
        let window = self.window(length, |_| Ok(()))?;
        self.rest = Some((Instant::now(), window));
        Ok(window)
    }

    /// One run of a scenario.
    pub(crate) fn run(&mut self, scenario: &Scenario, lengths: Lengths) -> Result<Round> {
        let before = self.rest(lengths.idle)?;
        let mut round = Round { before, memory_before_kib: self.memory_kib(), ..Round::default() };
        let watch = backend::Watch::start(&self.dir(), &self.honest);
        let capture = (scenario.beside == Beside::UnreadCapture).then(|| self.capture());
        match (scenario.beside, scenario.lives) {
            (Beside::ConfinedBackend, _) => {
                self.break_into(scenario.name, lengths.act, &mut round)?;
            }
            (_, Lives::One) => self.act(scenario, lengths.act, &mut round)?,
            (_, Lives::Many) => self.live(scenario, lengths.act, &mut round)?,
        }
        drop(capture.transpose()?);
        if scenario.beside == Beside::Routers {
            round.failures.extend(self.routers());
        }
        round.has_recovered = self.moves();
        round.seen = watch.finish();
        if scenario.control == Control::SameCpu && round.has_recovered {
            let burners = burner::start(self.launcher, round.cpus)?;
            round.control = Some(self.window(lengths.act, |_| Ok(()))?);
            drop(burners);
        }
        self.rest = None;
        round.after = self.rest(lengths.idle)?;
        round.memory_after_kib = self.memory_kib();
        Ok(round)
    }

    /// A capture of an honest guest's frames that is not read.
    fn capture(&self) -> Result<impl Sized + use<>> {
        let vif = format!("vif{}.0", self.honest.first().copied().unwrap_or_default());
        let request = BackendRequest::Capture { vif, snap_len: 65_535 };
        let ((), stream) = open(&self.dir().backend(), &request).context("capture")?;
        Ok(stream)
    }

    /// Routers that honest guests have accepted; there should be none.
    fn routers(&self) -> Vec<String> {
        let has_router = |pid: &&u32| {
            let routes = std::fs::read_to_string(format!("/proc/{pid}/net/ipv6_route"));
            // Destination, its prefix length, source, its prefix length, the router.
            let is_default = |line: &str| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let is_any = |text: &str| text.bytes().all(|byte| byte == b'0');
                matches!(fields[..], [to, "00", _, _, by, ..] if is_any(to) && !is_any(by))
            };
            routes.is_ok_and(|routes| routes.lines().any(is_default))
        };
        let count = self.host.guests().iter().filter(has_router).count();
        let found = format!("{count} honest guests took the hostile one for their router");
        (count > 0).then_some(found).into_iter().collect()
    }

    /// Runs a process that is confined like the backend and tries to reach something else.
    fn break_into(&mut self, name: &str, length: Duration, round: &mut Round) -> Result<()> {
        let elsewhere = self.launcher.dir()?;
        let socket = elsewhere.path().join("socket");
        let listener = UnixListener::bind(&socket)?;
        let mut command = self.launcher.command(self.launcher.program());
        command.args([COMPROMISED, name]).arg(self.dir().path()).arg(&socket);
        let child = self.launcher.start("a confined process", command)?;
        round.during = self.window(length, |_| Ok(()))?;
        let said = child.ended(PATIENCE)?.output;
        drop(listener);
        let _ = std::fs::remove_dir_all(self.dir().tenant(ATTACKER).path());
        if !said.lines().any(|line| line == CONFINED) {
            round.failures.push(format!("the process was not confined: {}", said.trim()));
        }
        if said.lines().any(|line| line == REACHED) {
            round.failures.push("a confined process reached what it should not".to_owned());
        }
        Ok(())
    }

    fn act(&mut self, scenario: &Scenario, length: Duration, round: &mut Round) -> Result<()> {
        let mut hostile = Vec::new();
        for _ in 0..scenario.guests {
            hostile.push(self.start(scenario, length + Duration::from_millis(200))?);
        }
        for (_, child) in &mut hostile {
            let is_start = |line: &str| (line == STARTED).then_some(());
            if let Err(error) = child.wait_for(PATIENCE, is_start) {
                round.failures.push(error.to_string());
            }
        }
        let start = Instant::now();
        round.during = self.window(length, |_| Ok(()))?;
        let seconds = start.elapsed().min(length).as_secs_f64();
        let used: f64 = hostile.iter().map(|(_, child)| cpu_seconds(child.pid())).sum();
        round.cpus = used / seconds.max(1e-3);
        for (vif, child) in hostile {
            self.finish(vif, child, length + PATIENCE, round)?;
        }
        Ok(())
    }

    /// Runs one guest after another; each ends at a moment of its choice.
    fn live(&mut self, scenario: &Scenario, length: Duration, round: &mut Round) -> Result<()> {
        let from = self.host.guests()[0];
        let pings = [B, HOST].map(|to| Pings::start(self.launcher, from, to, length));
        let (start, deadline) = (now(), Instant::now() + length);
        let mut lives = 0;
        while Instant::now() < deadline {
            let (vif, child) = self.start(scenario, Duration::from_secs(1))?;
            self.finish(vif, child, LIFE_PATIENCE, round)?;
            lives += 1;
        }
        let end = now();
        let [to_guest, to_host] = pings;
        let (to_guest, to_host) = (to_guest?.finish()?, to_host?.finish()?);
        round.during = Window { tcp: self.transfer.between(start, end), to_guest, to_host };
        let counts = [("lives".to_owned(), lives)].into();
        round.accounts.push(Account { counts, is_served: true, ..Account::default() });
        Ok(())
    }

    /// Creates a domain and starts its process.
    fn start(&mut self, scenario: &Scenario, length: Duration) -> Result<(Vif, Child)> {
        let bridge = (self.net == Net::Bridge).then_some(BRIDGE);
        let vif = self.toolstack.make_guest(bridge, scenario.given)?;
        self.seed += 1;
        let mut command = self.launcher.command(self.launcher.program());
        command.args(["guest", scenario.name, "--json", "--dir"]).arg(self.dir().path());
        for (option, value) in [
            ("--domid", vif.frontend.to_string()),
            ("--seconds", length.as_secs_f64().to_string()),
            ("--seed", self.seed.to_string()),
        ] {
            command.args([option, &value]);
        }
        for (option, peer) in [
            ("--victim", self.aim.victim),
            ("--victim-peer", self.aim.other),
            ("--host", self.aim.host),
            ("--no-gso-victim", self.aim.plain),
        ] {
            if let Some(peer) = peer {
                command.args([option, &peer.to_string()]);
            }
        }
        Ok((vif, self.launcher.start("a hostile guest", command)?))
    }

    /// Waits for the end of a hostile guest, reads its report, and removes its domain.
    fn finish(
        &mut self,
        vif: Vif,
        child: Child,
        patience: Duration,
        round: &mut Round,
    ) -> Result<()> {
        match child.ended(patience) {
            Ok(ended) if ended.status.success() => {
                let last = ended.output.lines().next_back().unwrap_or_default();
                match serde_json::from_str(last) {
                    Ok(account) => round.accounts.push(account),
                    Err(error) => round.failures.push(format!("{error}: {last}")),
                }
            }
            Ok(ended) => round.failures.push(ended.output.trim().replace('\n', " / ")),
            Err(error) if self.launcher.stop().is_due() => return Err(error.into()),
            Err(error) => round.failures.push(error.to_string()),
        }
        self.toolstack.remove_guest(vif)
    }
}

fn describe(net: Net) -> String {
    let memory = FRAME_MEMORY_MIB;
    let mut text =
        format!("[host]\nnetwork = \"private\"\nmax-queues = 8\nframe-memory-mib = {memory}\n");
    let addresses = format!("addresses = [\"{HOST}/24\"]\n");
    let bridge = match net {
        Net::Switch => {
            text += &format!("[uplink]\n{addresses}[switch]\nmulticast-snooping = true\n");
            String::new()
        }
        Net::Bridge => {
            text += &format!("[[bridge]]\nname = \"{BRIDGE}\"\n{addresses}");
            format!("bridge = \"{BRIDGE}\"\n")
        }
    };
    let without = "sg = false\ncsum = false\ngso = false\n";
    for (name, address, offloads) in [("a", A, ""), ("b", B, ""), ("plain", PLAIN, without)] {
        let end = address.octets()[3];
        text += &format!(
            "[[guest]]\nname = \"{name}\"\n[[guest.vif]]\nqueues = 4\n{offloads}{bridge}\
             addresses = [\"{address}/24\", \"fd77::{end}/64\"]\n"
        );
    }
    text
}

fn mac_of(status: &BackendStatus, guest: &str) -> Result<MacAddr> {
    let vif = status.vifs.iter().find(|vif| vif.guest.as_deref() == Some(guest));
    let mac = vif.and_then(|vif| MacAddr::parse(vif.mac.as_deref()?));
    mac.with_context(|| format!("the backend knows no address of guest {guest}"))
}

/// The Ethernet address of a neighbour in a guest's kernel.
fn neighbour(pid: u32, ip: Ipv4Addr) -> Option<MacAddr> {
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/arp")).ok()?;
    let ip = ip.to_string();
    let mut rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.first() == Some(&ip.as_str()))?;
    MacAddr::parse(row.get(3)?).filter(|mac| mac.0 != [0; 6])
}

fn cpu_seconds(pid: u32) -> f64 {
    let time = ringway_sys::process::cpu_time(pid).unwrap_or_default();
    (time.user + time.system).as_secs_f64()
}

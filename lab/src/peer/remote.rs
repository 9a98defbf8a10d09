//! The lab's side of the connection to the agent.

use std::collections::{BTreeSet, VecDeque};
use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::protocol::{
    ProtocolError, REQUEST_BYTES_MAX, Reply, Request, lines, parse, plain, send,
};
use super::sample::{Sample, interface_towards};
use super::{Destination, agent, ssh};
use crate::metric;
use crate::record::{Host, Peer};
use crate::word::name_of;
use ringway_rig::child::PartError;
use ringway_rig::launcher::Launcher;
use ringway_rig::machine::Build;
use ringway_rig::stop::Stop;
use ringway_rig::tools::{Load, Role, StreamReport, Tool};

/// How long ssh may take to connect, and the agent to start.
const HELLO_PATIENCE: Duration = Duration::from_secs(60);
/// How long the agent may take for a reply, beyond the time of a run.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long ssh may take to end after its input has ended.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// How often a wait checks whether to stop.
const POLL_PAUSE: Duration = Duration::from_millis(50);
/// Lines before the greeting: what a login shell prints.
const NOISE_LINES_MAX: usize = 100;
/// Bytes that are kept of what ssh prints.
const SAID_MAX: usize = 4_096;
/// Characters of what the peer says that an error shows.
const SHOWN_MAX: usize = 500;
/// Characters of a word of the peer's description.
const WORD_MAX: usize = 300;
/// Words of a list, or tools, of the peer's description.
const WORDS_MAX: usize = 64;
/// Values of a course.
const COURSE_MAX: usize = 256;
/// The largest number of a measurement: more than any rate in bit/s, or seconds.
const VALUE_MAX: f64 = 1e15;

/// A connection to an agent. Dropping it ends the agent and everything that it has started.
#[derive(Debug)]
pub struct Remote {
    ssh: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Result<Vec<u8>, ProtocolError>>,
    said: Arc<Mutex<VecDeque<u8>>>,
    /// The thread that reads what ssh prints.
    reader: Option<JoinHandle<()>>,
    to: Destination,
    stop: Stop,
}

impl Remote {
    /// Starts an agent on the peer, which must be of the same build. It ends by itself if it gets
    /// no request for `idle`.
    ///
    /// # Errors
    /// With cause and remedy, if there is no connection, no program or another version.
    pub fn connect(
        launcher: &Launcher,
        to: &Destination,
        build: &Build,
        idle: Duration,
    ) -> Result<Remote, PartError> {
        let mut command = ssh::agent(launcher, to, idle);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut ssh = command.spawn().map_err(PartError::at("start ssh"))?;
        let (input, output) = (ssh.stdin.take(), ssh.stdout.take());
        let said = Arc::new(Mutex::new(VecDeque::new()));
        let errors = ssh.stderr.take();
        let reader = errors.map(|errors| keep_end(errors, Arc::clone(&said)));
        let lines = lines(output.expect("it is piped above"));
        let stop = launcher.stop().clone();
        let mut remote = Remote { ssh, input, lines, said, reader, to: to.clone(), stop };
        remote.greet(build)?;
        Ok(remote)
    }

    /// Waits for the greeting, and compares the builds.
    fn greet(&mut self, build: &Build) -> Result<(), PartError> {
        let deadline = Instant::now() + HELLO_PATIENCE;
        let mut noise = String::new();
        for _ in 0..NOISE_LINES_MAX {
            let Some(line) = self.line_by(deadline)? else {
                let status = self.ended(END_PATIENCE);
                let said = format!("{} {}", self.said(), noise);
                let code = status.and_then(|status| status.code());
                let text = ssh::explained(&self.to, said.trim(), code);
                return Err(PartError::Failed(text));
            };
            match parse(&line) {
                Ok(Reply::Hello { version, commit }) => {
                    let theirs = Build { version, commit };
                    return same_build(&self.to, build, &theirs).map_err(PartError::Failed);
                }
                Ok(_) => break,
                // A login shell may print something of its own.
                Err(_) => noise = plain(&String::from_utf8_lossy(&line), SHOWN_MAX),
            }
        }
        Err(self.broken(&format!("no greeting of a ringway agent but `{noise}`")))
    }

    /// Asks for something, and waits for the reply.
    fn ask(&mut self, request: &Request, patience: Duration) -> Result<Reply, PartError> {
        let bytes = serde_json::to_vec(request).map_or(usize::MAX, |bytes| bytes.len());
        if bytes > REQUEST_BYTES_MAX {
            return Err(PartError::Failed("a run has too many streams for a peer".to_owned()));
        }
        let sent = match &mut self.input {
            Some(input) => send(input, request).is_ok(),
            None => false,
        };
        let line = if sent { self.line_by(Instant::now() + patience)? } else { None };
        let Some(line) = line else {
            let _ = self.ended(END_PATIENCE);
            return Err(self.broken("the connection ended"));
        };
        match parse(&line) {
            Ok(Reply::Failed { reason }) => {
                Err(PartError::Failed(format!("{}: {}", self.to.host, plain(&reason, SHOWN_MAX))))
            }
            Ok(reply) => Ok(reply),
            Err(error) => Err(self.broken(&error.to_string())),
        }
    }

    /// Makes a request without a result.
    fn order(&mut self, request: &Request, patience: Duration) -> Result<(), PartError> {
        match self.ask(request, patience)? {
            Reply::Done => Ok(()),
            _ => Err(self.unexpected()),
        }
    }

    /// Describes the peer and the path to it, and says which of the tools it lacks.
    ///
    /// # Errors
    /// If the peer has none of the addresses, or there is no route to it.
    pub fn describe(
        &mut self,
        launcher: &Launcher,
        tools: &BTreeSet<Tool>,
    ) -> Result<(Peer, Vec<String>), PartError> {
        let addresses = ssh::addresses(launcher, &self.to)?;
        let tools = tools.iter().map(|tool| name_of(*tool).to_owned()).collect();
        let request = Request::Describe { tools, addresses: addresses.clone() };
        let Reply::Machine { host, missing, interface } = self.ask(&request, PATIENCE)? else {
            return Err(self.unexpected());
        };
        let name = self.to.host.clone();
        let known = interface.filter(|interface| addresses.contains(&interface.address));
        let Some(mut interface) = known else {
            let all: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            return Err(PartError::Failed(format!(
                "{name} has no interface with the address {}, as behind a jump host or NAT: name \
                 an address of it that this machine reaches with --peer-address",
                all.join(" or ")
            )));
        };
        interface.name = plain(&interface.name, WORD_MAX);
        let near_interface = interface_towards(interface.address).map_err(|error| {
            let remedy = format!("name another address of {name} with --peer-address");
            PartError::Failed(format!("{error}; {remedy}"))
        })?;
        let missing = missing.iter().take(WORDS_MAX).map(|one| plain(one, WORD_MAX)).collect();
        Ok((Peer { name, interface, near_interface, host: plain_host(*host) }, missing))
    }

    /// Checks that this machine can connect to a port of the peer.
    ///
    /// # Errors
    /// With the remedy, if it cannot.
    pub fn try_to(&mut self, peer: &Peer, port: u16) -> Result<(), PartError> {
        let address = peer.interface.address;
        self.order(&Request::Listen { address, port }, PATIENCE)?;
        agent::connect(address, port).map_err(|error| {
            PartError::Failed(format!(
                "this machine: {error}; let a firewall on {} pass TCP to its ports from {port} \
                 on, or name another address of it with --peer-address",
                peer.name
            ))
        })
    }

    /// Checks that the peer can connect to a port of this machine.
    ///
    /// # Errors
    /// With the remedy, if it cannot.
    pub fn try_from(&mut self, peer: &Peer, port: u16) -> Result<(), PartError> {
        let address = peer.near_interface.address;
        let _listener = TcpListener::bind((address, port))
            .map_err(PartError::at(format!("listen on {address}:{port}")))?;
        self.order(&Request::Connect { address, port }, PATIENCE).map_err(|error| {
            PartError::Failed(format!(
                "{error}; let a firewall here pass TCP to this machine's ports from {port} on"
            ))
        })
    }

    /// Starts the peer's end of some streams.
    ///
    /// # Errors
    /// If a program does not start there.
    pub fn start(
        &mut self,
        group: u32,
        tool: Tool,
        role: Role,
        load: &Load,
    ) -> Result<(), PartError> {
        let tool = name_of(tool).to_owned();
        self.order(&Request::Start { group, tool, role, load: load.clone() }, PATIENCE)
    }

    /// Reads the peer's counters.
    ///
    /// # Errors
    /// If a program has ended there.
    pub fn sample(&mut self, interface: &str) -> Result<Sample, PartError> {
        match self.ask(&Request::Sample { interface: interface.to_owned() }, PATIENCE)? {
            Reply::Counters { sample } if !is_sound_sample(&sample) => {
                Err(self.broken("counters that cannot be"))
            }
            Reply::Counters { mut sample } => {
                sample.interface.name = plain(&sample.interface.name, WORD_MAX);
                Ok(sample)
            }
            _ => Err(self.unexpected()),
        }
    }

    /// Waits for what the peer's end of a group reports, whose streams end within `seconds`.
    ///
    /// # Errors
    /// If a tool failed there, or the report is not one.
    pub fn finish(
        &mut self,
        group: u32,
        streams: usize,
        seconds: f64,
    ) -> Result<Vec<StreamReport>, PartError> {
        let patience = PATIENCE + Duration::from_secs_f64(seconds);
        let Reply::Finished { mut reports } = self.ask(&Request::Finish { group }, patience)?
        else {
            return Err(self.unexpected());
        };
        if reports.len() != streams {
            return Err(self.broken("it reports another number of streams"));
        }
        for report in &mut reports {
            checked(report).map_err(|fault| self.broken(&fault))?;
        }
        Ok(reports)
    }

    /// Ends everything that runs on the peer.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn clear(&mut self) -> Result<(), PartError> {
        self.order(&Request::Clear, PATIENCE)
    }

    /// The next line; `None` when the connection has ended.
    fn line_by(&mut self, deadline: Instant) -> Result<Option<Vec<u8>>, PartError> {
        loop {
            match self.lines.recv_timeout(POLL_PAUSE) {
                Ok(Ok(line)) => return Ok(Some(line)),
                Ok(Err(error)) => return Err(self.broken(&error.to_string())),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.stop.is_due() {
                return Err(PartError::Interrupted);
            }
            if Instant::now() >= deadline {
                return Err(self.broken("no reply in time"));
            }
        }
    }

    /// The error of a connection that cannot be used any more. The agent ends with its input.
    fn broken(&mut self, what: &str) -> PartError {
        self.input = None;
        let said = match self.said() {
            said if said.is_empty() => String::new(),
            said => format!(" ({said})"),
        };
        PartError::Failed(format!("{}: {what}{said}", self.to.host))
    }

    fn unexpected(&mut self) -> PartError {
        self.broken("it replied to something else")
    }

    /// The last lines that ssh and the agent printed.
    fn said(&self) -> String {
        let mut kept = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(kept.make_contiguous()).into_owned();
        let lines: Vec<String> = text.lines().map(|line| plain(line, SHOWN_MAX)).collect();
        let mut lines: Vec<&str> =
            lines.iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
        lines.dedup();
        lines[lines.len().saturating_sub(LINES_SHOWN)..].join(" / ")
    }

    /// Closes the agent's input, and waits until ssh has ended and everything that it printed is
    /// read; `None` if it does not end.
    fn ended(&mut self, patience: Duration) -> Option<ExitStatus> {
        self.input = None;
        let deadline = Instant::now() + patience;
        loop {
            let status = self.ssh.try_wait().ok().flatten();
            // A connection that ssh shares with others keeps its outputs open.
            let is_read = self.reader.as_ref().is_none_or(JoinHandle::is_finished);
            match status {
                Some(_) if is_read => return status,
                _ if Instant::now() >= deadline => return status,
                _ => thread::sleep(POLL_PAUSE),
            }
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if self.ended(END_PATIENCE).is_none() {
            let _ = self.ssh.kill();
        }
        let _ = self.ssh.wait();
    }
}

/// Lines of ssh that an error shows.
const LINES_SHOWN: usize = 6;

/// Refuses another build: its protocol and its way to measure may differ.
fn same_build(to: &Destination, ours: &Build, theirs: &Build) -> Result<(), String> {
    if ours == theirs {
        return Ok(());
    }
    let name = |build: &Build| {
        format!("{} ({})", plain(&build.version, WORD_MAX), plain(&build.commit, WORD_MAX))
    };
    Err(format!(
        "{} has ringway {}, and this is {}: install the same build on both machines, or name it \
         with --peer-command",
        to.host,
        name(theirs),
        name(ours)
    ))
}

/// The peer's description without anything that a terminal or a page could act on.
fn plain_host(host: Host) -> Host {
    let word = |text: String| plain(&text, WORD_MAX);
    let pair = |(name, version): (String, String)| (word(name), word(version));
    Host {
        cpu_model: word(host.cpu_model),
        kernel: word(host.kernel),
        os: word(host.os),
        hypervisor: word(host.hypervisor),
        ringway_version: word(host.ringway_version),
        git_commit: word(host.git_commit),
        tools: host.tools.into_iter().take(WORDS_MAX).map(pair).collect(),
        clock_source: word(host.clock_source),
        mitigations: host.mitigations.into_iter().take(WORDS_MAX).map(word).collect(),
        date: word(host.date),
        ..host
    }
}

/// Whether a number can be one of a measurement. Sums of such numbers are finite.
fn is_sound(value: f64) -> bool {
    (0.0..=VALUE_MAX).contains(&value)
}

fn is_sound_sample(sample: &Sample) -> bool {
    let machine = sample.machine;
    let times = [sample.at_seconds, sample.user, sample.system];
    let all = [machine.busy, machine.softirq, machine.steal, sample.cpu_mhz.unwrap_or_default()];
    times.into_iter().chain(all).all(is_sound)
}

/// Checks the numbers and names of a report.
fn checked(report: &mut StreamReport) -> Result<(), String> {
    if let Some(result) = &report.result {
        let unknown = result.values.keys().chain(result.course.as_ref().map(|(name, _)| name));
        if let Some(name) = unknown.into_iter().find(|name| metric::find(name).is_none()) {
            return Err(format!("there is no metric `{}`", plain(name, WORD_MAX)));
        }
        let course = result.course.iter().map(|(_, course)| course);
        if course.clone().any(|one| one.values.len().max(one.quantiles.len()) > COURSE_MAX) {
            return Err("a course of too many values".to_owned());
        }
        if course.clone().any(|one| !is_sound(one.step_seconds) || one.step_seconds == 0.0) {
            return Err("a course without steps".to_owned());
        }
        let of_course = course.flat_map(|one| one.values.iter().flatten().chain(&one.quantiles));
        let mut all = result.bps.iter().chain(result.values.values()).chain(of_course);
        if !all.all(|value| is_sound(*value)) {
            return Err("a value that cannot be".to_owned());
        }
    }
    if let Some(run) = &mut report.run {
        for text in [&mut run.name, &mut run.version, &mut run.command] {
            *text = plain(text, WORD_MAX);
        }
    }
    Ok(())
}

/// Keeps the end of what is printed.
fn keep_end(
    mut from: impl Read + Send + 'static,
    into: Arc<Mutex<VecDeque<u8>>>,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut chunk = [0; 1_024];
        while let Ok(count @ 1..) = from.read(&mut chunk) {
            let mut kept = into.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend(&chunk[..count]);
            let surplus = kept.len().saturating_sub(SAID_MAX);
            kept.drain(..surplus);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_rig::tools::{Course, StreamResult, ToolRun};

    fn build(version: &str, commit: &str) -> Build {
        Build { version: version.to_owned(), commit: commit.to_owned() }
    }

    #[test]
    fn another_build_is_refused_with_both_versions() {
        let to = Destination {
            host: "red".to_owned(),
            ssh: vec!["ssh".to_owned()],
            program: "ringway".to_owned(),
            address: None,
        };
        let ours = build("1.0.0", "abc");
        assert_eq!(same_build(&to, &ours, &build("1.0.0", "abc")), Ok(()));
        for other in [build("0.9.0\x1b[31m", "abc"), build("1.0.0", "def")] {
            let text = same_build(&to, &ours, &other).expect_err("another");
            assert!(text.contains("1.0.0 (abc)") && !text.contains('\x1b'), "{text}");
            assert!(text.contains("install the same build"), "{text}");
        }
    }

    #[test]
    fn a_report_of_the_peer_is_checked_before_it_is_used() {
        let of = |bps: f64, name: &str| StreamReport {
            result: Some(StreamResult {
                bps: Some(bps),
                values: [(name.to_owned(), 1.0)].into(),
                course: None,
            }),
            run: Some(ToolRun {
                name: "iperf3".to_owned(),
                version: "\x1b[1m3.12".to_owned(),
                command: "iperf3\n".repeat(1_000),
                exit_status: 0,
            }),
        };
        let mut good = of(1e9, "retransmits");
        assert_eq!(checked(&mut good), Ok(()));
        let run = good.run.expect("it is still there");
        assert_eq!(run.version, "[1m3.12");
        assert!(run.command.len() <= WORD_MAX);
        for mut bad in [
            of(-1.0, "retransmits"),
            of(f64::NAN, "retransmits"),
            of(1e300, "retransmits"),
            of(1.0, "luck"),
        ] {
            assert!(checked(&mut bad).is_err(), "{bad:?}");
        }
        let mut long = of(1.0, "retransmits");
        let course = Course { step_seconds: 0.1, values: vec![None; 9_999], quantiles: vec![] };
        long.result.as_mut().expect("one").course = Some(("throughput-bps".to_owned(), course));
        assert!(checked(&mut long).is_err());
    }
}

//! The agent on the peer: it starts the far ends of streams, and reads counters there.
//!
//! It does what its standard input asks, one request after another. It ends, with everything that
//! it started, when its input ends, when a signal ends it, or when no request has come for as long
//! as the lab said. It starts only the tools of the lab, and builds their command lines itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use super::protocol::{ProtocolError, Reply, Request, lines, parse, plain, send};
use super::sample::{Sample, interface_with};
use crate::preflight;
use ringway_rig::child::PartError;
use ringway_rig::launcher::Launcher;
use ringway_rig::machine::{self, Build};
use ringway_rig::tools::{Half, Load, Place, Role, Tool};

/// Groups of streams at once: those that are measured, and a load in each direction.
const GROUPS_MAX: usize = 4;
/// Streams of a group.
const FLOWS_MAX: usize = 512;
/// Seconds of a run: a day, as in studies.
const SECONDS_MAX: f64 = 86_400.0;
/// The longest time for a connection to be made.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// Characters of a reason.
const REASON_MAX: usize = 2_000;

/// The state of an agent.
struct Agent<'a> {
    build: &'a Build,
    launcher: &'a Launcher,
    origin: Instant,
    groups: BTreeMap<u32, Half>,
    listener: Option<TcpListener>,
}

/// Serves requests from `input` until it ends, or until none has come for `idle`.
///
/// # Errors
/// If a line is not a request, no request came in time, or the lab is gone.
pub fn serve(
    build: &Build,
    launcher: &Launcher,
    input: impl Read + Send + 'static,
    output: &mut impl Write,
    idle: Duration,
) -> Result<(), ProtocolError> {
    let lines = lines(input);
    send(output, &Reply::Hello { version: build.version.clone(), commit: build.commit.clone() })?;
    let origin = Instant::now();
    let mut agent = Agent { build, launcher, origin, groups: BTreeMap::new(), listener: None };
    loop {
        let line = match lines.recv_timeout(idle) {
            Ok(line) => line?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                return Err(ProtocolError::Io(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no request for {} seconds", idle.as_secs()),
                )));
            }
        };
        let reply = match parse(&line).map(|request| agent.reply(request)) {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => failed(&error.to_string()),
            Err(error) => {
                // Whatever sends this is not a lab of our version.
                send(output, &failed(&error.to_string()))?;
                return Err(error);
            }
        };
        send(output, &reply)?;
    }
}

fn failed(reason: &str) -> Reply {
    Reply::Failed { reason: plain(reason, REASON_MAX) }
}

impl Agent<'_> {
    fn reply(&mut self, request: Request) -> Result<Reply, PartError> {
        // A port is open for one check only.
        self.listener = None;
        match request {
            Request::Describe { tools, addresses } => self.describe(&tools, &addresses),
            Request::Listen { address, port } => {
                let listener = TcpListener::bind((address, port))
                    .map_err(PartError::at(format!("listen on {address}:{port}")))?;
                self.listener = Some(listener);
                Ok(Reply::Done)
            }
            Request::Connect { address, port } => connect(address, port).map(|()| Reply::Done),
            Request::Start { group, tool, role, load } => self.start(group, &tool, role, &load),
            Request::Sample { interface } => {
                let pids: Vec<u32> = self.groups.values().flat_map(Half::pids).collect();
                let sample = Sample::take(self.origin, &pids, &interface)?;
                Ok(Reply::Counters { sample })
            }
            Request::Finish { group } => {
                let half = self.groups.remove(&group);
                let half = half.ok_or_else(|| refused(format!("there is no group {group}")))?;
                Ok(Reply::Finished { reports: half.finish()? })
            }
            Request::Clear => {
                self.groups.clear();
                Ok(Reply::Done)
            }
        }
    }

    fn describe(&self, tools: &[String], addresses: &[Ipv4Addr]) -> Result<Reply, PartError> {
        let tools: BTreeSet<Tool> =
            tools.iter().map(|name| tool(name)).collect::<Result<_, _>>()?;
        Ok(Reply::Machine {
            host: Box::new(machine::describe(self.build, &tools)),
            missing: preflight::absent_tools(&tools),
            interface: interface_with(addresses)?,
        })
    }

    fn start(
        &mut self,
        group: u32,
        name: &str,
        role: Role,
        load: &Load,
    ) -> Result<Reply, PartError> {
        let is_time = |seconds: f64| (0.0..=SECONDS_MAX).contains(&seconds);
        if load.flows.len() > FLOWS_MAX || self.groups.len() >= GROUPS_MAX {
            return Err(refused(format!("more than {GROUPS_MAX} groups of {FLOWS_MAX} streams")));
        }
        if !is_time(load.seconds) || !is_time(load.warmup_seconds) {
            return Err(refused(format!("a run of more than {SECONDS_MAX} seconds")));
        }
        let half = Half::start(tool(name)?, role, Place::Here, self.launcher, load)?;
        self.groups.insert(group, half);
        Ok(Reply::Done)
    }
}

fn refused(what: String) -> PartError {
    PartError::Failed(what)
}

fn tool(name: &str) -> Result<Tool, PartError> {
    let found = Tool::NAMES.iter().find(|(known, _)| *known == name);
    let found = found.filter(|(_, tool)| tool.has_source_ports());
    found.map(|(_, tool)| *tool).ok_or_else(|| refused("there is no such tool".to_owned()))
}

/// Connects to a port, and closes the connection.
///
/// # Errors
/// If it cannot, within a few seconds.
pub fn connect(address: Ipv4Addr, port: u16) -> Result<(), PartError> {
    let there = SocketAddr::from((address, port));
    TcpStream::connect_timeout(&there, CONNECT_PATIENCE)
        .map(drop)
        .map_err(PartError::at(format!("connect to {there}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an agent replies to this input, after its greeting.
    fn replies(input: &'static [u8]) -> (Vec<Reply>, Result<(), ProtocolError>) {
        let build = Build { version: "1.2.3".to_owned(), commit: "unknown".to_owned() };
        let launcher = Launcher::new(&[], &std::env::temp_dir(), Default::default());
        let mut output = Vec::new();
        let idle = Duration::from_secs(60);
        let ended = serve(&build, &launcher.expect("a program"), input, &mut output, idle);
        let text = String::from_utf8(output).expect("JSON");
        let mut replies: Vec<Reply> =
            text.lines().map(|line| serde_json::from_str(line).expect("a reply")).collect();
        let greeting = replies.remove(0);
        let Reply::Hello { version, .. } = greeting else { panic!("{greeting:?}") };
        assert_eq!(version, "1.2.3");
        (replies, ended)
    }

    fn reason(reply: &Reply) -> &str {
        let Reply::Failed { reason } = reply else { panic!("{reply:?}") };
        reason
    }

    #[test]
    fn it_greets_and_ends_with_its_input() {
        let (replies, ended) = replies(b"");
        assert!(replies.is_empty() && ended.is_ok());
    }

    #[test]
    fn it_describes_its_machine_and_says_which_address_is_its_own() {
        let (replies, ended) = replies(
            b"{\"do\":\"describe\",\"tools\":[\"iperf3\"],\
              \"addresses\":[\"192.0.2.9\",\"127.0.0.1\"]}\n\
              {\"do\":\"sample\",\"interface\":\"lo\"}\n",
        );
        ended.expect("its input ended");
        let Reply::Machine { host, interface, .. } = &replies[0] else { panic!("{replies:?}") };
        assert!(host.cpus > 0);
        // In a new network namespace without an address on lo there is no such interface.
        assert!(interface.as_ref().is_none_or(|one| one.name == "lo"), "{interface:?}");
        assert!(matches!(replies[1], Reply::Counters { .. }), "{replies:?}");
    }

    #[test]
    fn what_it_does_not_do_is_refused_and_it_goes_on() {
        let (replies, ended) = replies(
            b"{\"do\":\"describe\",\"tools\":[\"sh\"],\"addresses\":[]}\n\
              {\"do\":\"finish\",\"group\":7}\n\
              {\"do\":\"sample\",\"interface\":\"no-such\"}\n\
              {\"do\":\"start\",\"group\":1,\"tool\":\"iperf3\",\"role\":\"sender\",\"load\":\
              {\"flows\":[],\"seconds\":1e9,\"warmup-seconds\":0,\"window\":null,\
              \"buffer\":null}}\n\
              {\"do\":\"clear\"}\n",
        );
        ended.expect("its input ended");
        assert_eq!(reason(&replies[0]), "there is no such tool");
        assert_eq!(reason(&replies[1]), "there is no group 7");
        assert!(reason(&replies[2]).contains("no-such"), "{replies:?}");
        assert!(reason(&replies[3]).contains("86400 seconds"), "{replies:?}");
        assert_eq!(replies[4], Reply::Done);
    }

    #[test]
    fn it_ends_at_the_first_line_that_is_no_request() {
        let (said, ended) = replies(b"GET / HTTP/1.1\n{\"do\":\"clear\"}\n");
        assert!(reason(&said[0]).contains("is not a message") && said.len() == 1, "{said:?}");
        assert!(matches!(ended, Err(ProtocolError::Malformed { .. })));
        let (said, ended) = replies(b"{\"do\":\"clear\"}");
        assert!(said.is_empty() && matches!(ended, Err(ProtocolError::Cut)));
    }

    #[test]
    fn it_ends_when_the_lab_is_silent_for_too_long() {
        let build = Build { version: String::new(), commit: String::new() };
        let launcher = Launcher::new(&[], &std::env::temp_dir(), Default::default());
        let (silent, _writer) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let idle = Duration::from_millis(10);
        let ended = serve(&build, &launcher.expect("a program"), silent, &mut Vec::new(), idle);
        assert!(ended.expect_err("silence").to_string().starts_with("no request for"));
    }
}

//! What the lab and the agent on the peer say to each other: a line of JSON each way, the agent's
//! greeting first, and then a reply to each request.
//!
//! Both sides read lines of limited length. Neither trusts the other: a line that is too long, ends
//! early, or is not a message is an error, and never a panic.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::sample::Sample;
use crate::record::{Host, Interface};
use ringway_rig::tools::{Load, Role, StreamReport};

/// Bytes of a line at most: the results of a few hundred streams.
pub const LINE_BYTES_MAX: usize = 1 << 20;
/// Bytes of a request at most. Less than what a pipe holds, so that writing one never waits for the
/// peer to read it.
pub const REQUEST_BYTES_MAX: usize = 48 << 10;

/// What the lab asks of the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Describe the machine, and what it lacks of these tools.
    Describe {
        /// The tools, as studies spell them.
        tools: Vec<String>,
        /// The addresses that the lab may use; the first one that the machine has counts.
        addresses: Vec<Ipv4Addr>,
    },
    /// Listen on a TCP port until the next request.
    Listen {
        /// The address.
        address: Ipv4Addr,
        /// The port.
        port: u16,
    },
    /// Connect to a TCP port once.
    Connect {
        /// The address.
        address: Ipv4Addr,
        /// The port.
        port: u16,
    },
    /// Start one end of some streams.
    Start {
        /// Names them in later requests.
        group: u32,
        /// The tool, as studies spell it.
        tool: String,
        /// Which end.
        role: Role,
        /// The streams.
        load: Load,
    },
    /// Read the counters of the machine, of an interface, and of everything that was started.
    Sample {
        /// The interface.
        interface: String,
    },
    /// Wait for the end of a group, and report it.
    Finish {
        /// The group.
        group: u32,
    },
    /// End everything that was started.
    Clear,
}

/// What the agent says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Reply {
    /// The greeting, before any request.
    Hello {
        /// The version of its ringway.
        version: String,
        /// The commit that it was built from.
        commit: String,
    },
    /// The machine.
    Machine {
        /// Its description.
        host: Box<Host>,
        /// The tools that it lacks, each with the package that contains it.
        missing: Vec<String>,
        /// The interface with the address.
        interface: Option<Interface>,
    },
    /// It is done.
    Done,
    /// The counters.
    Counters {
        /// At one moment.
        sample: Sample,
    },
    /// What the end of a group reports.
    Finished {
        /// For each stream.
        reports: Vec<StreamReport>,
    },
    /// It could not be done.
    Failed {
        /// Why.
        reason: String,
    },
}

/// Why a line is not a message.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The line does not end within the limit.
    #[error("a line of more than {0} bytes")]
    TooLong(usize),
    /// The other side ended in the middle of a line.
    #[error("it ended in the middle of a line")]
    Cut,
    /// It is not JSON, or not a message.
    #[error("`{line}` is not a message: {error}")]
    Malformed {
        /// The start of the line.
        line: String,
        /// What is wrong with it.
        error: serde_json::Error,
    },
}

/// The next line without its end; `None` if the other side has ended.
///
/// # Errors
/// If the line is too long, or the other side ended in the middle of it.
pub fn line(from: &mut impl BufRead, bytes_max: usize) -> Result<Option<Vec<u8>>, ProtocolError> {
    let mut line = Vec::new();
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    from.by_ref().take(limit).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) if line.len() >= bytes_max => Err(ProtocolError::TooLong(bytes_max)),
        Some(_) => Err(ProtocolError::Cut),
    }
}

/// The lines that arrive. The thread that reads them holds one at most, so the other side cannot
/// fill our memory. It ends after the first error.
pub fn lines(from: impl Read + Send + 'static) -> Receiver<Result<Vec<u8>, ProtocolError>> {
    let (sender, lines) = sync_channel(0);
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        while let Some(line) = line(&mut from, LINE_BYTES_MAX).transpose() {
            let is_end = line.is_err();
            if sender.send(line).is_err() || is_end {
                return;
            }
        }
    });
    lines
}

/// The message in a line.
///
/// # Errors
/// If it is not JSON, or not a message.
pub fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<T, ProtocolError> {
    serde_json::from_slice(line).map_err(|error| ProtocolError::Malformed {
        line: plain(&String::from_utf8_lossy(line), SHOWN_MAX),
        error,
    })
}

/// Sends a message.
///
/// # Errors
/// If the connection failed.
pub fn send(into: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    into.write_all(&line)?;
    into.flush()
}

/// Text of the other side for people: without control characters, which a terminal could act on,
/// and not longer than this many characters.
pub fn plain(text: &str, chars_max: usize) -> String {
    text.trim().chars().filter(|c| !c.is_control()).take(chars_max).collect()
}

/// Characters of a line that an error shows.
const SHOWN_MAX: usize = 120;

#[cfg(test)]
mod tests {
    use super::*;

    fn request(bytes: &[u8]) -> Result<Option<Request>, ProtocolError> {
        line(&mut &*bytes, LINE_BYTES_MAX)?.map(|line| parse(&line)).transpose()
    }

    #[test]
    fn a_message_arrives_as_it_was_sent() {
        let flow = ringway_rig::tools::Flow {
            guest: 0,
            sender: 0,
            receiver: 0,
            address: Ipv4Addr::new(198, 18, 0, 1),
            source_port: 20_000,
            port: 5201,
        };
        let load = Load {
            flows: vec![flow],
            seconds: 0.7,
            warmup_seconds: 0.1,
            window: None,
            buffer: Some(131_072),
        };
        let tool = "iperf3".to_owned();
        let sent = Request::Start { group: 1, tool, role: Role::Receiver, load };
        let mut bytes = Vec::new();
        send(&mut bytes, &sent).expect("memory");
        assert_eq!(request(&bytes).expect("a message"), Some(sent));
    }

    #[test]
    fn the_end_between_two_lines_is_no_error_and_within_one_it_is() {
        assert!(matches!(request(b""), Ok(None)));
        assert!(matches!(request(b"{\"do\":\"clear\"}"), Err(ProtocolError::Cut)));
        assert!(matches!(request(b"{"), Err(ProtocolError::Cut)));
        assert!(matches!(request(b"{\"do\":\"clear\"}\n"), Ok(Some(Request::Clear))));
    }

    #[test]
    fn a_line_ends_within_the_limit_or_is_refused_unread() {
        let read = |text: &[u8]| line(&mut &*text, 4);
        assert_eq!(read(b"1234\n").expect("it fits"), Some(b"1234".to_vec()));
        assert!(matches!(read(b"12345\n"), Err(ProtocolError::TooLong(4))));
        assert!(matches!(read(b"12345"), Err(ProtocolError::TooLong(4))));
        let mut endless = io::BufReader::new(io::repeat(b'a'));
        assert!(matches!(line(&mut endless, LINE_BYTES_MAX), Err(ProtocolError::TooLong(_))));
    }

    #[test]
    fn what_is_no_message_is_refused_and_shown_without_control_characters() {
        let deep = [b"[".repeat(100_000), b"\n".to_vec()].concat();
        for bytes in [
            &b"\n"[..],
            b"hello\n",
            b"null\n",
            b"{\"do\":\"reboot\"}\n",
            b"{\"do\":\"finish\"}\n",
            b"{\"do\":\"finish\",\"group\":-1}\n",
            b"{\"do\":\"finish\",\"group\":1,\"more\":2}\n",
            b"{\"do\":\"connect\",\"address\":\"::1\",\"port\":1}\n",
            b"\xff\xfe\n",
            &deep,
        ] {
            assert!(matches!(request(bytes), Err(ProtocolError::Malformed { .. })), "{bytes:?}");
        }
        let error = request(b"\x1b[31mred\x07\n").expect_err("no message").to_string();
        assert!(error.starts_with("`[31mred` is not a message"), "{error}");
    }

    #[test]
    fn a_number_that_is_not_one_is_refused() {
        for text in ["NaN", "null", "1e999", "\"1\""] {
            let line = format!("{{\"is\":\"counters\",\"sample\":{{\"at-seconds\":{text}}}}}");
            assert!(parse::<Reply>(line.as_bytes()).is_err(), "{text}");
        }
    }
}

//! A TCP stream in one direction, as fast as it goes, whose bytes are hashed where they are sent
//! and where they arrive.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use crate::host::{Host, Running, SOON};
use crate::machine::{ADDRESS, numbers, wait_for_windows};

/// The programs that it needs.
pub const TOOLS: [&str; 2] = ["socat", "sha256sum"];
/// The port of the sink.
const PORT: u16 = 9;
/// Bytes that sender and receiver each buffer, of which Linux advertises half. What is in flight
/// has room in any queue of a vif: a queue that is full may drop a frame, whatever happens else.
const BUFFER: usize = 64 << 10;

/// What a guest at [`ADDRESS`] runs beside its device: it receives one stream, and writes the hash
/// to a file when that ends.
pub fn sink(file: &Path) -> String {
    let file = file.display();
    format!("socat -u TCP-LISTEN:{PORT},rcvbuf={BUFFER} - | sha256sum > {file} &")
}

/// The sending end of a stream.
pub struct Stream {
    _sender: Running,
    hash: Running,
    sent: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    writer: JoinHandle<io::Result<()>>,
}

impl Stream {
    /// Begins to send from a guest to the sink.
    pub fn start(host: &Host, guest: &str) -> Stream {
        // The sink may not listen yet.
        let sink = format!("TCP:{ADDRESS}:{PORT},sndbuf={BUFFER},retry=3000,interval=0.1");
        let mut sender = Running::start(
            host.in_guest(guest, &["socat", "-u", "-", &sink]).stdin(Stdio::piped()),
        );
        let mut hash = Command::new("sha256sum");
        let mut hash = Running::start(hash.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let [to_sink, to_hash] =
            [&mut sender, &mut hash].map(|it| it.0.stdin.take().expect("it was piped"));
        let (sent, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let ends = (Arc::clone(&sent), Arc::clone(&is_over));
        let writer = thread::spawn(move || write([to_sink, to_hash], &ends.0, &ends.1));
        Stream { _sender: sender, hash, sent, is_over, writer }
    }

    /// Waits until it has sent some more windows.
    pub fn expect_progress(&self, host: &Host, what: &str) {
        let has_ended = || self.writer.is_finished().then(|| "the stream has ended".to_owned());
        wait_for_windows(host, what, &self.sent, has_ended);
    }

    /// Ends it, and compares the hashes of what was sent and of what the sink has in its file.
    pub fn expect_all_received(mut self, host: &Host, file: &Path) {
        self.is_over.store(true, Ordering::Relaxed);
        let written = self.writer.join().expect("the thread has no bugs");
        written.expect("the sink receives all");
        let mut sent = String::new();
        let mut output = self.hash.0.stdout.take().expect("it was piped");
        output.read_to_string(&mut sent).expect("text");
        let received = host.wait("the hash of what was received", 6 * SOON, |_| {
            fs::read_to_string(file).ok().filter(|text| text.ends_with('\n'))
        });
        assert_eq!(received, sent);
    }
}

/// Writes the same bytes to all, in windows, until it is over.
fn write(mut to: [ChildStdin; 2], sent: &AtomicU64, is_over: &AtomicBool) -> io::Result<()> {
    while !is_over.load(Ordering::Relaxed) {
        let window = numbers(sent.load(Ordering::Relaxed));
        to.iter_mut().try_for_each(|to| to.write_all(&window))?;
        sent.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

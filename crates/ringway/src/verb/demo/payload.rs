//! Sends bytes over TCP from guest a to guest b and back, and checks that they arrive unchanged.
//!
//! Each guest runs this program again, with a hidden option of the verb.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use ringway_terminal::output::print;

use super::{COMMAND_TIMEOUT, Running, iperf, say};

/// Bytes in each direction.
const LEN: usize = 16 << 20;
/// Bytes that are generated and compared at a time.
const BLOCK_LEN: usize = 64 << 10;
const PORT: u16 = 5202;
/// How long the exchange may take.
const SECONDS: u32 = 60;

/// Sends the bytes; returns how many were compared, in both directions together.
pub(super) fn exchange(demo: &Running<'_>) -> Result<u64> {
    say(format_args!("{} MiB over TCP from a to b and back, compared", LEN >> 20));
    let at = format!("{}:{PORT}", iperf::SERVER);
    let (echo, stdout) = demo.start_in_guest("b", &["/proc/self/exe", "demo", "--echo", &at])?;
    demo.await_line(stdout, "listening", COMMAND_TIMEOUT, "the echo to listen")?;
    demo.in_guest("a", &["/proc/self/exe", "demo", "--talk", &at], SECONDS)?;
    drop(echo);
    Ok(u64::try_from(2 * LEN).unwrap_or(u64::MAX))
}

/// Sends back what comes over one connection.
pub(super) fn echo(at: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(at).with_context(|| format!("listen at {at}"))?;
    print("listening\n")?;
    let (mut from, _) = listener.accept()?;
    let mut to = from.try_clone()?;
    std::io::copy(&mut from, &mut to)?;
    Ok(())
}

/// Sends bytes to an echo and compares what comes back.
pub(super) fn check_echo(at: SocketAddr) -> Result<()> {
    let mut from = TcpStream::connect(at).with_context(|| format!("connect to {at}"))?;
    let mut to = from.try_clone()?;
    let sender = thread::spawn(move || -> std::io::Result<()> {
        let mut bytes = Numbers::new();
        for _ in 0..LEN / BLOCK_LEN {
            to.write_all(&bytes.block())?;
        }
        to.shutdown(Shutdown::Write)
    });
    let (mut bytes, mut came) = (Numbers::new(), vec![0; BLOCK_LEN]);
    for block in 0..LEN / BLOCK_LEN {
        from.read_exact(&mut came)
            .with_context(|| format!("block {block} of {BLOCK_LEN} bytes"))?;
        let sent = bytes.block();
        if let Some(place) = sent.iter().zip(&came).position(|(sent, came)| sent != came) {
            bail!("byte {} of {LEN} was changed on the way", block * BLOCK_LEN + place);
        }
    }
    sender.join().map_err(|_| anyhow!("the sender panicked"))??;
    Ok(())
}

/// A stream of bytes in which no two blocks are the same (xorshift).
struct Numbers(u64);

impl Numbers {
    fn new() -> Numbers {
        Numbers(0x9e37_79b9_7f4a_7c15)
    }

    fn block(&mut self) -> Vec<u8> {
        let next = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0.to_le_bytes()
        };
        std::iter::repeat_with(next).take(BLOCK_LEN / 8).flatten().collect()
    }
}

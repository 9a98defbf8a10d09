//! `ringway capture`: the frames of a vif as pcapng, for Wireshark.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use ringway_sys::poll::wait_readable;
use ringway_terminal::options::bytes;
use ringway_terminal::stop::Stop;

use crate::target::Target;

/// The type of a block that holds a packet.
const ENHANCED_PACKET_BLOCK: u32 = 6;
/// Bytes of a block: the longest frame, and options.
const BLOCK_LEN_MAX: u32 = 1 << 20;
/// Bytes of a block without content: its type, and its length at both ends.
const BLOCK_LEN_MIN: u32 = 12;
/// Bytes of a block's type and length.
const BLOCK_HEAD_LEN: usize = 8;

/// Capture the frames of a vif as pcapng, until Ctrl-C
///
/// Both directions are captured in the backend. The comment of each packet names its queue. Only
/// the file's owner may read it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ringway capture vif1.0 -w vif1.pcapng\n  \
                        ringway capture vif1.0 -w - | tshark -r -")]
pub(crate) struct Capture {
    #[command(flatten)]
    target: Target,
    /// The vif, such as vif1.0
    vif: String,
    /// The pcapng file to write; - for standard output
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    /// Bytes to keep of each frame
    #[arg(short, long, value_name = "BYTES", default_value_t = 65535,
          value_parser = bytes::<u32>(14..=65535))]
    snaplen: u32,
}

/// How long the backend may take to send its last frames after Ctrl-C.
const LAST_FRAMES_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &Capture) -> Result<()> {
    let stop = Stop::on_signals()?;
    let mut stream = args.target.capture(&args.vif, args.snaplen)?;
    // Created only now, so that a refusal leaves no file.
    let mut out = output(&args.write)?;
    let mut packets = 0_u64;
    let mut blocks = Blocks::default();
    let mut last_call: Option<Instant> = None;
    loop {
        let left = last_call.map(|asked| LAST_FRAMES_TIMEOUT.saturating_sub(asked.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            break;
        }
        if stream.buffer().is_empty() {
            if last_call.is_none() && stop.wait_beside(&[stream.get_ref().as_fd()], None)? {
                // The backend then sends the remaining frames and ends the stream.
                stream
                    .get_ref()
                    .shutdown(Shutdown::Write)
                    .context("send the request to the backend")?;
                last_call = Some(Instant::now());
                continue;
            }
            if !wait_readable(stream.get_ref(), left)? {
                continue;
            }
        }
        // Only what has arrived: waiting for the rest of a block would delay Ctrl-C.
        let received = stream.fill_buf().context("read from the backend")?;
        let len = received.len();
        if len == 0 {
            break;
        }
        let whole = blocks.add(received)?;
        stream.consume(len);
        match out.write_all(&whole.bytes).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            written => written.with_context(|| format!("write {}", args.write.display()))?,
        }
        packets += whole.packets;
    }
    eprintln!("{packets} packets captured");
    Ok(())
}

fn output(path: &Path) -> Result<Box<dyn Write>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdout().lock()));
    }
    let file: File = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("--write {}", path.display()))?;
    if !file.metadata()?.is_file() {
        bail!("--write {}: expected a file or -", path.display());
    }
    Ok(Box::new(file))
}

/// Assembles whole blocks, so that the file is valid whenever the capture stops.
#[derive(Default)]
struct Blocks {
    /// The beginning of the next block.
    rest: Vec<u8>,
}

/// Complete blocks only.
struct Whole {
    bytes: Vec<u8>,
    packets: u64,
}

impl Blocks {
    /// Takes what was received next, and returns all blocks that are now complete.
    fn add(&mut self, received: &[u8]) -> Result<Whole> {
        self.rest.extend_from_slice(received);
        let (mut len, mut packets) = (0, 0);
        while let Some((head, _)) = self.rest.get(len..).and_then(|rest| rest.split_first_chunk()) {
            let (kind, block_len) = read_head(*head)?;
            if self.rest.len() - len < block_len {
                break;
            }
            len += block_len;
            packets += u64::from(kind == ENHANCED_PACKET_BLOCK);
        }
        let rest = self.rest.split_off(len);
        Ok(Whole { bytes: std::mem::replace(&mut self.rest, rest), packets })
    }
}

/// The type of a block and its length in bytes.
fn read_head(head: [u8; BLOCK_HEAD_LEN]) -> Result<(u32, usize)> {
    let [a, b, c, d, e, f, g, h] = head;
    // The backend runs on this machine, so this is its byte order.
    let (kind, len) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
    let is_sound = len % 4 == 0 && (BLOCK_LEN_MIN..=BLOCK_LEN_MAX).contains(&len);
    match usize::try_from(len) {
        Ok(len) if is_sound => Ok((kind, len)),
        _ => bail!("the backend sent a block of {len} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: u32, len: u32) -> Vec<u8> {
        let mut block = vec![0xee; usize::try_from(len).expect("small")];
        block[..4].copy_from_slice(&kind.to_ne_bytes());
        block[4..8].copy_from_slice(&len.to_ne_bytes());
        block
    }

    #[test]
    fn only_whole_blocks_are_written_however_they_arrive() {
        let sent = [block(1, 28), block(ENHANCED_PACKET_BLOCK, 64), block(5, 24)].concat();
        for step in 1..=sent.len() {
            let (mut blocks, mut written, mut packets) = (Blocks::default(), Vec::new(), 0);
            for part in sent.chunks(step) {
                let whole = blocks.add(part).expect("sound");
                packets += whole.packets;
                written.extend(whole.bytes);
                assert!([0, 28, 92, 116].contains(&written.len()), "{}", written.len());
            }
            assert_eq!((written, packets), (sent.clone(), 1));
        }
    }

    #[test]
    fn a_block_of_impossible_length_ends_the_capture() {
        for len in [0, 8, 30, BLOCK_LEN_MAX + 4] {
            let head = [1_u32.to_ne_bytes(), len.to_ne_bytes()].concat();
            assert!(Blocks::default().add(&head).is_err(), "{len}");
        }
    }
}

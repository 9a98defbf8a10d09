//! `ringway capture`: the frames of a vif as pcapng, for Wireshark.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use ringway_control::{BackendRequest, open};

use crate::stop::{Stop, wait_readable};
use crate::target::Target;

/// The type of a block that holds a packet.
const ENHANCED_PACKET_BLOCK: u32 = 6;
/// Bytes of a block: the longest frame, and options.
const BLOCK_LEN_MAX: u32 = 1 << 20;
/// Bytes of a block's type and length.
const BLOCK_HEAD_LEN: usize = 8;

/// Capture the frames of a vif, until Ctrl-C.
///
/// Both directions are captured where the backend sees them; the comment of a packet says which
/// queue it used. The file is for its owner only.
#[derive(Debug, Args)]
pub(crate) struct Capture {
    #[command(flatten)]
    target: Target,
    /// The vif, such as vif1.0
    vif: String,
    /// The file to write, in pcapng; - for standard output
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    /// Bytes kept of each frame
    #[arg(long, value_name = "BYTES", default_value_t = 65535,
          value_parser = clap::value_parser!(u32).range(14..=65535))]
    snaplen: u32,
}

pub(crate) fn run(args: &Capture) -> Result<()> {
    let stop = Stop::on_signals()?;
    let request = BackendRequest::Capture { vif: args.vif.clone(), snap_len: args.snaplen };
    let socket = args.target.dir().backend();
    let ((), mut stream) = open(&socket, &request).map_err(|error| args.target.explain(error))?;
    // Made only now, so that a refusal leaves no file.
    let mut out = output(&args.write)?;
    let mut packets = 0_u64;
    loop {
        if stream.buffer().is_empty() {
            let ready = wait_readable(&[stop.as_fd(), stream.get_ref().as_fd()], None)?;
            if ready.first() == Some(&true) {
                break;
            }
        }
        match copy_block(&mut stream, &mut out) {
            Ok(Block::Packet) => packets += 1,
            Ok(Block::Other) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            Err(error) => {
                return Err(error).with_context(|| format!("write {}", args.write.display()));
            }
        }
        // A burst that does not end must not keep Ctrl-C waiting.
        if stop.wait(std::time::Duration::ZERO)? {
            break;
        }
    }
    out.flush().with_context(|| format!("write {}", args.write.display()))?;
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

enum Block {
    Packet,
    Other,
}

/// Copies one block, whole or not at all, so that the file can be read whenever we stop.
fn copy_block(stream: &mut impl Read, out: &mut dyn Write) -> io::Result<Block> {
    let mut head = [0; BLOCK_HEAD_LEN];
    stream.read_exact(&mut head)?;
    let [a, b, c, d, e, f, g, h] = head;
    // The backend runs on this machine, so this is its byte order.
    let (kind, len) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
    let body = usize::try_from(len).ok().and_then(|len| len.checked_sub(BLOCK_HEAD_LEN));
    let Some(body) = body.filter(|_| len % 4 == 0 && len <= BLOCK_LEN_MAX) else {
        let message = format!("the backend sent a block of {len} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    };
    let mut block = head.to_vec();
    block.resize(BLOCK_HEAD_LEN + body, 0);
    stream.read_exact(block.get_mut(BLOCK_HEAD_LEN..).unwrap_or_default())?;
    out.write_all(&block)?;
    Ok(if kind == ENHANCED_PACKET_BLOCK { Block::Packet } else { Block::Other })
}

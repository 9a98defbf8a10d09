//! `ringway xenstore serve`: an empty XenStore for stock tools and tests, by itself.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use clap::error::ErrorKind;
use clap::{Args, Subcommand};
use ringway_control::{RunDir, files};
use ringway_sys::poll::wait_readable;
use ringway_terminal::stop::Stop;
use ringway_xenstore::{DomId, Quota, Server};

use crate::host::default_dir;

/// Verbs of an earlier version, which stock tools with these names have as well.
const STOCK: [&str; 5] = ["ls", "read", "write", "rm", "watch"];

/// Serve an empty XenStore
///
/// The stock tools (xenstore-ls, -read, -write, -rm, -watch, -chmod) read and change it, and that
/// of a host of `ringway run`: name its socket in XENSTORED_PATH.
#[derive(Debug, Args)]
pub(crate) struct Xenstore {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve an empty XenStore until Ctrl-C; clients are dom0
    #[command(after_help = "Example:\n  ringway xenstore serve --socket /tmp/xs.sock\n  \
                            XENSTORED_PATH=/tmp/xs.sock xenstore-write /a 1")]
    Serve(Serve),
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

#[derive(Debug, Args)]
struct Serve {
    /// The socket to create
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
}

pub(crate) fn run(args: &Xenstore) -> Result<()> {
    match &args.verb {
        Verb::Serve(args) => serve(args),
        Verb::Other(words) => {
            clap::Error::raw(ErrorKind::InvalidSubcommand, refusal(words) + "\n").exit()
        }
    }
}

/// Why there is no such verb, and what to use instead.
fn refusal(words: &[OsString]) -> String {
    let word = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    if STOCK.contains(&&*word) {
        let socket = RunDir::new(default_dir()).xenstore();
        format!(
            "ringway has no `xenstore {word}`: use xenstore-{word} of the stock tools (on Debian \
             in xenstore-utils), with XENSTORED_PATH={} for the XenStore of a host in the default \
             run directory",
            socket.display()
        )
    } else {
        format!("ringway has no `xenstore {word}`: expected serve")
    }
}

fn serve(args: &Serve) -> Result<()> {
    let stop = Stop::on_signals()?;
    let shown = args.socket.display();
    remove_dead(&args.socket)?;
    let listener = files::listen(&args.socket).context("--socket")?;
    let server = Server::new(Quota::default())?;
    let handle = server.handle();
    handle.listen(listener, DomId(0))?;
    let thread = thread::spawn(move || server.run());
    tracing::info!("serving XenStore at {shown}");
    wait_readable(&stop, None)?;
    handle.stop();
    fs::remove_file(&args.socket)?;
    thread.join().map_err(|_| anyhow!("XenStore's thread has panicked"))??;
    Ok(())
}

/// Removes a socket that has no listener any more.
fn remove_dead(path: &Path) -> Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    let shown = path.display();
    if !found.file_type().is_socket() {
        bail!("--socket {shown}: a file exists there; choose another path or remove it");
    }
    if UnixStream::connect(path).is_ok() {
        bail!("--socket {shown}: another process already listens there");
    }
    fs::remove_file(path).with_context(|| format!("--socket {shown}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_verb_names_the_tool_that_does_it() {
        for verb in STOCK {
            let text = refusal(&[verb.into(), "/local".into()]);
            assert!(text.contains(&format!("use xenstore-{verb} of")), "{text}");
            assert!(text.contains("XENSTORED_PATH=/"), "{text}");
        }
        assert!(refusal(&["list".into()]).contains("expected serve"));
    }
}

//! `ringway xenstore`: like the stock tools, for the XenStore of a host or of any other socket.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use ringway_control::files;
use ringway_xenstore::{Client, DomId, Errno, Quota, Server, Watched};
use serde::Serialize;

use crate::output::{print, print_json};
use crate::stop::{Stop, wait_readable};
use crate::target::Target;

/// Limit of the nodes that `ls` shows, and of the levels that it descends.
const NODES_MAX: usize = 1 << 20;
const DEPTH_MAX: usize = 128;

/// Read, change or watch XenStore, or serve an empty one
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
    /// List a node and all below it, as `xenstore-ls` does
    #[command(after_help = "Examples:\n  ringway xenstore ls\n  \
                            ringway xenstore ls -f /local/domain/1/device/vif")]
    Ls(Ls),
    /// Print the values of nodes
    #[command(after_help = "Example:\n  ringway xenstore read /local/domain/1/name")]
    Read(Paths),
    /// Write nodes in one transaction
    #[command(after_help = "Example:\n  ringway xenstore write /tool/a 1 /tool/b 2")]
    Write(Write),
    /// Remove nodes and all below them
    #[command(after_help = "Example:\n  ringway xenstore rm /tool/a")]
    Rm(Paths),
    /// Print the path of each change until Ctrl-C
    #[command(after_help = "Example:\n  ringway xenstore watch /local/domain/0/backend/vif")]
    Watch(Watch),
}

/// Which store.
#[derive(Debug, Args)]
struct Store {
    /// Socket of another XenStore than the host's
    #[arg(long, value_name = "PATH", env = "XENSTORED_PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
}

impl Store {
    fn connect(&self) -> Result<Client> {
        match &self.socket {
            Some(socket) => Ok(Client::connect(socket)?),
            None => Client::connect(&self.target.dir().xenstore())
                .map_err(|error| self.target.explain(error)),
        }
    }
}

#[derive(Debug, Args)]
struct Serve {
    /// The socket to create
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
}

#[derive(Debug, Args)]
struct Ls {
    #[command(flatten)]
    store: Store,
    /// The node to begin at
    #[arg(default_value = "/")]
    path: String,
    /// Print full paths
    #[arg(short)]
    full: bool,
    /// Also print permissions
    #[arg(short)]
    permissions: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Paths {
    #[command(flatten)]
    store: Store,
    /// The nodes
    #[arg(required = true)]
    path: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Write {
    #[command(flatten)]
    store: Store,
    /// PATH VALUE [PATH VALUE]...
    #[arg(required = true, num_args = 2.., value_names = ["PATH", "VALUE"])]
    pairs: Vec<String>,
}

#[derive(Debug, Args)]
struct Watch {
    #[command(flatten)]
    store: Store,
    /// The nodes
    #[arg(required = true)]
    path: Vec<String>,
    /// End after this many events; each path has one at the start
    #[arg(short, value_name = "COUNT")]
    number: Option<u64>,
    /// Print a line of JSON for each
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Xenstore) -> Result<()> {
    match &args.verb {
        Verb::Serve(args) => serve(args),
        Verb::Ls(args) => ls(args),
        Verb::Read(args) => read(args),
        Verb::Write(args) => write(args),
        Verb::Rm(args) => {
            let mut client = args.store.connect()?;
            args.path.iter().try_for_each(|path| {
                require(&mut client, path)?;
                client.remove(path).with_context(|| path_hint(path))
            })
        }
        Verb::Watch(args) => watch(args),
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
    wait_readable(&[stop.as_fd()], None)?;
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

/// A node for scripts.
#[derive(Serialize)]
struct Node {
    path: String,
    value: String,
    permissions: String,
}

fn ls(args: &Ls) -> Result<()> {
    let mut client = args.store.connect()?;
    let root = if args.path == "/" { "" } else { args.path.trim_end_matches('/') };
    if !root.is_empty() {
        require(&mut client, root)?;
    }
    let mut nodes = Vec::new();
    // Depth first, the children of a node in order: the next to visit is the last of the stack.
    let mut stack = children(&mut client, if root.is_empty() { "/" } else { root }, root, 0)?;
    while let Some((path, depth)) = stack.pop() {
        if nodes.len() >= NODES_MAX {
            bail!("there are more than {NODES_MAX} nodes");
        }
        // The node may have been removed since its parent was listed.
        let Some(value) = client.read_bytes(&path)? else { continue };
        let permissions = match client.permissions(&path) {
            Ok(permissions) => permissions.to_string(),
            Err(error) if error.is(Errno::Noent) => continue,
            Err(error) => return Err(error.into()),
        };
        if args.json {
            let value = String::from_utf8_lossy(&value).into_owned();
            nodes.push(Node { path: path.clone(), value, permissions });
        } else {
            let name = if args.full { path.as_str() } else { last(&path) };
            let indent = if args.full { "" } else { &" ".repeat(depth) };
            let tail = if args.permissions { format!("   ({permissions})") } else { String::new() };
            print(&format!("{indent}{name} = \"{}\"{tail}\n", escaped(&value)))?;
        }
        stack.extend(children(&mut client, &path, &path, depth + 1)?);
    }
    if args.json { print_json(&nodes) } else { Ok(()) }
}

/// The children of a node, last first.
fn children(
    client: &mut Client,
    path: &str,
    prefix: &str,
    depth: usize,
) -> Result<Vec<(String, usize)>> {
    if depth > DEPTH_MAX {
        return Ok(Vec::new());
    }
    let mut names = client.directory(path)?;
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(names.into_iter().map(|name| (format!("{prefix}/{name}"), depth)).collect())
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn read(args: &Paths) -> Result<()> {
    let mut client = args.store.connect()?;
    let mut values = BTreeMap::new();
    for path in &args.path {
        let value = require(&mut client, path)?;
        if args.json {
            values.insert(path, String::from_utf8_lossy(&value).into_owned());
        } else {
            print(&(escaped(&value) + "\n"))?;
        }
    }
    if args.json { print_json(&values) } else { Ok(()) }
}

/// A node's value, or an error if there is no such node.
fn require(client: &mut Client, path: &str) -> Result<Vec<u8>> {
    let value = client.read_bytes(path).with_context(|| path_hint(path))?;
    value.with_context(|| format!("there is no node {path}"))
}

/// What to check first when XenStore refuses an operation on a path.
fn path_hint(path: &str) -> String {
    let is_sound = |byte: u8| byte.is_ascii_alphanumeric() || b"-/_@".contains(&byte);
    if path.starts_with('/') && !path.ends_with('/') && path.bytes().all(is_sound) {
        path.to_owned()
    } else {
        format!(
            "PATH {path:?}: expected / and names of letters, digits, - _ @, separated by slashes"
        )
    }
}

fn write(args: &Write) -> Result<()> {
    if args.pairs.len() % 2 != 0 {
        bail!("the last PATH has no VALUE: expected PATH VALUE [PATH VALUE]...");
    }
    let mut client = args.store.connect()?;
    let mut refused = None;
    let written = client.transaction(|tx| {
        args.pairs.chunks_exact(2).try_for_each(|pair| match pair {
            [path, value] => tx.write(path, value).inspect_err(|_| refused = Some(path_hint(path))),
            _ => Ok(()),
        })
    });
    match refused {
        Some(hint) => written.context(hint),
        None => Ok(written?),
    }
}

fn watch(args: &Watch) -> Result<()> {
    let stop = Stop::on_signals()?;
    let mut client = args.store.connect()?;
    for path in &args.path {
        client.watch(path, path)?;
    }
    let mut left = args.number.unwrap_or(u64::MAX);
    loop {
        while let Some(event) = client.next_watch()? {
            let Watched::Node(event) = event else {
                bail!("there were more changes than could be shown");
            };
            if args.json {
                let line = serde_json::json!({ "path": event.path, "token": event.token });
                print(&format!("{line}\n"))?;
            } else {
                print(&format!("{}\n", event.path))?;
            }
            left -= 1;
            if left == 0 {
                return Ok(());
            }
        }
        if wait_readable(&[stop.as_fd(), client.as_fd()], None)?.first() == Some(&true) {
            return Ok(());
        }
    }
}

/// A value on one line, with unprintable characters escaped, so that no guest controls a terminal.
fn escaped(value: &[u8]) -> String {
    let mut text = String::new();
    for byte in value {
        match byte {
            b'\\' => text += "\\\\",
            b'\n' => text += "\\n",
            b'\t' => text += "\\t",
            b'\r' => text += "\\r",
            b' '..=b'~' => text.push(char::from(*byte)),
            byte => text += &format!("\\x{byte:02x}"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_control_the_terminal() {
        assert_eq!(escaped(b"a \"b\"\n\x1b[31m\\\xff"), "a \"b\"\\n\\x1b[31m\\\\\\xff");
    }
}

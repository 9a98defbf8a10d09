//! `ringway plugger`: the process that adds and removes ports of Open vSwitch for a backend, which
//! may run no program and reach no database.
//!
//! It serves no guest. It knows by itself which ports are this host's: a compromised backend can
//! have ports of vifs added and removed, and those of others stay as they are.

use std::env;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result};
use clap::Args;
use ringway_control::{Link, PluggerEvent, PluggerOrder, Received, RunDir};
use ringway_ovs::{Ids, OpenVswitch, Table};
use ringway_sys::poll::{PollFlags, wait, wait_readable};
use ringway_terminal::stop::Stop;
use tracing::level_filters::LevelFilter;

use crate::host::{Process, owner};
use crate::vsctl::{VSCTL, vsctl};

/// The table of `iface-id`s for vifs whose toolstack has no place for one.
const TABLE: &str = "/etc/ringway/ovs.toml";
/// Bytes of it: tens of thousands of ports.
const TABLE_LEN_MAX: u64 = 1 << 20;
/// Vifs in one message: their names together are shorter than a message may be.
const FOUND_CHUNK: usize = 64;

/// Adds and removes ports of Open vSwitch for the backend that starts it.
#[derive(Debug, Args)]
pub(crate) struct Plugger {
    /// Run directory
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

/// Starts the plugger for this process, if this machine has Open vSwitch, and returns the link to
/// it. It ends with this process.
pub(crate) fn start(dir: &RunDir) -> Result<Option<Link>> {
    let path = env::var_os("PATH").unwrap_or_default();
    if !env::split_paths(&path).any(|dir| dir.join(VSCTL).is_file()) {
        return Ok(None);
    }
    let (link, theirs) = Link::pair().context("a pair of sockets")?;
    let arguments = ["plugger".as_ref(), "--dir".as_ref(), dir.path().as_os_str()];
    let files = [Stdio::from(theirs), Stdio::null()];
    Process::start_with("plugger", LevelFilter::current(), arguments, files)?.leave();
    Ok(Some(link))
}

pub(crate) fn run(args: &Plugger) -> Result<()> {
    // Signals are ignored: the backend gets them, too, and may need the plugger until it ends.
    let _signals = Stop::on_signals()?;
    ringway_confine::give_up_privileges()?;
    let link = rustix::stdio::stdin().try_clone_to_owned().context("standard input")?;
    let switch = OpenVswitch { owner: owner(&args.dir), run: vsctl as Run };
    let plugger = Plugging { link: Link::new(link), switch };
    // If Open vSwitch does not run yet, there may be ports of an earlier process nevertheless.
    let mut is_reported = plugger.report_found()?;
    loop {
        wait_readable(&plugger.link, None)?;
        let order = match plugger.link.receive()? {
            Received::Message(order, _) => order,
            Received::Nothing => continue,
            Received::End => return Ok(()),
        };
        let outcome = plugger.carry_out(order);
        is_reported = is_reported || (outcome.is_ok() && plugger.report_found()?);
        plugger.send(&PluggerEvent::Done { outcome })?;
    }
}

type Run = fn(&[String]) -> Result<String, String>;

struct Plugging {
    link: Link,
    switch: OpenVswitch<Run>,
}

impl Plugging {
    fn carry_out(&self, order: PluggerOrder) -> Result<Ids, String> {
        match order {
            PluggerOrder::Join { vif, wanted, is_new } => {
                // Each time, because it may change.
                self.switch.join(&vif, &wanted, is_new, &read_table(Path::new(TABLE))?)
            }
            PluggerOrder::Leave { vif } => self.switch.leave(&vif).map(|()| Ids::default()),
        }
    }

    /// Reports the vifs that have ports. Returns false if Open vSwitch does not say which.
    fn report_found(&self) -> io::Result<bool> {
        let vifs = match self.switch.vifs() {
            Ok(vifs) => vifs,
            Err(reason) => {
                tracing::debug!("ports of vifs that are gone stay for now: {reason}");
                return Ok(false);
            }
        };
        for vifs in vifs.chunks(FOUND_CHUNK) {
            self.send(&PluggerEvent::Found { vifs: vifs.to_vec() })?;
        }
        Ok(true)
    }

    /// Sends a message, and waits until there is room for it.
    fn send(&self, event: &PluggerEvent) -> io::Result<()> {
        loop {
            match self.link.send(event, &[]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let room = ((), self.link.as_fd(), PollFlags::OUT);
                    wait(&[room], None)?;
                }
                // The backend has ended.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                sent => return sent,
            }
        }
    }
}

/// Reads a table; an empty one if there is no file.
fn read_table(file: &Path) -> Result<Table, String> {
    let mut text = String::new();
    let read = File::open(file).and_then(|it| it.take(TABLE_LEN_MAX + 1).read_to_string(&mut text));
    let table = match read {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Table::EMPTY),
        Err(error) => Err(error.to_string()),
        Ok(len) if u64::try_from(len).is_ok_and(|len| len > TABLE_LEN_MAX) => {
            Err(format!("it is longer than {TABLE_LEN_MAX} bytes"))
        }
        Ok(_) => Table::parse(&text),
    };
    table.map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_is_an_empty_table_and_a_bad_one_an_error_with_its_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("ovs.toml");
        read_table(&file).expect("it may be missing");
        std::fs::write(&file, "[[port]]\nvm = 'a'\niface-id = 'a'\n").expect("written");
        read_table(&file).expect("it is good");
        for bad in ["[[port]]\n".to_owned(), "#".repeat(2 << 20)] {
            std::fs::write(&file, bad).expect("written");
            let refusal = read_table(&file).expect_err("it is bad");
            assert!(refusal.starts_with(&format!("{}: ", file.display())), "{refusal}");
        }
    }
}

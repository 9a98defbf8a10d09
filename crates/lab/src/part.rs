//! What this program does when it was started again as a part of an experiment.
//!
//! No part outlives the thread that starts it: the kernel kills it with that, and network
//! namespaces go with the processes in them. How parts are started: [`launcher`](crate::launcher).

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::launcher::{EXEC, find};
use crate::topology::namespace::{self, HOLD};
use crate::topology::relay::{self, RELAY};

/// Whether a word is the name of a part.
pub fn is_part(word: &str) -> bool {
    [EXEC, HOLD, RELAY].contains(&word)
}

/// What this program does as a part, according to the words of
/// [`Launcher::part`](crate::launcher::Launcher::part). Returns when the part ends.
///
/// # Errors
/// What the part runs into; words that a launcher would not have said.
pub fn run(words: &[OsString]) -> io::Result<()> {
    let word = |index: usize| words.get(index).and_then(|word| word.to_str()).unwrap_or_default();
    let parent = word(1)
        .parse()
        .map_err(|_| io::Error::other("a part gets the process id of its parent"))?;
    match word(0) {
        EXEC => exec(parent, word(2), words.get(3..).unwrap_or_default()),
        HOLD => die_with(parent).and_then(|()| namespace::hold()),
        RELAY => die_with(parent).and_then(|()| relay::relay([word(2), word(3)])),
        other => Err(io::Error::other(format!("there is no part {other}"))),
    }
}

fn exec(parent: u32, netns: &str, words: &[OsString]) -> io::Result<()> {
    if let Ok(pid) = netns.parse() {
        ringway_sys::namespace::enter(pid)?;
    }
    die_with(parent)?;
    let (name, arguments) =
        words.split_first().ok_or_else(|| io::Error::other("no program to run"))?;
    let file = name.to_str().and_then(find).map_or(name.clone(), PathBuf::into_os_string);
    let error = Command::new(file).arg0(name).args(arguments).exec();
    Err(io::Error::new(error.kind(), format!("run {}: {error}", name.to_string_lossy())))
}

fn die_with(parent: u32) -> io::Result<()> {
    ringway_sys::process::die_with_parent(parent)
}

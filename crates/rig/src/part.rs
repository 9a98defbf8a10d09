//! What this program does when it is started again as a part of an experiment.
//!
//! No part outlives the thread that starts it: the kernel kills it with that thread, and network
//! namespaces end with their processes. [`launcher`](crate::launcher) starts parts.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::launcher::{EXEC, find};
use crate::namespace::{self, HOLD};

/// Whether a word is the name of a part of this crate. A program with parts of its own finds them
/// by their names first.
pub fn is_part(word: &str) -> bool {
    [EXEC, HOLD].contains(&word)
}

/// Runs this program as a part, according to the words of
/// [`Launcher::part`](crate::launcher::Launcher::part). Returns when the part ends.
///
/// # Errors
/// What fails in the part; words that no launcher passes.
pub fn run(words: &[OsString]) -> io::Result<()> {
    let name = words.first().and_then(|word| word.to_str()).unwrap_or_default();
    let parent = parent(words)?;
    match name {
        EXEC => exec(parent, words.get(2..).unwrap_or_default()),
        HOLD => die_with(parent).and_then(|()| namespace::hold()),
        other => Err(io::Error::other(format!("there is no part {other}"))),
    }
}

/// Makes the kernel kill this process when the one that started it as a part ends; `words` are
/// those of [`run`]. For the parts of other crates.
///
/// # Errors
/// If the parent has already ended; words that no launcher passes.
pub fn die_with_parent(words: &[OsString]) -> io::Result<()> {
    die_with(parent(words)?)
}

fn exec(parent: u32, words: &[OsString]) -> io::Result<()> {
    let (netns, words) =
        words.split_first().ok_or_else(|| io::Error::other("no network namespace to run in"))?;
    if let Some(pid) = netns.to_str().and_then(|word| word.parse().ok()) {
        ringway_sys::namespace::enter(pid)?;
    }
    die_with(parent)?;
    let (name, arguments) =
        words.split_first().ok_or_else(|| io::Error::other("no program to run"))?;
    let file = name.to_str().and_then(find).map_or(name.clone(), PathBuf::into_os_string);
    let error = Command::new(file).arg0(name).args(arguments).exec();
    Err(io::Error::new(error.kind(), format!("run {}: {error}", name.to_string_lossy())))
}

/// The process that started this one as a part: the second word.
fn parent(words: &[OsString]) -> io::Result<u32> {
    let word = words.get(1).and_then(|word| word.to_str()).and_then(|word| word.parse().ok());
    word.ok_or_else(|| io::Error::other("a part gets the process id of its parent"))
}

fn die_with(parent: u32) -> io::Result<()> {
    ringway_sys::process::die_with_parent(parent)
}

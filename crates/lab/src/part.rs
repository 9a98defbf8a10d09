//! What this program does when a study starts it again as one of its parts: the parts of
//! [`ringway_rig::part`], and the relay.

use std::ffi::OsString;
use std::io;

use ringway_rig::part;

use crate::topology::relay::{self, RELAY};

/// Whether a word is the name of a part.
pub fn is_part(word: &str) -> bool {
    word == RELAY || part::is_part(word)
}

/// Runs this program as a part, according to the words of
/// [`Launcher::part`](ringway_rig::launcher::Launcher::part). Returns when the part ends.
///
/// # Errors
/// What fails in the part; words that no launcher passes.
pub fn run(words: &[OsString]) -> io::Result<()> {
    let word = |index: usize| words.get(index).and_then(|word| word.to_str()).unwrap_or_default();
    if word(0) != RELAY {
        return part::run(words);
    }
    part::die_with_parent(words)?;
    relay::relay([word(2), word(3), word(4), word(5), word(6)])
}

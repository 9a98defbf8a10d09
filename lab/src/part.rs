//! What this program does when a study starts it again as one of its parts: the parts of
//! [`ringway_rig::part`], and the relay.

use std::ffi::OsString;
use std::io;

use ringway_rig::part;
use ringway_sys::tun::TunFile;

use crate::topology::relay;
pub use crate::topology::relay::RELAY;

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
    if word(words, 0) != RELAY {
        return part::run(words);
    }
    part::die_with_parent(words)?;
    relay::relay(words_of_relay(words))
}

/// Runs this program as a relay of its own, `relay` of a
/// [`Blueprint`](crate::topology::Blueprint): between the same devices with the same offloads as
/// [`RELAY`]. What `begin` returns copies until the part is killed. The relay counts as started as
/// soon as `begin` has returned.
///
/// # Errors
/// As [`run`].
pub fn relay<C: FnOnce() -> io::Result<()>>(
    words: &[OsString],
    begin: impl FnOnce([TunFile; 2]) -> io::Result<C>,
) -> io::Result<()> {
    part::die_with_parent(words)?;
    relay::between(words_of_relay(words), begin)
}

fn words_of_relay(words: &[OsString]) -> [&str; 5] {
    [2, 3, 4, 5, 6].map(|index| word(words, index))
}

fn word(words: &[OsString], index: usize) -> &str {
    words.get(index).and_then(|word| word.to_str()).unwrap_or_default()
}

//! Standard output of the verbs, whose reader may close it before they are done.

use std::fmt;
use std::io::{self, Write};

use anyhow::Result;
use serde::Serialize;

/// Standard output has no reader any more, as after `ringway vif list | head -1`. This ends a
/// verb but is no failure. The type distinguishes it from a broken pipe or socket to one of our own
/// processes.
#[derive(Debug)]
pub struct ReaderLeft;

impl std::error::Error for ReaderLeft {}

impl fmt::Display for ReaderLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of the output has closed it")
    }
}

/// Prints text as it is, at once.
///
/// # Errors
/// [`ReaderLeft`] if nothing reads standard output any more; otherwise why it cannot be written.
pub fn print(text: &str) -> Result<()> {
    write_to(&mut io::stdout().lock(), text)
}

/// Prints a value as JSON, for scripts.
///
/// # Errors
/// As [`print()`] has them, and if the value cannot be JSON.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

fn write_to(out: &mut dyn Write, text: &str) -> Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ReaderLeft.into()),
        Err(error) => Err(anyhow::Error::new(error).context("write to standard output")),
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_reader_that_left_is_distinguished_from_a_failure() {
        let (mut ours, theirs) = UnixStream::pair().expect("a pair");
        write_to(&mut ours, "one").expect("it has room");
        drop(theirs);
        assert!(write_to(&mut ours, "two").expect_err("it has no reader").is::<ReaderLeft>());
        // A slice of one byte is a writer without room for more.
        let error = write_to(&mut [0_u8; 1].as_mut_slice(), "three").expect_err("too long");
        assert!(!error.is::<ReaderLeft>(), "{error:#}");
    }
}

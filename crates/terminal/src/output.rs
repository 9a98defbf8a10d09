//! Standard output of the verbs, whose reader may close it before they are done.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
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

/// A file that a verb writes at its end: whole, or not at all.
pub struct OutFile<'a> {
    path: &'a Path,
    /// Where it is written first; `None` for a device or pipe, which cannot be replaced.
    draft: Option<PathBuf>,
}

impl OutFile<'_> {
    /// A file of this name, before the work: so an error is not reported after it. Nothing is left
    /// if the verb ends without it.
    ///
    /// # Errors
    /// Why it cannot be written.
    pub fn new(path: &Path) -> Result<OutFile<'_>> {
        let is_special = fs::metadata(path).is_ok_and(|found| !found.is_file());
        let draft = (!is_special).then(|| {
            let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
            name.push(format!(".{}", std::process::id()));
            path.with_file_name(name)
        });
        let file = OutFile { path, draft };
        match &file.draft {
            Some(draft) => File::create_new(draft).and_then(|_| fs::remove_file(draft)),
            None => File::options().write(true).open(path).map(drop),
        }
        .with_context(|| format!("make {}", path.display()))?;
        Ok(file)
    }

    /// Writes it.
    ///
    /// # Errors
    /// Why it cannot be written; an earlier file of this name is then as it was.
    pub fn write(self, content: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
        let target = self.draft.as_deref().unwrap_or(self.path);
        let fill = || {
            let file = File::options().write(true).create(true).truncate(true).open(target)?;
            let mut file = BufWriter::new(file);
            content(&mut file)?;
            file.flush()?;
            match &self.draft {
                Some(draft) => Ok(fs::rename(draft, self.path)?),
                None => Ok(()),
            }
        };
        let written: Result<()> = fill();
        if let (Err(_), Some(draft)) = (&written, &self.draft) {
            let _ = fs::remove_file(draft);
        }
        written.with_context(|| format!("write {}", self.path.display()))
    }
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
    fn a_file_is_written_whole_or_not_at_all() {
        let place = tempfile::tempdir().expect("a directory");
        let names = || fs::read_dir(place.path()).expect("its own").count();
        let path = place.path().join("page.html");
        drop(OutFile::new(&path).expect("it may be written"));
        assert_eq!(names(), 0, "nothing of a verb that does not end");
        let filled = |content: &'static str, ends: bool| {
            OutFile::new(&path).expect("it may be written").write(|out| {
                out.write_all(content.as_bytes())?;
                if ends { Ok(()) } else { anyhow::bail!("the work failed") }
            })
        };
        filled("whole", true).expect("there is room");
        let error = filled("half", false).expect_err("it failed");
        assert!(format!("{error:#}").contains("page.html: the work failed"), "{error:#}");
        assert_eq!((fs::read_to_string(&path).expect("it stays").as_str(), names()), ("whole", 1));
        assert!(OutFile::new(&place.path().join("none/page.html")).is_err());
        OutFile::new(Path::new("/dev/null"))
            .expect("a device")
            .write(|_| Ok(()))
            .expect("it takes all");
    }

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

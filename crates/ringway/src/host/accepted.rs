//! The last description that a host accepted: kept, so that a start with a file that is wrong or
//! half edited serves what ran before.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::OFlags;
use rustix::process::geteuid;

use crate::description::{self, Host, Usage};

/// Where a service manager lets a service keep files.
const STATE_DIRECTORY: &str = "STATE_DIRECTORY";
/// The end of the file's name.
const SUFFIX: &str = ".accepted";
/// The beginning of its first line, with the length of the rest and the path that it was read from.
const HEAD: &str = "# ringway accepted these ";
/// Bytes of it: those of a description, and of a path.
const LEN_MAX: u64 = description::FILE_LEN_MAX + 8192;

/// What to keep once a host serves it.
pub(crate) struct Keep {
    pub(crate) kept: Accepted,
    pub(crate) content: String,
}

impl Keep {
    /// Keeps it. A host that cannot serves nevertheless.
    pub(crate) fn keep(&self) {
        self.kept.keep_or_warn(&self.content);
    }
}

/// A description in a file, and where the last accepted one from that file is kept.
#[derive(Clone)]
pub(crate) struct Accepted {
    file: PathBuf,
    /// Its directory, and that of what it is a link to, if it is one.
    dirs: Vec<PathBuf>,
    kept: PathBuf,
    is_of_service: bool,
}

impl Accepted {
    /// For a description and a run directory: in the service's directory for such files, or beside
    /// the run directory, where the processes of a host may not write.
    ///
    /// # Errors
    /// If there is no working directory.
    pub(crate) fn of(file: &Path, dir: &Path) -> io::Result<Accepted> {
        let file = std::path::absolute(file)?;
        let state = env::var_os(STATE_DIRECTORY).filter(|dirs| !dirs.is_empty());
        let state = state.and_then(|dirs| env::split_paths(&dirs).next());
        let with_suffix = |name: &Path| {
            let mut name = OsString::from(name);
            name.push(SUFFIX);
            PathBuf::from(name)
        };
        let linked = fs::canonicalize(&file).ok();
        let files = [Some(file.as_path()), linked.as_deref()].into_iter().flatten();
        let dirs = files.filter_map(|file| Some(file.parent()?.to_owned())).collect();
        let is_of_service = state.is_some();
        let kept = match (state, file.file_name()) {
            (Some(state), Some(name)) => state.join(with_suffix(Path::new(name))),
            _ => with_suffix(&std::path::absolute(dir)?),
        };
        Ok(Accepted { file, dirs, kept, is_of_service })
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// The directory of the file, and that of what it was a link to at first, if it was one.
    pub(crate) fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// The directory of what the file is a link to by now, if that is below none of these.
    pub(crate) fn dir_beyond(&self) -> Option<PathBuf> {
        let dir = fs::canonicalize(&self.file).ok()?.parent()?.to_owned();
        let is_above =
            |known: &PathBuf| fs::canonicalize(known).is_ok_and(|known| dir.starts_with(known));
        (!self.dirs.iter().any(is_above)).then_some(dir)
    }

    pub(crate) fn kept(&self) -> &Path {
        &self.kept
    }

    /// The directory in which it is kept, if the service manager has made that for such files.
    pub(crate) fn of_service(&self) -> Option<&Path> {
        self.kept.parent().filter(|_| self.is_of_service)
    }

    /// Keeps what was read from the file, for later starts.
    pub(crate) fn keep_or_warn(&self, content: &str) {
        if let Err(error) = self.keep(content) {
            tracing::warn!("{error:#}: a start with a wrong description would not have this one");
        }
    }

    /// As [`keep_or_warn`](Accepted::keep_or_warn).
    ///
    /// # Errors
    /// What the system reports.
    fn keep(&self, content: &str) -> Result<()> {
        if self.text().as_deref() == Some(content) {
            return Ok(());
        }
        self.replace(content)
            .with_context(|| format!("keep the accepted description in {}", self.kept.display()))
    }

    /// A reader finds the old content or the new one.
    fn replace(&self, content: &str) -> io::Result<()> {
        let new = self.kept.with_extension("new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        let written = file
            .write_all((self.head(content) + content).as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&new, &self.kept));
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written?;
        // The rename, too, should be there after a reboot.
        self.kept.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
    }

    fn head(&self, content: &str) -> String {
        format!("{HEAD}{} bytes of {:?}\n", content.len(), self.file)
    }

    /// The last accepted description that was read from the file, if one is kept and still good.
    pub(crate) fn read(&self, usage: Usage) -> Option<(String, Host)> {
        let content = self.text()?;
        let host = description::parse(&self.kept.display().to_string(), &content, usage);
        match host {
            Ok(host) => Some((content, host)),
            Err(error) => {
                tracing::warn!("the last accepted description is not valid any more\n{error}");
                None
            }
        }
    }

    /// The text of the kept description. One that is torn, of another file, or that another user
    /// can write to, counts as missing.
    fn text(&self) -> Option<String> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let flags = i32::try_from(flags.bits()).ok()?;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&self.kept).ok()?;
        let found = file.metadata().ok()?;
        if !found.is_file() || found.uid() != geteuid().as_raw() || found.mode() & 0o022 != 0 {
            return None;
        }
        let mut text = String::new();
        file.take(LEN_MAX).read_to_string(&mut text).ok()?;
        let (head, content) = text.split_once('\n')?;
        (format!("{head}\n") == self.head(content)).then(|| content.to_owned())
    }
}

/// Logs why a description that was read again changes nothing.
pub(crate) fn log_refusal(reason: &str) {
    tracing::error!(
        "{reason}\nthe description was read again, and nothing has changed: correct it, and reload"
    );
}

/// Logs what another description says of all but virtio vifs that is not in force.
pub(crate) fn log_kept(in_force: &Host, described: &Host) {
    let kept = description::differences(in_force, described);
    if !kept.is_empty() {
        let has_guests = kept.iter().any(|it| it.starts_with("guest "));
        let more = if has_guests { ", or use `ringway vif set` for limits and rules" } else { "" };
        tracing::warn!(
            "kept as it was: {} cannot change while the host runs: restart it{more}",
            kept.join(", ")
        );
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const TEXT: &str = "[host]\nworkers = 3\n";

    fn kept(place: &Path) -> Accepted {
        let (file, kept) = (place.join("host.toml"), place.join("run.accepted"));
        Accepted { file, dirs: Vec::new(), kept, is_of_service: false }
    }

    #[test]
    fn a_link_that_points_elsewhere_than_at_first_is_found() {
        let place = tempfile::tempdir().expect("a directory");
        let [first, below, other] = ["first", "first/below", "other"].map(|name| {
            let dir = place.path().join(name);
            fs::create_dir(&dir).expect("a directory");
            fs::write(dir.join("host.toml"), TEXT).expect("written");
            fs::canonicalize(dir).expect("it is there")
        });
        let etc = place.path().join("etc");
        fs::create_dir(&etc).expect("a directory");
        let file = etc.join("host.toml");
        let point_to = |dir: &Path| {
            let _ = fs::remove_file(&file);
            std::os::unix::fs::symlink(dir.join("host.toml"), &file).expect("a link");
        };
        point_to(&first);
        let accepted = Accepted::of(&file, place.path()).expect("a working directory");
        assert_eq!(accepted.dirs(), [etc.clone(), first]);
        assert_eq!(accepted.dir_beyond(), None);
        point_to(&below);
        assert_eq!(accepted.dir_beyond(), None);
        point_to(&other);
        assert_eq!(accepted.dir_beyond(), Some(other));
        fs::remove_file(&file).expect("a link");
        fs::write(&file, TEXT).expect("written");
        assert_eq!(accepted.dir_beyond(), None, "it is no link any more");
    }

    #[test]
    fn what_was_accepted_last_is_read_again_for_the_same_file_only() {
        let place = tempfile::tempdir().expect("a directory");
        let accepted = kept(place.path());
        assert!(accepted.read(Usage::default()).is_none());
        accepted.keep("[host]\nworkers = 2\n").expect("kept");
        accepted.keep(TEXT).expect("kept");
        let (content, host) = accepted.read(Usage::default()).expect("it is kept");
        assert_eq!((content.as_str(), host.workers.count), (TEXT, Some(3)));
        let mode = fs::metadata(&accepted.kept).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let names = fs::read_dir(place.path()).expect("a directory").count();
        assert_eq!(names, 1, "nothing else is left");
        let other = Accepted { file: place.path().join("other.toml"), ..kept(place.path()) };
        assert!(other.read(Usage::default()).is_none());
    }

    #[test]
    fn a_kept_description_that_cannot_be_trusted_counts_as_missing() {
        let place = tempfile::tempdir().expect("a directory");
        let accepted = kept(place.path());
        let is_read = || accepted.read(Usage::default()).is_some();
        accepted.keep(TEXT).expect("kept");
        let whole = fs::read(&accepted.kept).expect("a file");
        // A shorter description would be valid, too.
        fs::write(&accepted.kept, &whole[..whole.len() - 12]).expect("written");
        assert!(!is_read());
        fs::write(&accepted.kept, &whole).expect("written");
        assert!(is_read());
        let mode = fs::Permissions::from_mode(0o622);
        fs::set_permissions(&accepted.kept, mode).expect("ours");
        assert!(!is_read());
        fs::remove_file(&accepted.kept).expect("ours");
        let elsewhere = place.path().join("elsewhere");
        fs::write(&elsewhere, &whole).expect("written");
        std::os::unix::fs::symlink(&elsewhere, &accepted.kept).expect("a link");
        assert!(!is_read());
    }
}

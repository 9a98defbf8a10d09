//! Records as files that outlive the process that wrote them.
//!
//! A directory holds `study.toml` and `host.json`, written once, and `runs.jsonl`, to which each
//! finished run is appended and synced, so that neither Ctrl-C nor a crash costs a finished run.
//! Everything else in it is derived from these three and can be written again.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::record::{Failure, Host, Peer, Records, Run};
use crate::study::{Study, StudyError, Subject};
use crate::value::Cell;

/// The copy of the study.
const STUDY_FILE: &str = "study.toml";
/// The description of the machine.
const HOST_FILE: &str = "host.json";
/// The description of the other machine, if there is one.
const PEER_FILE: &str = "peer.json";
/// The runs, one per line, in chronological order.
const RUNS_FILE: &str = "runs.jsonl";
/// Runs without figures, one per line.
const FAILURES_FILE: &str = "failures.jsonl";

/// Why records cannot be read or written. The message contains the system's error, so that error is
/// not a `source` as well.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// There are no records.
    #[error("{} holds no records of a study: it has no {file}", dir.display())]
    None {
        /// The directory.
        dir: PathBuf,
        /// What is missing.
        file: &'static str,
    },
    /// The file system reported an error.
    #[error("cannot {what} {}: {error}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// Its file or directory.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// A line is not a run.
    #[error("{}, line {line}: {error}", path.display())]
    BadLine {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        error: serde_json::Error,
    },
    /// A line is a run that does not belong here.
    #[error("{}, line {line}: {fault}", path.display())]
    Stranger {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What does not belong.
        fault: String,
    },
    /// The description of the host cannot be read.
    #[error("{}: {error}", path.display())]
    BadHost {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: serde_json::Error,
    },
    /// The copy of the study cannot be read.
    #[error(transparent)]
    Study(#[from] StudyError),
    /// The directory holds the records of another study.
    #[error(
        "{} holds records of another study or matrix: choose another directory with --out",
        dir.display()
    )]
    OtherStudy {
        /// The directory.
        dir: PathBuf,
    },
    /// The records are of another machine.
    #[error(
        "{} holds records of another machine ({was}); figures of two machines must not be mixed: \
         choose another directory with --out",
        dir.display()
    )]
    OtherHost {
        /// The directory.
        dir: PathBuf,
        /// The machine of the records.
        was: String,
    },
    /// The records are of another peer, or of another path to it.
    #[error(
        "{} holds records with another peer ({was}); figures of two paths must not be mixed: \
         choose another directory with --out",
        dir.display()
    )]
    OtherPeer {
        /// The directory.
        dir: PathBuf,
        /// The peer of the records.
        was: String,
    },
    /// Another process is writing to it.
    #[error("{} is being written to by another run; wait for it or choose another", dir.display())]
    Busy {
        /// The directory.
        dir: PathBuf,
    },
}

impl Records {
    /// Reads the records in a directory.
    pub fn read(dir: &Path) -> Result<Records, RecordError> {
        let study_path = existing(dir, STUDY_FILE)?;
        let study = Study::read(&study_path)?;
        let host_path = existing(dir, HOST_FILE)?;
        let host = serde_json::from_str(&read(&host_path)?)
            .map_err(|error| RecordError::BadHost { path: host_path, error })?;
        let peer = read_peer(dir)?;
        let path = existing(dir, RUNS_FILE)?;
        let text = read(&path)?;
        let Lines { runs, notice, .. } = parse_runs(&path, &study, &text)?;
        let notices = notice.into_iter().chain(failures(dir, &study)).collect();
        Ok(Records { study, host, peer, runs, notices })
    }
}

/// Records to which runs are being appended.
#[derive(Debug)]
pub struct Journal {
    file: Locked,
    path: PathBuf,
    /// The records so far.
    pub records: Records,
    /// What has changed since the first run, according to [`Host::differences`].
    pub differences: Vec<String>,
}

impl Journal {
    /// Begins the records of a study in a directory, or continues existing ones. `now` is the
    /// machine in its present state; the records keep the description of the machine that began
    /// them.
    pub fn open(dir: &Path, study: &Study, now: &Host) -> Result<Journal, RecordError> {
        fs::create_dir_all(dir).map_err(at("make the directory", dir))?;
        let path = dir.join(RUNS_FILE);
        let mut options = OpenOptions::new();
        options.create(true).append(true).read(true);
        let file = options.open(&path).map_err(at("open", &path))?;
        // Two processes that append at the same time would each count the other's runs as their
        // own.
        let file = Locked::new(file, dir)?;
        let host = begin(dir, study, now)?;
        let text = read(&path)?;
        let Lines { runs, notice, good_len } = parse_runs(&path, study, &text)?;
        if good_len < text.len() {
            let len = u64::try_from(good_len).expect("a file in memory");
            file.0.set_len(len).map_err(at("shorten", &path))?;
        }
        let notices = notice.into_iter().chain(failures(dir, study)).collect();
        let differences = host.differences(now);
        let peer = read_peer(dir)?;
        let records = Records { study: study.clone(), host, peer, runs, notices };
        let mut journal = Journal { file, path, records, differences };
        if good_len > 0 && !text[..good_len].ends_with('\n') {
            journal.write(b"\n")?;
        }
        Ok(journal)
    }

    /// Records the other machine, or compares it with the one of the records. What has changed
    /// there since the first run is added to the differences.
    ///
    /// # Errors
    /// If it is another machine, or the path to it is another one.
    pub fn set_peer(&mut self, dir: &Path, now: &Peer) -> Result<(), RecordError> {
        match &self.records.peer {
            Some(was) if !was.is_same_path(now) => {
                return Err(RecordError::OtherPeer { dir: dir.to_owned(), was: was.title() });
            }
            Some(was) => {
                let changed = was.host.differences(&now.host);
                self.differences.extend(changed.iter().map(|what| format!("peer: {what}")));
            }
            None => {
                let text = serde_json::to_string_pretty(now).expect("no maps but by name");
                write_whole(&dir.join(PEER_FILE), (text + "\n").as_bytes())?;
                self.records.peer = Some(now.clone());
            }
        }
        Ok(())
    }

    /// Appends a run. When this returns, the run is on disk.
    pub fn append(&mut self, run: Run) -> Result<(), RecordError> {
        let mut line = serde_json::to_vec(&run).expect("a run has no maps but by name");
        line.push(b'\n');
        self.write(&line)?;
        self.records.runs.push(run);
        Ok(())
    }

    /// Appends the reason why a run gave no figures.
    ///
    /// # Errors
    /// The file system's error.
    pub fn append_failure(&mut self, failure: &Failure) -> Result<(), RecordError> {
        let mut line = serde_json::to_vec(failure).expect("a failure has no maps but by name");
        line.push(b'\n');
        let path = self.path.with_file_name(FAILURES_FILE);
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(&line));
        written.map_err(at("write to", &path))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), RecordError> {
        let Locked(file) = &mut self.file;
        let written = file.write_all(bytes).and_then(|()| file.sync_data());
        written.map_err(at("write to", &self.path))
    }
}

/// A file that no other process writes meanwhile.
#[derive(Debug)]
struct Locked(File);

impl Locked {
    fn new(file: File, dir: &Path) -> Result<Locked, RecordError> {
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| RecordError::Busy { dir: dir.to_owned() })?;
        Ok(Locked(file))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing it does not suffice: a child that another thread is just starting has the file,
        // too, until it executes its program.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Writes the files that are written once, or compares them with the existing ones. Returns the
/// host of the records.
fn begin(dir: &Path, study: &Study, host: &Host) -> Result<Host, RecordError> {
    let study_path = dir.join(STUDY_FILE);
    let was = study_path.exists().then(|| Study::read(&study_path)).transpose()?;
    if was.as_ref().is_some_and(|was| !study.goes_on(was)) {
        return Err(RecordError::OtherStudy { dir: dir.to_owned() });
    }
    if was.as_ref() != Some(study) {
        write_whole(&study_path, study.to_toml().as_bytes())?;
    }
    let host_path = dir.join(HOST_FILE);
    if !host_path.exists() {
        let text = serde_json::to_string_pretty(host).expect("a host has no maps but by name");
        write_whole(&host_path, (text + "\n").as_bytes())?;
        return Ok(host.clone());
    }
    let was: Host = serde_json::from_str(&read(&host_path)?)
        .map_err(|error| RecordError::BadHost { path: host_path, error })?;
    if was.is_same_machine(host) {
        return Ok(was);
    }
    Err(RecordError::OtherHost { dir: dir.to_owned(), was: was.name() })
}

/// Replaces a file atomically: a reader sees all of the old one or all of the new one.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), RecordError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let write = || {
        let mut file = File::create(&new)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        fs::rename(&new, path)
    };
    write().map_err(at("write", path))
}

fn read_peer(dir: &Path) -> Result<Option<Peer>, RecordError> {
    let path = dir.join(PEER_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let peer = serde_json::from_str(&read(&path)?);
    peer.map(Some).map_err(|error| RecordError::BadHost { path, error })
}

struct Lines {
    runs: Vec<Run>,
    notice: Option<String>,
    /// Bytes that hold whole runs.
    good_len: usize,
}

/// A last line without a newline was being written when the machine or the program stopped: it is
/// dropped if it is not a complete run. All other lines must be runs of this study.
fn parse_runs(path: &Path, study: &Study, text: &str) -> Result<Lines, RecordError> {
    let mut lines = Lines { runs: Vec::new(), notice: None, good_len: 0 };
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let number = index + 1;
        match serde_json::from_str::<Run>(line) {
            Ok(run) => {
                let fault = match lines.runs.contains(&run) {
                    true => Err("the run is in an earlier line as well".to_owned()),
                    false => belongs(study, &run),
                };
                fault.map_err(|fault| RecordError::Stranger {
                    path: path.to_owned(),
                    line: number,
                    fault,
                })?;
                lines.runs.push(run);
            }
            Err(_) if !line.ends_with('\n') => {
                lines.notice =
                    Some(format!("line {number} of {RUNS_FILE} is incomplete and was ignored"));
                break;
            }
            Err(error) => {
                return Err(RecordError::BadLine { path: path.to_owned(), line: number, error });
            }
        }
        lines.good_len += line.len();
    }
    Ok(lines)
}

fn belongs(study: &Study, run: &Run) -> Result<(), String> {
    if run.study != study.id {
        return Err(format!("a run of `{}` among those of `{}`", run.study, study.id));
    }
    if !study.cells(run.subject).contains(&run.cell) {
        return Err(format!("the study has no cell {} of {}", run.cell, run.subject));
    }
    match run.values.iter().find(|(_, value)| !value.is_finite()) {
        Some((name, _)) => Err(format!("{name} is not a number")),
        None => Ok(()),
    }
}

/// For each cell that had failures, how many and the last reason.
fn failures(dir: &Path, study: &Study) -> Vec<String> {
    let text = fs::read_to_string(dir.join(FAILURES_FILE)).unwrap_or_default();
    let mut of_cells: BTreeMap<(Subject, Cell), (usize, String)> = BTreeMap::new();
    // A truncated line is no loss: it only says why there are no figures.
    for failure in text.lines().filter_map(|line| serde_json::from_str::<Failure>(line).ok()) {
        let entry = of_cells.entry((failure.subject, failure.cell)).or_default();
        *entry = (entry.0 + 1, failure.reason);
    }
    let sentence = |((subject, cell), (count, reason)): ((Subject, Cell), (usize, String))| {
        let label = study.label(&cell);
        let runs = if count == 1 { "one run".to_owned() } else { format!("{count} runs") };
        format!("{runs} of {subject} {label} gave no result; the reason of the last: {reason}")
    };
    of_cells.into_iter().map(sentence).collect()
}

fn existing(dir: &Path, file: &'static str) -> Result<PathBuf, RecordError> {
    let path = dir.join(file);
    if path.is_file() { Ok(path) } else { Err(RecordError::None { dir: dir.to_owned(), file }) }
}

fn read(path: &Path) -> Result<String, RecordError> {
    fs::read_to_string(path).map_err(at("read", path))
}

fn at(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RecordError {
    let path = path.to_owned();
    move |error| RecordError::Io { what, path, error }
}

#[cfg(test)]
pub(crate) mod tests;

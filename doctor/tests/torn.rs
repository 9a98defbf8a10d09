//! Whole hosts with truncated or altered files, or with those of another host or sample, from a
//! seeded generator: nothing crashes, and truncation causes no new diagnosis. Alteration into other
//! valid values may cause one, which must follow the rules for findings, as a whole host's must.

mod saved;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use ringway_doctor::evidence::{Source, archive};
use ringway_doctor::fact::Host;
use ringway_doctor::finding::{Finding, Severity};
use ringway_doctor::report::Report;
use ringway_doctor::report::text::{Detail, render};

/// The files of a host by their paths, as bytes: what is torn may be no text.
type Pieces = BTreeMap<String, Vec<u8>>;

/// Set it for another run; a failure prints the seed.
const SEED: &str = "RINGWAY_TORN_SEED";
/// Attempts to tear each fixture, and to alter it; `make nightly` makes six times as many.
const TEARS: usize = 10;
const TEARS_NIGHTLY: usize = 60;
/// Time limit of a diagnosis; on an idle machine it takes some milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many files of each fixture are spoiled in a directory.
const DIRECTORIES: usize = 4;

fn tears() -> usize {
    if std::env::var_os("RINGWAY_NIGHTLY").is_some() { TEARS_NIGHTLY } else { TEARS }
}

/// The generator and its seed.
fn seeded() -> (Rng, u64) {
    let seed = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    (Rng::with_seed(seed), seed)
}

/// The path of one of a host's files.
fn key(random: &mut Rng, pieces: &Pieces) -> String {
    let index = random.usize(..pieces.len());
    pieces.keys().nth(index).expect("within").clone()
}

/// All fixtures with their names.
fn hosts() -> Vec<(String, Pieces)> {
    let bytes = |(path, text): (String, String)| (path, text.into_bytes());
    let host =
        |(name, pieces): (String, saved::Pieces)| (name, pieces.into_iter().map(bytes).collect());
    saved::hosts().into_iter().map(host).collect()
}

fn tar_of(pieces: &Pieces) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, bytes) in pieces {
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(bytes.len()).expect("a length"));
        header.set_mode(0o644);
        builder.append_data(&mut header, path, bytes.as_slice()).expect("in memory");
    }
    builder.into_inner().expect("in memory")
}

/// Diagnoses in a thread, to distinguish one that never ends from a slow one.
fn diagnose(source: Source, how: &str) -> Vec<Finding> {
    let (sender, receiver) = mpsc::channel();
    let diagnosis = thread::spawn(move || {
        let report = Report::of(&Host::new(source), &[]);
        let _ = render(&report, Detail::Full);
        let _ = sender.send(report.findings);
    });
    match receiver.recv_timeout(PATIENCE) {
        Ok(findings) => findings,
        Err(RecvTimeoutError::Timeout) => panic!("{how}: no diagnosis after {PATIENCE:?}"),
        Err(RecvTimeoutError::Disconnected) => {
            diagnosis.join().expect_err("it has sent nothing");
            panic!("{how}: the diagnosis panics");
        }
    }
}

fn diagnose_pieces(pieces: &Pieces, how: &str) -> Vec<Finding> {
    match archive::read(tar_of(pieces).as_slice()) {
        Ok(source) => diagnose(source, how),
        // The signs of a saved host may be what was removed.
        Err(error) if error.to_string().starts_with("no saved host") => Vec::new(),
        Err(error) => panic!("{how}: {error}"),
    }
}

/// The problems, with their severity.
fn wrong(findings: &[Finding]) -> BTreeMap<(String, String), Severity> {
    let bad = findings.iter().filter(|one| one.severity >= Severity::Warning);
    let mut wrong = BTreeMap::new();
    for one in bad {
        let worst = wrong.entry((one.check.clone(), one.subject.clone())).or_insert(one.severity);
        *worst = one.severity.max(*worst);
    }
    wrong
}

/// Problems that are new or worse in the torn host; the result should be empty.
fn news(whole: &[Finding], torn: &[Finding]) -> Vec<String> {
    let before = wrong(whole);
    let is_new = |(what, severity): &(&(String, String), &Severity)| {
        before.get(*what).is_none_or(|known| *severity > known)
    };
    let now = wrong(torn);
    let summary = |((check, subject), _): (&(String, String), &Severity)| {
        let said = torn.iter().find(|one| one.check == *check && one.subject == *subject);
        format!("{check} {}", said.map_or("", |finding| &finding.summary))
    };
    now.iter().filter(is_new).map(summary).collect()
}

fn assert_by_the_rules(findings: &[Finding], how: &str) {
    for finding in findings {
        let is_wrong = finding.severity >= Severity::Warning;
        assert!(!is_wrong || !finding.evidence.is_empty(), "{how}: no evidence: {finding:?}");
        assert!(!is_wrong || !finding.advice.is_empty(), "{how}: no advice: {finding:?}");
        let text = format!("{} {}", finding.summary, finding.cause);
        assert!(!text.contains("NaN") && !text.contains("inf "), "{how}: {finding:?}");
    }
}

/// Damages a file like a full disk, a crash or a foreign encoding.
fn tear(random: &mut Rng, pieces: &mut Pieces) -> String {
    let path = key(random, pieces);
    let bytes = pieces.get_mut(&path).expect("there");
    let at = random.usize(..bytes.len() + 1);
    let how = match random.usize(..5) {
        0 => {
            bytes.truncate(at);
            "cut"
        }
        1 => {
            bytes.insert(at, 0);
            "a NUL"
        }
        2 => {
            let end = (at + 512).min(bytes.len());
            bytes[at..end].fill(0);
            "a sector of NULs"
        }
        3 => {
            bytes.insert(at, 0xff);
            "no text"
        }
        _ => {
            bytes.clear();
            "empty"
        }
    };
    format!("{path}, {how} at {at}")
}

/// Alters evidence, which may remain valid: that cannot be determined.
fn alter(random: &mut Rng, hosts: &[(String, Pieces)], pieces: &mut Pieces) -> String {
    let path = key(random, pieces);
    let foreign = &hosts[random.usize(..hosts.len())].1;
    let foreign = foreign[&key(random, foreign)].clone();
    let bytes = pieces.get_mut(&path).expect("there");
    let how = match random.usize(..4) {
        0 => {
            for _ in 0..=random.usize(..4) {
                let at = random.usize(..bytes.len().max(1));
                let bit = random.usize(..8);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
            "bits"
        }
        1 => {
            *bytes = with_huge_number(random, bytes);
            "a huge number"
        }
        2 => {
            swap_lines(random, bytes, &foreign);
            "lines of another file"
        }
        _ => {
            pieces.remove(&path);
            "gone"
        }
    };
    format!("{path}, {how}")
}

const HUGE: [&str; 8] = [
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775807",
    "4294967295",
    "-1",
    "1e308",
    "0",
    "99999999999999999999999999999999999999999999",
];

fn with_huge_number(random: &mut Rng, bytes: &[u8]) -> Vec<u8> {
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let starts: Vec<usize> =
        (0..bytes.len()).filter(|at| is_digit(*at) && (*at == 0 || !is_digit(at - 1))).collect();
    if starts.is_empty() {
        return bytes.to_vec();
    }
    let start = starts[random.usize(..starts.len())];
    let end = (start..).find(|at| !is_digit(*at)).expect("the bytes end");
    let huge = HUGE[random.usize(..HUGE.len())].as_bytes();
    [&bytes[..start], huge, &bytes[end..]].concat()
}

fn swap_lines(random: &mut Rng, bytes: &mut Vec<u8>, foreign: &[u8]) {
    let lines = |bytes: &[u8]| -> Vec<Vec<u8>> {
        bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
    };
    let (mut own, foreign) = (lines(bytes), lines(foreign));
    if own.is_empty() || foreign.is_empty() {
        return;
    }
    let at = random.usize(..own.len());
    own[at].clone_from(&foreign[random.usize(..foreign.len())]);
    let other = random.usize(..own.len());
    own.swap(at, other);
    *bytes = own.concat();
}

#[test]
fn what_is_torn_is_no_new_diagnosis() {
    let (mut random, seed) = seeded();
    let mut failures = Vec::new();
    for (name, pieces) in hosts() {
        let whole = diagnose_pieces(&pieces, &name);
        assert_by_the_rules(&whole, &name);
        for _ in 0..tears() {
            let mut torn = pieces.clone();
            let how = tear(&mut random, &mut torn);
            let news = news(&whole, &diagnose_pieces(&torn, &how));
            failures.extend(news.iter().map(|news| format!("{name}: {how}: {news}")));
        }
    }
    assert!(failures.is_empty(), "seed {seed}:\n{}", failures.join("\n"));
}

#[test]
fn what_is_altered_is_no_crash() {
    let (mut random, seed) = seeded();
    let hosts = hosts();
    for (name, pieces) in &hosts {
        for _ in 0..tears() {
            let mut altered = pieces.clone();
            let mut how = format!("{name}, seed {seed}");
            for _ in 0..=random.usize(..3) {
                if altered.len() > 1 {
                    how = format!("{how}: {}", alter(&mut random, &hosts, &mut altered));
                }
            }
            assert_by_the_rules(&diagnose_pieces(&altered, &how), &how);
        }
    }
}

#[test]
fn files_of_two_hosts_and_swapped_samples_are_no_crash() {
    let (mut random, seed) = seeded();
    let hosts = saved::hosts();
    for (name, pieces) in &hosts {
        let (other, foreign) = &hosts[random.usize(..hosts.len())];
        let mut mixed = pieces.clone();
        for (path, text) in foreign {
            if random.usize(..2) == 0 {
                mixed.insert(path.clone(), text.clone());
            }
        }
        let how = format!("{name} with files of {other}, seed {seed}");
        assert_by_the_rules(&diagnose(Source::Memory(mixed), &how), &how);

        let mut swapped = pieces.clone();
        for (path, text) in pieces {
            let Some(rest) = path.strip_prefix("sample-2/") else { continue };
            if random.usize(..2) == 0 {
                let before = swapped.insert(format!("sample-1/{rest}"), text.clone());
                swapped.insert(path.clone(), before.unwrap_or_default());
            }
        }
        let how = format!("{name} with samples in each other's place, seed {seed}");
        assert_by_the_rules(&diagnose(Source::Memory(swapped), &how), &how);
    }
}

#[test]
fn a_directory_with_loops_holes_and_pipes_is_no_new_diagnosis() {
    let (mut random, seed) = seeded();
    let mut failures = Vec::new();
    for (name, pieces) in hosts() {
        let dir = tempfile::tempdir().expect("a directory");
        for (path, bytes) in &pieces {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("below")).expect("made");
            fs::write(path, bytes).expect("written");
        }
        let diagnose =
            |how: &str| diagnose(Source::directory(dir.path()).expect("a directory"), how);
        let whole = diagnose_pieces(&pieces, &name);
        assert_eq!(diagnose(&name), whole, "{name}: not what its tar says");
        for _ in 0..DIRECTORIES {
            let path = key(&mut random, &pieces);
            let target = dir.path().join(&path);
            fs::remove_file(&target).expect("there");
            let how = spoil(&mut random, &target);
            let news = news(&whole, &diagnose(how));
            failures.extend(news.iter().map(|news| format!("{name}: {path}, {how}: {news}")));
            let is_dir = fs::symlink_metadata(&target).expect("there").is_dir();
            if is_dir { fs::remove_dir(&target) } else { fs::remove_file(&target) }.expect("gone");
            fs::write(&target, &pieces[&path]).expect("written");
        }
    }
    assert!(failures.is_empty(), "seed {seed}:\n{}", failures.join("\n"));
}

/// Makes something that is no file of a host.
fn spoil(random: &mut Rng, target: &Path) -> &'static str {
    match random.usize(..5) {
        0 => {
            symlink(target, target).expect("linked");
            "a loop"
        }
        1 => {
            symlink("/proc/self/mem", target).expect("linked");
            "a link that leads out"
        }
        2 => {
            let hole = fs::File::create(target).expect("made");
            hole.set_len(1 << 40).expect("most file systems have holes");
            "a hole of a terabyte"
        }
        3 => {
            fs::create_dir(target).expect("made");
            "a directory"
        }
        _ => {
            let mode = rustix::fs::Mode::RUSR;
            let fifo = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, target, fifo, mode, 0).expect("made");
            "a pipe without an end"
        }
    }
}

/// An entry of a tar with an arbitrary header.
fn entry(path: &str, kind: tar::EntryType, size: u64, bytes: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    let name = &mut header.as_old_mut().name;
    name[..path.len()].copy_from_slice(path.as_bytes());
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o644);
    header.set_cksum();
    let mut entry = header.as_bytes().to_vec();
    entry.extend_from_slice(bytes);
    entry.resize(entry.len().next_multiple_of(512), 0);
    entry
}

#[test]
fn a_hostile_tar_is_refused_or_says_no_more_than_its_sound_part() {
    let file = tar::EntryType::Regular;
    let sack = |path: &str| entry(path, file, 2, b"0\n");
    let hostile: [(&str, Vec<u8>); 12] = [
        ("absolute", sack("/proc/sys/net/ipv4/tcp_sack")),
        ("a way out", sack("proc/../../proc/sys/net/ipv4/tcp_sack")),
        ("no name", sack("")),
        ("a terabyte that is not there", entry("proc/stat", file, 1 << 40, b"cpu0 1\n")),
        ("all bytes there are", entry("proc/stat", file, u64::MAX >> 1, b"cpu0 1\n")),
        ("a sparse file", entry("proc/stat", tar::EntryType::GNUSparse, 1 << 33, b"")),
        ("a link", entry("proc/stat", tar::EntryType::Symlink, 0, b"")),
        ("a device", entry("proc/stat", tar::EntryType::Char, 0, b"")),
        ("a long name without one", entry("x", tar::EntryType::GNULongName, 1 << 40, b"x")),
        ("a header of extensions", entry("x", tar::EntryType::XHeader, 20, b"20 size=999999999\n")),
        ("a file below a file", [sack("proc"), sack("proc/stat")].concat()),
        ("no checksum", vec![b'x'; 1024]),
    ];
    for (name, pieces) in hosts().iter().step_by(8) {
        let whole = diagnose_pieces(pieces, name);
        let sound = tar_of(pieces);
        let sound = &sound[..sound.len() - 1024];
        for (what, entry) in &hostile {
            for bytes in [[sound, entry].concat(), [entry, sound].concat()] {
                let Ok(source) = archive::read(bytes.as_slice()) else { continue };
                let news = news(&whole, &diagnose(source, what));
                assert!(news.is_empty(), "{name}, {what}: {news:?}");
            }
        }
    }
}

#[test]
fn a_tar_that_ends_anywhere_is_no_crash() {
    let (mut random, seed) = seeded();
    for (name, pieces) in hosts().iter().step_by(4) {
        let bytes = tar_of(pieces);
        for _ in 0..tears() / 8 {
            let end = random.usize(..bytes.len());
            let Ok(source) = archive::read(&bytes[..end]) else { continue };
            // Entries after the cut are missing as if they had never existed.
            let how = format!("{name}, up to {end}, seed {seed}");
            assert_by_the_rules(&diagnose(source, &how), &how);
        }
    }
}

//! Makes fixtures from records: `fixture RECORDS FIXTURES`.
//!
//! From each `dNN-sick-*.tar` or `dNN-healthy-*.tar` in the first directory it takes the files that
//! check DNN reads, and writes them into one text in the second. A `.txt` beside the record says
//! where it is from; the test `verdicts` adds what is expected. A record that names this machine,
//! or an address outside the tests' networks, is refused.

#[path = "../tests/saved/mod.rs"]
mod saved;

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use ringway_doctor::check;
use ringway_doctor::evidence::{Source, archive};
use ringway_doctor::fact::Host;
use ringway_doctor::finding::{Finding, Severity};
use saved::{Fixture, Pieces};

/// Bytes of a fixture; no person would read more.
const BYTES_MAX: usize = 60 << 10;
/// The first bytes of addresses that the tests of namespaces use, and of no machine; the last is
/// that of handles of u32 filters.
const NETWORKS: [&str; 7] = ["10.98.", "10.77.", "127.0.0.", "0.0.0.0", "fe80:", "800::800", "::1"];

fn main() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    let (Some(records), Some(fixtures)) = (arguments.next(), arguments.next()) else {
        return Err("usage: fixture RECORDS FIXTURES".to_owned());
    };
    let entries = fs::read_dir(&records).map_err(|error| format!("{records}: {error}"))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|end| end == "tar")) {
        if let Err(why) = make(path, Path::new(&fixtures)) {
            println!("{}: {why}", path.display());
        }
    }
    Ok(())
}

fn make(record: &Path, fixtures: &Path) -> Result<(), String> {
    let name = record.file_stem().and_then(|name| name.to_str()).ok_or("a name that is text")?;
    let id = name.split('-').next().unwrap_or_default();
    let from = fs::read_to_string(record.with_extension("txt")).map_err(|e| e.to_string())?;
    let Source::Memory(pieces) = archive::open(record).map_err(|e| e.to_string())? else {
        return Err("expected a tar".to_owned());
    };
    let kept = cut(pieces, |pieces| findings(id, pieces))?;
    refuse_private(&kept)?;
    let found = findings(id, &kept)?;
    let is_sick = found.iter().any(|finding| finding.severity >= Severity::Warning);
    if is_sick != name.contains("-sick") {
        return Err(format!("it is not what its name says: {found:#?}"));
    }
    let about = format!("origin = \"recorded\"\nfrom = \"{}\"\n", from.trim());
    let files = kept.len();
    let text = Fixture { about, pieces: kept, expected: String::new() }.to_string();
    fs::write(fixtures.join(format!("{name}.txt")), text).map_err(|e| e.to_string())?;
    let said: Vec<&str> = found.iter().map(|finding| finding.summary.as_str()).collect();
    println!("{name}: {files} files; {}", said.join("; "));
    Ok(())
}

fn findings(id: &str, pieces: &Pieces) -> Result<Vec<Finding>, String> {
    let check = check::find(id).ok_or_else(|| format!("{id} is no check"))?;
    Ok(check.run(&Host::new(Source::Memory(pieces.clone()))))
}

/// Keeps every piece that the check reads: the findings change if it is removed or replaced by
/// garbage.
fn cut(
    mut pieces: Pieces,
    inspect: impl Fn(&Pieces) -> Result<Vec<Finding>, String>,
) -> Result<Pieces, String> {
    let whole = inspect(&pieces)?;
    let mut kept = Pieces::new();
    for (path, text) in pieces.clone() {
        // Without its time a sample is invalid, and the findings may be the same with only the
        // other sample.
        if path.ends_with("/monotonic") {
            kept.insert(path, text);
            continue;
        }
        pieces.remove(&path);
        let mut is_read = inspect(&pieces)? != whole;
        if !is_read {
            pieces.insert(path.clone(), "? nonsense\n".to_owned());
            is_read = inspect(&pieces)? != whole;
        }
        pieces.insert(path.clone(), text.clone());
        if is_read {
            kept.insert(path, text);
        }
    }
    // If a piece exists in two places, removing one of them changes nothing.
    for (path, text) in pieces.clone() {
        if !kept.contains_key(&path) {
            pieces.remove(&path);
            if inspect(&pieces)? != whole {
                pieces.insert(path, text);
            }
        }
    }
    let kept = pieces;
    let bytes: usize = kept.values().map(String::len).sum();
    if bytes > BYTES_MAX {
        return Err(format!("{bytes} bytes are left, at most {BYTES_MAX}"));
    }
    Ok(kept)
}

fn refuse_private(pieces: &Pieces) -> Result<(), String> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    for (path, text) in pieces {
        let is_part = |letter: char| letter.is_alphanumeric() || "_-".contains(letter);
        let mut names = text.split(|letter| !is_part(letter));
        if names.any(|name| name == host.trim()) {
            return Err(format!("{path} has the name of this machine"));
        }
        for word in text.split(|letter: char| letter.is_whitespace() || "\",;[]".contains(letter)) {
            // An address may be followed by its port.
            let alone = word.rsplit_once(':').map_or(word, |(address, _)| address);
            let is_address = |word: &str| word.parse::<IpAddr>().is_ok();
            let plain = word.strip_prefix("::ffff:").unwrap_or(word);
            let is_ours = NETWORKS.iter().any(|network| plain.starts_with(network));
            if (is_address(word) || is_address(alone)) && !is_ours {
                return Err(format!("{path} has the address {word}"));
            }
        }
    }
    Ok(())
}

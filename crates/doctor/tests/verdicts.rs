//! The doctor's output for every fixture, word for word: text and JSON of the check that the
//! fixture is for, and the result of every other check, with a digest of its findings.
//!
//! After an intended change of output, write `verdicts.txt` again; its diff shows what users will
//! read:
//!
//! ```text
//! RINGWAY_VERDICTS=write cargo test -p ringway-doctor --test verdicts
//! ```

mod saved;

use std::fmt::Write;
use std::fs;
use std::path::Path;

use ringway_doctor::check::{CATALOGUE, Check, Ended};
use ringway_doctor::evidence::Source;
use ringway_doctor::fact::Host;
use ringway_doctor::report::Report;
use ringway_doctor::report::text::{Detail, render};

/// Set to `write` to replace the file.
const WRITE: &str = "RINGWAY_VERDICTS";

#[test]
fn every_fixture_has_the_verdict_it_had() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verdicts.txt");
    let said: String = saved::hosts().iter().map(|(name, pieces)| verdict(name, pieces)).collect();
    if std::env::var(WRITE).is_ok_and(|word| word == "write") {
        fs::write(&path, &said).expect("written");
    }
    let known = fs::read_to_string(&path).expect("tests/verdicts.txt");
    let lines = known.lines().zip(said.lines()).enumerate();
    let mut others = lines.filter(|(_, (known, said))| known != said);
    if let Some((index, (known, said))) = others.next() {
        panic!("line {}:\n  was {known}\n  now {said}\n{} lines differ", index + 1, others.count());
    }
    assert_eq!(known.lines().count(), said.lines().count());
}

fn verdict(name: &str, pieces: &saved::Pieces) -> String {
    let host = Host::new(Source::Memory(pieces.clone()));
    let id = name.split('-').next().expect("a check").to_uppercase();
    let report = Report::of(&host, std::slice::from_ref(&id));
    let mut said = format!("==== {name}, exit code {}\n", report.exit_code());
    said += &render(&report, Detail::Full);
    let terse = digest(&render(&report, Detail::Terse));
    let json = serde_json::to_string(&report).expect("JSON");
    let _ = writeln!(said, "---- JSON {}, terse {terse}", digest(&json));
    let others = CATALOGUE.iter().map(|check| ended(check, &host));
    said + &others.collect::<String>()
}

/// The result of a check on one line.
fn ended(check: &Check, host: &Host) -> String {
    let (findings, ended) = check.outcome(host);
    let (how, why) = match ended {
        Ended::Ran => ("ran", String::new()),
        Ended::Unread(why) => ("unread", why),
        Ended::NotHere(why) => ("not here", why),
    };
    let found = serde_json::to_string(&findings).expect("JSON");
    format!("{} {how}, {} findings {}\n", check.id, findings.len(), digest(&(found + &why)))
}

/// 64-bit FNV-1a, which suffices without an adversary.
fn digest(text: &str) -> String {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

//! The fixtures, a text file each.
#![allow(dead_code, reason = "each test uses a part of it")]

mod form;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

pub(crate) use form::Fixture;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures");

/// The files of a host by their paths.
pub(crate) type Pieces = BTreeMap<String, String>;

/// All fixtures with their names, sorted by name.
pub(crate) fn fixtures() -> Vec<(String, Fixture)> {
    let mut fixtures = Vec::new();
    for entry in fs::read_dir(FOLDER).expect("there are fixtures") {
        let file = entry.expect("readable").file_name().into_string().expect("text");
        let name = file.strip_suffix(".txt").expect("NAME.txt");
        fixtures.push((name.to_owned(), fixture(name)));
    }
    fixtures.sort_by(|(one, _), (other, _)| one.cmp(other));
    fixtures
}

/// The files of all hosts with their names, sorted by name.
pub(crate) fn hosts() -> Vec<(String, Pieces)> {
    fixtures().into_iter().map(|(name, fixture)| (name, fixture.pieces)).collect()
}

/// The files of one host.
pub(crate) fn host(name: &str) -> Pieces {
    fixture(name).pieces
}

/// One fixture.
pub(crate) fn fixture(name: &str) -> Fixture {
    let text = fs::read_to_string(path(name)).expect(name);
    Fixture::read(&text).unwrap_or_else(|why| panic!("{name}: {why}"))
}

/// The file of a fixture.
pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(format!("{FOLDER}/{name}.txt"))
}

//! `look record FILE [SECONDS]` and `look [FILE]`: `ringway doctor` without the rest of ringway, so
//! that a check can be tried as soon as it compiles. The file may be a fixture.

#[path = "../tests/saved/mod.rs"]
mod saved;

use std::error::Error;
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use ringway_doctor::collect;
use ringway_doctor::evidence::{Source, archive};
use ringway_doctor::fact::Host;
use ringway_doctor::report::Report;
use ringway_doctor::report::text::{Detail, render};
use saved::Fixture;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let source = match words.as_slice() {
        ["record", file, rest @ ..] => {
            let seconds = rest.first().map_or(Ok(3), |seconds| seconds.parse())?;
            let source = collect(Duration::from_secs(seconds));
            return Ok(archive::write(&source, File::create(file)?)?);
        }
        [file] if file.ends_with(".txt") => {
            Source::Memory(Fixture::read(&fs::read_to_string(file)?)?.pieces)
        }
        [file] => archive::open(Path::new(file))?,
        _ => collect(Duration::from_secs(3)),
    };
    let report = Report::of(&Host::new(source), &[]);
    print!("{}", render(&report, Detail::Terse));
    Ok(())
}

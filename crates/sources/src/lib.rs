//! What ringway cites: `docs/sources.toml`, compiled in.
//!
//! Code and documents cite a place by its id, such as `throughput-guide:irqbalance`; users see
//! titles and addresses. This crate finds the one for the other and prints lists of sources. It
//! reads no file, and knows nothing of who cites: `cargo xtask spec` compares both.

mod list;

use std::sync::LazyLock;

use serde::Deserialize;

pub use list::{BySource, by_source, list, numbered, titles};

static SOURCES: LazyLock<Sources> = LazyLock::new(|| {
    Sources::parse(include_str!("../../../docs/sources.toml")).expect("the shipped file is sound")
});

/// Something that was published.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Such as `throughput-guide`.
    pub id: String,
    /// As its authors have it.
    pub title: String,
    /// Who wrote or published it, and where.
    pub authors: String,
    /// When; empty for what changes all the time.
    #[serde(default)]
    pub year: String,
    /// Where to read it, if that is known.
    pub address: Option<String>,
    /// What to know about it.
    pub note: Option<String>,
    /// Why it is here although nothing cites it.
    pub uncited: Option<String>,
}

/// A part of a source.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The id of its source, a colon, and its own, such as `throughput-guide:irqbalance`.
    pub id: String,
    /// Under which head it is in the source.
    pub section: String,
    /// What it says, in our words and with its figures.
    pub claim: String,
    /// Why it is here although nothing cites it.
    pub uncited: Option<String>,
}

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sources {
    /// Each once.
    pub source: Vec<Source>,
    /// Places of all sources.
    #[serde(default)]
    pub place: Vec<Place>,
}

/// What an id stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cited<'a> {
    /// The source.
    pub source: &'a Source,
    /// The place in it, if the id names one.
    pub place: Option<&'a Place>,
}

impl Sources {
    /// Reads a file of this form.
    ///
    /// # Errors
    /// If it is not TOML, or has other keys.
    pub fn parse(text: &str) -> Result<Sources, toml::de::Error> {
        toml::from_str(text)
    }

    /// What `id` stands for: a place, or a source as a whole.
    pub fn find(&self, id: &str) -> Option<Cited<'_>> {
        let (source, is_place) = match id.split_once(':') {
            Some((source, _)) => (source, true),
            None => (id, false),
        };
        let source = self.source.iter().find(|one| one.id == source)?;
        let place = self.place.iter().find(|one| one.id == id);
        (place.is_some() == is_place).then_some(Cited { source, place })
    }
}

/// All sources.
pub fn all() -> &'static Sources {
    &SOURCES
}

/// What `id` stands for.
pub fn find(id: &str) -> Option<Cited<'static>> {
    SOURCES.find(id)
}

impl Source {
    /// Title, authors and year in a line.
    pub fn line(&self) -> String {
        format!("{}. {}", self.title, self.published())
    }

    /// Authors and year.
    pub fn published(&self) -> String {
        let Source { authors, year, .. } = self;
        if year.is_empty() { authors.clone() } else { format!("{authors}, {year}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stand_for_places_and_for_whole_sources() {
        let place = find("throughput-guide:irqbalance").expect("it is there");
        assert_eq!(place.source.title, "Network Throughput and Performance Guide");
        assert!(place.place.expect("a place").claim.contains("16 %"));
        assert_eq!(find("throughput-guide").expect("it is there").place, None);
        for unknown in ["throughput-guide:", "nothing:irqbalance", "nothing", ""] {
            assert_eq!(find(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn every_place_has_its_source() {
        for place in &all().place {
            assert!(find(&place.id).is_some(), "{}", place.id);
        }
    }
}

//! The sources that ringway cites: `docs/sources.toml`, compiled in.
//!
//! Code and documents cite a place by its id, such as `throughput-guide:irqbalance`; users see
//! titles and addresses. This crate looks up sources by id and prints lists of them. It reads no
//! file, and does not know where a source is cited: `cargo xtask spec` compares citations and
//! sources.

mod list;

use std::sync::LazyLock;

use serde::Deserialize;

pub use list::{BySource, by_source, list, numbered, titles};

static SOURCES: LazyLock<Sources> = LazyLock::new(|| {
    Sources::parse(include_str!("../../../docs/sources.toml")).expect("the shipped file is sound")
});

/// A publication.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Such as `throughput-guide`.
    pub id: String,
    /// Its title.
    pub title: String,
    /// Its authors or publisher, and where it was published.
    pub authors: String,
    /// Its date; empty for a source that changes continually.
    #[serde(default)]
    pub year: String,
    /// Its URL, if known.
    pub address: Option<String>,
    /// A note about it.
    pub note: Option<String>,
    /// Why it is listed although nothing cites it.
    pub uncited: Option<String>,
}

/// A part of a source.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The id of its source, a colon, and its own id, such as `throughput-guide:irqbalance`.
    pub id: String,
    /// The section of the source.
    pub section: String,
    /// Its claim, in our words and with its figures.
    pub claim: String,
    /// Why it is listed although nothing cites it.
    pub uncited: Option<String>,
}

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sources {
    /// All sources, each once.
    pub source: Vec<Source>,
    /// Places of all sources.
    #[serde(default)]
    pub place: Vec<Place>,
}

/// What an id refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cited<'a> {
    /// The source.
    pub source: &'a Source,
    /// The place in it, if the id names one.
    pub place: Option<&'a Place>,
}

impl Sources {
    /// Parses a file of this form.
    ///
    /// # Errors
    /// If it is not TOML, or has other keys.
    pub fn parse(text: &str) -> Result<Sources, toml::de::Error> {
        toml::from_str(text)
    }

    /// What `id` refers to: a place, or a source as a whole.
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

/// What `id` refers to.
pub fn find(id: &str) -> Option<Cited<'static>> {
    SOURCES.find(id)
}

impl Source {
    /// Title, authors and year on one line.
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
    fn ids_denote_places_and_whole_sources() {
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

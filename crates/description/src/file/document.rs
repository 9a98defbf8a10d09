//! A TOML document from which what is wrong is taken out, until the rest can be read: so all that
//! is wrong is found, and not only the first.

use std::collections::HashSet;
use std::ops::Range;

use serde::Deserialize;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};

use super::explain::{self, Place, Shape};
use crate::section::FileSection;

/// Faults of one description: far more than a person reads.
const FAULTS_MAX: usize = 100;

/// What was read of a document.
pub(super) struct Document {
    /// Everything that could be read.
    pub(super) sections: FileSection,
    /// Where something is wrong, and what.
    pub(super) faults: Vec<(Option<usize>, String)>,
    /// What was taken out.
    pub(super) missing: Missing,
}

/// What was taken out of a document, and is no fault where it is missing.
#[derive(Default)]
pub(super) struct Missing {
    /// Offsets of tables, with keys that were taken out of them.
    keys: HashSet<(usize, String)>,
    /// Whether the syntax is wrong, and anything may be missing.
    is_anything: bool,
}

impl Missing {
    /// Whether this key of the table at an offset could be missing only because it was taken out.
    pub(super) fn has(&self, table: usize, key: &str) -> bool {
        self.is_anything || self.keys.iter().any(|(at, it)| *at == table && it == key)
    }

    /// Whether one of these keys of any table could be missing only because it was taken out.
    pub(super) fn has_any(&self, keys: &[&str]) -> bool {
        self.is_anything || self.keys.iter().any(|(_, it)| keys.contains(&it.as_str()))
    }
}

impl Document {
    pub(super) fn read(content: &str) -> Document {
        let (mut document, mut errors) = DeTable::parse_recoverable(content);
        errors.sort_by_key(|error| error.span().map(|span| span.start));
        let mut missing = Missing { is_anything: !errors.is_empty(), ..Missing::default() };
        let (mut faults, mut unread) = (Vec::new(), 0);
        for error in errors {
            let offset = error.span().map(|span| span.start);
            // The parser may have lost its way in a value, of which one error is enough.
            if offset.is_some_and(|offset| offset < unread) {
                continue;
            }
            let taken = offset.and_then(|offset| take(document.get_mut(), Wanted::Around(offset)));
            faults.push((offset, explain::syntax(taken.as_ref(), error.message())));
            let line = offset.and_then(|offset| content.get(offset..)?.find('\n'));
            let end = offset.zip(line).map_or(0, |(offset, line)| offset + line + 1);
            unread = end.max(taken.map_or(0, |taken| taken.end));
        }
        loop {
            let error = match FileSection::deserialize(Deserializer::from(document.clone())) {
                Ok(sections) => return Document { sections, faults, missing },
                Err(error) => error,
            };
            let offset = error.span().map(|span| span.start);
            let taken = offset.and_then(|offset| take(document.get_mut(), Wanted::At(offset)));
            faults.push((offset, explain::explain(taken.as_ref(), error.message())));
            match taken {
                Some(taken) if faults.len() < FAULTS_MAX => {
                    let key = taken.keys.last().cloned().unwrap_or_default();
                    missing.keys.insert((taken.table, key));
                }
                // There is nothing left that could be read.
                _ => {
                    missing.is_anything = true;
                    document.get_mut().clear();
                }
            }
        }
    }
}

/// What is to be taken out.
#[derive(Clone, Copy)]
enum Wanted {
    /// The key or value that begins here.
    At(usize),
    /// What is around this place: the syntax went wrong there, so a list goes as a whole.
    Around(usize),
}

impl Wanted {
    fn is(self, span: &Range<usize>) -> bool {
        match self {
            Wanted::At(offset) => span.start == offset,
            Wanted::Around(offset) => (span.start..=span.end).contains(&offset),
        }
    }
}

/// Takes out the innermost key or value.
fn take(document: &mut DeTable<'_>, wanted: Wanted) -> Option<Place> {
    let mut keys = Vec::new();
    let place = take_of(document, 0, &mut keys, wanted)?;
    Some(Place { keys, ..place })
}

/// As [`take`], from the table at an offset; leaves the keys that lead there.
fn take_of(
    table: &mut DeTable<'_>,
    at: usize,
    keys: &mut Vec<String>,
    wanted: Wanted,
) -> Option<Place> {
    let mut found = None;
    for (key, value) in table.iter_mut() {
        keys.push(key.get_ref().to_string());
        let (span, is_key) = (value.span(), wanted.is(&key.span()));
        let inner = match value.get_mut() {
            DeValue::Table(inner) => take_of(inner, span.start, keys, wanted),
            DeValue::Array(elements) => take_of_list(elements, at, keys, wanted),
            _ => None,
        };
        if inner.is_some() {
            return inner;
        }
        if is_key || wanted.is(&span) {
            let shape = if is_key { Shape::Value } else { shape(value.get_ref()) };
            let place = Place { keys: Vec::new(), table: at, end: span.end, shape };
            found = Some((key.clone(), place));
            break;
        }
        keys.pop();
    }
    let (key, place) = found?;
    table.remove(&key);
    Some(place)
}

fn take_of_list(
    elements: &mut DeArray<'_>,
    at: usize,
    keys: &mut Vec<String>,
    wanted: Wanted,
) -> Option<Place> {
    for index in 0..elements.len() {
        let element = elements.get_mut(index)?;
        let span = element.span();
        if let DeValue::Table(table) = element.get_mut() {
            let taken = take_of(table, span.start, keys, wanted);
            if taken.is_some() {
                return taken;
            }
        } else if matches!(wanted, Wanted::At(_)) && wanted.is(&span) {
            let left = elements.clone().into_iter().enumerate();
            *elements = left.filter(|(it, _)| *it != index).map(|(_, it)| it).collect();
            return Some(Place { keys: Vec::new(), table: at, end: span.end, shape: Shape::Value });
        }
    }
    None
}

fn shape(value: &DeValue<'_>) -> Shape {
    let is_table = |value: &DeValue<'_>| matches!(value, DeValue::Table(_));
    match value {
        DeValue::Array(elements) if elements.iter().any(|it| is_table(it.get_ref())) => {
            Shape::Tables
        }
        value if is_table(value) => Shape::Table,
        _ => Shape::Value,
    }
}

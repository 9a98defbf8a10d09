//! Explains errors of the TOML parser: it names types of Rust, but neither the key nor the remedy.

use ringway_xenbus::LIMITS;
use ringway_xenbus::limits::Scope;

use crate::section::{NOT_OF_NAMESPACE, ONLY_OF_GUEST, ONLY_OF_NAMESPACE, ONLY_OF_VHOST};

/// A key of an earlier version, without effect.
const OBSOLETE: &str = "completion";

/// What an error is about.
pub(super) struct Place {
    /// The keys that lead there, such as `guest`, `vif` and `mtu`.
    pub(super) keys: Vec<String>,
    /// The offset of the table that has it.
    pub(super) table: usize,
    /// Where it ends.
    pub(super) end: usize,
    /// What is there.
    pub(super) shape: Shape,
}

/// A kind of value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// One section, or a table in braces.
    Table,
    /// Several sections of one name.
    Tables,
    /// Anything else, or a key.
    Value,
}

/// The message for an error of the syntax.
pub(super) fn syntax(place: Option<&Place>, message: &str) -> String {
    match place {
        Some(place) if place.shape == Shape::Value => {
            format!("{}: {message}", place.keys.join("."))
        }
        _ => message.to_owned(),
    }
}

/// The message for an error in what the syntax stands for.
pub(super) fn explain(place: Option<&Place>, message: &str) -> String {
    let Some(place) = place else { return message.to_owned() };
    let path = place.keys.join(".");
    if message.starts_with("unknown field") {
        let table = path.rsplit_once('.').map_or("", |(table, _)| table);
        return with_own_keys(message, table);
    }
    match place.shape {
        Shape::Table if message.ends_with("map, expected a sequence") => {
            return format!("write [[{path}]]");
        }
        // The first of them was taken for the first key of the section.
        Shape::Tables => return format!("write [{path}], and only once"),
        _ => {}
    }
    let expected = expectation(message).unwrap_or_else(|| message.to_owned());
    let is_of_text = message.ends_with("expected a string");
    let sample = place.keys.last().filter(|_| is_of_text).map_or("", |key| sample(key));
    format!("{path}: {expected}{sample}")
}

/// What the text of a key that others take for a number is like.
fn sample(key: &str) -> &'static str {
    match key {
        "rate" | "rate-rx" => ", such as \"100Mb/s\"",
        "max-memory" => ", such as \"16GiB\"",
        _ => "",
    }
}

/// What to write, if a value has the wrong type.
fn expectation(message: &str) -> Option<String> {
    let (found, expected) = message.strip_prefix("invalid type: ")?.rsplit_once(", expected ")?;
    let quotes = if found.starts_with("string") { " without quotes" } else { "" };
    match expected {
        "i64" => Some(format!("expected a whole number{quotes}")),
        // With its unit, in quotes, or without.
        amount if amount.starts_with("a whole number") => Some(format!("expected {amount}")),
        "a boolean" => Some(format!("expected true or false{quotes}")),
        "a string" => Some("expected text in quotes".to_owned()),
        "a sequence" => {
            let value = found.split_once(' ')?.1.trim_matches('`');
            Some(format!("expected a list, such as [{value}]"))
        }
        _ => None,
    }
}

/// Leaves out keys that have no effect any more or that the section refuses, because all kinds of
/// vifs are parsed as one, and adds those of its limits, which are no fields of it, before the key
/// where they belong.
fn with_own_keys(message: &str, section: &str) -> String {
    let (foreign, limits, next): ([&[&str]; 2], _, _) = match section {
        "vhost" => ([&ONLY_OF_GUEST, &ONLY_OF_NAMESPACE], Some(Scope::Vif), "`locking-mode`"),
        "guest.vif" => ([&ONLY_OF_VHOST, &ONLY_OF_NAMESPACE], Some(Scope::Vif), "`locking-mode`"),
        "namespace" => ([&NOT_OF_NAMESPACE, &[]], Some(Scope::Vif), "`locking-mode`"),
        "switch" => ([&[], &[]], Some(Scope::Switch), "`multicast-snooping`"),
        "uplink" => ([&[], &[]], Some(Scope::Uplink), ""),
        _ => ([&[], &[]], None, ""),
    };
    let Some((unknown, known)) = message.split_once("expected one of ") else {
        return message.to_owned();
    };
    let is_foreign = |key: &str| foreign.iter().any(|keys| keys.contains(&key));
    let is_own = |key: &str| key != OBSOLETE && !is_foreign(key);
    let known = known.split(", ").filter(|key| is_own(key.trim_matches('`')));
    let mut known: Vec<String> = known.map(str::to_owned).collect();
    let at = known.iter().position(|key| key == next).unwrap_or(known.len());
    let limits = LIMITS.iter().filter(|limit| limits.is_some_and(|scope| limit.is_of(scope)));
    known.splice(at..at, limits.map(|limit| format!("`{}`", limit.name())));
    format!("{unknown}expected one of {}", known.join(", "))
}

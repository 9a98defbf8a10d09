//! Explains errors of the TOML parser: it names types of Rust, but neither the key nor the remedy.

use crate::section::{ONLY_OF_GUEST, ONLY_OF_VHOST};

/// The message for an error of the parser at this offset.
pub(super) fn explain(content: &str, offset: Option<usize>, message: &str) -> String {
    let Some((before, after)) = offset.and_then(|offset| content.split_at_checked(offset)) else {
        return message.to_owned();
    };
    if message.starts_with("unknown field") {
        return without_foreign_keys(message, section(before));
    }
    // Errors of the syntax speak of characters.
    if message.starts_with("missing field") || content.parse::<toml::Table>().is_err() {
        return message.to_owned();
    }
    let line = after.lines().next().unwrap_or_default();
    if let Some(header) = header(line) {
        let name = header.trim_matches(['[', ']']);
        return match message.ends_with("map, expected a sequence") {
            true => format!("write [[{name}]]"),
            false if header.starts_with("[[") => format!("write [{name}], and only once"),
            false => format!("{name}: {message}"),
        };
    }
    let message = expectation(message).unwrap_or_else(|| message.to_owned());
    match (key_before(before), section(before)) {
        (None, _) => message,
        (Some(key), None) => format!("{key}: {message}"),
        (Some(key), Some(header)) => {
            format!("{}.{key}: {message}", header.trim_matches(['[', ']']))
        }
    }
}

/// What to write, if a value has the wrong type.
fn expectation(message: &str) -> Option<String> {
    let (found, expected) = message.strip_prefix("invalid type: ")?.rsplit_once(", expected ")?;
    let quotes = if found.starts_with("string") { " without quotes" } else { "" };
    match expected {
        "i64" => Some(format!("expected a whole number{quotes}")),
        "a boolean" => Some(format!("expected true or false{quotes}")),
        "a string" => Some("expected text in quotes".to_owned()),
        "a sequence" => {
            let value = found.split_once(' ')?.1.trim_matches('`');
            Some(format!("expected a list, such as [{value}]"))
        }
        _ => None,
    }
}

/// Leaves out keys that the section refuses: both kinds of vifs are parsed as one.
fn without_foreign_keys(message: &str, section: Option<&str>) -> String {
    let foreign: &[&str] = match section {
        Some("[[vhost]]") => &ONLY_OF_GUEST,
        Some("[[guest.vif]]") => &ONLY_OF_VHOST,
        _ => return message.to_owned(),
    };
    let Some((unknown, known)) = message.split_once("expected one of ") else {
        return message.to_owned();
    };
    let known = known.split(", ").filter(|key| !foreign.contains(&key.trim_matches('`')));
    format!("{unknown}expected one of {}", known.collect::<Vec<_>>().join(", "))
}

/// The header of the last section that begins in this text.
fn section(before: &str) -> Option<&str> {
    before.lines().rev().find_map(header)
}

/// The header of a section in this line.
fn header(line: &str) -> Option<&str> {
    let line = line.split('#').next()?.trim();
    let name = line.strip_prefix('[')?.strip_suffix(']')?;
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    (!name.is_empty() && name.bytes().all(|it| is_of_key(it) || it == b'.')).then_some(line)
}

/// The key whose value begins after this text. The parser has the same place for all of a list.
fn key_before(before: &str) -> Option<&str> {
    let text = before.trim_end().strip_suffix('=')?.trim_end();
    let start = text.bytes().rposition(|it| !is_of_key(it) && it != b'.').map_or(0, |at| at + 1);
    text.get(start..)
}

fn is_of_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_".contains(&byte)
}

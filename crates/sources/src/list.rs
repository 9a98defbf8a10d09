//! Lists of sources for people.

use std::fmt::Write as _;

use crate::{Cited, Place, Source, find};

const COLUMNS: usize = 100;

/// A source, and the places in it that are cited.
pub struct BySource {
    /// The source.
    pub source: &'static Source,
    /// The places, in the order in which they are cited, each once.
    pub places: Vec<&'static Place>,
}

/// What `ids` refer to, grouped by source in order of appearance. Unknown ids are left out.
pub fn by_source<'a>(ids: impl IntoIterator<Item = &'a str>) -> Vec<BySource> {
    let mut sources: Vec<BySource> = Vec::new();
    for Cited { source, place } in ids.into_iter().filter_map(find) {
        let at = sources.iter().position(|known| known.source.id == source.id);
        let at = at.unwrap_or_else(|| {
            sources.push(BySource { source, places: Vec::new() });
            sources.len() - 1
        });
        let places = &mut sources[at].places;
        places.extend(place.filter(|place| !places.contains(place)));
    }
    sources
}

/// Replaces each `{ID}` in `text` by the number of its source, as in `[1]`, and returns the ids in
/// order of appearance. Sources are numbered from 1 in that order; adjacent ids of one source share
/// one number. Braces around anything else are kept.
pub fn numbered(text: &str) -> (String, Vec<String>) {
    let mut shown = String::with_capacity(text.len());
    let mut ids: Vec<String> = Vec::new();
    let mut numbers = Numbers::default();
    let mut last = None;
    let mut rest = text;
    while let Some(start) = rest.find('{') {
        let Some(end) = rest[start..].find('}').map(|end| start + end) else { break };
        let id = &rest[start + 1..end];
        let Some(Cited { source, .. }) = find(id) else {
            shown += &rest[..=start];
            rest = &rest[start + 1..];
            last = None;
            continue;
        };
        shown += &rest[..start];
        let number = numbers.of(source);
        if start > 0 || last != Some(number) {
            let _ = write!(shown, "[{number}]");
        }
        if !ids.iter().any(|known| known == id) {
            ids.push(id.to_owned());
        }
        last = Some(number);
        rest = &rest[end + 1..];
    }
    shown += rest;
    (shown, ids)
}

/// The sources of `ids` with title and address and, below each, the places that `ids` name: a
/// section "Sources", numbered as [`numbered`] does. Empty if nothing is cited; unknown ids are
/// left out.
pub fn list<'a>(ids: impl IntoIterator<Item = &'a str>) -> String {
    let mut text = String::new();
    for (number, BySource { source, places }) in (1..).zip(by_source(ids)) {
        if number == 1 {
            text += "Sources\n";
        }
        wrap(&mut text, &format!("  [{number}] "), &source.line());
        if let Some(address) = &source.address {
            let _ = writeln!(text, "      {address}");
        }
        for place in places {
            wrap(&mut text, "      - ", &format!("{}: {}", place.section, place.claim));
        }
    }
    text
}

/// The sources of `ids` by their own ids, with title and address: a section "Sources" for text that
/// names places by their ids.
pub fn titles<'a>(ids: impl IntoIterator<Item = &'a str>) -> String {
    let mut text = String::new();
    for BySource { source, .. } in by_source(ids) {
        if text.is_empty() {
            text += "Sources\n";
        }
        wrap(&mut text, "  ", &format!("{}: {}", source.id, source.line()));
        if let Some(address) = &source.address {
            let _ = writeln!(text, "    {address}");
        }
    }
    text
}

/// Numbers of sources, in order of appearance.
#[derive(Default)]
struct Numbers<'a>(Vec<&'a str>);

impl<'a> Numbers<'a> {
    fn of(&mut self, source: &'a Source) -> usize {
        let at = self.0.iter().position(|known| *known == source.id).unwrap_or_else(|| {
            self.0.push(&source.id);
            self.0.len() - 1
        });
        at + 1
    }
}

/// Writes words after `head`, and indents further lines to the end of `head`.
fn wrap(text: &mut String, head: &str, words: &str) {
    *text += head;
    let indent = head.chars().count();
    let mut column = indent;
    for (index, word) in words.split_whitespace().enumerate() {
        let length = word.chars().count();
        if index > 0 && column + 1 + length > COLUMNS {
            let _ = write!(text, "\n{:indent$}", "");
            column = indent;
        } else if index > 0 {
            text.push(' ');
            column += 1;
        }
        *text += word;
        column += length;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citations_become_numbers_of_sources() {
        let text = "slow {throughput-guide:no-pv-drivers}{throughput-guide:applies-to}, {xsa-39} \
                    {throughput-guide:applies-to}; {echo}, {";
        let (shown, ids) = numbered(text);
        assert_eq!(shown, "slow [1], [2] [1]; {echo}, {");
        assert_eq!(
            ids,
            ["throughput-guide:no-pv-drivers", "throughput-guide:applies-to", "xsa-39"]
        );
    }

    #[test]
    fn a_list_has_titles_addresses_and_places() {
        let shown = list(["throughput-guide:irqbalance", "nothing", "network-node-blog:libvirt"]);
        assert!(shown.starts_with("Sources\n  [1] Network Throughput and Performance Guide. "));
        for part in ["      https://", "      - Recommended configurations: irqbalance: ", "  [2] "]
        {
            assert!(shown.contains(part), "{part} is not in {shown}");
        }
        assert!(shown.lines().all(|line| line.chars().count() <= COLUMNS || line.contains("://")));
        assert_eq!(list(["nothing"]), "");
    }

    #[test]
    fn titles_name_each_source_once() {
        let shown = titles(["throughput-guide:irqbalance", "throughput-guide:gro-on"]);
        assert_eq!(
            (shown.matches("throughput-guide: ").count(), shown.matches("://").count()),
            (1, 1)
        );
    }
}

//! Citations: each one resolves, and each source in `docs/sources.toml` is cited.
//!
//! `SOURCE:PLACE` and the id of a source alone are citations anywhere; so are `XSA-155` and `RFC
//! 1071`, of the sources `xsa-155` and `rfc-1071`, and the name of a header in Rust.

use std::collections::BTreeSet;

use anyhow::Result;
use ringway_sources::Sources;

use crate::tree::{SourceFile, Tree};

const SOURCES: &str = "docs/sources.toml";
/// Not searched: the list itself, and this file, whose tests contain intended errors.
const SKIPPED: [&str; 2] = [SOURCES, "crates/xtask/src/sources.rs"];
/// The header whose places are rules of the wire, in a file of their own.
const HEADER: &str = "netif.h:";

/// Every unresolved citation and uncited source, one line each. `rules` are the ids of the rules of
/// the wire.
pub(crate) fn check(tree: &Tree, rules: &[String]) -> Result<Vec<String>> {
    let sources: Sources = tree.toml(SOURCES)?;
    let mut findings = unsound(&sources);
    let mut cited = BTreeSet::new();
    for file in tree.files.iter().filter(|file| !SKIPPED.contains(&file.path.as_str())) {
        for line in file.lines() {
            for what in wrong_citations(&sources, rules, file, line.text, &mut cited) {
                findings.push(format!("{}:{}: {what}", file.path, line.number));
            }
        }
    }
    findings.extend(uncited(&sources, &cited));
    Ok(findings)
}

/// Faults in the file itself.
fn unsound(sources: &Sources) -> Vec<String> {
    let mut findings = Vec::new();
    let mut ids = BTreeSet::new();
    for source in &sources.source {
        if source.title.trim().is_empty() || source.authors.trim().is_empty() {
            findings.push(format!("{SOURCES}: {}: a source has a title and authors", source.id));
        }
    }
    for place in &sources.place {
        if place.section.trim().is_empty() || place.claim.trim().is_empty() {
            findings.push(format!("{SOURCES}: {}: a place has a section and a claim", place.id));
        }
        if sources.find(&place.id).is_none() || !place.id.contains(':') {
            findings.push(format!("{SOURCES}: {}: there is no such source", place.id));
        }
    }
    let all = sources.source.iter().map(|source| &source.id);
    for id in all.chain(sources.place.iter().map(|place| &place.id)) {
        if !ids.insert(id) {
            findings.push(format!("{SOURCES}: {id}: there are two of this id"));
        }
    }
    findings
}

/// Records the citations in a line, and returns those that do not resolve.
fn wrong_citations(
    sources: &Sources,
    rules: &[String],
    file: &SourceFile,
    line: &str,
    cited: &mut BTreeSet<String>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut before = "";
    for token in tokens(line) {
        let id = numbered(before, token).unwrap_or_else(|| token.to_owned());
        before = token;
        if let Some(rule) = id.strip_prefix(HEADER).filter(|rule| is_name(rule)) {
            cited.insert(HEADER.trim_end_matches(':').to_owned());
            if !rules.iter().any(|known| known == rule) {
                wrong.push(format!("no rule of the wire has the id `{rule}`"));
            }
        } else if sources.find(&id).is_some() {
            cited.extend(id.split_once(':').map(|(source, _)| source.to_owned()));
            cited.insert(id);
        } else if is_citation(sources, file, &id) {
            wrong.push(format!("{SOURCES} has no `{id}`"));
        }
    }
    wrong.extend(
        expected(file, line)
            .filter(|id| sources.find(id).is_none())
            .map(|id| format!("{SOURCES} has no `{id}`")),
    );
    wrong.dedup();
    wrong
}

/// `xsa-155` for `XSA-155`, and `rfc-1071` for `RFC` before `1071`.
fn numbered(before: &str, token: &str) -> Option<String> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if before == "RFC" && is_number(token) {
        return Some(format!("rfc-{token}"));
    }
    let (kind, number) = (token.get(..4)?, token.get(4..)?);
    (kind == "XSA-" && is_number(number)).then(|| token.to_ascii_lowercase())
}

/// Whether an unknown id was meant as a citation.
fn is_citation(sources: &Sources, file: &SourceFile, id: &str) -> bool {
    if id.starts_with("xsa-") || id.starts_with("rfc-") {
        return true;
    }
    match id.split_once(':') {
        Some((source, place)) => is_name(place) && sources.find(source).is_some(),
        None => file.is_rust() && id.len() > 2 && id.ends_with(".h"),
    }
}

/// Whether a name is spelled like a place; `ID` represents any place.
fn is_name(place: &str) -> bool {
    place.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// The ids at positions where only an id is valid: keys of studies, and braces of explanations.
fn expected<'a>(file: &SourceFile, line: &'a str) -> impl Iterator<Item = &'a str> {
    let is_key = file.path.starts_with("lab/studies/") && line.starts_with("source");
    let quoted = line.split('"').skip(1).step_by(2).filter(move |_| is_key);
    let braced = line.split('{').skip(1).filter_map(|part| Some(part.split_once('}')?.0));
    let braced = braced.filter(|id| file.is_explanation() && tokens(id).eq([*id]));
    quoted.chain(braced)
}

/// Every source and place without a citation, and every `uncited` of one that is cited.
fn uncited(sources: &Sources, cited: &BTreeSet<String>) -> Vec<String> {
    let of_sources = sources.source.iter().map(|source| (&source.id, &source.uncited));
    let of_places = sources.place.iter().map(|place| (&place.id, &place.uncited));
    let finding = |(id, excuse): (&String, &Option<String>)| match (cited.contains(id), excuse) {
        (false, None) => {
            Some(format!("{SOURCES}: nothing cites `{id}`: remove it, or say why in `uncited`"))
        }
        (true, Some(_)) => Some(format!("{SOURCES}: `{id}` is cited: remove its `uncited`")),
        _ => None,
    };
    of_sources.chain(of_places).filter_map(finding).collect()
}

/// Words as ids are written, without the marks that end sentences.
fn tokens(line: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || ".:-_".contains(c);
    let words = line.split(move |c: char| !is_part(c));
    words.map(|word| word.trim_matches(['.', ':', '-'])).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::file;

    const FILE: &str = "[[source]]\nid = \"guide\"\ntitle = \"T\"\nauthors = \"A\"\n\
                        [[source]]\nid = \"xsa-1\"\ntitle = \"T\"\nauthors = \"A\"\n\
                        [[source]]\nid = \"rfc-7\"\ntitle = \"T\"\nauthors = \"A\"\n\
                        [[source]]\nid = \"netif.h\"\ntitle = \"T\"\nauthors = \"A\"\n\
                        [[place]]\nid = \"guide:here\"\nsection = \"S\"\nclaim = \"C\"\n";
    const ALL: &str = "// `guide:here` (XSA-1; RFC 7), and netif.h:rule.";

    fn findings(sources: &str, path: &str, text: &str) -> Vec<String> {
        let files = vec![file(SOURCES, sources), file(path, text)];
        check(&Tree { files }, &["rule".to_owned()]).expect("the file is well formed")
    }

    #[test]
    fn citations_that_resolve_are_no_finding() {
        assert_eq!(findings(FILE, "a.rs", ALL), Vec::<String>::new());
        // A source counts as cited if one of its places is.
        assert!(findings(FILE, "a.rs", "").iter().any(|one| one.contains("`guide`")));
    }

    #[test]
    fn a_citation_that_does_not_resolve_is_found_once() {
        for (path, wrong) in [
            ("a.rs", "// guide:there"),
            ("a.rs", "// netif.h:nothing"),
            ("a.md", "XSA-2"),
            ("a.md", "RFC 8"),
            ("a.rs", "// nothing.h"),
            ("lab/studies/a.toml", "source = \"gide:here\""),
            ("lab/studies/a.toml", "sources = [\"guide:here\", \"gide:here\"]"),
            ("doctor/checks/src/check/a.txt", "fast {gide:here}."),
        ] {
            let found = findings(FILE, path, &format!("{ALL}\n{wrong}\n"));
            assert_eq!(found.len(), 1, "{wrong}: {found:?}");
            assert!(found[0].starts_with(&format!("{path}:2: ")), "{found:?}");
        }
        for fine in
            ["nothing.h", "http://x:80", "netif.h:ID", "{gide:here}", "guide: there", "a::b:c"]
        {
            let text = format!("{ALL}\n{fine}\n");
            assert_eq!(findings(FILE, "a.md", &text), Vec::<String>::new(), "{fine}");
        }
    }

    #[test]
    fn an_uncited_source_is_found_unless_it_has_a_reason() {
        let text = ALL.replace("guide:here", "guide");
        assert_eq!(findings(FILE, "a.rs", &text).len(), 1);
        let excused = format!("{FILE}uncited = \"for later\"\n");
        assert_eq!(findings(&excused, "a.rs", &text), Vec::<String>::new());
        assert_eq!(findings(&excused, "a.rs", ALL).len(), 1);
    }

    #[test]
    fn an_unsound_file_is_found() {
        let twice =
            format!("{FILE}[[place]]\nid = \"guide:here\"\nsection = \"S\"\nclaim = \"C\"\n");
        assert_eq!(findings(&twice, "a.rs", ALL).len(), 1);
        let empty = FILE.replace("claim = \"C\"", "claim = \"\"");
        assert_eq!(findings(&empty, "a.rs", ALL).len(), 1);
        let lost = FILE.replace("guide:here", "gide:here");
        assert!(findings(&lost, "a.rs", ALL).iter().any(|one| one.contains("no such source")));
    }
}

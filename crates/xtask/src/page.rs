//! Checks the pages whose blocks of code are run: of `docs/xen.md`, `tests/xen` runs each, or the
//! block states why not; of `docs/virtio.md`, `tests/virtio` runs the service; of
//! `docs/first-steps.md`, `tests/first-steps.sh` runs each, in an e2e test; of `docs/ovn.md`,
//! `tests/ovn` does.

use std::collections::BTreeMap;

use regex::Regex;

use crate::tree::Tree;

/// A page of which scripts run blocks.
struct Page {
    path: &'static str,
    /// Where the scripts are.
    scenarios: &'static str,
    /// The section whose blocks all have a mark; `None` for the whole page.
    section: Option<&'static str>,
}

const PAGES: [Page; 4] = [
    Page { path: "docs/xen.md", scenarios: "tests/xen/", section: None },
    Page { path: "docs/virtio.md", scenarios: "tests/virtio/", section: Some("## As a service") },
    Page { path: "docs/first-steps.md", scenarios: "tests/first-steps.sh", section: None },
    Page { path: "docs/ovn.md", scenarios: "tests/ovn/", section: None },
];
/// On a line of its own before a block: the name by which a scenario runs it.
const RUN: &str = "<!-- run: ";
/// Before a block that no scenario runs: the reason.
const NOT_RUN: &str = "<!-- not run here: ";
const END: &str = " -->";
/// The text of a page's block with a name, without its indentation.
pub(crate) fn block(page: &str, name: &str) -> Option<String> {
    let mark = format!("{RUN}{name}{END}");
    let lines = page.lines().skip_while(|line| **line != mark).skip(1);
    let lines = lines.take_while(|line| line.is_empty() || line.starts_with("    "));
    let text: String =
        lines.map(|line| line.get(4..).unwrap_or_default().to_owned() + "\n").collect();
    Some(text).filter(|text| !text.trim().is_empty())
}

/// How scenarios name a block: by functions of `tests/steps.sh`.
const CALL: &str = r"(?:^\s*|\$\()page(?:_text)? ([a-z-]+)";

/// Every block without a mark, and every mark and scenario that names no block, one line each.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    PAGES.iter().flat_map(|page| check_page(tree, page)).collect()
}

fn check_page(tree: &Tree, of: &Page) -> Vec<String> {
    let path = of.path;
    let Some(page) = tree.file(path) else { return vec![format!("{path} is not there")] };
    let mut findings = Vec::new();
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for block in blocks(&page.text) {
        let line = block.line;
        match block.mark {
            Some(Mark::Run(name)) => {
                if names.insert(name, line).is_some() {
                    findings.push(format!("{path}:{line}: there are two blocks `{name}`"));
                }
            }
            Some(Mark::NotRun) => {}
            None if of.section.is_some_and(|section| section != block.section) => {}
            None => findings.push(format!(
                "{path}:{line}: this block of code says neither `{RUN}NAME{END}` nor \
                 `{NOT_RUN}REASON{END}` on the line before it"
            )),
        }
    }
    let calls = calls(tree, of.scenarios);
    for (script, name) in &calls {
        if !names.contains_key(name) {
            findings.push(format!("{script}: {path} has no block `{name}`"));
        }
    }
    for (name, line) in names {
        if !calls.iter().any(|(_, called)| *called == name) {
            findings.push(format!("{path}:{line}: no scenario runs the block `{name}`"));
        }
    }
    findings
}

enum Mark<'a> {
    Run(&'a str),
    NotRun,
}

/// A block of code.
struct Block<'a> {
    /// Its first line's number.
    line: usize,
    /// The heading above it, of the second level.
    section: &'a str,
    mark: Option<Mark<'a>>,
}

/// The indented blocks of a page; blank lines do not end one.
fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut is_inside = false;
    let (mut before, mut section) = ("", "");
    for (line, text) in (1..).zip(text.lines()) {
        if text.trim().is_empty() {
            continue;
        }
        let is_code = text.starts_with("    ");
        if is_code && !is_inside {
            blocks.push(Block { line, section, mark: mark(before) });
        }
        if text.starts_with("## ") {
            section = text;
        }
        is_inside = is_code;
        before = text;
    }
    blocks
}

fn mark(text: &str) -> Option<Mark<'_>> {
    let inner = |start| text.strip_prefix(start)?.strip_suffix(END).filter(|text| !text.is_empty());
    inner(RUN).map(Mark::Run).or_else(|| inner(NOT_RUN).map(|_| Mark::NotRun))
}

/// The blocks that scenarios name, each with the file that does.
fn calls<'a>(tree: &'a Tree, scenarios: &str) -> Vec<(&'a str, &'a str)> {
    let call = Regex::new(CALL).expect("a pattern");
    let scripts = tree.files.iter().filter(|file| file.path.starts_with(scenarios));
    let lines = scripts.flat_map(|file| file.text.lines().map(|line| (file.path.as_str(), line)));
    let name = |line| Some(call.captures(line)?.get(1)?.as_str());
    lines.filter_map(|(path, line)| Some((path, name(line)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::file;

    fn findings(page: &str, scenario: &str) -> Vec<String> {
        let files = vec![file("docs/xen.md", page), file("tests/xen/scenarios/a.sh", scenario)];
        check_page(&Tree { files }, &PAGES[0])
    }

    #[test]
    fn of_some_pages_one_section_is_run() {
        let page =
            "## A\n\n    x\n\n## As a service\n\n    y\n\n## B\n\n<!-- run: z -->\n\n    z\n";
        let files = vec![file("docs/virtio.md", page), file("tests/virtio/steps", "page z\n")];
        let found = check_page(&Tree { files }, &PAGES[1]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("docs/virtio.md:7: this block"), "{found:?}");
    }

    #[test]
    fn a_block_is_run_or_marked_with_a_reason() {
        let page = "Text.\n\n<!-- run: install -->\n\n    apt\n\n    more\n\n\
                    <!-- not run here: an editor -->\n\n    edit\n";
        assert_eq!(findings(page, "    page install GUEST=a\n"), [""; 0]);
        assert_eq!(findings(page, "x=$(page_text install)\n"), [""; 0]);
    }

    #[test]
    fn a_block_without_a_mark_is_found() {
        let found = findings("Text.\n\n    apt\n", "");
        assert!(found[0].starts_with("docs/xen.md:3: this block"), "{found:?}");
        let found = findings("<!-- not run here:  -->\n\n    apt\n", "");
        assert!(found[0].starts_with("docs/xen.md:3: this block"), "{found:?}");
    }

    #[test]
    fn a_name_without_a_block_or_a_scenario_is_found() {
        let found = findings("<!-- run: a -->\n\n    apt\n", "page b\n");
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn a_block_ends_where_text_begins() {
        let page = "a\n\n<!-- run: x -->\n\n    b\n\n      c\n\nd\n\n    e\n";
        assert_eq!(block(page, "x").as_deref(), Some("\nb\n\n  c\n\n"));
        assert_eq!((block(page, "y"), block("<!-- run: x -->\n\nd\n", "x")), (None, None));
    }

    #[test]
    fn two_blocks_of_a_name_are_found() {
        let found = findings("<!-- run: a -->\n\n    x\n\n<!-- run: a -->\n\n    y\n", "page a\n");
        assert_eq!(found, ["docs/xen.md:7: there are two blocks `a`"]);
    }
}

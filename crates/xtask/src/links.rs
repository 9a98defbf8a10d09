//! Links between documents: each must lead to a file of the repository, and to an existing heading.
//!
//! URLs are not checked. The pages in `docs` are also a book: each must be in its `SUMMARY.md`, and
//! may link only to pages of the book.

use crate::book::WRITTEN;
use crate::tree::{SourceFile, Tree};

const BOOK: &str = "docs/";
const SUMMARY: &str = "docs/SUMMARY.md";

/// Every link that leads nowhere, and every page that is not in the book; one line each.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let pages = tree.files.iter().filter(|file| file.path.ends_with(".md"));
    let dead = pages.clone().flat_map(|page| {
        let links = links(page).filter_map(|(line, link)| {
            let what = wrong(tree, page, link)?;
            Some(format!("{}:{line}: {link}: {what}", page.path))
        });
        links.collect::<Vec<_>>()
    });
    dead.chain(left_out(tree)).collect()
}

/// Pages that the book lacks.
fn left_out(tree: &Tree) -> Vec<String> {
    let Some(summary) = tree.file(SUMMARY) else { return Vec::new() };
    let listed: Vec<String> = links(summary).map(|(_, link)| resolve(SUMMARY, link)).collect();
    let is_page = |file: &&SourceFile| {
        file.path.starts_with(BOOK) && file.path.ends_with(".md") && file.path != SUMMARY
    };
    let pages = tree.files.iter().filter(is_page);
    let missing = pages.filter(|page| !listed.contains(&page.path));
    missing.map(|page| format!("{}: not in the book: add it to {SUMMARY}", page.path)).collect()
}

/// What is wrong with a link, if anything is.
fn wrong(tree: &Tree, page: &SourceFile, link: &str) -> Option<&'static str> {
    let (path, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() { page.path.clone() } else { resolve(&page.path, path) };
    if target.starts_with(WRITTEN) {
        return None;
    }
    if page.path.starts_with(BOOK) && !target.starts_with(BOOK) {
        return Some("a page of the book links to files in docs only");
    }
    let file = tree.file(&target);
    let is_folder = || tree.files.iter().any(|file| file.path.starts_with(&format!("{target}/")));
    match file {
        None if is_folder() => None,
        None => Some("there is no such file"),
        Some(file) if !heading.is_empty() && !headings(file).any(|name| name == heading) => {
            Some("there is no such heading")
        }
        Some(_) => None,
    }
}

/// Links of a page that are not URLs, with their lines.
fn links(page: &SourceFile) -> impl Iterator<Item = (usize, &str)> {
    let texts = outside_blocks(page).flat_map(|(number, text)| {
        // Every second part is between backquotes.
        text.split('`').step_by(2).map(move |text| (number, text))
    });
    let links = texts.flat_map(|(number, text)| {
        let ends = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        ends.map(move |(link, _)| (number, link))
    });
    links.filter(|(_, link)| !link.is_empty() && !link.contains("://"))
}

/// The anchors of a page's headings.
fn headings(page: &SourceFile) -> impl Iterator<Item = String> {
    outside_blocks(page).filter_map(|(_, text)| {
        let title = text.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?;
        let letters = title.trim().to_lowercase().replace(' ', "-");
        let is_kept = |letter: &char| letter.is_alphanumeric() || "-_".contains(*letter);
        Some(letters.chars().filter(is_kept).collect())
    })
}

/// Lines with their numbers, without fenced blocks.
fn outside_blocks(page: &SourceFile) -> impl Iterator<Item = (usize, &str)> {
    let mut is_block = false;
    page.lines().filter_map(move |line| {
        if line.text.trim_start().starts_with("```") {
            is_block = !is_block;
            return None;
        }
        (!is_block).then_some((line.number, line.text))
    })
}

/// The path, from the root, of a link on a page.
pub(crate) fn resolve(page: &str, link: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::file;

    fn findings(pages: &[(&str, &str)]) -> Vec<String> {
        check(&Tree { files: pages.iter().map(|(path, text)| file(path, text)).collect() })
    }

    #[test]
    fn links_must_lead_to_a_file_and_a_heading() {
        let there = ("b/c.md", "# What it is\n\n## `x`, and y\n");
        let good = "[b](b/c.md#what-it-is) [c](b) [d](b/c.md#x-and-y) [e](https://x.example/)\n";
        assert_eq!(findings(&[("a.md", good), there]), Vec::<String>::new());
        assert_eq!(findings(&[("a.md", "[b](b/d.md)"), there]).len(), 1);
        assert_eq!(findings(&[("a.md", "[b](b/c.md#else)"), there]).len(), 1);
        assert_eq!(findings(&[("b/d.md", "[a](../a.md) [c](c.md)"), there]).len(), 1);
    }

    #[test]
    fn links_in_code_are_ignored() {
        let code = "`x[0](y)` and\n```\n[a](b.md)\n```\n";
        assert_eq!(findings(&[("a.md", code)]), Vec::<String>::new());
    }

    #[test]
    fn pages_of_the_book_are_listed_and_link_within_it() {
        let summary = (SUMMARY, "- [A](a.md)\n- [C](generated/c.md)\n- [Later]()\n");
        let text = "[c](generated/c.md)";
        assert_eq!(findings(&[summary, ("docs/a.md", text)]), Vec::<String>::new());
        assert_eq!(findings(&[summary, ("docs/a.md", text), ("docs/b.md", text)]).len(), 1);
        let outside = [summary, ("docs/a.md", "[d](../d.md)"), ("d.md", "")];
        assert_eq!(findings(&outside).len(), 1);
    }
}

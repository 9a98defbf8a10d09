//! Style that whole files show. What single lines show is in [`crate::lines`].

use crate::tree::{SourceFile, Tree};

/// The only folder where `unsafe` may be used.
const UNSAFE_FOLDER: &str = "crates/sys/";
/// The most lines with `unsafe` there. Raising it requires a decision record in `docs/adr`.
const UNSAFE_LINES_MAX: usize = 71;
/// Lines of a file, which should be readable in one sitting.
const FILE_LINES_MAX: usize = 600;
/// Words of what one reads before one uses or changes ringway, without the doctor's and the lab's
/// pages. A new paragraph is paid for by a shorter one elsewhere.
const DOCUMENT_WORDS_MAX: usize = 45_000;
/// Such documents besides the pages of `docs`.
const DOCUMENTS: [&str; 4] = ["README.md", "ARCHITECTURE.md", "HACKING.md", "CHANGELOG.md"];
/// Names without meaning: files and folders with such names hide their content.
const EMPTY_NAMES: [&str; 6] = ["utils", "util", "helpers", "common", "types", "manager"];

/// All violations, one line each.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let names = file.path.split('/').map(|part| part.split('.').next().unwrap_or_default());
        for name in names.filter(|name| EMPTY_NAMES.contains(name)) {
            findings.push(format!("{}: the name `{name}` does not say what it holds", file.path));
        }
        let count = file.text.lines().count();
        if file.is_rust() && count > FILE_LINES_MAX {
            findings.push(format!("{}: {count} lines, at most {FILE_LINES_MAX}", file.path));
        }
    }
    let in_sys = tree.rust().filter(|file| file.path.starts_with(UNSAFE_FOLDER));
    let words = in_sys.flat_map(SourceFile::lines).map(|line| line.code());
    let is_unsafe = |code: &String| {
        let mut words = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        words.any(|word| word == concat!("un", "safe"))
    };
    at_most(
        UNSAFE_LINES_MAX,
        words.filter(is_unsafe).count(),
        "lines that are unsafe",
        &mut findings,
    );
    let is_document = |file: &&SourceFile| {
        let path = file.path.as_str();
        DOCUMENTS.contains(&path) || path.starts_with("docs/") && path.ends_with(".md")
    };
    let documents = tree.files.iter().filter(is_document);
    let words = documents.map(|file| file.text.split_whitespace().count()).sum();
    at_most(DOCUMENT_WORDS_MAX, words, "words of documents", &mut findings);
    findings
}

fn at_most(limit: usize, count: usize, what: &str, findings: &mut Vec<String>) {
    if count > limit {
        findings.push(format!("there are {count} {what}, at most {limit}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::file;

    #[test]
    fn names_and_sizes_are_found() {
        let unsafe_line = concat!("    un", "safe { y() };\n");
        for (path, text, count) in [
            ("crates/ring/src/utils.rs", String::new(), 1),
            ("crates/common/src/lib.rs", String::new(), 1),
            ("crates/a/src/lib.rs", "\n".repeat(FILE_LINES_MAX + 1), 1),
            ("docs/long.md", "\n".repeat(FILE_LINES_MAX + 1), 0),
            ("docs/adr/0001-x.md", "b\n".repeat(DOCUMENT_WORDS_MAX), 0),
            ("docs/adr/0001-x.md", "b\n".repeat(DOCUMENT_WORDS_MAX + 1), 1),
            ("doctor/README.md", "b\n".repeat(DOCUMENT_WORDS_MAX + 1), 0),
            ("crates/sys/src/lib.rs", unsafe_line.repeat(UNSAFE_LINES_MAX), 0),
            ("crates/sys/src/lib.rs", unsafe_line.repeat(UNSAFE_LINES_MAX + 1), 1),
        ] {
            assert_eq!(check(&Tree { files: vec![file(path, &text)] }).len(), count, "{path}");
        }
    }
}

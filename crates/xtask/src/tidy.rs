//! Style that can be checked in the text alone.

use crate::tree::{Line, SourceFile, Tree};

/// The only folder where `unsafe` may be used.
const UNSAFE_FOLDER: &str = "crates/sys/";
/// The most lines with `unsafe` there. Raising it requires a decision record in `docs/adr`.
const UNSAFE_LINES_MAX: usize = 70;
/// Lines of a file, which should be readable in one sitting.
const FILE_LINES_MAX: usize = 600;
/// Columns of a line of Rust: rustfmt's limit for code.
const COLUMNS_MAX: usize = 100;

/// Words of what one reads before one uses or changes ringway, without the doctor's and the lab's
/// pages. A new paragraph is paid for by a shorter one elsewhere.
const DOCUMENT_WORDS_MAX: usize = 45_000;
/// Such documents besides the pages of `docs`.
const DOCUMENTS: [&str; 4] = ["README.md", "ARCHITECTURE.md", "HACKING.md", "CHANGELOG.md"];

/// Names without meaning: files and folders with such names hide their content.
const EMPTY_NAMES: [&str; 6] = ["utils", "util", "helpers", "common", "types", "manager"];
/// Names of types may not end in these words, which have no meaning either.
const EMPTY_TYPE_NAMES: [&str; 4] = ["Manager", "Handler", "Context", "Helper"];
/// Marks of unfinished work, which may not be merged. They are split here so that this file passes.
const UNFINISHED: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:")];
/// Paths of one person's machine, and settings that belong in that person's home.
const MACHINE_PATHS: [&str; 5] = [
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("/Us", "ers/"),
    concat!("/ro", "ot/"),
    concat!("/tmp/", "bash"),
];
/// Settings of package sources, which also belong in that person's home.
const REGISTRY_SETTINGS: [&str; 4] = [
    concat!("replace", "-with"),
    concat!("[regis", "tries"),
    concat!("CARGO_", "REGISTR"),
    concat!("sparse", "+http"),
];

/// Pure crates: they only judge facts that callers pass in.
const PURE_FOLDERS: [&str; 1] = ["doctor/checks/src/"];
/// Paths by which a file would access the outside: the file system, programs, the network, clocks,
/// the system.
const REACHING: [&str; 8] = [
    "std::fs",
    "std::net",
    "std::process",
    "std::env",
    "std::time",
    "std::thread",
    "rustix",
    "nix::",
];

/// All violations, one line each.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for file in &tree.files {
        names(file, &mut findings);
        words(file, &mut findings);
        if file.is_rust() {
            lengths(file, &mut findings);
            ignored_tests(file, &mut findings);
            pure(file, &mut findings);
        }
    }
    unsafe_code(tree, &mut findings);
    document_words(tree, &mut findings);
    findings
}

fn names(file: &SourceFile, findings: &mut Vec<String>) {
    for part in file.path.split('/') {
        let stem = part.split('.').next().unwrap_or_default();
        if EMPTY_NAMES.contains(&stem) {
            findings.push(format!("{}: the name `{stem}` does not say what it holds", file.path));
        }
    }
    if !file.is_rust() {
        return;
    }
    for line in file.lines() {
        if let Some(name) = defined_type(line.code()) {
            if EMPTY_TYPE_NAMES.iter().any(|empty| name.ends_with(empty)) {
                findings.push(at(file, line, &format!("`{name}` does not say what it is")));
            }
        }
    }
}

/// The name of the type that a line defines.
fn defined_type(code: &str) -> Option<&str> {
    let mut tokens = code.split_whitespace().skip_while(|token| token.starts_with("pub"));
    match tokens.next()? {
        "struct" | "enum" | "trait" | "type" => {
            let name = tokens.next()?;
            name.split(|letter: char| !letter.is_alphanumeric()).next()
        }
        _ => None,
    }
}

fn words(file: &SourceFile, findings: &mut Vec<String>) {
    for line in file.lines() {
        for word in UNFINISHED {
            if line.text.contains(word) {
                findings.push(at(file, line, &format!("{word} may not merge")));
            }
        }
        for path in MACHINE_PATHS {
            if has_path(line.text, path) {
                findings.push(at(file, line, &format!("{path} is a path of one machine")));
            }
        }
        for setting in REGISTRY_SETTINGS {
            if line.text.contains(setting) {
                findings.push(at(file, line, &format!("{setting} is a setting of one machine")));
            }
        }
    }
}

/// Whether `path` occurs in the line at the beginning of a path.
fn has_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        !before.is_some_and(|letter| letter.is_alphanumeric() || "._-}~".contains(letter))
    })
}

fn lengths(file: &SourceFile, findings: &mut Vec<String>) {
    let count = file.text.lines().count();
    if count > FILE_LINES_MAX {
        findings.push(format!("{}: {count} lines, at most {FILE_LINES_MAX}", file.path));
    }
    for line in file.lines() {
        let columns = line.text.chars().count();
        if columns > COLUMNS_MAX {
            findings.push(at(file, line, &format!("{columns} columns, at most {COLUMNS_MAX}")));
        }
    }
}

fn pure(file: &SourceFile, findings: &mut Vec<String>) {
    if !PURE_FOLDERS.iter().any(|folder| file.path.starts_with(folder)) {
        return;
    }
    for line in file.lines() {
        if let Some(found) = REACHING.iter().find(|word| line.code().contains(**word)) {
            let why =
                format!("`{found}`: this crate only decides; it must not read anything itself");
            findings.push(at(file, line, &why));
        }
    }
}

fn ignored_tests(file: &SourceFile, findings: &mut Vec<String>) {
    for line in file.lines() {
        if line.text.trim() == concat!("#[ig", "nore]") {
            findings.push(at(file, line, "a test is ignored without a reason"));
        }
    }
}

fn unsafe_code(tree: &Tree, findings: &mut Vec<String>) {
    let mut lines_in_sys = 0;
    for file in tree.rust() {
        for line in file.lines().filter(|line| has_unsafe(line.code())) {
            if file.path.starts_with(UNSAFE_FOLDER) {
                lines_in_sys += 1;
            } else {
                findings.push(at(file, line, "unsafe code outside the sys crate"));
            }
        }
    }
    if lines_in_sys > UNSAFE_LINES_MAX {
        findings.push(format!(
            "{UNSAFE_FOLDER}: {lines_in_sys} lines with unsafe code, at most {UNSAFE_LINES_MAX}"
        ));
    }
}

fn document_words(tree: &Tree, findings: &mut Vec<String>) {
    let is_document = |file: &&SourceFile| {
        let path = file.path.as_str();
        DOCUMENTS.contains(&path) || path.starts_with("docs/") && path.ends_with(".md")
    };
    let documents = tree.files.iter().filter(is_document);
    let words: usize = documents.map(|file| file.text.split_whitespace().count()).sum();
    if words > DOCUMENT_WORDS_MAX {
        let names = DOCUMENTS.join(", ");
        findings.push(format!("{names} and docs: {words} words, at most {DOCUMENT_WORDS_MAX}"));
    }
}

/// Whether code contains the keyword, as a whole word and outside of a string.
fn has_unsafe(code: &str) -> bool {
    const KEYWORD: &str = concat!("un", "safe");
    code.match_indices(KEYWORD).any(|(start, _)| {
        let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
        let before = code[..start].chars().next_back();
        let after = code[start + KEYWORD.len()..].chars().next();
        let is_quoted = code[..start].matches('"').count() % 2 == 1;
        !before.is_some_and(is_word) && !after.is_some_and(is_word) && !is_quoted
    })
}

fn at(file: &SourceFile, line: Line<'_>, what: &str) -> String {
    format!("{}:{}: {what}", file.path, line.number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::file;

    fn findings(path: &str, text: &str) -> usize {
        check(&Tree { files: vec![file(path, text)] }).len()
    }

    #[test]
    fn unsafe_code_is_found_outside_sys_and_nowhere_else() {
        let block = concat!("    let x = un", "safe { y() };\n");
        assert_eq!(findings("crates/ring/src/lib.rs", block), 1);
        assert_eq!(findings("crates/sys/src/lib.rs", block), 0);
        assert_eq!(findings("crates/sys/src/lib.rs", &block.repeat(UNSAFE_LINES_MAX + 1)), 1);
        let harmless = concat!("// un", "safe\nlet un", "safe_code = \"un", "safe\";\n");
        assert_eq!(findings("crates/ring/src/lib.rs", harmless), 0);
    }

    #[test]
    fn a_pure_crate_reads_no_files() {
        let reads = "use std::fs;\n";
        assert_eq!(findings("doctor/checks/src/check/a.rs", reads), 1);
        assert_eq!(findings("doctor/evidence/src/live.rs", reads), 0);
        assert_eq!(findings("doctor/checks/src/check/a.rs", "//! no std::fs here\n"), 0);
    }

    #[test]
    fn meaningless_file_names_are_found() {
        assert_eq!(findings("crates/ring/src/utils.rs", ""), 1);
        assert_eq!(findings("crates/common/src/lib.rs", ""), 1);
        assert_eq!(findings("crates/ring/src/lib.rs", "pub(crate) struct VifManager<T> {\n"), 1);
        assert_eq!(findings("crates/ring/src/lib.rs", "use anyhow::Context;\n"), 0);
        assert_eq!(findings("crates/ring/src/lib.rs", "struct ManagerOfNothing;\n"), 0);
    }

    #[test]
    fn lengths_of_lines_and_files_are_limited() {
        assert_eq!(findings("crates/a/src/lib.rs", &"x".repeat(COLUMNS_MAX)), 0);
        assert_eq!(findings("crates/a/src/lib.rs", &"x".repeat(COLUMNS_MAX + 1)), 1);
        assert_eq!(findings("crates/a/src/lib.rs", &"\n".repeat(FILE_LINES_MAX + 1)), 1);
        assert_eq!(findings("docs/long.md", &"\n".repeat(FILE_LINES_MAX + 1)), 0);
    }

    #[test]
    fn words_of_documents_are_limited_together() {
        let of = |first: usize, second: usize| {
            let files = vec![
                file("HACKING.md", &"a ".repeat(first)),
                file("docs/adr/0001-x.md", &"b\n".repeat(second)),
                file("doctor/README.md", "c d"),
            ];
            check(&Tree { files }).len()
        };
        assert_eq!(of(1, DOCUMENT_WORDS_MAX - 1), 0);
        assert_eq!(of(2, DOCUMENT_WORDS_MAX - 1), 1);
    }

    #[test]
    fn forbidden_markers_are_found() {
        assert_eq!(findings("a.md", concat!("TO", "DO later")), 1);
        assert_eq!(findings("a.sh", concat!("cd /ho", "me/me/x")), 1);
        assert_eq!(findings("a.sh", concat!("cd ${SYSROOT}/ro", "ot/x; ls out/wo", "rk/")), 0);
        assert_eq!(findings(".cargo/config.toml", concat!("replace", "-with = 'x'")), 1);
        assert_eq!(findings("a.rs", concat!("#[ig", "nore]\n")), 1);
        assert_eq!(findings("a.rs", concat!("#[ig", "nore = \"needs Xen\"]\n")), 0);
    }
}

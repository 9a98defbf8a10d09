//! Finds the checks and reads their texts, so that a check consists of two files and appears in no
//! list.
//!
//! A check is `src/check/GROUP/SUBJECT.rs` with `SUBJECT.md` beside it, and the module of a group
//! is a folder. From these it writes macros with the modules of each group, the catalogue in the
//! order of the checks' ids, and a module of [texts](../src/text.rs) for each check. A file without
//! its counterpart, a missing or duplicate id, and an unreadable text fail the build.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The directory of checks, with a folder for each group.
const CHECKS: &str = "src/check";
/// The line between the explanation above it and the texts of findings below it.
const IN_FINDINGS: &str = "In findings\n";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A check, as read from its files.
struct Check {
    id: String,
    group: String,
    /// The name of its files.
    subject: String,
    texts: Texts,
}

/// The content of the file with its texts.
struct Texts {
    explanation: String,
    of_findings: BTreeMap<String, String>,
}

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={CHECKS}");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let root = std::env::current_dir()?.join(CHECKS);
    let (mut checks, mut declarations) = (Vec::new(), String::new());
    for group in folders(&root)? {
        let of_group = checks_of(&root.join(&group), &group)?;
        declarations += &modules(&group, &of_group);
        checks.extend(of_group);
    }
    fs::write(out.join("modules.rs"), declarations)?;
    checks.sort_by(|one, other| one.id.cmp(&other.id));
    for (index, check) in checks.iter().enumerate() {
        let next = format!("D{:02}", index + 1);
        if check.id != next {
            return Err(
                format!("{}: has id {}, and {next} is next", check.subject, check.id).into()
            );
        }
    }
    fs::write(out.join("catalogue.rs"), catalogue(&checks))?;
    fs::write(out.join("texts.rs"), texts(&checks))?;
    Ok(())
}

/// The groups: folders with a `mod.rs`.
fn folders(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        if entry.path().join("mod.rs").is_file() {
            names.push(entry.file_name().into_string().map_err(|_| "a name that is no text")?);
        }
    }
    names.sort();
    Ok(names)
}

fn checks_of(folder: &Path, group: &str) -> Result<Vec<Check>> {
    let mut subjects = BTreeMap::<String, Vec<String>>::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let (Some(stem), Some(kind)) = (path.file_stem(), path.extension()) else { continue };
        let (stem, kind) = (stem.to_string_lossy(), kind.to_string_lossy());
        if stem != "mod" {
            subjects.entry(stem.into_owned()).or_default().push(kind.into_owned());
        }
    }
    subjects.into_iter().map(|(subject, kinds)| check(folder, group, subject, &kinds)).collect()
}

fn check(folder: &Path, group: &str, subject: String, kinds: &[String]) -> Result<Check> {
    let file = |kind: &str| folder.join(&subject).with_extension(kind);
    for kind in ["rs", "md"] {
        if !kinds.iter().any(|known| known == kind) {
            return Err(format!("a check is two files: {} is missing", file(kind).display()).into());
        }
    }
    let code = file("rs");
    let id = id(&fs::read_to_string(&code)?)
        .ok_or_else(|| format!("{}: expected one line id: \"Dnn\",", code.display()))?;
    let path = file("md");
    let texts = Texts::parse(&fs::read_to_string(&path)?)
        .map_err(|what| format!("{}: {what}", path.display()))?;
    Ok(Check { id, group: group.to_owned(), subject, texts })
}

/// The id in `id: "D18",`.
fn id(code: &str) -> Option<String> {
    let ids = code.lines().filter_map(|line| line.strip_prefix("    id: \"")?.strip_suffix("\","));
    match ids.collect::<Vec<_>>().as_slice() {
        [id] => Some((*id).to_owned()),
        _ => None,
    }
}

impl Texts {
    fn parse(file: &str) -> Result<Texts> {
        let (explanation, of_findings) = match file.split_once(&format!("\n{IN_FINDINGS}")) {
            Some((explanation, texts)) => (explanation, named(texts)?),
            None => (file, BTreeMap::new()),
        };
        Ok(Texts { explanation: explanation.to_owned(), of_findings })
    }
}

/// Texts by name: ` NAME: TEXT`, continued in lines with deeper indentation.
fn named(lines: &str) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::<String, String>::new();
    let mut last = None;
    for line in lines.lines().filter(|line| !line.is_empty()) {
        if let (Some(rest), Some(name)) = (line.strip_prefix("    "), &last) {
            let text: &mut String = found.get_mut(name).ok_or("a text without a name")?;
            text.push(' ');
            text.push_str(rest.trim());
            continue;
        }
        let parts = line.strip_prefix("  ").and_then(|line| line.split_once(": "));
        let (name, text) = parts
            .filter(|(name, _)| is_name(name))
            .ok_or_else(|| format!("expected `  NAME: TEXT`, found {line:?}"))?;
        if found.insert(name.to_owned(), text.trim().to_owned()).is_some() {
            return Err(format!("two texts are called {name}").into());
        }
        last = Some(name.to_owned());
    }
    Ok(found)
}

fn is_name(word: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    word.starts_with(|first: char| first.is_ascii_lowercase()) && word.bytes().all(is_part)
}

/// A macro that declares the modules of a group. It is used in the group's own file, so that the
/// compiler finds the modules beside it, by a path without the project's directory.
fn modules(group: &str, checks: &[Check]) -> String {
    let declare = |check: &Check| {
        format!(
            "    pub(super) mod {};
",
            check.subject
        )
    };
    let modules: String = checks.iter().map(declare).collect();
    format!(
        "macro_rules! {group}_checks {{ () => {{
{modules}}} }}
"
    )
}

/// All checks, by their ids.
fn catalogue(checks: &[Check]) -> String {
    let paths =
        checks.iter().map(|check| format!("    {}::{}::CHECK,\n", check.group, check.subject));
    format!("&[\n{}]\n", paths.collect::<String>())
}

/// A module for each check, with its explanation and a function for each text of its findings.
fn texts(checks: &[Check]) -> String {
    let mut code = String::new();
    for check in checks {
        let _ = writeln!(code, "/// Texts of {}.\npub(crate) mod {} {{", check.id, check.subject);
        let explanation = &check.texts.explanation;
        let _ = writeln!(code, "/// What `doctor explain` says.");
        let _ = writeln!(code, "pub(crate) const EXPLANATION: &str = {explanation:?};");
        for (name, text) in &check.texts.of_findings {
            code += &function(name, text);
        }
        code += "}\n";
    }
    code
}

/// A function that returns a text, with an argument for each `{placeholder}`, in their order.
fn function(name: &str, text: &str) -> String {
    let names = placeholders(text);
    let doc = format!("#[doc = {text:?}]\n");
    if names.is_empty() {
        return format!("{doc}pub(crate) const fn {name}() -> &'static str {{ {text:?} }}\n");
    }
    let arguments: Vec<String> =
        names.iter().map(|name| format!("{name}: &impl std::fmt::Display")).collect();
    // Other braces are literal: citations, and shell words.
    let mut format = text.replace('{', "{{").replace('}', "}}");
    for name in &names {
        format = format.replace(&format!("{{{{{name}}}}}"), &format!("{{{name}}}"));
    }
    format!(
        "{doc}pub(crate) fn {name}({}) -> String {{ format!({format:?}) }}\n",
        arguments.join(", ")
    )
}

/// The words in braces, each once.
fn placeholders(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for part in text.split('{').skip(1) {
        let Some((word, _)) = part.split_once('}') else { continue };
        if is_name(word) && !names.contains(&word) {
            names.push(word);
        }
    }
    names
}

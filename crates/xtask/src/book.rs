//! The book in `docs`: writes the generated pages, and builds the book with mdBook.
//!
//! The doctor's catalogue, the lab's studies, the rules of the wire and the plots are generated
//! from the program itself, `docs/spec/netif.toml` and `docs/measured/`, into a folder that git
//! ignores: so they are never out of date and never edited.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::{plots, run};

/// The folder of the generated pages, relative to the root.
pub(crate) const WRITTEN: &str = "docs/generated";
/// The folder of the book.
pub(crate) const BUILT: &str = "target/book";
/// The program that starts those that know the checks and the studies.
const PROGRAM: &str = "target/debug/ringway";
const RULES: &str = "docs/spec/netif.toml";

/// A check, topic or study, as its verb lists it.
#[derive(Deserialize)]
struct Entry {
    id: String,
    title: String,
}

/// The rules of the wire.
#[derive(Deserialize)]
struct Rules {
    rule: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    id: String,
    sources: Vec<String>,
    section: String,
    claim: String,
}

/// Writes the pages and builds the book.
pub(crate) fn build(root: &Path) -> Result<()> {
    write_pages(root)?;
    run::shown(Command::new("mdbook").arg("build").current_dir(root))
        .context("mdbook (cargo install mdbook --version 0.4.52 --locked)")?;
    println!("book: {}", root.join(BUILT).join("index.html").display());
    Ok(())
}

fn write_pages(root: &Path) -> Result<()> {
    run::run(root, &[&["build", "--quiet", "--bins"], &run::BUILT[..6]].concat())?;
    let folder = root.join(WRITTEN);
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let rules = fs::read_to_string(root.join(RULES)).with_context(|| format!("reading {RULES}"))?;
    let rules: Rules = toml::from_str(&rules).with_context(|| format!("reading {RULES}"))?;
    let pages = [
        ("checks.md", checks(root)?),
        ("studies.md", studies(root)?),
        ("protocol.md", protocol(&rules)),
        ("plots.md", plots::page(root, &folder)?),
    ];
    for (name, text) in pages {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn checks(root: &Path) -> Result<String> {
    let mut page = String::from(
        "# The doctor's catalogue\n\nWhat `ringway doctor explain ID` prints, for each check and \
         topic. [The doctor](../doctor.md) says how to use it.\n",
    );
    for entry in entries(root, "doctor")? {
        let text = printed(root, &["doctor", "explain", &entry.id])?;
        section(&mut page, &entry, "text", text.split_once("\n\n").map_or("", |(_, body)| body));
    }
    Ok(page)
}

fn studies(root: &Path) -> Result<String> {
    let mut page = String::from(
        "# The lab's studies\n\nWhat `ringway lab show ID` prints, for each study that comes with \
         the program. [The lab](../lab.md) says how to run one, and how to make your own.\n",
    );
    for entry in entries(root, "lab")? {
        section(&mut page, &entry, "toml", &printed(root, &["lab", "show", &entry.id])?);
    }
    Ok(page)
}

fn protocol(rules: &Rules) -> String {
    let mut page = String::from(
        "# The protocol as implemented\n\nThe wire rules that ringway implements, from \
         `docs/spec/netif.toml`. Each has a place in the code and a test that fails without it: \
         search for `//= netif.h:ID`. Directions are the guest's.\n\n\
         | rule | requirement | source |\n|---|---|---|\n",
    );
    for rule in &rules.rule {
        let cell = |text: &str| text.replace('|', "\\|").replace('<', "&lt;");
        let (claim, section) = (cell(&rule.claim), cell(&rule.section));
        let sources = rule.sources.join(", ");
        // Writing to a string cannot fail.
        let _ = writeln!(page, "| `{}` | {claim} | {sources}: {section} |", rule.id);
    }
    page
}

/// Adds a section to a page: the title, and the program's output verbatim.
fn section(page: &mut String, entry: &Entry, language: &str, text: &str) {
    let Entry { id, title } = entry;
    let text = text.trim_end();
    let _ = write!(page, "\n## {id}: {title}\n\n```{language}\n{text}\n```\n");
}

fn entries(root: &Path, verb: &str) -> Result<Vec<Entry>> {
    let text = printed(root, &[verb, "list", "--json"])?;
    serde_json::from_str(&text).with_context(|| format!("reading `ringway {verb} list --json`"))
}

fn printed(root: &Path, arguments: &[&str]) -> Result<String> {
    let command = format!("{PROGRAM} {}", arguments.join(" "));
    let output = Command::new(root.join(PROGRAM)).args(arguments).output();
    let output = output.with_context(|| command.clone())?;
    ensure!(output.status.success(), "{command}: {}", output.status);
    String::from_utf8(output.stdout).context(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_rule_does_not_break_its_table() {
        let rule = Rule {
            id: "bits".to_owned(),
            sources: vec!["netif.h".to_owned(), "ring.h".to_owned()],
            section: "a|b".to_owned(),
            claim: "less is <less>".to_owned(),
        };
        let page = protocol(&Rules { rule: vec![rule] });
        let line = "| `bits` | less is &lt;less> | netif.h, ring.h: a\\|b |\n";
        assert!(page.ends_with(line), "{page}");
    }

    #[test]
    fn output_of_the_program_is_a_block_below_its_title() {
        let entry = Entry { id: "D99".to_owned(), title: "a thing".to_owned() };
        let mut page = String::new();
        section(&mut page, &entry, "text", "Background\n  <x>\n\n");
        assert_eq!(page, "\n## D99: a thing\n\n```text\nBackground\n  <x>\n```\n");
    }
}

//! The figures of the book: drawn by Graphviz, and stored beside their texts.
//!
//! Versions of Graphviz draw differently, so each figure contains a checksum of its source text.
//! This way, outdated figures are found without Graphviz.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::tree::{SourceFile, Tree};

const FOLDER: &str = "docs/figures/";
/// Ends the name of a figure's text.
const GRAPH: &str = ".dot";

/// Draws every figure.
pub(crate) fn draw(root: &Path, tree: &Tree) -> Result<()> {
    for source in sources(tree) {
        let path = figure(source);
        let text = format!("{}{}\n", graph(&root.join(&source.path))?, mark(source));
        fs::write(root.join(&path), text).with_context(|| format!("writing {path}"))?;
        println!("{path}");
    }
    Ok(())
}

fn graph(source: &Path) -> Result<String> {
    let output = Command::new("dot").arg("-Tsvg").arg(source).output();
    let output = output.context("dot (apt-get install graphviz)")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "dot -Tsvg {}: {complaint}", source.display());
    String::from_utf8(output.stdout).context("reading the output of dot")
}

/// Figures that are missing or outdated, one line each.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let is_drawn = |source: &&SourceFile| {
        tree.file(&figure(source)).is_some_and(|figure| figure.text.contains(&mark(source)))
    };
    let outdated = sources(tree).filter(|source| !is_drawn(source));
    outdated
        .map(|source| format!("{}: out of date; run cargo xtask figures", source.path))
        .collect()
}

fn sources(tree: &Tree) -> impl Iterator<Item = &SourceFile> {
    let is_source =
        |file: &&SourceFile| file.path.starts_with(FOLDER) && file.path.ends_with(GRAPH);
    tree.files.iter().filter(is_source)
}

fn figure(source: &SourceFile) -> String {
    format!("{}.svg", source.path.trim_end_matches(GRAPH))
}

/// The checksum line in a figure.
fn mark(source: &SourceFile) -> String {
    format!("<!-- drawn from text with checksum {:016x} -->", checksum(source.text.as_bytes()))
}

/// FNV-1a: short, and the same with every compiler.
fn checksum(bytes: &[u8]) -> u64 {
    let add = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::file;

    #[test]
    fn an_outdated_figure_is_found() {
        let source = file("docs/figures/a.dot", "digraph {}");
        let drawn = format!("<svg/>{}", mark(&source));
        let findings = |files| check(&Tree { files }).len();
        let figure = |text: &str| file("docs/figures/a.svg", text);
        assert_eq!(findings(vec![file("docs/figures/a.dot", "digraph {}"), figure(&drawn)]), 0);
        assert_eq!(findings(vec![file("docs/figures/a.dot", "digraph { b }"), figure(&drawn)]), 1);
        assert_eq!(findings(vec![source]), 1);
    }
}

//! The files of the repository that people wrote.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Every text file, by its path from the root.
pub(crate) struct Tree {
    pub(crate) files: Vec<SourceFile>,
}

/// One text file.
pub(crate) struct SourceFile {
    /// From the root, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Made by tools, or not ours to change.
const SKIPPED: [&str; 8] =
    [".git", "target", "out", "Cargo.lock", "node_modules", "corpus", "artifacts", "generated"];

/// Where checks are.
const CHECKS: &str = "crates/checks/src/check/";

impl Tree {
    /// Reads the files below `root`, without asking git: a source archive is checked as well.
    pub(crate) fn read(root: &Path) -> Result<Tree> {
        let mut files = Vec::new();
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in entries(&folder)? {
                let name = entry.file_name().unwrap_or_default();
                if SKIPPED.iter().any(|skipped| name == *skipped) || entry.is_symlink() {
                    continue;
                }
                if entry.is_dir() {
                    folders.push(entry);
                } else if let Ok(text) = fs::read_to_string(&entry) {
                    let path = entry.strip_prefix(root).unwrap_or(&entry);
                    files.push(SourceFile { path: path.to_string_lossy().into_owned(), text });
                }
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Tree { files })
    }

    /// The file at `path`, if it is there.
    pub(crate) fn file(&self, path: &str) -> Option<&SourceFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Every Rust file.
    pub(crate) fn rust(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().filter(|file| file.is_rust())
    }

    /// The Rust files of a folder that have a text of the same name beside them: checks, which
    /// `crates/checks/build.rs` declares, so that no line of code does.
    pub(crate) fn checks(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().filter_map(|file| {
            let stem = file.path.strip_prefix(CHECKS)?.strip_suffix(".md")?;
            self.file(&format!("{CHECKS}{stem}.rs"))
        })
    }
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let reading = || format!("reading {}", folder.display());
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).with_context(reading)? {
        entries.push(entry.with_context(reading)?.path());
    }
    Ok(entries)
}

impl SourceFile {
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Lines with their numbers, each with whether it belongs to a test: in a `tests` folder, or
    /// after the `cfg(test)` that ends a file.
    pub(crate) fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let mut is_test = self.path.contains("/tests/");
        (1..).zip(self.text.lines()).map(move |(number, text)| {
            is_test |= text.trim_start().starts_with("#[cfg(test)]");
            Line { number, text, is_test }
        })
    }
}

/// One line of a file.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a> {
    pub(crate) number: usize,
    pub(crate) text: &'a str,
    pub(crate) is_test: bool,
}

impl<'a> Line<'a> {
    /// What stands before a comment. Strings that hold `//` are cut as well, which no check here
    /// minds.
    pub(crate) fn code(&self) -> &'a str {
        self.text.split("//").next().unwrap_or_default()
    }
}

#[cfg(test)]
pub(crate) fn file(path: &str, text: &str) -> SourceFile {
    SourceFile { path: path.to_owned(), text: text.to_owned() }
}

//! Words to avoid: the number of their uses may only fall.
//!
//! `data/words.toml` lists each word with a replacement and the number of uses in the repository.
//! Both a new use and a number that is too high are findings. `cargo xtask words` lowers the
//! numbers to the remaining uses.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::tree::{SourceFile, Tree};

const LIST: &str = "crates/xtask/data/words.toml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    word: Vec<Word>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Word {
    /// A word, or several separated by spaces. Its case counts if it has a capital letter.
    text: String,
    /// What to write in its place.
    write: String,
    /// The most uses there may be.
    uses_max: usize,
}

/// Each word whose number of uses differs from the list, one line each.
pub(crate) fn check(tree: &Tree) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for word in read(tree)?.word {
        let uses = uses(tree, &word.text);
        let Word { text, write, uses_max } = word;
        if uses > uses_max {
            findings.push(format!("`{text}`: {uses} uses, at most {uses_max}: write {write}"));
        }
        if uses < uses_max {
            findings.push(format!(
                "`{text}`: {uses} uses, and {LIST} allows {uses_max}: run `cargo xtask words`"
            ));
        }
    }
    Ok(findings)
}

/// Writes the present numbers into the list, if they are lower.
pub(crate) fn lower(root: &Path, tree: &Tree) -> Result<()> {
    let list = &tree.file(LIST).with_context(|| format!("{LIST} is missing"))?.text;
    let lowered = lowered(list, |word| uses(tree, word));
    fs::write(root.join(LIST), lowered).with_context(|| format!("writing {LIST}"))
}

/// The list with lower numbers, and with its comments.
fn lowered(list: &str, uses: impl Fn(&str) -> usize) -> String {
    let mut text = String::new();
    let mut word_uses = usize::MAX;
    for line in list.lines() {
        if let Some(word) = line.strip_prefix("text = ") {
            word_uses = uses(word.trim_matches('"'));
        }
        match line.strip_prefix("uses_max = ").and_then(|number| number.parse::<usize>().ok()) {
            Some(uses_max) => text += &format!("uses_max = {}\n", uses_max.min(word_uses)),
            None => text += &format!("{line}\n"),
        }
    }
    text
}

fn read(tree: &Tree) -> Result<List> {
    let list = tree.file(LIST).with_context(|| format!("{LIST} is missing"))?;
    toml::from_str(&list.text).with_context(|| format!("reading {LIST}"))
}

/// How often a word occurs in the files.
fn uses(tree: &Tree, word: &str) -> usize {
    // The list itself must contain them.
    let is_read = |file: &&SourceFile| file.path != LIST && file.is_written();
    let files = tree.files.iter().filter(is_read);
    files.map(|file| count(&file.text, word)).sum()
}

/// How often `word` occurs in a text as a whole word, ignoring case unless it has a capital letter.
fn count(text: &str, word: &str) -> usize {
    let has_capital = word.chars().any(char::is_uppercase);
    let text = if has_capital { text.to_owned() } else { text.to_lowercase() };
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let is_whole = |(start, _): &(usize, &str)| {
        let before = text[..*start].chars().next_back();
        let after = text[start + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    };
    text.match_indices(word).filter(is_whole).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::file;

    const ONE_WORD: &str = "[[word]]\ntext = \"hence\"\nwrite = \"so\"\nuses_max = 2\n";

    fn findings(text: &str) -> usize {
        let files = vec![file(LIST, ONE_WORD), file("a.md", text), file("b.sh", "hence")];
        check(&Tree { files }).expect("the list is well formed").len()
    }

    #[test]
    fn the_number_of_uses_must_match_the_list() {
        assert_eq!(findings("hence\nHence, "), 0);
        assert_eq!(findings("hence hence hence"), 1);
        assert_eq!(findings("hence"), 1);
    }

    #[test]
    fn parts_of_longer_words_are_not_counted() {
        assert_eq!(count("whence henceforth is_hence hence.", "hence"), 1);
        assert_eq!(count("that is hence a word; this is hence", "is hence"), 2);
    }

    #[test]
    fn a_sentence_may_not_begin_as_the_end_of_a_line_may() {
        assert_eq!(count("/// It is late,\n/// hence the rest.\n", "// Hence"), 0);
        assert_eq!(count("/// Hence it ends.\n// Hence.\n", "// Hence"), 2);
    }

    #[test]
    fn numbers_are_lowered_and_never_raised() {
        assert_eq!(lowered(ONE_WORD, |_| 1), ONE_WORD.replace('2', "1"));
        assert_eq!(lowered(ONE_WORD, |_| 3), ONE_WORD);
    }
}

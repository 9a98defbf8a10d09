//! Style that a single line shows: `data/lines.toml` has the rules, and how they are written.

use anyhow::Result;
use regex::Regex;
use serde::Deserialize;

use crate::tree::{Language, Line, SourceFile, Tree, gives_reason};

const LIST: &str = "crates/xtask/data/lines.toml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    rule: Vec<Rule>,
}

/// What no line may have.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    what: String,
    files: Option<Pattern>,
    except: Option<Pattern>,
    #[serde(default)]
    languages: Vec<Language>,
    #[serde(default, rename = "in_tests")]
    is_for_tests: bool,
    #[serde(default)]
    view: View,
    pattern: Pattern,
    unless: Option<Pattern>,
    excuse: Option<String>,
    example: String,
    finds: Vec<String>,
    passes: Vec<String>,
}

/// What a pattern is matched with.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum View {
    #[default]
    Line,
    Statement,
    Code,
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Pattern(Regex);

impl TryFrom<String> for Pattern {
    type Error = regex::Error;

    fn try_from(text: String) -> Result<Pattern, regex::Error> {
        Regex::new(&text).map(Pattern)
    }
}

/// Every line that has what no line may have, and every rule that its own examples contradict.
pub(crate) fn check(tree: &Tree) -> Result<Vec<String>> {
    let List { rule: rules } = tree.toml(LIST)?;
    let mut findings: Vec<String> = rules.iter().flat_map(wrong_examples).collect();
    let files = tree.files.iter().filter(|file| file.path != LIST);
    findings.extend(files.flat_map(|file| check_file(file, &rules)));
    Ok(findings)
}

fn wrong_examples(rule: &Rule) -> Vec<String> {
    let example = rule.example.as_str();
    let mut expected: Vec<_> = rule.passes.iter().map(|line| (example, line.clone(), 0)).collect();
    for line in &rule.finds {
        expected.push((example, line.clone(), 1));
        if let Some(excuse) = &rule.excuse {
            expected.push((example, format!("// {excuse}: it has none\n// at all.\n{line}"), 0));
            expected.push((example, format!("// {excuse}: \n{line}"), 1));
        }
        if rule.is_for_tests {
            expected.push(("a/src/a.rs", line.clone(), 0));
        }
    }
    let is_wrong = |(path, text, count): &(&str, String, usize)| {
        let file = SourceFile { path: (*path).to_owned(), text: text.clone() };
        check_file(&file, std::slice::from_ref(rule)).len() != *count
    };
    let wrong = expected.into_iter().filter(is_wrong);
    let place =
        |(path, text, count)| format!("{LIST}: {}: not {count} in {path}: {text}", rule.what);
    wrong.map(place).collect()
}

fn check_file(file: &SourceFile, rules: &[Rule]) -> Vec<String> {
    let rules: Vec<&Rule> = rules.iter().filter(|rule| rule.concerns(file)).collect();
    let lines: Vec<Line<'_>> = file.lines().collect();
    let mut findings = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let code = line.code();
        for (rule, found) in rules.iter().filter_map(|it| Some((it, it.find(line, &code)?))) {
            let excuse = rule.excuse.as_deref();
            if excuse.is_some_and(|excuse| gives_reason(&lines[..=index], excuse)) {
                continue;
            }
            let without = excuse.map_or_else(String::new, |it| format!(", without `{it}: REASON`"));
            let (path, number, what) = (&file.path, line.number, &rule.what);
            findings.push(format!("{path}:{number}: {what}: `{found}`{without}"));
        }
    }
    findings
}

impl Rule {
    fn concerns(&self, file: &SourceFile) -> bool {
        let has = |pattern: &Option<Pattern>| Some(pattern.as_ref()?.0.is_match(&file.path));
        let is_spoken = || file.language().is_some_and(|it| self.languages.contains(&it));
        has(&self.files).unwrap_or(true)
            && !has(&self.except).unwrap_or(false)
            && (self.languages.is_empty() || is_spoken())
    }

    /// The part of the line that it must not have.
    fn find<'a>(&self, line: &Line<'a>, code: &'a str) -> Option<&'a str> {
        let view = match self.view {
            View::Line => line.text,
            View::Statement if line.is_comment() => "",
            View::Statement => line.text,
            View::Code => code,
        };
        let is_excepted = || self.unless.as_ref().is_some_and(|it| it.0.is_match(view));
        let found = self.pattern.0.find(view).filter(|_| line.is_test || !self.is_for_tests)?;
        (!is_excepted()).then_some(found.as_str())
    }
}

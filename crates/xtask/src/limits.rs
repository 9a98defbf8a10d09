//! Checks that limits in the documentation match the code.
//!
//! A row of a table in `docs/threat-model.md` gives the place of a constant and its value: `` |
//! what | `crate/file.rs` `NAME` | `value` | ``. The file is one of the crate's `src`.

use anyhow::{Context as _, Result};

use crate::tree::Tree;

const PAGE: &str = "docs/threat-model.md";
/// The least number of rows: a table in another format would not be compared.
const ROWS_MIN: usize = 30;

/// Every limit on the page that differs from the code, one line each.
pub(crate) fn check(tree: &Tree) -> Result<Vec<String>> {
    let page = tree.file(PAGE).with_context(|| format!("{PAGE} is missing"))?;
    let rows: Vec<Row<'_>> = page.text.lines().filter_map(Row::parse).collect();
    let mut findings: Vec<String> = rows.iter().filter_map(|row| row.finding(tree)).collect();
    if rows.len() < ROWS_MIN {
        let count = rows.len();
        findings.push(format!("{PAGE}: {count} rows name a limit, expected at least {ROWS_MIN}"));
    }
    Ok(findings)
}

/// One limit.
#[derive(Debug, PartialEq, Eq)]
struct Row<'a> {
    file: &'a str,
    name: &'a str,
    value: &'a str,
}

impl<'a> Row<'a> {
    fn parse(line: &'a str) -> Option<Row<'a>> {
        let mut cells = line.strip_prefix('|')?.split('|').skip(1);
        let mut place = cells.next()?.split_whitespace();
        let (file, name) = (code(place.next()?)?, code(place.next()?)?);
        let value = code(cells.next()?.trim())?;
        file.ends_with(".rs").then_some(Row { file, name, value })
    }

    fn finding(&self, tree: &Tree) -> Option<String> {
        let Row { file, name, value } = self;
        let (of_crate, rest) = file.split_once('/')?;
        let path = format!("crates/{of_crate}/src/{rest}");
        let Some(found) = tree.file(&path) else {
            return Some(format!("{PAGE}: there is no {path}"));
        };
        let declared = format!("const {name}: ");
        let mut values = found.text.lines().filter_map(|line| {
            let (_, rest) = line.split_once(&declared)?;
            let (_, value) = rest.split_once(" = ")?;
            value.trim().strip_suffix(';')
        });
        match values.next() {
            Some(found) if found == *value => None,
            Some(found) => Some(format!("{PAGE}: {name} is `{value}`, and in {path} `{found}`")),
            None => Some(format!("{PAGE}: there is no constant {name} in {path}")),
        }
    }
}

/// The text between two backticks.
fn code(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::file;

    fn findings(row: &str) -> Vec<String> {
        let code = "/// Few.\npub(crate) const MANY: usize = 4 << 10;\n";
        let page = format!("| what | where | limit |\n|---|---|---|\n{row}\n");
        let files = vec![file(PAGE, &page), file("crates/x/src/y.rs", code)];
        let mut findings = check(&Tree { files }).expect("there is a page");
        // Removes the finding that there are too few rows.
        findings.pop();
        findings
    }

    #[test]
    fn documented_limits_match_the_code() {
        assert_eq!(findings("| pages | `x/y.rs` `MANY` | `4 << 10` |"), Vec::<String>::new());
        for (row, part) in [
            ("| pages | `x/y.rs` `MANY` | `4096` |", "`4 << 10`"),
            ("| pages | `x/y.rs` `FEW` | `4 << 10` |", "no constant FEW"),
            ("| pages | `x/z.rs` `MANY` | `4 << 10` |", "no crates/x/src/z.rs"),
        ] {
            let found = findings(row);
            assert!(found.len() == 1 && found[0].contains(part), "{found:?}");
        }
    }

    #[test]
    fn other_tables_are_ignored() {
        assert_eq!(findings("| a guest | its own memory | everything |"), Vec::<String>::new());
    }
}

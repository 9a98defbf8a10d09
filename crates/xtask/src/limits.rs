//! Checks that limits in the documentation match the code, and that none is left out.
//!
//! A row of a table in `docs/threat-model.md` gives the place of a constant and its value: `` |
//! what | `crate/file.rs` `NAME` | `value` | ``. The file is one of the crate's `src`.
//!
//! In what serves guests, each constant with the name of a limit has a row, or a comment
//! `not a limit: REASON` at the end of its line or directly above: batches, the kernel's limits,
//! and what no guest, tenant or front-end can meet.

use anyhow::Result;
use regex::Regex;

use crate::tree::{Line, Tree, gives_reason};

const PAGE: &str = "docs/threat-model.md";
/// The least number of rows: a table in another format would not be compared.
const ROWS_MIN: usize = 30;
/// What a comment says before its reason.
const EXCUSE: &str = "not a limit";
/// What serves guests, tenants and front-ends.
const SERVING: &str = r"(?x) ^crates/ (?: ringway/src/host/(?: isolation/ | notices.rs )
    | (?: backend | control | datapath | emu | engine | host-shell | host | net | netback | ovs
    | steering | switch | sys | tap | trunk | vhost-shell | vhost | vif-shell | virtback | virtio
    | worker | xen | xenbus | xenstore )/ )";
/// A constant that is a number or an amount, with the name of a limit. A minimum seldom is one.
const LIMIT: &str = r"(?x)^\s* (?: pub (?: \([^)]*\) )? \s )? const\s
    ( (?: \w+_ )? (?: MAX | LIMIT | BURST | QUOTA | TIMEOUT ) (?: _\w+ )? ):\s [^&]";
/// A row with a limit: file, name and value.
const ROW: &str = r"^\|[^|]*\|\s*`([^`]*\.rs)`\s+`([^`]*)`[^|]*\|\s*`([^`]*)`\s*\|";

/// Every limit on the page that differs from the code, one line each.
pub(crate) fn check(tree: &Tree) -> Result<Vec<String>> {
    let row = Regex::new(ROW)?;
    let captures = tree.text(PAGE)?.lines().filter_map(|line| row.captures(line));
    let rows: Vec<Row<'_>> = captures
        .map(|captures| {
            let (_, [file, name, value]) = captures.extract();
            Row { file, name, value }
        })
        .collect();
    let mut findings: Vec<String> = rows.iter().filter_map(|row| row.finding(tree)).collect();
    findings.extend(left_out(tree, &rows)?);
    if rows.len() < ROWS_MIN {
        let count = rows.len();
        findings.push(format!("{PAGE}: {count} rows name a limit, expected at least {ROWS_MIN}"));
    }
    Ok(findings)
}

/// One limit.
struct Row<'a> {
    file: &'a str,
    name: &'a str,
    value: &'a str,
}

impl Row<'_> {
    fn finding(&self, tree: &Tree) -> Option<String> {
        let Row { file, name, value } = self;
        let (of_crate, rest) = file.split_once('/')?;
        let path = format!("crates/{of_crate}/src/{rest}");
        // Those of other parts are beside `crates`.
        let beside = format!("{of_crate}/src/{rest}");
        let Some(found) = tree.file(&path).or_else(|| tree.file(&beside)) else {
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

/// Every constant with the name of a limit that has neither a row nor a reason.
fn left_out(tree: &Tree, rows: &[Row<'_>]) -> Result<Vec<String>> {
    let (serving, limit) = (Regex::new(SERVING)?, Regex::new(LIMIT)?);
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| serving.is_match(&file.path)) {
        let path = file.path.as_str();
        let Some((of_crate, rest)) =
            path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"))
        else {
            continue;
        };
        let place = format!("{of_crate}/{rest}");
        let lines: Vec<Line<'_>> = file.lines().collect();
        for (index, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_test) {
            let Some((_, [name])) = limit.captures(line.text).map(|found| found.extract()) else {
                continue;
            };
            let is_listed = rows.iter().any(|row| row.file == place && row.name == name);
            if !is_listed && !gives_reason(&lines[..=index], EXCUSE) {
                let (number, row) = (line.number, format!("| what | `{place}` `{name}` | `…` |"));
                findings.push(format!(
                    "{path}:{number}: {PAGE} has no row `{row}`; if nothing that others do can \
                     meet it, say why: `// {EXCUSE}: REASON`"
                ));
            }
        }
    }
    Ok(findings)
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
    fn a_limit_of_what_serves_has_a_row_or_a_reason() {
        let code = format!(
            "const A_MAX: usize = 1;\npub(crate) const TIMEOUT: Duration = SOON;\n\
             const B_MAX: usize = 2; // {EXCUSE}: a batch\n// {EXCUSE}: the kernel's\n/// Pages.\n\
             const C_MAX: u8 = 3;\nconst KEY_MAX: &str = \"max\";\nconst MAXIMA: u8 = 4;\n\
             fn f<const MAX: usize>() {{}}\n\
             #[cfg(test)]\nmod tests {{\n    const D_MAX: u8 = 5;\n}}\n"
        );
        let of = |path: &str, page: &str| {
            let files = vec![file(PAGE, page), file(path, &code)];
            let mut findings = check(&Tree { files }).expect("there is a page");
            findings.pop();
            findings
        };
        let found = of("crates/emu/src/a.rs", "");
        let has = |found: &str, line: u8, name: &str| {
            found.starts_with(&format!("crates/emu/src/a.rs:{line}: "))
                && found.contains(&format!("`emu/a.rs` `{name}`"))
        };
        assert!(
            found.len() == 2 && has(&found[0], 1, "A_MAX") && has(&found[1], 2, "TIMEOUT"),
            "{found:#?}"
        );
        let rows = "| a | `emu/a.rs` `A_MAX` | `1` |\n| a | `emu/a.rs` `TIMEOUT` | `SOON` |\n";
        assert_eq!(of("crates/emu/src/a.rs", rows), Vec::<String>::new());
        assert_eq!(of("crates/bench/src/a.rs", "").len(), 0, "it serves nothing");
    }

    #[test]
    fn other_tables_are_ignored() {
        assert_eq!(findings("| a guest | its own memory | everything |"), Vec::<String>::new());
    }
}

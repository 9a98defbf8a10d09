//! Checks that the table of steps in `HACKING.md` is true: a target runs each step that has a word
//! in its column, and no other.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::Tree;

const PAGE: &str = "HACKING.md";
/// The first line of the table. Steps whose rows have the same words share one, behind commas.
const HEAD: &str = "| step | `check` | `test` | `nightly` | by itself |";
/// The columns behind the steps, as functions of the code are called.
const TARGETS: [&str; 3] = ["check", "test", "nightly"];
const CODE: &str = "crates/xtask/src/main.rs";
/// The function with the steps that all targets begin with.
const FIRST: &str = "style";

/// What differs between the table and the code, one line each. `left_out` is what no target runs,
/// each with a reason that ends in the command.
pub(crate) fn check(tree: &Tree, left_out: &[(&str, &str)]) -> Vec<String> {
    let text = |path| tree.file(path).map_or("", |file| file.text.as_str());
    let (code, rows) = (text(CODE), rows(text(PAGE)));
    let mut findings = Vec::new();
    for (column, target) in TARGETS.into_iter().enumerate() {
        let run: BTreeSet<&str> =
            [FIRST, target].into_iter().flat_map(|function| steps(code, function)).collect();
        let named = rows.iter().filter(|(_, cells)| !cells[column].is_empty());
        let named: BTreeSet<&str> = named.map(|(step, _)| *step).collect();
        findings.extend(run.difference(&named).map(|step| {
            format!("{PAGE}: the table does not say that `make {target}` runs \"{step}\"")
        }));
        findings.extend(named.difference(&run).map(|step| {
            format!("{PAGE}: the table says that `make {target}` runs \"{step}\", which is no step")
        }));
    }
    for (step, why) in left_out {
        let command = why.rsplit_once('(').map_or(*why, |(_, end)| end.trim_end_matches(')'));
        let is_named = |cells: &[&str; 4]| cells[3].contains(&format!("`{command}`"));
        if !rows.get(step).is_some_and(is_named) {
            findings
                .push(format!("{PAGE}: the table does not say that `{command}` runs \"{step}\""));
        }
    }
    findings
}

/// The names of the steps that a function runs.
fn steps<'a>(code: &'a str, function: &str) -> impl Iterator<Item = &'a str> {
    let body = code.split_once(&format!("\nfn {function}(")).map_or("", |(_, rest)| rest);
    let body = body.split("\n}").next().unwrap_or_default();
    let calls = body.split("steps.run").skip(1);
    calls.filter_map(|call| call.split('"').nth(1))
}

/// The steps of the table, each with the other cells of its row.
fn rows(page: &str) -> BTreeMap<&str, [&str; 4]> {
    let lines = page.lines().skip_while(|line| *line != HEAD).skip(2);
    let rows = lines.map_while(|line| line.strip_prefix("| ")?.strip_suffix('|'));
    let rows = rows.filter_map(|row| {
        let mut cells = row.split('|').map(str::trim);
        Some((cells.next()?, [cells.next()?, cells.next()?, cells.next()?, cells.next()?]))
    });
    rows.flat_map(|(steps, cells)| steps.split(", ").map(move |step| (step, cells))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::file;

    const LEFT_OUT: (&str, &str) = ("Miri", "an hour (make miri)");
    const MIRI: &str = "| Miri | | | | `make miri` |\n";

    fn findings(rows: &str) -> Vec<String> {
        let code = "\nfn check() {\n    steps.run(\"a\", b);\n}\n\n\
                    fn nightly() {\n    steps.run_tests(\n        \"b\",\n    );\n}\n\n\
                    fn style() {\n    steps.run(\"c\", b);\n    steps.run(\"d\", b);\n}\n";
        let page = format!("text\n\n{HEAD}\n|---|---|---|---|---|\n{rows}\ntext\n");
        let files = vec![file(PAGE, &page), file(CODE, code)];
        check(&Tree { files }, &[LEFT_OUT])
    }

    #[test]
    fn the_table_has_each_step_of_each_target() {
        let first = "| c, d | all | all | all | |\n";
        let rows = format!("{first}| a | some | | | `x` |\n| b | | | all | |\n{MIRI}");
        assert_eq!(findings(&rows), [""; 0]);
        let found = findings(&format!("{first}| a | some | | | |\n{MIRI}"));
        assert_eq!(
            found,
            [format!("{PAGE}: the table does not say that `make nightly` runs \"b\"")]
        );
    }

    #[test]
    fn a_step_that_no_target_runs_is_found_and_so_is_a_missing_command() {
        let rows = "| c, d | all | all | all | |\n| a | some | | | |\n| b | | | all | |\n";
        let found = findings(&format!("{rows}| e | | all | | |\n"));
        let wrong = "the table says that `make test` runs \"e\", which is no step";
        let missing = "the table does not say that `make miri` runs \"Miri\"";
        assert_eq!(found, [wrong, missing].map(|what| format!("{PAGE}: {what}")));
    }
}

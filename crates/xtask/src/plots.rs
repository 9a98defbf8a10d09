//! Plots of measurements: each table of `docs/measured/*.json` that has medians with their ranges,
//! drawn by gnuplot when the book is built.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::tree::Tree;
use crate::{report, run};

const MEASURED: &str = "docs/measured/";
/// How the names of columns begin that are calculated, not measured.
const RATIO: &str = "ratio";

/// A file: a question, and what was measured for it.
#[derive(Deserialize)]
struct Measured {
    question: String,
    tables: Vec<Table>,
}

#[derive(Deserialize)]
struct Table {
    name: String,
    unit: String,
    columns: Vec<String>,
    /// The label of each row, and a cell for each column.
    rows: Vec<(String, Vec<Cell>)>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Cell {
    /// The median, the least and the greatest value.
    Range([f64; 3]),
    Other(IgnoredAny),
}

/// Draws the plots into `folder`, and returns the page that shows them.
pub(crate) fn page(root: &Path, folder: &Path) -> Result<String> {
    let mut page = String::from(
        "# Plots\n\nMedians, with the smallest and the largest value of all runs. [What was \
         measured](../measured.md) has the commands, the commits and the host.\n",
    );
    if !run::has_program("gnuplot") {
        report::skip("plots", "gnuplot is not installed (scripts/install-packages docs)")?;
        page.push_str("\nThis book was built without gnuplot.\n");
        return Ok(page);
    }
    let mut number = 0;
    for file in Tree::read(root)?.files.iter().filter(|file| file.path.starts_with(MEASURED)) {
        let measured: Measured =
            serde_json::from_str(&file.text).with_context(|| format!("reading {}", file.path))?;
        let plots = measured.tables.iter().filter_map(|table| Some((table, script(table)?)));
        for (index, (table, script)) in plots.enumerate() {
            number += 1;
            let name = format!("plot{number}.svg");
            let path = folder.join(&name);
            draw(&format!("set output '{}'\n{script}", path.display()))
                .with_context(|| format!("{}: {}", file.path, table.name))?;
            if index == 0 {
                // Writing to a string cannot fail.
                let _ = write!(page, "\n## {}\n", measured.question);
            }
            let _ = write!(page, "\n![{}: {}]({name})\n", table.name, table.unit);
        }
    }
    Ok(page)
}

fn draw(script: &str) -> Result<()> {
    let mut gnuplot = Command::new("gnuplot").stdin(Stdio::piped()).spawn().context("gnuplot")?;
    let mut stdin = gnuplot.stdin.take().context("gnuplot reads no script")?;
    stdin.write_all(script.as_bytes()).context("gnuplot")?;
    drop(stdin);
    ensure!(gnuplot.wait()?.success(), "gnuplot failed");
    Ok(())
}

/// Draws the columns of a table whose cells are all medians with their ranges, if it has any.
fn script(table: &Table) -> Option<String> {
    let is_drawn = |index: &usize| {
        !table.columns[*index].starts_with(RATIO)
            && table.rows.iter().all(|(_, row)| matches!(row.get(*index), Some(Cell::Range(_))))
    };
    let drawn: Vec<usize> = (0..table.columns.len()).filter(is_drawn).collect();
    if drawn.is_empty() {
        return None;
    }
    let mut script = format!(
        "set terminal svg noenhanced size 900,460 font 'Helvetica,12' background 'white'\n\
         set title \"{}\"\nset ylabel '{}'\nset yrange [0:*]\nset xtics rotate by -25\n\
         set style data histograms\nset style histogram errorbars gap 1 linewidth 1\n\
         set style fill solid 0.7 border -1\nset key outside center top horizontal\n$data << END\n",
        table.name, table.unit,
    );
    for (about, row) in &table.rows {
        // Writing to a string cannot fail.
        let _ = write!(script, "\"{about}\"");
        for index in &drawn {
            if let Cell::Range([median, least, greatest]) = &row[*index] {
                let _ = write!(script, " {median} {least} {greatest}");
            }
        }
        script.push('\n');
    }
    let plots = drawn.iter().enumerate().map(|(place, index)| {
        let first = 2 + 3 * place;
        let (second, third) = (first + 1, first + 2);
        let subject = &table.columns[*index];
        format!("$data using {first}:{second}:{third}:xtic(1) title '{subject}'")
    });
    let _ = writeln!(script, "END\nplot {}", plots.collect::<Vec<_>>().join(", "));
    Some(script)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(columns: &str, rows: &str) -> Table {
        let text = format!(
            "{{\"name\": \"Ring\", \"commit\": \"12ab\", \"unit\": \"Mpps\",\
             \"columns\": {columns}, \"rows\": {rows}}}"
        );
        serde_json::from_str(&text).expect("the table is well formed")
    }

    #[test]
    fn medians_with_ranges_are_drawn_and_no_other_columns() {
        let drawn = table(
            "[\"ringway\", \"runs\", \"testpmd\", \"ratio by round\"]",
            "[[\"64 B\", [[23.5, 12.1, 24.1], 5, [16, 5, 17], [1.4, 1.1, 1.5]]]]",
        );
        let script = script(&drawn).expect("two columns are of medians");
        assert!(script.contains("\"64 B\" 23.5 12.1 24.1 16 5 17\n"), "{script}");
        assert!(script.contains("using 5:6:7:xtic(1) title 'testpmd'"), "{script}");
        assert!(!script.contains("title 'runs'") && !script.contains("ratio"), "{script}");
    }

    #[test]
    fn a_table_without_ranges_is_not_drawn() {
        assert!(script(&table("[\"a\"]", "[[\"b\", [805]], [\"c\", [null]]]")).is_none());
    }
}

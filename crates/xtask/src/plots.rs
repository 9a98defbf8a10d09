//! Plots of measurements: each table of `docs/measured.md` that gives medians with their ranges,
//! drawn by gnuplot when the book is built.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::report;

const MEASURED: &str = "docs/measured.md";
/// A column that is calculated, not measured.
const RATIO: &str = "ratio";

/// A table in which each cell is a median with its range.
#[derive(Debug, PartialEq)]
struct Table {
    /// The heading above it.
    section: String,
    /// What was measured, and its unit.
    unit: String,
    /// What was measured.
    subjects: Vec<String>,
    /// The label of each row, and a cell for each subject.
    rows: Vec<(String, Vec<Cell>)>,
}

/// A median with the least and the greatest value, as written.
#[derive(Debug, PartialEq)]
struct Cell([String; 3]);

/// Draws the plots into `folder`, and returns the page that shows them.
pub(crate) fn page(root: &Path, folder: &Path) -> Result<String> {
    let text =
        fs::read_to_string(root.join(MEASURED)).with_context(|| format!("reading {MEASURED}"))?;
    let mut page = String::from(
        "# Plots\n\nMedians, with the smallest and the largest value of all runs. [What was \
         measured](../measured.md) has the commands, the commits and the host.\n",
    );
    if !has_gnuplot() {
        report::skip("plots", "gnuplot is not installed (scripts/install-packages docs)")?;
        page.push_str("\nThis book was built without gnuplot.\n");
        return Ok(page);
    }
    for (number, table) in (1..).zip(tables(&text)) {
        let name = format!("plot{number}.svg");
        draw(&table, &folder.join(&name))?;
        let title = format!("{}: {}", table.section, table.unit);
        // Writing to a string cannot fail.
        let _ = write!(page, "\n## {title}\n\n![{title}]({name})\n");
    }
    Ok(page)
}

fn has_gnuplot() -> bool {
    let mut command = Command::new("gnuplot");
    let status = command.arg("--version").stdout(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn draw(table: &Table, path: &Path) -> Result<()> {
    let mut gnuplot = Command::new("gnuplot").stdin(Stdio::piped()).spawn().context("gnuplot")?;
    let mut stdin = gnuplot.stdin.take().context("gnuplot reads no script")?;
    stdin.write_all(script(table, path).as_bytes()).context("gnuplot")?;
    drop(stdin);
    ensure!(gnuplot.wait()?.success(), "gnuplot failed for the table {}", table.unit);
    Ok(())
}

fn script(table: &Table, path: &Path) -> String {
    let mut script = format!(
        "set terminal svg size 900,420 font 'Helvetica,12' background 'white'\n\
         set output '{}'\n\
         set ylabel '{}'\nset yrange [0:*]\nset xtics rotate by -25\n\
         set style data histograms\nset style histogram errorbars gap 1 linewidth 1\n\
         set style fill solid 0.7 border -1\nset key outside center top horizontal\n$data << END\n",
        path.display(),
        table.unit,
    );
    for (about, cells) in &table.rows {
        let cells = cells.iter().flat_map(|Cell(numbers)| numbers.iter().map(String::as_str));
        let numbers: Vec<&str> = cells.collect();
        let _ = writeln!(script, "\"{about}\" {}", numbers.join(" "));
    }
    let plots = table.subjects.iter().enumerate().map(|(index, subject)| {
        let first = 2 + 3 * index;
        let (second, third) = (first + 1, first + 2);
        format!("$data using {first}:{second}:{third}:xtic(1) title '{subject}'")
    });
    let _ = writeln!(script, "END\nplot {}", plots.collect::<Vec<_>>().join(", "));
    script
}

fn tables(text: &str) -> Vec<Table> {
    let mut tables = Vec::new();
    let mut section = "";
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title;
        }
        if !line.starts_with('|') {
            continue;
        }
        let mut rows = Vec::new();
        while let Some(row) = lines.next_if(|line| line.starts_with('|')) {
            rows.push(row);
        }
        tables.extend(table(section, line, rows.get(1..).unwrap_or_default()));
    }
    tables
}

/// Parses a table, if it consists of medians with their ranges.
fn table(section: &str, head: &str, rows: &[&str]) -> Option<Table> {
    let (unit, columns) = parts(head);
    let is_measured = |index: &usize| columns[*index] != RATIO;
    let measured: Vec<usize> = (0..columns.len()).filter(is_measured).collect();
    let row = |row: &&str| {
        let (about, cells) = parts(row);
        let cells = measured.iter().map(|index| cell(cells.get(*index)?));
        Some((about, cells.collect::<Option<Vec<Cell>>>()?))
    };
    let rows: Vec<_> = rows.iter().map(row).collect::<Option<_>>()?;
    let subjects = measured.iter().map(|index| columns[*index].clone()).collect();
    let is_one = !unit.is_empty() && !rows.is_empty();
    is_one.then(|| Table { section: section.to_owned(), unit, subjects, rows })
}

/// The first cell of a row, and the others.
fn parts(row: &str) -> (String, Vec<String>) {
    let mut cells = row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
    (cells.next().unwrap_or_default(), cells.collect())
}

/// `median [least .. greatest]`.
fn cell(text: &str) -> Option<Cell> {
    let (median, range) = text.strip_suffix(']')?.split_once(" [")?;
    let (least, greatest) = range.split_once(" .. ")?;
    let numbers = [median, least, greatest];
    let is_number = |text: &&str| text.parse::<f64>().is_ok();
    numbers.iter().all(is_number).then(|| Cell(numbers.map(str::to_owned)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_medians_with_ranges_are_drawn_and_no_others() {
        let text = "## Ring\n| Mpps | ringway | testpmd | ratio |\n|---|---|---|---|\n\
                    | 64 B | 23.0 [12.1 .. 24.1] | 16 [5 .. 17] | 1.40 |\n\n\
                    ## Else\n| batch | ingress |\n|---|---|\n| 1 | 805 |\n";
        let [table] = &tables(text)[..] else { panic!("one table is of medians") };
        assert_eq!((&*table.section, &*table.unit), ("Ring", "Mpps"));
        assert_eq!(table.subjects, ["ringway", "testpmd"]);
        let script = script(table, Path::new("a.svg"));
        assert!(script.contains("\"64 B\" 23.0 12.1 24.1 16 5 17\n"), "{script}");
        assert!(script.contains("using 5:6:7:xtic(1) title 'testpmd'"), "{script}");
    }
}

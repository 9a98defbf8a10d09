//! Shows the results of two backends measured alternately on real Xen: a line for each cell of
//! `tests/xen/scenarios/race.sh`, `race-guests.sh` or `race-driver.sh`.
//!
//! Rounds are compared in pairs, because a disturbance of the machine affects neighbouring runs
//! alike: a ratio is the median of the rounds' ratios, shown with the least and the greatest of
//! them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use ringway_stats::average::Spread;
use serde::Deserialize;
use serde_json::{Value, json};

/// One measurement, as a line of JSON.
#[derive(Debug, Deserialize)]
struct Run {
    round: u32,
    backend: String,
    queues: u32,
    cell: String,
    unit: String,
    value: f64,
}

/// The values of one cell, by round.
#[derive(Debug, Default)]
struct Cell {
    unit: String,
    kernel: BTreeMap<u32, f64>,
    ringway: BTreeMap<u32, f64>,
}

/// The table of a file of runs.
pub(crate) fn table(file: &Path) -> Result<String> {
    Ok(render(&read(file)?))
}

/// A table for each unit as JSON, as files of docs/measured have them: a cell is median, least and
/// greatest.
pub(crate) fn json(file: &Path) -> Result<String> {
    Ok(serde_json::to_string_pretty(&tables(&read(file)?))? + "\n")
}

fn read(file: &Path) -> Result<Cells> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    cells(&text)
}

/// Cells in the order of their first line, by the number of queues and name.
type Cells = Vec<((u32, String), Cell)>;

fn cells(text: &str) -> Result<Cells> {
    let mut cells = Cells::new();
    for (index, line) in text.lines().enumerate() {
        let run: Run = serde_json::from_str(line).with_context(|| format!("line {}", index + 1))?;
        let key = (run.queues, run.cell);
        let place = cells.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            cells.push((key, Cell { unit: run.unit, ..Cell::default() }));
            cells.len() - 1
        });
        let cell = &mut cells[place].1;
        let values = if run.backend == "kernel" { &mut cell.kernel } else { &mut cell.ringway };
        values.insert(run.round, run.value);
    }
    Ok(cells)
}

fn render(cells: &[((u32, String), Cell)]) -> String {
    let mut text = String::from(
        "Medians, with the smallest and the largest value; ratio: ringway / kernel, for each \
         round separately\n\n",
    );
    let heads = ("cell", "queues", "kernel", "ringway", "ratio");
    let line = |text: &mut String, (name, queues, kernel, ringway, ratio): Columns<'_>| {
        let left = format!("{name:<30} {queues:>6}  {kernel:<36} {ringway:<36} {ratio}");
        writeln!(text, "{}", left.trim_end()).expect("a String takes everything");
    };
    line(&mut text, heads);
    for ((queues, name), cell) in cells {
        let (kernel, ringway) = (cell.kernel.values(), cell.ringway.values());
        let ratios = cell.ratios();
        let columns = [
            spread(&kernel.copied().collect::<Vec<f64>>(), &cell.unit),
            spread(&ringway.copied().collect::<Vec<f64>>(), &cell.unit),
            spread(&ratios, ""),
        ];
        line(&mut text, (name, &queues.to_string(), &columns[0], &columns[1], &columns[2]));
    }
    text
}

impl Cell {
    /// Those of the rounds that have both.
    fn ratios(&self) -> Vec<f64> {
        let ratio = |(round, ours): (&u32, &f64)| Some(ours / self.kernel.get(round)?);
        self.ringway.iter().filter_map(ratio).filter(|ratio| ratio.is_finite()).collect()
    }
}

/// A table for each unit.
fn tables(cells: &[((u32, String), Cell)]) -> Vec<Value> {
    let mut rows: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for ((queues, name), cell) in cells {
        let (scale, unit) = scaled(&cell.unit);
        let spread = |values: &[f64], scale: f64| {
            let digits = |value: f64| (value / scale * 1000.0).round() / 1000.0;
            let Spread { min, median, max } = Spread::of(values)?;
            Some([median, min, max].map(digits))
        };
        let values = |of: &BTreeMap<u32, f64>| of.values().copied().collect::<Vec<f64>>();
        let backends = [&cell.kernel, &cell.ringway].map(|of| spread(&values(of), scale));
        let name = format!("{name}, {queues} queue{}", if *queues == 1 { "" } else { "s" });
        let [kernel, ringway] = backends;
        let row = json!([name, [kernel, ringway, spread(&cell.ratios(), 1.0)]]);
        rows.entry(unit).or_default().push(row);
    }
    let columns = ["kernel", "ringway", "ratio"];
    let tables = rows.into_iter();
    tables.map(|(unit, rows)| json!({ "unit": unit, "columns": columns, "rows": rows })).collect()
}

/// By what a number is divided to be in the unit in which it is shown, and that unit.
fn scaled(unit: &str) -> (f64, &str) {
    if unit == "bit/s" { (1e6, "Mbit/s") } else { (1.0, unit) }
}

type Columns<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str);

/// Median, least, greatest and how many, such as `412 (398-430) Mbit/s, n=5`.
fn spread(values: &[f64], unit: &str) -> String {
    let Some(Spread { min, median, max }) = Spread::of(values) else { return "-".to_owned() };
    let (scale, unit) = scaled(unit);
    let digits = if unit.is_empty() { 2 } else { 0 };
    let (min, median, max) = (min / scale, median / scale, max / scale);
    let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
    format!("{median:.digits$} ({min:.digits$}-{max:.digits$}){unit}, n={}", values.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_neighbouring_runs_not_of_medians() {
        let mut lines = String::new();
        for (round, kernel, ringway) in [(1, 100.0, 50.0), (2, 10.0, 20.0), (3, 40.0, 40.0)] {
            for (backend, value) in [("kernel", kernel), ("ringway", ringway)] {
                let line = format!(
                    "{{\"round\":{round},\"backend\":\"{backend}\",\"queues\":2,\
                     \"cell\":\"ping-pong\",\"unit\":\"us\",\"value\":{value}}}"
                );
                lines += &(line + "\n");
            }
        }
        let cells = cells(&lines).expect("runs");
        let expected = json!([{
            "unit": "us",
            "columns": ["kernel", "ringway", "ratio"],
            "rows": [[
                "ping-pong, 2 queues",
                [[40.0, 10.0, 100.0], [40.0, 20.0, 50.0], [1.0, 0.5, 2.0]],
            ]],
        }]);
        assert_eq!(Value::from(tables(&cells)), expected);
        let table = render(&cells);
        let row = table.lines().last().expect("a row");
        for column in ["40 (10-100) us, n=3", "40 (20-50) us, n=3", "1.00 (0.50-2.00), n=3"] {
            assert!(row.contains(column), "{column} is not in {row}");
        }
    }

    #[test]
    fn a_cell_that_only_one_backend_has_shows_no_ratio() {
        let line =
            r#"{"round":1,"backend":"kernel","queues":1,"cell":"TCP","unit":"bit/s","value":5e6}"#;
        let table = render(&cells(line).expect("a run"));
        assert!(
            table.ends_with(
                "5 (5-5) Mbit/s, n=1                  -                                    -\n"
            ),
            "{table}"
        );
    }
}

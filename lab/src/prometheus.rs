//! Exports a finished study in Prometheus' text format.

use std::fmt::Write as _;

use ringway_stats::{Summary, float};

use crate::analysis::Analysis;

/// Name, help and value of each family of samples.
type Family = (&'static str, &'static str, fn(&Summary) -> Option<f64>);

const FAMILIES: [Family; 6] = [
    ("ringway_lab_mean", "Mean over the runs of a cell.", |one| Some(one.mean)),
    ("ringway_lab_sd", "Standard deviation over the runs of a cell.", |one| one.sd),
    ("ringway_lab_median", "Median over the runs of a cell.", |one| Some(one.median)),
    ("ringway_lab_interval_low", "Lower end of the 95 % interval of the mean.", |one| {
        Some(one.interval?.low)
    }),
    ("ringway_lab_interval_high", "Upper end of the 95 % interval of the mean.", |one| {
        Some(one.interval?.high)
    }),
    ("ringway_lab_runs", "Runs of a cell.", |one| Some(float(one.count))),
];

/// Exports all cells and metrics; the label `metric` ends with the unit.
pub fn export(analysis: &Analysis) -> String {
    let mut text = String::new();
    for (name, help, value) in FAMILIES {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
        for cell in &analysis.cells {
            for (metric, summary) in &cell.values {
                let Some(value) = value(summary) else { continue };
                let _ = write!(
                    text,
                    "{name}{{study=\"{}\",subject=\"{}\",cell=\"{}\",metric=\"{}\"",
                    escaped(&analysis.study),
                    cell.subject,
                    escaped(&cell.label),
                    escaped(metric),
                );
                for (axis, value) in &cell.cell.0 {
                    let _ = write!(text, ",{axis}=\"{}\"", escaped(&value.to_string()));
                }
                let _ = writeln!(text, "}} {value}");
            }
        }
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

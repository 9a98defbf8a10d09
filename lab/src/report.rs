//! Everything that is derived from records: figures, the page, the table and the exports.
//!
//! Nothing is measured or kept here: the same records give the same files.

mod bars;
mod boxes;
mod chart;
mod courses;
pub mod curve;
mod frame;
mod groups;
mod html;
mod lines;
mod splits;
mod style;

use std::fs;
use std::path::{Path, PathBuf};

use maud::Markup;

use crate::analysis::Analysis;
use crate::journal::{RecordError, write_whole};
use crate::prometheus;
use crate::record::Records;
use crate::study::FigureKind;
use crate::table;
use chart::Chart;
use frame::Form;

/// Writes all files of a report again, next to the records. Returns their paths, the page first.
pub fn write(dir: &Path, records: &Records) -> Result<Vec<PathBuf>, RecordError> {
    let analysis = Analysis::of(records);
    let summary = serde_json::to_string_pretty(&analysis).expect("names are the only keys");
    let figures = dir.join("figures");
    fs::create_dir_all(&figures).map_err(|error| RecordError::Io {
        what: "make the directory",
        path: figures.clone(),
        error,
    })?;
    let mut files = vec![
        (dir.join("report.html"), html::page(records, &analysis).into_string().into_bytes()),
        (dir.join("summary.json"), (summary + "\n").into_bytes()),
        (dir.join("runs.csv"), table::csv(records)),
        (dir.join("metrics.prom"), prometheus::export(&analysis).into_bytes()),
    ];
    for chart in charts(records, &analysis) {
        let path = figures.join(format!("{}.svg", chart.id));
        files.push((path, draw(&chart, Form::Wide).into_string().into_bytes()));
    }
    for (path, bytes) in &files {
        write_whole(path, bytes)?;
    }
    Ok(files.into_iter().map(|(path, _)| path).collect())
}

/// The figures of a study that have anything to show.
fn charts(records: &Records, analysis: &Analysis) -> Vec<Chart> {
    let figures = records.study.figure.iter();
    figures.filter_map(|figure| Chart::of(records, analysis, figure)).collect()
}

fn draw(chart: &Chart, form: Form) -> Markup {
    match chart.kind {
        FigureKind::Lines => lines::draw(chart, form),
        FigureKind::Bars => bars::draw(chart, form),
        FigureKind::Boxes => boxes::draw(chart, form),
        FigureKind::Placement => splits::draw(chart, form),
    }
}

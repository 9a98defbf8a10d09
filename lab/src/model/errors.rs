//! `ringway model errors`: how well what one and two queues measured predicts the rest of a matrix.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use ringway_lab::analysis::forecast::{self, Forecast, signed_percent};
use ringway_lab::analysis::{Analysis, CellSummary};
use ringway_lab::metric;
use ringway_lab::record::Records;
use ringway_terminal::output::{print, print_json};
use ringway_terminal::table;
use serde::Serialize;
use serde_json::json;

#[derive(Debug, Args)]
pub(super) struct ErrorsArgs {
    /// A directory with the lab's records
    #[arg(value_name = "RECORDS")]
    records: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A cell with what the model says of it.
#[derive(Debug, Serialize)]
struct Row {
    cell: String,
    /// The mean of its runs, in the metric's unit.
    measured: f64,
    predicted: Forecast,
}

pub(super) fn run(args: &ErrorsArgs) -> Result<()> {
    let analysis = Analysis::of(&Records::read(&args.records)?);
    let row = |cell: &CellSummary| {
        let predicted = cell.predicted?;
        let measured = cell.values.get(predicted.metric)?.mean;
        Some(Row { cell: cell.label.clone(), measured, predicted })
    };
    let rows: Vec<Row> = analysis.of_primary().filter_map(row).collect();
    if rows.is_empty() {
        let why = analysis.unpredicted.as_deref().unwrap_or("no cell has throughput");
        bail!("{}: no cell is predicted: {why}", args.records.display());
    }
    if args.json {
        return print_json(&json!({ "cells": rows, "errors": analysis.prediction_errors }));
    }
    let shown = rows.iter().filter_map(|row| {
        let metric = metric::find(row.predicted.metric)?;
        let (role, error) = match (row.predicted.is_calibration, row.predicted.error) {
            (true, _) => ("calibrated on", String::new()),
            (false, Some(error)) => ("predicted", signed_percent(error)),
            (false, None) => ("not identified", String::new()),
        };
        let model = forecast::show(&row.predicted.estimate, metric.scale);
        let measured = metric.show(row.measured);
        Some(vec![row.cell.clone(), measured, model, role.to_owned(), error])
    });
    print(&table::render(&["CELL", ">MEASURED", ">MODEL", "ROLE", ">ERROR"], shown))?;
    let errors = analysis.prediction_errors.iter();
    print(&errors.map(|errors| format!("\n{errors}\n")).collect::<String>())
}

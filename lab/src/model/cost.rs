//! `ringway model cost`: what a change of code would bring, from counts of instructions.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use ringway_lab::cost::{self, Change, Cost};
use ringway_lab::metric::number;
use ringway_terminal::options::number as count;
use ringway_terminal::output::{print, print_json};
use ringway_terminal::table;
use serde::Serialize;

#[derive(Debug, Args)]
pub(super) struct Costs {
    /// A file of `ringway-bench --json FILE icount`
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// Another one, of changed code
    #[arg(value_name = "AFTER")]
    after: Option<PathBuf>,
    /// Frames in a batch for which the change is shown
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = count::<u16>(1..=256))]
    batch: u16,
    /// Bytes of such a frame
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count::<u16>(1..=65_535))]
    frame: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A path with its costs, and what the change brings to it.
#[derive(Debug, Serialize)]
struct Row {
    path: String,
    before: Cost,
    after: Option<Cost>,
    change: Option<Change>,
}

pub(super) fn run(args: &Costs) -> Result<()> {
    let before = read(&args.before)?;
    let mut after = args.after.as_deref().map(read).transpose()?.unwrap_or_default();
    let (batch, bytes) = (f64::from(args.batch), f64::from(args.frame));
    let row = |(path, before): (String, Cost)| {
        let after = after.remove(&path);
        let change = after.map(|after| Change::of(&before, &after, batch, bytes));
        Row { path, before, after, change }
    };
    let rows: Vec<Row> = before.into_iter().map(row).collect();
    if args.json {
        return print_json(&rows);
    }
    let shown = rows.iter().map(|row| {
        let cost = row.after.unwrap_or(row.before);
        let byte = cost.byte.map_or_else(|| "-".to_owned(), number);
        let change = row.change.map(|it| {
            let [old, new] = it.instructions;
            format!("{} to {}", number(old), number(new))
        });
        let gain = row.change.map(|it| {
            let [low, high] = it.capacity.map(|times| format!("{:+.1} %", (times - 1.0) * 100.0));
            format!("{low} to {high}")
        });
        vec![
            row.path.clone(),
            number(cost.packet),
            number(cost.batch),
            byte,
            format!("{:+.1} %", cost.worst * 100.0),
            change.unwrap_or_default(),
            gain.unwrap_or_default(),
        ]
    });
    let head = ["PATH", ">PACKET", ">BATCH", ">BYTE", ">WORST FIT", ">A FRAME", ">A QUEUE CARRIES"];
    print(&table::render(&head, shown))
}

fn read(path: &Path) -> Result<BTreeMap<String, Cost>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    cost::read(&text).map_err(|error| anyhow!("{}: {error}", path.display()))
}

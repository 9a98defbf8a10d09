//! `ringway model cost`: what a change of code would bring, from counts of instructions.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use ringway_lab::analysis::forecast::signed_percent;
use ringway_lab::cost::{Agreement, Bench, Change, Cost, Load};
use ringway_lab::metric::number;
use ringway_stats::Ratio;
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
    /// Bytes of such a frame, on paths whose counts tell what a byte costs or are of that length
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count::<u16>(1..=65_535))]
    frame: u16,
    /// Show the change for a guest that each batch interrupts, on paths whose counts tell what
    /// that costs
    #[arg(long)]
    interrupts: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A path with its costs, what the change should bring to it, and what it brought.
#[derive(Debug, Serialize)]
struct Row {
    path: String,
    before: Cost,
    after: Option<Cost>,
    change: Option<Change>,
    measured: Option<Ratio>,
    says: Option<Agreement>,
}

impl Row {
    fn of(args: &Costs, (path, before): (&String, &Cost), files: [&Bench; 2]) -> Row {
        let (batch, bytes) = (f64::from(args.batch), f64::from(args.frame));
        let load = Load { batch, bytes, interrupts: args.interrupts };
        let [old, new] = files;
        let after = new.costs.get(path).copied();
        let both = after.filter(|after| before.knows(&load) && after.knows(&load));
        let change = both.map(|after| Change::of(before, &after, &load));
        let measured = new.gain(old, path, u32::from(args.frame));
        let certain = measured.filter(|it| it.interval.is_some());
        let says = change.zip(certain).map(|(change, measured)| change.agrees(&measured));
        Row { path: path.clone(), before: *before, after, change, measured, says }
    }

    fn shown(&self) -> Vec<String> {
        let gain = |times: f64| signed_percent(times - 1.0);
        let cost = self.after.unwrap_or(self.before);
        let change = self.change.map(|it| {
            let [old, new] = it.instructions;
            format!("{} to {}", number(old), number(new))
        });
        let predicted = self.change.map(|it| it.capacity.map(gain).join(" to "));
        let measured = self.measured.map(|it| {
            let span =
                it.interval.map(|span| format!(" ({} to {})", gain(span.low), gain(span.high)));
            gain(it.value) + &span.unwrap_or_default()
        });
        let says = self.says.map(|says| match says {
            Agreement::Agrees => "as predicted",
            Agreement::More => "more than predicted",
            Agreement::Less => "less than predicted",
        });
        vec![
            self.path.clone(),
            number(cost.packet),
            number(cost.batch),
            cost.byte.map_or_else(|| "-".to_owned(), number),
            cost.interrupt.map_or_else(|| "-".to_owned(), number),
            signed_percent(cost.worst),
            change.unwrap_or_default(),
            predicted.unwrap_or_default(),
            measured.unwrap_or_default(),
            says.unwrap_or_default().to_owned(),
        ]
    }
}

/// The columns of [`Row::shown`].
const HEAD: [&str; 10] = [
    "PATH",
    ">PACKET",
    ">BATCH",
    ">BYTE",
    ">INTERRUPT",
    ">WORST FIT",
    ">A FRAME",
    ">A QUEUE CARRIES",
    ">MEASURED",
    "SAYS",
];

pub(super) fn run(args: &Costs) -> Result<()> {
    let before = read(&args.before)?;
    let after = args.after.as_deref().map(read).transpose()?.unwrap_or_default();
    let is_in_both = |path: &String| before.costs.contains_key(path);
    if let Some(path) = args.after.as_ref().filter(|_| !after.costs.keys().any(is_in_both)) {
        bail!("{}: none of its paths is in {}", path.display(), args.before.display());
    }
    let row = |cost| Row::of(args, cost, [&before, &after]);
    let rows: Vec<Row> = before.costs.iter().map(row).collect();
    if args.json {
        return print_json(&rows);
    }
    print(&table::render(&HEAD, rows.iter().map(Row::shown)))
}

fn read(path: &Path) -> Result<Bench> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Bench::read(&text).map_err(|error| anyhow!("{}: {error}", path.display()))
}

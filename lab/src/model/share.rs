//! `ringway model share`: what each of several unequal flows gets.

use anyhow::{Result, bail};
use clap::Args;
use ringway_lab::analysis::forecast::show;
use ringway_terminal::options::number as count;
use ringway_terminal::output::{print, print_json};
use ringway_terminal::table;
use ringway_units::Rate;
use serde_json::json;

use super::Known;

/// Flows whose placements are all counted.
const FLOWS_MAX: usize = 10;

#[derive(Debug, Args)]
pub(super) struct Share {
    #[command(flatten)]
    known: Known,
    /// Queues
    #[arg(long, value_name = "N", value_parser = count::<u16>(1..=256))]
    queues: u16,
    /// What each flow wants at most, such as 5Gbit/s,1Gbit/s,1Gbit/s
    #[arg(long, value_name = "RATES", required = true, value_delimiter = ',')]
    wanted: Vec<Rate>,
}

pub(super) fn run(args: &Share) -> Result<()> {
    if args.wanted.len() > FLOWS_MAX {
        bail!("--wanted: {} flows, more than {FLOWS_MAX}", args.wanted.len());
    }
    let wanted: Vec<f64> = args.wanted.iter().map(|rate| rate.0).collect();
    let shares = args.known.fit()?.shares(usize::from(args.queues), &wanted);
    let all = args.wanted.iter().zip(&shares);
    if args.known.json {
        let flow = all.map(|(wants, gets)| json!({ "wants-bps": wants, "gets-bps": gets }));
        return print_json(&flow.collect::<Vec<_>>());
    }
    let rows = all.map(|(wants, gets)| vec![wants.to_string(), show(gets, 1e9)]);
    print(&table::render(&[">WANTS", ">GETS, GBIT/S"], rows))
}

//! `ringway model`: what many queues should achieve, from records or from published figures.

mod cost;
mod errors;
mod plan;
mod share;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use ringway_lab::analysis::forecast::{self, show};
use ringway_lab::metric::number;
use ringway_lab::record::Records;
use ringway_lab::report::curve::{self, Step};
use ringway_lab::setup::MTU_DEFAULT;
use ringway_lab::value::Cell;
use ringway_model::estimate::Estimate;
use ringway_model::fit::{Data, Fit, Point};
use ringway_model::line::{Line, Tunnel};
use ringway_model::predict::Placed;
use ringway_model::published::{self, Role};
use ringway_terminal::options::number as count;
use ringway_terminal::output::{OutFile, print, print_json};
use ringway_terminal::table;
use ringway_units::{Rate, Size};
use serde::Serialize;
use serde_json::json;

const EXAMPLES: &str = "Examples:
  ringway model published
  ringway model fit results --where offloads=all
  ringway model predict results --queues 8 --streams 8
  ringway model share results --queues 4 --wanted 5Gbit/s,1Gbit/s,1Gbit/s
  ringway model plan results --target 9.4Gbit/s --streams 8 --line 10Gbit/s
  ringway model errors results
  ringway model cost before.json after.json

A table of figures in TOML stands for records:
  line = '10Gbit/s'            # the wire, if one may limit; its frames are plain unless you say
  mtu = '1500B'                #   otherwise: also tunnel = 'vxlan' or 'gre', and both-sides = true
                               #   where it carries both sides of a router
  window = '256KiB'            # what a flow keeps in flight, if known, in pieces of chunk = '64KiB'
  delay = '50us'               # the round trip of a flow while nothing waits, if it is known
  cpus = { guest = 4 }         # CPUs of each station whose use the points have
  [[point]]
  queues = 1
  flows = 8
  throughput = '6.25Gbit/s'
  interval = '0.1Gbit/s'       # half of its 95 % interval, if there is one
  placement = 'ideal'          # flows as even as possible over queues; otherwise by chance
  cpus-used = { guest = 3.1 }  # CPUs in use";

/// Predict throughput, and plan queues, CPUs and workers
///
/// The model is calibrated on runs with few queues. What the runs do not identify is printed as a
/// range, with the run that would identify it. Streams fall on queues by chance, in all ways; from
/// 13 streams on, a typical way stands for all that keep as many queues busy.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Model {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Find the model's parameters in records
    Fit(FitArgs),
    /// Predict throughput, the use of each station, and the round trip under load
    Predict(PredictArgs),
    /// Say what each of several flows gets on average that want different rates
    Share(share::Share),
    /// Plan for a target: queues, a guest's CPUs, workers, MTU, offloads, memory, grants, and what
    /// limits next
    Plan(plan::Plan),
    /// Compare each measured cell of records with what its cells with one and two queues predict
    Errors(errors::ErrorsArgs),
    /// Split counts of instructions into what a packet, a batch and a byte cost, and say what a
    /// change of code would bring
    Cost(cost::Costs),
    /// Compare published figures with the model
    Published(PublishedArgs),
}

/// What the model is fitted to.
#[derive(Debug, Args)]
struct Known {
    /// Directories with the lab's records, or TOML files with figures
    #[arg(required = true, value_name = "RECORDS")]
    records: Vec<PathBuf>,
    /// Use only cells with this value, where records vary more than queues and streams
    #[arg(long = "where", value_name = "AXIS=VALUE", value_parser = axis)]
    filter: Vec<(String, String)>,
    /// Rate of the wire that is asked about, such as 10Gbit/s [default: that of the records]
    #[arg(long, value_name = "RATE")]
    line: Option<Rate>,
    /// MTU of that wire [default: that of the records, or 1500B]
    #[arg(long, value_name = "SIZE", requires = "line")]
    mtu: Option<Size>,
    /// What surrounds its frames: none, vxlan or gre [default: that of the records, or none]
    #[arg(long, value_name = "NAME", requires = "line", value_parser = forecast::tunnel_named)]
    tunnel: Option<Tunnel>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct FitArgs {
    #[command(flatten)]
    known: Known,
}

#[derive(Debug, Args)]
struct PredictArgs {
    #[command(flatten)]
    known: Known,
    /// Queues
    #[arg(long, value_name = "N", value_parser = count::<u16>(1..=256))]
    queues: u16,
    /// Streams
    #[arg(long, value_name = "N", value_parser = count::<u16>(1..=10_000))]
    streams: u16,
    /// Spread streams over queues as evenly as possible, not at random
    #[arg(long)]
    evenly: bool,
    /// Also draw what so many streams carry over 1 to so many queues, as SVG
    #[arg(long, value_name = "FILE")]
    figure: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct PublishedArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Model) -> Result<()> {
    match &args.verb {
        Verb::Fit(args) => fit(args),
        Verb::Predict(args) => predict(args),
        Verb::Share(args) => share::run(args),
        Verb::Plan(args) => plan::run(args),
        Verb::Errors(args) => errors::run(args),
        Verb::Cost(args) => cost::run(args),
        Verb::Published(args) => show_published(args),
    }
}

fn axis(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected AXIS=VALUE, such as queues=4")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Known {
    fn filter(&self) -> Cell {
        let add = |cell: Cell, (name, value): &(String, String)| match value.parse::<u64>() {
            Ok(count) => cell.with(name, count),
            Err(_) => cell.with(name, value.as_str()),
        };
        self.filter.iter().fold(Cell::default(), add)
    }

    /// The runs of all directories together, with the first of these for messages; nothing if only
    /// tables are given.
    fn runs(&self) -> Result<Option<(&Path, Records)>> {
        let mut all: Option<(&Path, Records)> = None;
        let paths = self.records.iter().map(PathBuf::as_path);
        for path in paths.filter(|path| !is_table(path)) {
            let own = Records::read(path)?;
            let Some((first, all)) = &mut all else {
                all = Some((path, own));
                continue;
            };
            let (path, first) = (path.display(), first.display());
            if !own.is_of_same(all) {
                bail!("{path}: the records are of another study or machine than {first}");
            }
            if own.runs.iter().any(|run| all.runs.contains(run)) {
                bail!("{path}: its runs are also in {first}");
            }
            all.runs.extend(own.runs);
        }
        Ok(all)
    }

    fn data(&self, filter: &Cell) -> Result<Data> {
        let mut all = match self.runs()? {
            Some((path, records)) => {
                let data = forecast::of_records(&records, filter);
                Some(data.map_err(|error| anyhow!("{}: {error}", path.display()))?)
            }
            None if !self.filter.is_empty() => {
                bail!("--where: tables of figures have no cells from which to select")
            }
            None => None,
        };
        for path in self.records.iter().filter(|path| is_table(path)) {
            let name = path.display().to_string();
            let text = fs::read_to_string(path).with_context(|| name.clone())?;
            let data = forecast::of_table(&name, &text)?;
            let Some(all) = &mut all else {
                all = Some(data);
                continue;
            };
            if all.line_bps != data.line_bps || all.window != data.window {
                bail!("{name}: another line or window than in the others");
            }
            if all.cpus.is_empty() {
                all.cpus = data.cpus;
            } else if all.cpus != data.cpus && !data.cpus.is_empty() {
                bail!("{name}: other `cpus` than in the others");
            }
            // Whichever of them has it: the windows are equal.
            all.is_window_known |= data.is_window_known;
            all.is_delay_known |= data.is_delay_known;
            let is_known = |point: &&Point| all.points.iter().any(|it| it.name == point.name);
            if let Some(point) = data.points.iter().find(is_known) {
                bail!("{name}: {} is also in the others", point.name);
            }
            all.points.extend(data.points);
        }
        all.context("no records given")
    }

    fn fit(&self) -> Result<Fit> {
        Ok(self.fit_of(&self.filter())?.0)
    }

    /// The machine on the wire that is asked about, and that wire, if there is one.
    fn fit_of(&self, filter: &Cell) -> Result<(Fit, Option<Line>)> {
        let data = self.data(filter)?;
        let first = || self.records.first().map(|path| path.display().to_string());
        let fit = Fit::of(&data).with_context(|| first().unwrap_or_default())?;
        let Some(Rate(bps)) = self.line else { return Ok((fit, data.line)) };
        let known = data.line.unwrap_or(Line::plain(bps, f64::from(MTU_DEFAULT)));
        let mtu = self.mtu.map_or(known.mtu, |Size(bytes)| bytes);
        let line = Line { bps, mtu, tunnel: self.tunnel.unwrap_or(known.tunnel), ..known };
        let payload = forecast::payload(line);
        let payload = payload.map_err(|why| anyhow!("--mtu {mtu}B: {why}"))?;
        Ok((fit.on_line(payload), Some(line)))
    }
}

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "toml")
}

/// What was measured otherwise than the model can explain, as it says itself.
fn unexplained(points: &[(String, f64)]) -> String {
    let line = |(name, ratio): &(String, f64)| {
        format!(
            "{name} was measured {} from what fits best: nothing in the model explains it.\n",
            forecast::signed_percent(ratio - 1.0)
        )
    };
    points.iter().map(line).collect()
}

fn fit(args: &FitArgs) -> Result<()> {
    let fit = args.known.fit()?;
    if args.known.json {
        return print_json(&json!({
            "parameters": fit.parameters,
            "stations": fit.stations,
            "unexplained": fit.unexplained(),
        }));
    }
    let rows = fit.parameters.iter().map(|one| {
        let (scale, unit) = match one.unit {
            "bit/s" => (1e9, "Gbit/s"),
            "s" => (1e-6, "us"),
            other => (1.0, other),
        };
        let missing = one.missing.as_ref().map(|run| format!("not identified: measure {run}"));
        vec![
            one.name.to_owned(),
            format!("{} {unit}", show(&one.estimate, scale)).trim_end().to_owned(),
            missing.unwrap_or_default(),
        ]
    });
    print(&table::render(&["PARAMETER", "VALUE", "NOTE"], rows))?;
    let rows = fit.stations.iter().map(|station| {
        let cost = station.cpus_per_bps * 1e9;
        let cost = if cost > 0.0 { format!("{} CPUs", number(cost)) } else { String::new() };
        let most = Some(station.bps).filter(|bps| bps.is_finite()).map(|bps| Rate(bps).to_string());
        vec![station.name.clone(), most.unwrap_or_default(), cost]
    });
    print(&format!("\n{}", table::render(&["SHARED", ">MOST", ">PER GBIT/S"], rows)))?;
    print(&unexplained(&fit.unexplained()))
}

fn predict(args: &PredictArgs) -> Result<()> {
    let file = args.figure.as_deref().map(OutFile::new).transpose()?;
    let fit = args.known.fit()?;
    let (queues, streams) = (usize::from(args.queues), usize::from(args.streams));
    let placed = if args.evenly { Placed::Evenly } else { Placed::Random };
    if let Some(file) = file {
        let data = args.known.data(&args.known.filter())?;
        draw(file, (&data, &fit), (queues, streams), placed)?;
    }
    let found = fit.predict(queues, streams, placed);
    let round_trip = fit.round_trip(streams, found.throughput);
    let all = fit.possible().map(|it| it.outcome(queues, streams, placed).sd_bps);
    let by_placement = Estimate::over(all);
    let stations = fit.used(1.0);
    let stations: Vec<(&str, Estimate, f64)> = stations
        .map(|(it, share)| {
            let used = found.throughput.times(share).widened(it.cpus_error);
            (it.name.as_str(), used, it.cpus)
        })
        .collect();
    if args.known.json {
        let station = |(name, used, cpus): &(&str, Estimate, f64)| {
            let unit = if *cpus > 0.0 { "used-cpus" } else { "used-share" };
            let has = Some(*cpus).filter(|cpus| *cpus > 0.0 && cpus.is_finite());
            json!({ "name": name, unit: used, "cpus": has })
        };
        return print_json(&json!({
            "throughput-bps": found.throughput,
            "sd-by-placement-bps": by_placement,
            "busy-queues": found.outcome.busy,
            "round-trip-seconds": round_trip,
            "window-known": fit.is_window_known(),
            "stations": stations.iter().map(station).collect::<Vec<_>>(),
            "missing": found.missing.as_ref().or(fit.missing()).and_then(|it| it.missing.as_ref()),
            "not-identified": found.missing.as_ref().map(|it| it.name),
            "unexplained": fit.unexplained(),
        }));
    }
    let mut text = format!(
        "throughput    {} Gbit/s\nby placement  ±{} Gbit/s (standard deviation)\n\
         busy queues   {} of {queues}\nround trip    {} us under load{}\n",
        show(&found.throughput, 1e9),
        show(&by_placement, 1e9),
        number(found.outcome.busy),
        show(&round_trip, 1e-6),
        if fit.is_window_known() { "" } else { ", by the flows' windows, which are not known" },
    );
    for (name, used, cpus) in stations {
        text += &match cpus > 0.0 {
            true if cpus.is_infinite() => format!("{name}: {} CPUs\n", show(&used, 1.0)),
            true => format!("{name}: {} of {cpus} CPUs\n", show(&used, 1.0)),
            false => format!("{name}: {} % full\n", show(&used, 0.01)),
        };
    }
    if let Some(missing) = &found.missing {
        let run = missing.missing.as_deref().unwrap_or_default();
        text +=
            &format!("This is a range: the {} is not identified. Measure {run}.\n", missing.name);
    }
    print(&(text + &unexplained(&fit.unexplained())))
}

/// Draws what streams carry over powers of two up to a number of queues, and over that number.
fn draw(
    file: OutFile<'_>,
    (data, fit): (&Data, &Fit),
    (most, streams): (usize, usize),
    placed: Placed,
) -> Result<()> {
    let powers = std::iter::successors(Some(1), |queues| Some(queues * 2));
    let step = |queues| {
        let is_it = |point: &&Point| point.queues == queues && point.flows == streams;
        let measured = data.points.iter().find(is_it).map(|point| point.bps);
        Step { queues, measured, predicted: fit.predict(queues, streams, placed).throughput }
    };
    let steps = powers.take_while(|queues| *queues < most).chain([most]).map(step);
    let title = format!("What {streams} streams carry, by queues");
    let figure = curve::draw(&title, &steps.collect::<Vec<_>>()).context("no queues")?;
    file.write(|out| Ok(out.write_all(figure.as_bytes())?))
}

/// A figure with its error, for scripts.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    figure: published::Figure,
    error: Option<f64>,
}

fn show_published(args: &PublishedArgs) -> Result<()> {
    let figures = published::figures()?;
    if args.json {
        let row = |figure: published::Figure| Row { error: figure.error(), figure };
        return print_json(&figures.into_iter().map(row).collect::<Vec<_>>());
    }
    let sources: Vec<&str> = figures.iter().map(|figure| figure.source).collect();
    let rows = figures.iter().map(|figure| {
        let role = match figure.role {
            Role::CalibratedOn => "calibrated on",
            Role::Predicted => "predicted",
            Role::Fitted => "fitted",
            Role::NotPredicted => "not predicted",
        };
        let error = figure.error().map(|error| format!("{:+.1} %", error * 100.0));
        vec![
            figure.what.to_owned(),
            format!("{} {}", number(figure.published), figure.unit).trim_end().to_owned(),
            figure.model.map_or_else(|| "-".to_owned(), |model| show(&model, 1.0)),
            role.to_owned(),
            error.unwrap_or_else(|| "-".to_owned()),
            figure.note.to_owned(),
        ]
    });
    let head = ["FIGURE", ">PUBLISHED", ">MODEL", "ROLE", ">ERROR", "WHY"];
    print(&table::render(&head, rows))?;
    print(&format!("\n{}", ringway_sources::titles(sources.into_iter())))
}

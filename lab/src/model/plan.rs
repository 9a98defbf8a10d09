//! `ringway model plan`: what a target needs, of everything that can be chosen.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use ringway_lab::analysis::forecast::{self, show, signed_percent};
use ringway_lab::metric::number;
use ringway_lab::value::Cell;
use ringway_model::estimate::Estimate;
use ringway_model::fit::Fit;
use ringway_model::line::Line;
use ringway_model::plan::{self, Target};
use ringway_model::predict::Placed;
use ringway_terminal::options::number as count;
use ringway_terminal::output::{OutFile, print, print_json};
use ringway_units::{Rate, Size};
use serde::Serialize;
use serde_json::json;

use super::{Known, draw, unexplained};

/// The parameter that a plan selects, if the records vary it.
const OFFLOADS: &str = "offloads";

#[derive(Debug, Args)]
pub(super) struct Plan {
    #[command(flatten)]
    known: Known,
    /// The throughput to reach, such as 9.4Gbit/s
    #[arg(long, value_name = "RATE")]
    target: Rate,
    /// Streams
    #[arg(long, value_name = "N", value_parser = count::<u16>(1..=10_000))]
    streams: u16,
    /// The probability in percent with which the placement of streams must allow it
    #[arg(long, value_name = "PERCENT", default_value_t = 90.0)]
    probability: f64,
    /// Interfaces like this one, for which memory is counted
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count::<u16>(1..=65_535))]
    vifs: u16,
    /// Also draw what so many streams carry over 1 to twice the planned queues, as SVG
    #[arg(long, value_name = "FILE")]
    figure: Option<PathBuf>,
}

/// A plan with one state of the offloads.
#[derive(Debug, Serialize)]
struct Variant {
    /// As studies spell it; nothing if the figures do not say.
    offloads: Option<&'static str>,
    #[serde(flatten)]
    plan: plan::Plan,
    /// Points that nothing in the model explains, with what was measured over what fits.
    unexplained: Vec<(String, f64)>,
    /// The wire, if it is known.
    #[serde(skip)]
    line: Option<Line>,
    /// The machine, and the cells that it was fitted to.
    #[serde(skip)]
    fit: Fit,
    #[serde(skip)]
    filter: Cell,
}

pub(super) fn run(args: &Plan) -> Result<()> {
    if !(args.probability > 0.0 && args.probability < 100.0) {
        bail!("--probability {}: expected more than 0 and less than 100", args.probability);
    }
    let file = args.figure.as_deref().map(OutFile::new).transpose()?;
    let variants = variants(args)?;
    let Some((best, others)) = variants.split_first() else { bail!("no records given") };
    if let Some(file) = file {
        let data = args.known.data(&best.filter)?;
        let most = (2 * best.plan.planned).min(plan::QUEUES_MAX);
        let of = (most, usize::from(args.streams));
        draw(file, (&data, &best.fit), of, Placed::Random)?;
    }
    let mtu = best.line.map(|line| plan::mtu_for(args.target.0, line));
    if args.known.json {
        return print_json(&json!({
            "plan": best.plan,
            "offloads": best.offloads,
            "unexplained": best.unexplained,
            "other-offloads": others,
            "line-payload-bps": best.line.map(|line| line.payload_bps()),
            "mtu-bytes": mtu.flatten(),
        }));
    }
    print(&text(args, best, others, mtu))
}

/// A plan for each state of the offloads that the records have: the one with the fewest queues
/// first, and of these the fastest.
fn variants(args: &Plan) -> Result<Vec<Variant>> {
    let target = Target {
        bps: args.target.0,
        flows: usize::from(args.streams),
        probability: args.probability / 100.0,
        vifs: usize::from(args.vifs),
    };
    let of = |(offloads, filter): (Option<&'static str>, Cell)| {
        let (fit, line) = match (args.known.fit_of(&filter), offloads) {
            (fit, None) => fit?,
            (fit, Some(name)) => fit.with_context(|| format!("with {OFFLOADS} {name}"))?,
        };
        let (plan, unexplained) = (plan::plan(&fit, &target), fit.unexplained());
        Ok(Variant { offloads, plan, unexplained, line, fit, filter })
    };
    let mut all = states(&args.known)?.into_iter().map(of).collect::<Result<Vec<_>>>()?;
    let queues = |it: &Variant| it.plan.queues.unwrap_or(usize::MAX);
    let speed = |it: &Variant| it.plan.throughput_bps.low;
    all.sort_by(|a, b| queues(a).cmp(&queues(b)).then(speed(b).total_cmp(&speed(a))));
    Ok(all)
}

/// The states of the offloads in the records, with what selects the cells of each.
fn states(known: &Known) -> Result<Vec<(Option<&'static str>, Cell)>> {
    let filter = known.filter();
    let Some((_, records)) = known.runs()? else { return Ok(vec![(None, filter)]) };
    let is_axis = records.study.axis(OFFLOADS).is_some();
    let of = |name| {
        let cells = if is_axis { filter.with(OFFLOADS, name) } else { filter.clone() };
        (Some(name), cells)
    };
    let found: Vec<_> = forecast::offloads(&records, &filter).into_iter().map(of).collect();
    Ok(if found.is_empty() { vec![(None, filter)] } else { found })
}

fn text(args: &Plan, best: &Variant, others: &[Variant], mtu: Option<Option<f64>>) -> String {
    let plan = &best.plan;
    let [netback, vhost] = plan.memory_bytes.map(|bytes| Size(ringway_stats::float(bytes)));
    let guest = plan.guest_cpus.map(|n| format!("{} for its programs and its queues", cpus(n)));
    let alike = if args.vifs > 1 { format!(", of all {}", args.vifs) } else { String::new() };
    let mut text = format!(
        "{}\nwith {}: {} Gbit/s on average, {} or more with {} % of placements\n\
         limited by {}\nguest    {}\nworkers  {}\n\
         memory   {netback} in netback of Linux, {vhost} with vhost{alike}\n\
         grants   {} a guest\noffloads {}\n",
        queues(plan, args.target),
        counted(plan.planned),
        show(&plan.throughput_bps, 1e9),
        args.target,
        percent(&plan.probability),
        plan.binding.join(" or "),
        guest.as_deref().unwrap_or("CPUs not known: no run measured them"),
        plan.workers,
        plan.grants,
        best.offloads.unwrap_or("as where the figures were measured"),
    );
    for other in others {
        let queues = queues(&other.plan, args.target);
        text += &format!("with {OFFLOADS} {}: {queues}\n", other.offloads.unwrap_or_default());
    }
    for (station, number) in &plan.cpus {
        text += &format!("{station}: {}\n", cpus(*number));
    }
    text += &match mtu {
        Some(Some(mtu)) => format!("MTU      {mtu:.0} B leaves so much payload\n"),
        Some(None) => "MTU      no frames of this wire carry so much\n".to_owned(),
        None => "MTU      not known: --line names the wire\n".to_owned(),
    };
    if let Some(busy) = plan.busy_best {
        text += &format!("With more than {} busy queues all together are slower.\n", number(busy));
    } else if let Some(busy) = plan.may_be_slower_beyond {
        let busy = number(busy);
        text += &format!("With more than {busy} busy queues all together may be slower.\n");
    }
    for one in &plan.sensitivity {
        let [low, high] = [one.low, one.high].map(signed_percent);
        let range = if low == high { high } else { format!("{low} to {high}") };
        text += &format!("with 10 % {}: {range}\n", one.with);
    }
    if let Some(run) = &plan.next_run {
        text += &format!("The run that would tell most: {run}.\n");
    }
    text + &unexplained(&best.unexplained)
}

fn cpus(number: usize) -> String {
    if number == 1 { "1 CPU".to_owned() } else { format!("{number} CPUs") }
}

/// A probability, or both ends of where it may be, in whole percent.
fn percent(probability: &Estimate) -> String {
    let [low, high] = [probability.low, probability.high].map(|it| format!("{:.0}", it * 100.0));
    if low == high { high } else { format!("{low} to {high}") }
}

fn counted(queues: usize) -> String {
    if queues == 1 { "1 queue".to_owned() } else { format!("{queues} queues") }
}

/// How many queues a plan has, or may need.
fn queues(plan: &plan::Plan, target: Rate) -> String {
    match (plan.queues, plan.queues_range) {
        (None, [None, _]) => {
            let needs_cpus = plan.cpus.iter().any(|(station, _)| plan.binding.contains(station));
            let with = if needs_cpus { " with the CPUs that there are" } else { "" };
            format!("no number of queues up to {} reaches {target}{with}", plan::QUEUES_MAX)
        }
        (_, [least, Some(most)]) if least == Some(most) => counted(most),
        (_, [Some(least), Some(most)]) => format!("{least} to {most} queues"),
        (_, [Some(least), None]) => {
            let least = counted(least);
            format!("{least} or more; at worst, no number reaches {target}")
        }
        (Some(queues), _) => counted(queues),
    }
}

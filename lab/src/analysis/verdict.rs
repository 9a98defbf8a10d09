//! The verdict: a few paragraphs, one line each, that say only what the figures show.
//!
//! A difference is stated only if the interval of the ratio excludes 1. The limits of the machine
//! come before any result.

use std::collections::BTreeSet;

use ringway_stats::{Interval, Ratio, ratio};

use super::{Analysis, CellSummary, ComparisonRow, Warning, cell_values};
use crate::metric::{Better, Metric, find, number};
use crate::record::{CROSSED_ROUTER, Records, Run};
use crate::study::Subject;

pub(super) fn of(records: &Records, analysis: &Analysis) -> String {
    if analysis.of_primary().next().is_none() {
        let what = named(records);
        return format!("{what} was not measured yet, so there is no verdict.");
    }
    let used = analysis.comparisons.iter().filter(|row| row.comparison.not_used.is_none());
    let paragraphs: [Vec<String>; 3] = [
        around(records).into_iter().chain(cpus(analysis)).chain(best(records, analysis)).collect(),
        used.filter_map(comparison).collect(),
        published(analysis)
            .into_iter()
            .chain(doubts(analysis))
            .chain(disturbed(analysis))
            .collect(),
    ];
    let said = paragraphs.iter().filter(|sentences| !sentences.is_empty());
    said.map(|sentences| sentences.join(" ")).collect::<Vec<_>>().join("\n")
}

/// What is measured, at the start of a sentence. The name of the program is never capitalised.
fn named(records: &Records) -> String {
    match records.study.primary() {
        Subject::Ringway => Subject::Ringway.title().to_owned(),
        subject => crate::metric::capitalised(subject.title()),
    }
}

/// States that the figures do not measure the router; comes first.
fn around(records: &Records) -> Option<String> {
    let study = &records.study;
    if !study.is_around_router() {
        return None;
    }
    let own = records.runs.iter().filter(|run| run.subject == study.primary());
    let has_crossed = |run: &&Run| run.notes.iter().any(|note| note == CROSSED_ROUTER);
    let mut sentence = match (own.clone().filter(has_crossed).count(), own.count()) {
        (0, _) => "Streams went around the router: these figures do not measure it.".to_owned(),
        (crossed, all) => format!(
            "Streams crossed the router in {crossed} of {all} runs, though they need not: these \
             figures do not measure it."
        ),
    };
    let is_varied = |name: &str| {
        let cells = study.cells(study.primary());
        let values: BTreeSet<_> =
            cells.iter().map(|cell| study.setup(cell).get(name).map(ToString::to_string)).collect();
        values.len() > 1
    };
    if ["queues", "driver"].into_iter().any(is_varied) {
        sentence += " The number of its queues and its driver mean nothing here.";
    }
    Some(sentence)
}

/// States what the machine cannot show; comes before any figure.
fn cpus(analysis: &Analysis) -> Option<String> {
    let few = |cell: &&CellSummary| {
        cell.warnings.iter().any(|warning| matches!(warning, Warning::FewCpus { .. }))
    };
    let all = analysis.of_primary().count();
    let short = analysis.of_primary().filter(few).count();
    let which = match short {
        0 => return None,
        _ if short == all => "every cell".to_owned(),
        _ => format!("{short} of {all} cells"),
    };
    let cpus = analysis.host.cpus;
    let noun = if cpus == 1 { "CPU" } else { "CPUs" };
    Some(format!(
        "This machine has {cpus} {noun}, fewer than {which} can keep busy: in these cells the \
         figures show how it shares its {noun}, not what queues can do."
    ))
}

/// The best cell, and the baselines' figures for the same cell.
fn best(records: &Records, analysis: &Analysis) -> Option<String> {
    let metric = find(&records.study.load.metric)?;
    let cells = analysis.of_primary();
    let measured = cells.filter_map(|cell| Some((cell, cell.values.get(metric.name)?)));
    let (cell, summary) = measured.max_by(|a, b| {
        let order = a.1.mean.total_cmp(&b.1.mean);
        if metric.better == Better::More { order } else { order.reverse() }
    })?;
    let is_around = records.study.is_around_router();
    let what = if is_around { "The".to_owned() } else { format!("{}'s", named(records)) };
    let place = if is_around { " around the router" } else { "" };
    let mut sentence = format!(
        "{what} best mean {}{place} is {} ({}{})",
        metric.title,
        metric.show(summary.mean),
        cell.label,
        summary.interval.map_or_else(
            || match summary.count {
                1 => ", a single run".to_owned(),
                count => format!(", {count} runs, too few for an interval"),
            },
            |interval| format!(", 95 % interval {}", span(metric, interval))
        ),
    );
    let ours = cell_values(records, records.study.primary(), &cell.cell, metric.name);
    // A ratio would be one of two paths without a router.
    for subject in records.study.baselines.iter().copied().filter(|_| !is_around) {
        let there = records.study.projected(&cell.cell, subject);
        let theirs = cell_values(records, subject, &there, metric.name);
        if let Some(found) = ratio(&ours, &theirs) {
            sentence += &format!(
                "; {} times what {} does there{}",
                number(found.value),
                subject.title(),
                ratio_interval(found)
            );
        }
    }
    Some(sentence + ".")
}

fn comparison(row: &ComparisonRow) -> Option<String> {
    let metric = find(&row.comparison.metric)?;
    let found = row.ratio?;
    let title = crate::metric::capitalised(&row.comparison.title);
    let claim = row.comparison.published;
    let said = match found.interval {
        None => {
            return Some(format!(
                "{title}: a ratio of {}, from too few runs to conclude anything.",
                number(found.value)
            ));
        }
        Some(interval) if interval.has(1.0) => format!(
            "{title}: no difference in {} is shown (ratio {}, {} to {})",
            metric.title,
            number(found.value),
            number(interval.low),
            number(interval.high)
        ),
        Some(_) => format!(
            "{title}: {} is {} times as high{}",
            metric.title,
            number(found.value),
            ratio_interval(found)
        ),
    };
    let against = claim.map(|claim| {
        let agrees = found.interval.is_some_and(|interval| interval.has(claim));
        let verb = if agrees { "which does not contradict" } else { "where the source has" };
        let noun = if agrees { " of the source" } else { "" };
        format!(", {verb} {}{noun}", number(claim))
    });
    let meaning = meaning(row).map_or_else(String::new, |meaning| format!(": {meaning}"));
    Some(said + &against.unwrap_or_default() + &meaning + ".")
}

/// The conclusion, if it is certain which of the two is larger.
fn meaning(row: &ComparisonRow) -> Option<&str> {
    let interval = row.ratio?.interval?;
    let meaning = match interval {
        _ if interval.low > 1.0 => &row.comparison.if_higher,
        _ if interval.high < 1.0 => &row.comparison.if_lower,
        _ => &None,
    };
    meaning.as_deref()
}

/// How far the measured figures are from the published ones, as a range over all that have a
/// counterpart.
fn published(analysis: &Analysis) -> Option<String> {
    let used: Vec<_> = analysis.published.iter().filter(|row| row.published.is_used()).collect();
    let mut ratios: Vec<f64> = used.iter().filter_map(|row| row.ratio).collect();
    ratios.sort_by(f64::total_cmp);
    let (low, high) = (ratios.first()?, ratios.last()?);
    let range = if ratios.len() == 1 {
        format!("{} times", number(*low))
    } else {
        format!("{} to {} times", number(*low), number(*high))
    };
    Some(format!(
        "Of {} published figures {} have a counterpart here, which is {range} as large, on another \
         machine.",
        used.len(),
        ratios.len(),
    ))
}

/// Reasons to doubt the figures.
fn doubts(analysis: &Analysis) -> Option<String> {
    let count = |is: fn(&Warning) -> bool| {
        analysis.cells.iter().filter(|cell| cell.warnings.iter().any(is)).count()
    };
    let parts = [
        (
            count(|one| matches!(one, Warning::Contradicted { .. })),
            "without runs that were left out",
        ),
        (count(|one| matches!(one, Warning::Emulated)), "with an emulated router"),
        (count(|one| matches!(one, Warning::FewRuns { .. })), "of fewer than 5 runs"),
        (count(|one| matches!(one, Warning::Bimodal { .. })), "bimodal"),
        (count(|one| matches!(one, Warning::Drifting { .. })), "drifting"),
        (analysis.missing.len(), "not measured"),
        (analysis.left_out_count(), "left out, as this machine cannot measure them"),
    ];
    let said: Vec<String> = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    let all = analysis.cells.len() + analysis.missing.len() + analysis.left_out_count();
    (!said.is_empty()).then(|| format!("Of {all} cells, {}.", said.join(", ")))
}

/// What else used the machine.
fn disturbed(analysis: &Analysis) -> Option<String> {
    let count = analysis.disturbances.disturbed_runs;
    (count > 0).then(|| {
        let all = analysis.runs;
        format!("In {count} of {all} runs others had a part of the CPUs that cannot be neglected.")
    })
}

fn span(metric: &Metric, interval: Interval) -> String {
    format!("{} to {}", metric.number(interval.low), metric.number(interval.high))
}

fn ratio_interval(found: Ratio) -> String {
    found.interval.map_or_else(String::new, |interval| {
        format!(" ({} to {})", number(interval.low), number(interval.high))
    })
}

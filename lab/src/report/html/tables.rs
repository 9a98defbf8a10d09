//! Tables of the page.

use maud::{Markup, html};
use ringway_stats::{Interval, Method, Summary, float};

use crate::analysis::disturbance::{FOREIGN_SHARE_MAX, STEAL_SHARE_MAX, Spread};
use crate::analysis::forecast::{self, Forecast, round_trip, signed_percent};
use crate::analysis::{Analysis, CellSummary, Warning};
use crate::metric::{self, Metric, number};
use crate::placement;
use crate::record::Records;
use crate::report::chart::Chart;
use crate::report::splits::percent;
use crate::study::FigureKind;

/// The data of a figure: means with deviations side by side, or all figures of each box.
pub(super) fn of_chart(chart: &Chart) -> Markup {
    match chart.kind {
        FigureKind::Lines | FigureKind::Bars => means(chart),
        FigureKind::Boxes | FigureKind::Placement => summaries(chart),
    }
}

fn means(chart: &Chart) -> Markup {
    let metric = chart.metric;
    html! {
        div.scroll {
            table {
                tr {
                    th { (place_title(chart)) }
                    @for series in &chart.series { th.n { (series.name) } }
                }
                @for (index, place) in chart.places.iter().enumerate() {
                    tr {
                        td { (place.name) }
                        @for series in &chart.series {
                            td.n {
                                @if let Some(point) = &series.points[index] {
                                    (metric.number(point.summary.mean))
                                    @if let Some(sd) = point.summary.sd {
                                        @let sd = metric.number_beside(sd, point.summary.mean);
                                        " " span.aside { "± " (sd) }
                                    }
                                } @else { "–" }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn summaries(chart: &Chart) -> Markup {
    let is_split = chart.kind == FigureKind::Placement;
    let has_series = chart.series.iter().filter(|series| series.is_in_legend).count() > 1;
    html! {
        div.scroll {
            table {
                tr {
                    th { (place_title(chart)) }
                    @if is_split { th.n { "By chance" } }
                    @if has_series { th { "Series" } }
                    (summary_head())
                }
                @for (index, place) in chart.places.iter().enumerate() {
                    @for series in &chart.series {
                        @if let Some(point) = &series.points[index] {
                            tr {
                                td { (place.name) }
                                @if let Some(probability) = place.probability {
                                    td.n { (percent(probability)) }
                                }
                                @if has_series { td { (series.name) } }
                                (summary_cells(chart.metric, &point.summary))
                            }
                        }
                    }
                }
            }
        }
    }
}

fn place_title(chart: &Chart) -> String {
    metric::capitalised(&chart.x_title)
}

fn summary_head() -> Markup {
    html! {
        th.n { "Runs" } th.n { "Mean" } th.n { "SD" } th.n { "Median" } th.n { "95 % interval" }
    }
}

fn summary_cells(metric: &Metric, summary: &Summary) -> Markup {
    let sd = summary.sd.map(|sd| metric.number_beside(sd, summary.mean));
    html! {
        td.n { (summary.count) }
        td.n { (metric.number(summary.mean)) }
        td.n { (sd.unwrap_or_else(|| "–".to_owned())) }
        td.n { (metric.number(summary.median)) }
        td.n { (interval(metric, summary)) }
    }
}

fn interval(metric: &Metric, summary: &Summary) -> String {
    let mark = if summary.method == Method::Bootstrap { " b" } else { "" };
    summary.interval.map_or_else(
        || "too few runs".to_owned(),
        |Interval { low, high }| {
            let [low, high] = [low, high].map(|end| metric.number_beside(end, summary.mean));
            format!("{low} – {high}{mark}")
        },
    )
}

/// Published, measured here, and the ratio.
pub(super) fn published(analysis: &Analysis) -> Markup {
    if analysis.published.is_empty() {
        return html! {};
    }
    html! {
        h2 { "Published, measured here, ratio" }
        p {
            "Published figures are of other machines, other software and other years; the ratio "
            "says how far this machine with ringway is from them, not which is better."
        }
        div.scroll {
            table {
                tr {
                    th { "Source" } th { "Cell" } th.n { "Published" }
                    th.n { "Measured here" } th.n { "Ratio" }
                }
                @for row in &analysis.published {
                    @let one = &row.published;
                    @if let Some(metric) = metric::find(&one.metric) {
                        tr.unused[!one.is_used()] {
                            td {
                                (cited(&one.source, one.said.as_deref()))
                                @if let Some(note) = &one.note { br; span.aside { (note) } }
                                @if let Some(why) = &one.not_used {
                                    br; span.aside { "Not used: " (why) "." }
                                }
                            }
                            td {
                                (row.label.clone().unwrap_or_else(|| one.cell.to_string()))
                                @if one.best_of.is_some() && row.label.is_some() {
                                    br; span.aside { "the best of its line" }
                                }
                                br; span.aside { (metric.title) }
                            }
                            td.n { (one.show(metric)) " " (metric.unit) }
                            td.n {
                                @if let Some(summary) = &row.measured {
                                    (metric.show(summary.mean))
                                    br; span.aside { (interval(metric, summary)) }
                                } @else { "not measured" }
                            }
                            td.n { (row.ratio.map_or_else(|| "–".to_owned(), number)) }
                        }
                    }
                }
            }
        }
    }
}

/// A source by title and section, or by the study's own words, with its quotation.
fn cited(source: &str, said: Option<&str>) -> Markup {
    let found = ringway_sources::find(source);
    html! {
        (found.map_or(source, |cited| &cited.source.title))
        @if let Some(place) = found.and_then(|cited| cited.place) { " – " (place.section) }
        @if let Some(said) = said { ": " (said) }
    }
}

/// Cells against cells.
pub(super) fn comparisons(analysis: &Analysis) -> Markup {
    if analysis.comparisons.is_empty() {
        return html! {};
    }
    html! {
        h2 { "Cells against cells" }
        div.scroll {
            table {
                tr {
                    th { "What" } th { "Cells" } th.n { "Ratio here" }
                    th.n { "95 % interval" } th.n { "Published" }
                }
                @for row in &analysis.comparisons {
                    @let one = &row.comparison;
                    tr.unused[one.not_used.is_some()] {
                        td {
                            (metric::capitalised(&one.title))
                            @if let Some(source) = &one.source {
                                br; span.aside { (cited(source, one.said.as_deref())) }
                            }
                            @if let Some(why) = &one.not_used {
                                br; span.aside { "Not used: " (why) "." }
                            }
                        }
                        td { (row.labels[0]) " / " (row.labels[1]) }
                        @if let Some(found) = &row.ratio {
                            td.n { (number(found.value)) }
                            td.n {
                                @match found.interval {
                                    Some(Interval { low, high }) => {
                                        (number(low)) " – " (number(high))
                                    }
                                    None => "too few runs",
                                }
                            }
                        } @else {
                            td.n { "not measured" }
                            td.n { "–" }
                        }
                        td.n { (one.published.map_or_else(|| "–".to_owned(), number)) }
                    }
                }
            }
        }
    }
}

/// All cells with the study's own metric, or the first that they have, and with their warnings.
pub(super) fn cells(records: &Records, analysis: &Analysis) -> Markup {
    html! {
        h2 { "Every cell" }
        @if analysis.cells.iter().any(|cell| cell.predicted.is_some()) {
            p {
                "Predicted: by a model that is calibrated on the cells "
                @if analysis.cells.iter().any(is_round_trip) {
                    "without load and with the least load on one queue, whose predictions are "
                    "therefore in brackets, and on the throughput of the load on one and two "
                    "queues. It predicts the mean of round trips; the median is below it where "
                    "few segments are in flight."
                } @else {
                    "with one and two queues, whose predictions are therefore in brackets, for "
                    "streams that fall on queues as they did."
                }
                " A range without a mean means that these do not identify it. Error: the "
                "predicted mean against the measured one."
            }
        }
        @if let Some(errors) = &analysis.prediction_errors {
            p { (errors) }
        }
        @if let Some(why) = &analysis.unpredicted {
            p { "Predicted: nothing, because " (why) "." }
        }
        div.scroll {
            table {
                tr {
                    th { "Cell" } th { "Subject" } th { "Metric" }
                    (summary_head())
                    th.n { "Predicted" } th.n { "Error" }
                    th { "Warnings" }
                }
                @for cell in &analysis.cells {
                    @for (index, (metric, summary)) in shown(records, cell).iter().enumerate() {
                        tr {
                            td { @if index == 0 { (cell.label) } }
                            td { @if index == 0 { (cell.subject.title()) } }
                            td { (metric.axis_title()) }
                            (summary_cells(metric, summary))
                            @let forecast = forecast_of(metric, cell);
                            td.n { @if let Some(one) = forecast { (predicted(metric, one)) } }
                            td.n {
                                @if let Some(error) = forecast.and_then(|one| one.error) {
                                    (signed_percent(error))
                                }
                            }
                            td.warn { @if index == 0 { (warnings(cell)) } }
                        }
                    }
                }
            }
        }
        @if !analysis.missing.is_empty() {
            p.aside {
                "Not measured, of " (records.study.subjects().len()) " subjects: "
                (analysis.missing.join(", ")) "."
            }
        }
    }
}

fn is_round_trip(cell: &CellSummary) -> bool {
    cell.predicted.is_some_and(|one| one.metric == round_trip::METRIC)
}

/// What the model says of a cell, if it is about this metric.
fn forecast_of<'a>(metric: &Metric, cell: &'a CellSummary) -> Option<&'a Forecast> {
    cell.predicted.as_ref().filter(|one| metric.name == one.metric)
}

/// In brackets where the model was calibrated on the cell.
fn predicted(metric: &Metric, one: &Forecast) -> String {
    let text = forecast::show(&one.estimate, metric.scale);
    if one.is_calibration { format!("({text})") } else { text }
}

/// The metrics that the study is about; the summary has the others.
fn shown<'a>(records: &Records, cell: &'a CellSummary) -> Vec<(&'static Metric, &'a Summary)> {
    let study = &records.study;
    let mut about = vec![study.load.metric.as_str()];
    about.extend(study.figure.iter().map(|figure| figure.metric.as_str()));
    about.extend(study.published.iter().map(|published| published.metric.as_str()));
    about.extend(study.comparison.iter().map(|comparison| comparison.metric.as_str()));
    let values = cell.values.iter().filter(|(name, _)| about.contains(&name.as_str()));
    values.filter_map(|(name, summary)| Some((metric::find(name)?, summary))).collect()
}

fn warnings(cell: &CellSummary) -> String {
    cell.warnings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// What disturbed the runs, and the warnings about cells.
pub(super) fn disturbances(analysis: &Analysis) -> Markup {
    let found = &analysis.disturbances;
    let share = |share: f64| format!("{:.1} %", share * 100.0);
    let mhz = |mhz: f64| format!("{mhz:.0} MHz");
    let ends = |Spread { least, mean, most }| [least, mean, most];
    let all = [
        (
            "CPU time that the hypervisor below took (steal)",
            found.steal_share.map(|one| ends(one).map(share)),
        ),
        (
            "CPU time that others on this machine used",
            found.foreign_share.map(|one| ends(one).map(share)),
        ),
        (
            "Frequency of the CPUs, as the kernel tells it",
            found.cpu_mhz.map(|one| ends(one).map(mhz)),
        ),
    ];
    html! {
        h2 { "What disturbed the runs" }
        div.scroll {
            table {
                tr { th { "Over all runs" } th.n { "Least" } th.n { "Mean" } th.n { "Most" } }
                @for (what, ends) in all {
                    tr {
                        td { (what) }
                        @match ends {
                            Some(ends) => @for end in ends { td.n { (end) } },
                            None => td.n colspan="3" { "not known" },
                        }
                    }
                }
            }
        }
        p.aside {
            "Runs with more than " (share(STEAL_SHARE_MAX)) " steal or " (share(FOREIGN_SHARE_MAX))
            " of others: " (found.disturbed_runs) " of " (analysis.runs) "."
        }
        ul {
            @for line in doubtful_cells(analysis) { li { (line) } }
            @for (note, runs) in found.notes.iter().take(NOTES_MAX) {
                li { (note) " (" (runs) " of " (analysis.runs) " runs)" }
            }
            @if found.notes.len() > NOTES_MAX {
                li { (found.notes.len() - NOTES_MAX) " other notes: see runs.csv" }
            }
        }
    }
}

/// Notes that are listed; the records contain all.
const NOTES_MAX: usize = 12;

/// The name of a kind of warning, and a test for it.
type Kind = (&'static str, fn(&Warning) -> bool);

/// For each kind of warning, the cells that have it.
fn doubtful_cells(analysis: &Analysis) -> Vec<String> {
    let kinds: [Kind; 6] = [
        ("Fewer CPUs than busy threads", |one| matches!(one, Warning::FewCpus { .. })),
        ("Emulated router, so this is not real speed", |one| matches!(one, Warning::Emulated)),
        ("Runs left out, as their counters contradict them", |one| {
            matches!(one, Warning::Contradicted { .. })
        }),
        ("Fewer than 5 runs", |one| matches!(one, Warning::FewRuns { .. })),
        ("Bimodal", |one| matches!(one, Warning::Bimodal { .. })),
        ("Drifting", |one| matches!(one, Warning::Drifting { .. })),
    ];
    let line = |(what, is): Kind| {
        let cells = analysis.cells.iter().filter(|cell| cell.warnings.iter().any(is));
        let names = cells.map(|cell| match cell.subject {
            one if !one.is_baseline() => cell.label.clone(),
            subject => format!("{} {}", subject.title(), cell.label),
        });
        let names: Vec<String> = names.collect();
        match names.len() {
            // Most studies have no virtual machine.
            0 if is(&Warning::Emulated) => None,
            0 => Some(format!("{what}: no cell")),
            count if count == analysis.cells.len() => Some(format!("{what}: all {count} cells")),
            _ => Some(format!("{what}: {}", names.join(", "))),
        }
    };
    kinds.into_iter().filter_map(line).collect()
}

/// CPU time by station.
pub(super) fn cpu(analysis: &Analysis) -> Markup {
    let stations: std::collections::BTreeSet<&String> =
        analysis.cells.iter().flat_map(|cell| cell.cpus_used.keys()).collect();
    if stations.is_empty() {
        return html! {};
    }
    html! {
        h2 { "CPUs, by station" }
        p { "How many CPUs each station kept busy: the mean over the runs, and its 95 % interval." }
        div.scroll {
            table {
                tr {
                    th { "Cell" } th { "Subject" }
                    @for station in &stations { th.n { (metric::capitalised(station)) } }
                }
                @for cell in analysis.cells.iter().filter(|cell| !cell.cpus_used.is_empty()) {
                    tr {
                        td { (cell.label) }
                        td { (cell.subject.title()) }
                        @for station in &stations {
                            td.n {
                                @if let Some(cpus) = cell.cpus_used.get(*station) {
                                    (number(cpus.mean))
                                    @if let Some(Interval { low, high }) = cpus.interval {
                                        br; span.aside { (number(low)) " – " (number(high)) }
                                    }
                                } @else { "–" }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// How streams fell on queues, beside the probabilities by chance.
pub(super) fn splits(records: &Records, analysis: &Analysis) -> Markup {
    let with_splits = || {
        analysis.of_primary().filter(|cell| {
            cell.splits.keys().any(|split| split.contains('+')) || cell.splits.len() > 1
        })
    };
    if with_splits().next().is_none() {
        return html! {};
    }
    html! {
        h2 { "How streams fell on queues" }
        p { "Runs by the streams on each queue, the fullest first; in brackets what chance gives." }
        div.scroll {
            table {
                tr { th { "Cell" } th { "Splits" } }
                @for cell in with_splits() {
                    tr { td { (cell.label) } td { (split_list(records, cell)) } }
                }
            }
        }
    }
}

fn split_list(records: &Records, cell: &CellSummary) -> String {
    let setup = records.study.setup(&cell.cell);
    let count = |name| usize::try_from(setup.number(name).unwrap_or(1)).unwrap_or(usize::MAX);
    let known = placement::splits(count("streams"), count("queues"));
    let runs: usize = cell.splits.values().sum();
    let mut shown: Vec<(&String, &usize)> = cell.splits.iter().collect();
    shown.sort_by(|a, b| b.1.cmp(a.1));
    let texts = shown.into_iter().map(|(name, times)| {
        let chance = known.iter().find(|split| placement::name(&split.parts) == *name);
        let chance = chance.map_or_else(String::new, |split| {
            format!(" ({:.1} of {runs})", split.probability * float(runs))
        });
        format!("{name}: {times}{chance}")
    });
    texts.collect::<Vec<_>>().join("; ")
}

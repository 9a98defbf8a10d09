//! The page: one file without scripts that works offline, on a phone and in print.

mod tables;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use ringway_sources::{BySource, by_source};

use super::chart::Chart;
use super::frame::Form;
use super::{charts, draw};
use crate::analysis::{Analysis, LeftOutCells};
use crate::record::{Host, Records, Run};
use crate::study::FigureKind;

const STYLE: &str = include_str!("page.css");
/// Commands that are shown; the records contain all.
const COMMANDS_MAX: usize = 12;

pub(super) fn page(records: &Records, analysis: &Analysis) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (analysis.title) " – ringway lab" }
                // Without it browsers would request a favicon.
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    (head(records, analysis))
                    (verdict(analysis))
                    (facts(records, analysis))
                    (figures(records, analysis))
                    (tables::published(analysis))
                    (tables::comparisons(analysis))
                    (tables::cells(records, analysis))
                    (courses(records, analysis))
                    (tables::cpu(analysis))
                    (tables::splits(records, analysis))
                    (tables::disturbances(analysis))
                    (machines(records))
                    (method(records))
                    (sources(analysis))
                    footer {
                        "Made from the records beside this page by ringway "
                        (records.host.ringway_version)
                        ". Raw runs: runs.jsonl and runs.csv; summary: summary.json; "
                        "figures: figures/."
                    }
                }
            }
        }
    }
}

fn head(records: &Records, analysis: &Analysis) -> Markup {
    html! {
        header {
            p.kicker { "ringway lab · study " (analysis.study) }
            h1 { (analysis.title) }
            p.question { (analysis.question) }
            p.aside { (records.study.topology.about) }
            ul.sources aria-label="Sources that this study checks" {
                @for one in by_source(cited(analysis)) { li { (one.source.title) } }
            }
        }
    }
}

/// The places that the study cites, by id, in the order of the page.
fn cited(analysis: &Analysis) -> impl Iterator<Item = &str> {
    let published = analysis.published.iter().map(|row| row.published.source.as_str());
    let compared = analysis.comparisons.iter().filter_map(|row| row.comparison.source.as_deref());
    analysis.sources.iter().map(String::as_str).chain(published).chain(compared)
}

/// The sources' titles, addresses and quotations. Sources without an id appear in the tables only.
fn sources(analysis: &Analysis) -> Markup {
    let sources = by_source(cited(analysis));
    html! {
        @if !sources.is_empty() {
            h2 { "Sources" }
            @for BySource { source, places } in sources {
                h3 { (source.title) }
                p.aside {
                    (source.published())
                    @if let Some(address) = &source.address { br; (address) }
                    @if let Some(note) = &source.note { br; (note) }
                }
                ul { @for place in places { li { (place.section) ": " (place.claim) } } }
            }
        }
    }
}

fn verdict(analysis: &Analysis) -> Markup {
    html! {
        section.verdict aria-label="Verdict" {
            @for paragraph in analysis.verdict.lines() { p { (paragraph) } }
        }
        @if !analysis.notices.is_empty() || !analysis.left_out.is_empty() {
            section.notices {
                @for LeftOutCells { reason, cells } in &analysis.left_out {
                    p { (reason) ". Cells: " (cells.join(", ")) "." }
                }
                @for notice in &analysis.notices { p { (notice) } }
            }
        }
    }
}

fn facts(records: &Records, analysis: &Analysis) -> Markup {
    let load = &records.study.load;
    let started = records.runs.iter().map(|run| run.started.as_str());
    let (first, last) = (started.clone().min(), started.max());
    let fact = |name: &str, value: &str| html! { div { dt { (name) } dd { (value) } } };
    let cells = analysis.cells.len();
    html! {
        dl.facts {
            (fact("Runs", &format!("{} in {cells} cells", analysis.runs)))
            (fact("Not measured", &format!("{} cells", analysis.missing.len())))
            @if analysis.left_out_count() > 0 {
                (fact("Left out", &format!("{} cells", analysis.left_out_count())))
            }
            (fact("Each run", &format!("{} s after {} s", load.seconds, load.warmup_seconds)))
            (fact("CPUs", &records.host.cpus.to_string()))
            (fact("First run", &minute(first)))
            (fact("Last run", &minute(last)))
        }
    }
}

/// A time of the records, to the minute.
fn minute(time: Option<&str>) -> String {
    let Some(time) = time else { return "–".to_owned() };
    match (time.get(..10), time.get(11..16)) {
        (Some(day), Some(minute)) => format!("{day} {minute} UTC"),
        _ => time.to_owned(),
    }
}

fn figures(records: &Records, analysis: &Analysis) -> Markup {
    let charts = charts(records, analysis);
    html! {
        @if !charts.is_empty() { h2 { "Figures" } }
        @for chart in &charts { (figure(chart)) }
    }
}

fn figure(chart: &Chart) -> Markup {
    html! {
        figure id={ "figure-" (chart.id) } {
            div.wide { (draw(chart, Form::Wide)) }
            div.narrow { (draw(chart, Form::Narrow)) }
            figcaption { (caption(chart)) }
            (tables::of_chart(chart))
        }
    }
}

/// How runs went from second to second, cell by cell.
fn courses(records: &Records, analysis: &Analysis) -> Markup {
    let drawn: Vec<_> = analysis
        .cells
        .iter()
        .filter_map(|cell| {
            let runs: Vec<&Run> = records.of_cell(cell.subject, &cell.cell).collect();
            Some((cell, super::courses::draw(&runs)?))
        })
        .collect();
    html! {
        @if !drawn.is_empty() {
            h2 { "Every run" }
            p {
                "A line for each run. Left: the value from step to step of the seconds that count. "
                "Right: the part of all samples up to each value. A sample of throughput is a "
                "step, a sample of the round trip is one message."
            }
            @for (cell, pictures) in drawn {
                h3 { (cell.label) ", " (cell.subject.title()) }
                (pictures)
            }
        }
    }
}

fn caption(chart: &Chart) -> String {
    let what = match chart.kind {
        FigureKind::Lines | FigureKind::Bars => "mean ± standard deviation",
        FigureKind::Boxes | FigureKind::Placement => "summary of the runs",
    };
    let unit = chart.metric.unit;
    let unit = if unit.is_empty() { String::new() } else { format!(" in {unit}") };
    let predicted = match chart.has_predictions() {
        true => " A dash beside a mark is what the model predicts, and dots are where it may be.",
        false => "",
    };
    format!(
        "The data of this figure{unit}: {what}.{predicted} All other data is under “Every cell”."
    )
}

/// The machine, or both if the far end was on another one.
fn machines(records: &Records) -> Markup {
    let near = described(&records.host);
    let Some(peer) = &records.peer else {
        return html! {
            h2 { "The machine" }
            p { "Absolute figures are valid for this machine only." }
            (near)
        };
    };
    html! {
        h2 { "The two machines" }
        p { "Absolute figures are valid for these machines and the network between them only." }
        h3 { "This machine: " (peer.near_interface.title()) }
        (near)
        h3 { "The peer " (peer.name) ": " (peer.interface.title()) }
        (described(&peer.host))
    }
}

fn described(host: &Host) -> Markup {
    let tools = host.tools.iter().map(|(name, version)| format!("{name} {version}"));
    let tools = tools.collect::<Vec<_>>().join(", ");
    let fields = [
        ("CPU", format!("{} × {}", host.cpus, host.cpu_model)),
        ("Memory", format!("{} MiB", host.memory_kib / 1024)),
        ("Kernel", host.kernel.clone()),
        ("System", host.os.clone()),
        ("Hypervisor below", host.hypervisor.clone()),
        ("ringway", format!("{}, commit {}", host.ringway_version, host.git_commit)),
        ("Tools", tools),
        ("Clock source", host.clock_source.clone()),
        ("Mitigations", host.mitigations.join("; ")),
        ("Described", host.date.clone()),
    ];
    html! {
        dl.host {
            @for (name, value) in fields.iter().filter(|(_, value)| !value.trim().is_empty()) {
                dt { (name) }
                dd { (value) }
            }
        }
    }
}

fn method(records: &Records) -> Markup {
    let mut commands: Vec<(&str, &str, &str)> = Vec::new();
    for tool in records.runs.iter().flat_map(|run| &run.tools) {
        let entry = (tool.name.as_str(), tool.version.as_str(), tool.command.as_str());
        if !commands.contains(&entry) && commands.len() < COMMANDS_MAX {
            commands.push(entry);
        }
    }
    let seeds: std::collections::BTreeSet<u64> = records.runs.iter().map(|run| run.seed).collect();
    let seeds = seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    html! {
        h2 { "How it was measured" }
        p {
            "Cells were run in random order, every cell once before any cell a second time "
            "(seed " (seeds) "). The warm-up of each run is excluded. A cell is repeated at least "
            (records.study.load.repeats) " and at most " (records.study.load.max_repeats)
            " times, until half of the interval of its mean is small enough. "
            "SD is the standard deviation of the runs. Intervals are of the mean, 95 %, by "
            "Student’s t, or bootstrapped where the runs are skewed (marked b). Intervals of "
            "ratios are by the delta method on logarithms, with Welch’s degrees of freedom. "
            "Stopping when an interval is small makes it a little too small."
        }
        p {
            "Bimodal: the runs fall into two groups that are further apart than by chance. \
             Drifting: "
            "Mann and Kendall’s test finds a trend that occurs by chance in less than 1 % of \
             series. "
            "Emulated router: a virtual machine without KVM, which shows behaviour and not speed. "
            "Too few CPUs: a rule of thumb counts a sender and a receiver for each guest, and both "
            "ends of every queue that can have a stream."
        }
        @if !commands.is_empty() {
            h3 { "Commands" }
            div.scroll {
                table {
                    tr { th { "Tool" } th { "Version" } th { "Command" } }
                    @for (name, version, command) in commands {
                        tr { td { (name) } td { (version) } td { code { (command) } } }
                    }
                }
            }
        }
    }
}

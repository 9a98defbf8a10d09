//! Tables for people.

use ringway_terminal::table::render;

use crate::backend::Lie;
use crate::record::{GOAL, Record};
use crate::scenario::{Own, Place, Scenario};

/// The measurements, a row per scenario, followed by broken bounds.
pub(crate) fn table(records: &[Record]) -> String {
    let head = [
        "SCENARIO",
        ">TCP BEFORE",
        ">DURING",
        ">SHARE",
        ">FAIR",
        ">LOSS",
        ">TO HOST",
        ">PAUSE",
        ">PING",
        ">REPLY",
        ">MEMORY",
        ">RESTARTS",
        "VERDICT",
    ];
    let rows = records.iter().map(|record| {
        let [before, peak, after] = record.memory_mib;
        vec![
            record.scenario.to_owned(),
            gigabits(record.tcp_before),
            gigabits(record.tcp_during),
            share(record),
            format!("{:.2}", record.fair_share),
            format!("{:.0} %", record.loss_percent),
            format!("{:.0} %", record.host_loss_percent),
            format!("{:.0} ms", record.longest_pause_ms),
            format!("{:.0} ms", record.slowest_ping_ms),
            format!("{:.0} ms", record.slowest_reply_ms),
            format!("{before:.0}/{peak:.0}/{after:.0}"),
            record.restarts.to_string(),
            record.verdict().to_owned(),
        ]
    });
    let mut text = render(&head, rows);
    text += &format!(
        "\nTCP in Gbit/s between two honest guests. SHARE: of what they have beside a process \
         that only\nburns as much CPU, or (~) of what they had before. FAIR: what they are \
         entitled to, 0.50 where\nthe hostile guest has a share of its own because all that it \
         sends is legal; the goal is {GOAL}\nof that. LOSS of pings between them, and to the \
         host. PAUSE: longest time without a byte.\nPING, REPLY: slowest reply to a ping, and of \
         the backend to the command line. MEMORY of the\nbackend in MiB: before, at most, after.\n"
    );
    for record in records {
        for line in &record.broken {
            text += &format!("{}: {}: {line}\n", record.verdict(), record.scenario);
        }
        if let (false, Some(known)) = (record.broken.is_empty(), record.known) {
            text += &format!("known: {}: {known}\n", record.scenario);
        }
        if let Some(reason) = &record.skipped {
            text += &format!("SKIPPED: {}: {reason}\n", record.scenario);
        }
        for note in &record.notes {
            text += &format!("note: {}: {note}\n", record.scenario);
        }
    }
    text
}

/// A line for the progress output.
pub(crate) fn in_short(record: &Record) -> String {
    let mut text = format!(
        "{} -> {} Gbit/s, share {}, loss {:.0} %, pause {:.0} ms",
        gigabits(record.tcp_before),
        gigabits(record.tcp_during),
        share(record),
        record.loss_percent.max(record.host_loss_percent),
        record.longest_pause_ms,
    );
    for line in &record.broken {
        text += &format!("\n         {line}");
    }
    text
}

/// All scenarios.
pub(crate) fn list(scenarios: impl Iterator<Item = &'static Scenario>) -> String {
    let rows = scenarios.map(|scenario| {
        let place = match scenario.place {
            Place::Everywhere => "",
            Place::Emulated => "emulated only",
        };
        let row = [scenario.name, scenario.what, scenario.source, place];
        row.map(str::to_owned).into()
    });
    render(&["SCENARIO", "WHAT THE GUEST DOES", "SOURCE", "WHERE"], rows)
}

/// All lies.
pub(crate) fn lies(lies: &[Lie]) -> String {
    let rows = lies.iter().map(|lie| {
        let own = match lie.own {
            Own::Closed => "leaves",
            Own::Served => "stays",
            Own::Any => "",
        };
        [lie.name, lie.what, lie.source, own].map(str::to_owned).into()
    });
    render(&["LIE", "WHAT THE BACKEND DOES", "SOURCE", "THE FRONTEND"], rows)
}

fn share(record: &Record) -> String {
    let mark = if record.tcp_control.is_some() { "" } else { "~" };
    format!("{mark}{:.2}", record.share)
}

fn gigabits(bits: f64) -> String {
    format!("{:.2}", bits / 1e9)
}

//! `runs.csv`: every run as a row.

use std::collections::BTreeSet;

use crate::analysis::split;
use crate::record::{Cpu, Disturbance, Records, Run};

/// The rows, with a header. All runs have the same columns; values that a run lacks are empty.
pub fn csv(records: &Records) -> Vec<u8> {
    let metrics: BTreeSet<&str> =
        records.runs.iter().flat_map(|run| run.values.keys().map(String::as_str)).collect();
    let mut writer = csv::Writer::from_writer(Vec::new());
    let rows = records.runs.iter().map(|run| row(records, run, &metrics));
    for row in std::iter::once(head(records, &metrics)).chain(rows) {
        writer.write_record(row).expect("all rows have the columns of the head");
    }
    writer.into_inner().expect("memory does not fail")
}

fn head(records: &Records, metrics: &BTreeSet<&str>) -> Vec<String> {
    let first = ["study", "subject", "cell"].map(str::to_owned);
    let axes = records.study.axis.iter().map(|axis| axis.name.clone());
    let middle = ["repeat", "seed", "started", "seconds", "warmup-seconds"].map(str::to_owned);
    let cpu = Cpu::default().stations().map(|(name, _)| format!("cpu-{}", name.replace(' ', "-")));
    let last = ["steal-share", "foreign-share", "cpu-mhz", "split", "tools", "notes"];
    let last = last.map(str::to_owned);
    let metrics = metrics.iter().map(|name| (*name).to_owned());
    first.into_iter().chain(axes).chain(middle).chain(metrics).chain(cpu).chain(last).collect()
}

fn row(records: &Records, run: &Run, metrics: &BTreeSet<&str>) -> Vec<String> {
    let study = &records.study;
    let text = |value: Option<String>| value.unwrap_or_default();
    let mut row = vec![run.study.clone(), run.subject.to_string(), study.label(&run.cell)];
    row.extend(
        study.axis.iter().map(|axis| text(run.cell.get(&axis.name).map(ToString::to_string))),
    );
    row.extend([
        run.repeat.to_string(),
        run.seed.to_string(),
        run.started.clone(),
        run.seconds.to_string(),
        run.warmup_seconds.to_string(),
    ]);
    row.extend(metrics.iter().map(|name| text(run.values.get(*name).map(ToString::to_string))));
    row.extend(run.cpu.stations().map(|(_, seconds)| text(seconds.map(|one| one.to_string()))));
    let Disturbance { steal_share, foreign_share, cpu_mhz } = run.disturbance;
    row.extend(
        [steal_share, foreign_share, cpu_mhz].map(|one| text(one.map(|one| one.to_string()))),
    );
    row.push(text(split(run).map(|parts| crate::placement::name(&parts))));
    let tools = run.tools.iter().map(|tool| format!("{} {}", tool.name, tool.version));
    row.push(tools.collect::<Vec<_>>().join("; "));
    row.push(run.notes.join("; "));
    row
}

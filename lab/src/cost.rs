//! What a packet, a byte, a batch and an interrupt of the guest cost the backend in instructions,
//! from the counts of `ringway-bench icount`, and what a change of code brings: predicted, and
//! measured if the same file has rates.
//!
//! A count of instructions a frame, with batches of b frames of n bytes and e interrupts a batch,
//! is taken as packet + batch / b + byte n + interrupt e / b. Counts with two sizes of batches, two
//! lengths, and with and without interrupts identify all four. The backend's own instructions are
//! counted: what the kernel and the hypervisor do to deliver an interrupt is not among them.

use std::collections::BTreeMap;

use ringway_stats::average::median;
use ringway_stats::{Ratio, ratio};
use serde::{Deserialize, Serialize};

/// The section of the bench that counts instructions.
const SECTION: &str = "icount";
/// The unit of counts that are of frames.
const UNIT: &str = "instr/frame";

/// How the name of a count ends whose guest requests an event, which it gets once a batch.
pub const EVENT: &str = "an event a batch";

/// Measured rates whose sender or receiver is a counted path: the section and the subject, and the
/// path's name up to its direction. The peer of each does least, so that the path sets the pace.
const RATES: [(&str, &str, &str); 2] =
    [("ring", "ringway+bare", "backend"), ("vhost", "ringway", "virtio split")];
/// Directions as names of rates begin, and as those of paths do.
const DIRECTIONS: [(&str, &str); 2] = [("guest->host", "ingress"), ("host->guest", "egress")];

/// Why there are no costs.
#[derive(Debug, thiserror::Error)]
pub enum CostError {
    /// It is not what the bench writes.
    #[error("not a file of `ringway-bench --json FILE icount`: {0}")]
    Malformed(#[from] serde_json::Error),
    /// It has no path with counts of different batches.
    #[error(
        "no path has counts for two sizes of batches, or one more with several lengths of frames: \
         run `ringway-bench --json FILE icount`"
    )]
    Empty,
}

/// What the bench writes, as far as it is read.
#[derive(Debug, Deserialize)]
struct File {
    series: Vec<Series>,
}

#[derive(Debug, Deserialize)]
struct Series {
    case: Case,
    #[serde(default)]
    subject: String,
    runs: Vec<Run>,
}

#[derive(Debug, Deserialize)]
struct Case {
    section: String,
    name: String,
    unit: String,
}

#[derive(Debug, Deserialize)]
struct Run {
    value: f64,
}

/// Frames whose instructions are counted or predicted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Frames in a batch.
    pub batch: f64,
    /// Bytes of a frame.
    pub bytes: f64,
    /// Whether the guest is interrupted once a batch.
    pub interrupts: bool,
}

impl Load {
    /// Interrupts a frame.
    fn interrupts_a_frame(&self) -> f64 {
        if self.interrupts { 1.0 / self.batch } else { 0.0 }
    }
}

/// Instructions a frame in one case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Count {
    /// What was counted.
    pub load: Load,
    /// Instructions a frame.
    pub instructions: f64,
}

/// What one path through the backend costs, in instructions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Cost {
    /// For each frame. If all counts are of one length, it includes their bytes.
    pub packet: f64,
    /// For each batch.
    pub batch: f64,
    /// For each byte; nothing if all counts are of one length.
    pub byte: Option<f64>,
    /// That length, and so the only one of which something is known.
    pub frame: Option<f64>,
    /// For each interrupt of the guest; nothing if no count has one. If each count has one, it is
    /// part of the cost of a batch.
    pub interrupt: Option<f64>,
    /// By how much it misses the count that it misses most, relative to that count.
    pub worst: f64,
}

impl Cost {
    /// The cost that fits best, each count weighing alike; `None` without two sizes of batches, and
    /// if counts of several lengths leave open what belongs to a byte.
    pub fn of(counts: &[Count]) -> Option<Cost> {
        let varies = |of: fn(&Load) -> f64| {
            let first = counts.first().map(|it| of(&it.load));
            counts.iter().any(|it| Some(of(&it.load)) != first)
        };
        if !varies(|it| it.batch) {
            return None;
        }
        let (has_bytes, has_both) =
            (varies(|it| it.bytes), varies(|it| f64::from(u8::from(it.interrupts))));
        let terms = |it: &Load| {
            let byte = has_bytes.then_some(it.bytes);
            let interrupt = has_both.then_some(it.interrupts_a_frame());
            [1.0, 1.0 / it.batch].into_iter().chain(byte).chain(interrupt).collect::<Vec<f64>>()
        };
        let rows: Vec<Vec<f64>> = counts
            .iter()
            .map(|it| terms(&it.load).iter().map(|term| term / it.instructions).collect())
            .collect();
        let found = least_squares(&rows)?;
        let mut rest = found[2..].iter().copied();
        let byte = has_bytes.then(|| rest.next()).flatten();
        let interrupt = rest.next();
        let frame = counts.first().map(|it| it.load.bytes).filter(|_| !has_bytes);
        let (packet, batch) = (found[0], found[1]);
        let mut cost = Cost { packet, batch, byte, frame, interrupt, worst: 0.0 };
        let misses = counts.iter().map(|it| cost.a_frame(&it.load) / it.instructions);
        let worst = misses.map(|ratio| ratio - 1.0).max_by(|a, b| a.abs().total_cmp(&b.abs()));
        cost.worst = worst?;
        found.into_iter().chain([cost.worst]).all(f64::is_finite).then_some(cost)
    }

    /// Whether the counts say what a frame of such a load costs: its bytes, its interrupts, and a
    /// number that is possible.
    pub fn knows(&self, load: &Load) -> bool {
        let is_its = |bytes: f64| (bytes - load.bytes).abs() < 0.5;
        let has_parts = !load.interrupts || self.interrupt.is_some();
        has_parts && self.frame.is_none_or(is_its) && self.a_frame(load) > 0.0
    }

    /// Instructions a frame.
    pub fn a_frame(&self, load: &Load) -> f64 {
        let [byte, interrupt] = [self.byte, self.interrupt].map(|cost| cost.unwrap_or(0.0));
        self.packet
            + self.batch / load.batch
            + byte * load.bytes
            + interrupt * load.interrupts_a_frame()
    }
}

/// What is left of a number that rounding alone keeps from 0, relative to it.
const ROUNDING: f64 = 1e-9;

/// The numbers whose products with each row are nearest to 1; `None` if rows leave them open.
fn least_squares(rows: &[Vec<f64>]) -> Option<Vec<f64>> {
    let count = rows.first()?.len();
    let sum = |of: &dyn Fn(&Vec<f64>) -> f64| rows.iter().map(of).sum::<f64>();
    // The normal equations, each with its right side at the end.
    let equation = |one: usize| {
        let left = (0..count).map(|other| sum(&|row| row[one] * row[other]));
        left.chain([sum(&|row| row[one])]).collect::<Vec<f64>>()
    };
    let mut all: Vec<Vec<f64>> = (0..count).map(equation).collect();
    let sizes: Vec<f64> = (0..count).map(|at| all[at][at]).collect();
    for at in 0..count {
        let pivot = all[at].clone();
        if pivot[at] <= sizes[at] * ROUNDING {
            return None;
        }
        for (_, row) in all.iter_mut().enumerate().filter(|(other, _)| *other != at) {
            let factor = row[at] / pivot[at];
            row.iter_mut().zip(&pivot).for_each(|(value, other)| *value -= factor * other);
        }
    }
    Some((0..count).map(|at| all[at][count] / all[at][at]).collect())
}

/// What a file of the bench says of counted paths, by their names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bench {
    /// What each path costs.
    pub costs: BTreeMap<String, Cost>,
    /// Frames a second of each run, in millions, by path and by the bytes of a frame.
    rates: Vec<(String, u32, Vec<f64>)>,
}

impl Bench {
    /// Reads such a file.
    ///
    /// # Errors
    /// It is no such file, or has no path with different batches.
    pub fn read(text: &str) -> Result<Bench, CostError> {
        let file: File = serde_json::from_str(text)?;
        let mut paths: BTreeMap<String, Vec<Count>> = BTreeMap::new();
        let mut rates = Vec::new();
        for Series { case, subject, runs } in file.series {
            let values: Vec<f64> = runs.iter().map(|run| run.value).collect();
            if case.section != SECTION {
                let rate = rated(&case, &subject);
                rates.extend(rate.map(|(path, bytes)| (path, bytes, values)));
            } else if case.unit == UNIT && !values.is_empty() {
                if let Some((path, count)) = parsed(&case.name, median(&values)) {
                    paths.entry(path).or_default().push(count);
                }
            }
        }
        let cost = |(path, counts): (String, Vec<Count>)| Some((path, Cost::of(&counts)?));
        let costs: BTreeMap<String, Cost> = paths.into_iter().filter_map(cost).collect();
        if costs.is_empty() { Err(CostError::Empty) } else { Ok(Bench { costs, rates }) }
    }

    /// By how many times a path carried more frames of so many bytes than it did in `before`;
    /// `None` if one of the two did not measure that.
    pub fn gain(&self, before: &Bench, path: &str, bytes: u32) -> Option<Ratio> {
        let of = |bench: &Bench| {
            let is_it = |one: &&(String, u32, Vec<f64>)| one.0 == path && one.1 == bytes;
            bench.rates.iter().find(is_it).map(|(_, _, values)| values.clone())
        };
        ratio(&of(self)?, &of(before)?)
    }
}

/// The counted path that sets the pace of a rate such as `guest->host, 64 B, 1 queue(s)`, and the
/// bytes of its frames; `None` if no path does.
fn rated(case: &Case, subject: &str) -> Option<(String, u32)> {
    let is_it = |one: &&(&str, &str, &str)| one.0 == case.section && one.1 == subject;
    let (_, _, path) = RATES.iter().find(is_it)?;
    let [direction, bytes, queues] = case.name.split(", ").collect::<Vec<_>>()[..] else {
        return None;
    };
    let (_, direction) = DIRECTIONS.iter().find(|(name, _)| *name == direction)?;
    let bytes = bytes.strip_suffix(" B")?.parse().ok()?;
    // The names of virtio's paths have no queues: one is meant.
    match *path {
        "backend" => Some((format!("{path} {direction}, {queues}"), bytes)),
        _ => (queues == "1 queue(s)").then(|| (format!("{path} {direction}"), bytes)),
    }
}

/// A path and a count of it from a name such as `virtio split ingress, 64 B, batch 8`; `None` if
/// that says no length or batch, or there is no count.
fn parsed(name: &str, instructions: f64) -> Option<(String, Count)> {
    let (mut path, mut bytes, mut batch, mut interrupts) = (Vec::new(), None, None, false);
    for part in name.split(", ") {
        if part == EVENT {
            interrupts = true;
        } else if let Some(number) = part.strip_suffix(" B").and_then(|it| it.parse::<f64>().ok()) {
            bytes = Some(number);
        } else if let Some(number) = part.strip_prefix("batch ") {
            batch = Some(number.parse().ok().filter(|frames: &f64| *frames > 0.0)?);
        } else {
            path.push(part);
        }
    }
    let is_count = instructions > 0.0 && instructions.is_finite();
    let count = Count { load: Load { batch: batch?, bytes: bytes?, interrupts }, instructions };
    is_count.then(|| (path.join(", "), count))
}

/// What a change of code brings to one path.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Change {
    /// Instructions a frame before and after.
    pub instructions: [f64; 2],
    /// By how many times the capacity of a queue changes, the lower end first: not at all where
    /// something else fills it, and as instructions do where they fill the worker.
    pub capacity: [f64; 2],
}

/// What a measurement says of a prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Agreement {
    /// It contains it.
    Agrees,
    /// More came than was predicted: something else than instructions changed.
    More,
    /// Less came.
    Less,
}

impl Change {
    /// The change from one cost to another.
    pub fn of(before: &Cost, after: &Cost, load: &Load) -> Change {
        let instructions = [before, after].map(|cost| cost.a_frame(load));
        let ratio = instructions[0] / instructions[1];
        Change { instructions, capacity: [ratio.min(1.0), ratio.max(1.0)] }
    }

    /// Whether a measured gain, with its interval, agrees with the capacity's.
    pub fn agrees(&self, measured: &Ratio) -> Agreement {
        let (low, high) = measured
            .interval
            .map_or((measured.value, measured.value), |interval| (interval.low, interval.high));
        match self.capacity {
            [least, _] if high < least => Agreement::Less,
            [_, most] if low > most => Agreement::More,
            _ => Agreement::Agrees,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(rows: &[(f64, f64, f64)]) -> Vec<Count> {
        let count = |&(batch, bytes, instructions): &(f64, f64, f64)| Count {
            load: busy(batch, bytes),
            instructions,
        };
        rows.iter().map(count).collect()
    }

    /// Frames of a guest that is not interrupted.
    fn busy(batch: f64, bytes: f64) -> Load {
        Load { batch, bytes, interrupts: false }
    }

    #[test]
    fn costs_are_found_again_in_counts_made_of_them() {
        let made = |batch: f64, bytes: f64| (batch, bytes, 200.0 + 400.0 / batch + 0.2 * bytes);
        let all = [made(1.0, 64.0), made(8.0, 64.0), made(64.0, 1500.0), made(1.0, 1500.0)];
        let cost = Cost::of(&counts(&all)).expect("two batches");
        let near = |one: f64, other: f64| (one / other - 1.0).abs() < 1e-6;
        assert!(near(cost.packet, 200.0) && near(cost.batch, 400.0), "{cost:?}");
        assert!(near(cost.byte.expect("two lengths"), 0.2) && cost.worst.abs() < 1e-6);
        let short = Cost::of(&counts(&all[..2])).expect("two batches");
        assert_eq!(short.byte, None);
        // Nor does it know longer frames, or any that would cost less than nothing.
        assert!(short.knows(&busy(8.0, 64.0)) && !short.knows(&busy(8.0, 1500.0)), "{short:?}");
        assert!(cost.knows(&busy(8.0, 1000.0)), "{cost:?}");
        let odd = [(1.0, 64.0, 600.0), (64.0, 64.0, 5.0), (1.0, 1500.0, 500.0)];
        let odd = Cost::of(&counts(&odd)).expect("two batches and lengths");
        assert!(!odd.knows(&busy(256.0, 1500.0)), "{odd:?}");
        assert!(near(short.a_frame(&busy(1.0, 64.0)), all[0].2), "{short:?}");
        assert_eq!(Cost::of(&counts(&[all[0], all[3]])), None);
        // Two counts cannot tell a batch from a byte.
        assert_eq!(Cost::of(&counts(&[all[0], all[2]])), None);
        assert_eq!(Cost::of(&counts(&[(1.0, 64.0, 1e-300), (64.0, 64.0, 1e300)])), None);
        assert_eq!(Cost::of(&[]), None);
    }

    #[test]
    fn an_interrupt_is_told_from_a_batch_by_counts_without_one() {
        let load = |batch: f64, interrupts| Load { interrupts, ..busy(batch, 64.0) };
        let made = |load: Load| {
            let interrupt = if load.interrupts { 90.0 } else { 0.0 };
            Count { load, instructions: 200.0 + (400.0 + interrupt) / load.batch }
        };
        let all = [(1.0, false), (8.0, false), (1.0, true), (8.0, true)];
        let all = all.map(|(batch, interrupts)| made(load(batch, interrupts)));
        let near = |one: f64, other: f64| (one / other - 1.0).abs() < 1e-6;
        let cost = Cost::of(&all[..3]).expect("two batches");
        assert!(near(cost.batch, 400.0) && cost.byte.is_none(), "{cost:?}");
        assert!(near(cost.interrupt.expect("with and without"), 90.0), "{cost:?}");
        assert!(near(cost.a_frame(&all[3].load), all[3].instructions), "{cost:?}");
        // Counts that all have one cannot say which part of a batch it is.
        let cost = Cost::of(&all[2..]).expect("two batches");
        assert!(near(cost.batch, 490.0) && cost.interrupt.is_none(), "{cost:?}");
        // An interrupt and a batch that never come apart.
        assert_eq!(Cost::of(&[all[0], all[3]]), None);
    }

    #[test]
    fn a_file_of_the_bench_has_a_cost_for_each_path() {
        let series = |section: &str, unit: &str, name: &str, value: f64| {
            serde_json::json!({
                "case": { "section": section, "name": name, "unit": unit, "better": "less" },
                "subject": "ringway",
                "runs": [{ "round": 0, "value": value, "noise": {} }],
            })
        };
        let all = [
            series(SECTION, UNIT, "virtio split ingress, 64 B, batch 1", 654.0),
            series(SECTION, UNIT, "virtio split ingress, 64 B, batch 64", 216.0),
            series(SECTION, UNIT, "virtio split ingress, 1500 B, batch 64", 462.0),
            series(SECTION, UNIT, "virtio split ingress, 64 B, batch 8, 4 queue(s) in turn", 273.0),
            series(SECTION, UNIT, "virtio split ingress, 64 B, batch 1, an event a batch", 754.0),
            series(SECTION, "instr/round", "round, 1 of 1 vifs active", 4042.0),
            series("ring", "Mpps", "guest->host, 64 B, batch 8", 40.0),
        ];
        let text = serde_json::json!({ "host": {}, "rounds": 1, "series": all, "gaps": [] });
        let costs = Bench::read(&text.to_string()).expect("the bench's").costs;
        assert_eq!(costs.keys().collect::<Vec<_>>(), ["virtio split ingress"]);
        let cost = costs["virtio split ingress"];
        assert!(cost.byte.is_some_and(|byte| byte > 0.1), "{cost:?}");
        assert!(cost.interrupt.is_some_and(|interrupt| (interrupt - 100.0).abs() < 1e-6));
        assert!(matches!(Bench::read("{\"series\": []}"), Err(CostError::Empty)));
        assert!(Bench::read("{}").expect_err("no series").to_string().contains("`series`"));
    }

    /// A file of the bench with counts of one path, and with its rates of some names.
    fn bench(packet: f64, rates: &[(&str, &str, &str, [f64; 3])]) -> Bench {
        let series = |section: &str, subject: &str, (name, unit): (&str, &str), values: &[f64]| {
            let runs = values.iter().map(|value| serde_json::json!({ "value": value }));
            let case = serde_json::json!({ "section": section, "name": name, "unit": unit });
            serde_json::json!({
                "case": case, "subject": subject, "runs": runs.collect::<Vec<_>>(),
            })
        };
        let counts = [1.0, 64.0].map(|batch| {
            let name = format!("backend ingress, 64 B, batch {batch}, 1 queue(s)");
            series(SECTION, "ringway", (&name, UNIT), &[packet + 400.0 / batch])
        });
        let rates = rates.iter().map(|(section, subject, name, values)| {
            series(section, subject, (name, "Mpps"), values)
        });
        let all: Vec<_> = counts.into_iter().chain(rates).collect();
        Bench::read(&serde_json::json!({ "series": all }).to_string()).expect("the bench's")
    }

    #[test]
    fn what_came_of_a_change_is_compared_with_what_its_instructions_say() {
        let one = "guest->host, 64 B, 1 queue(s)";
        let of = |packet: f64, rate: f64| {
            let near = [rate, rate * 1.01, rate * 0.99];
            let other = [1.0, 1.0, 1.0];
            bench(
                packet,
                &[
                    ("ring", "ringway+bare", one, near),
                    ("ring", "ringway+netfront", one, other),
                    ("ring", "ringway+bare", "guest->host, 1500 B, 1 queue(s)", other),
                    ("vhost", "ringway", one, near),
                    ("vhost", "ringway", "guest->host, 64 B, 2 queue(s)", other),
                ],
            )
        };
        let (path, before) = ("backend ingress, 1 queue(s)", of(350.0, 40.0));
        let said = |rate: f64| {
            let after = of(250.0, rate);
            let [old, new] = [&before, &after].map(|bench| &bench.costs[path]);
            let change = Change::of(old, new, &busy(8.0, 64.0));
            change.agrees(&after.gain(&before, path, 64).expect("both measured it"))
        };
        // 400 to 300 instructions: up to 1.33 times as many frames.
        assert_eq!([40.0, 48.0, 53.5].map(said), [Agreement::Agrees; 3]);
        assert_eq!((said(60.0), said(35.0)), (Agreement::More, Agreement::Less));
        let same = before.gain(&before, path, 1500).expect("it is another length");
        assert!((same.value - 1.0).abs() < 1e-9, "{same:?}");
        assert!(before.gain(&before, "virtio split ingress", 64).is_some());
        assert_eq!(before.gain(&before, "backend egress, 1 queue(s)", 64), None);
        assert_eq!(bench(350.0, &[]).gain(&before, path, 64), None);
    }

    /// The counts of a row of a table in `docs/measured`, whose first three columns are of batches
    /// of 1, 8 and 64 frames of 64 bytes.
    fn measured(file: &str, table: &str, row: &str) -> [f64; 3] {
        let path = format!("{}/../docs/measured/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).expect(&path);
        let all: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let tables = all["tables"].as_array().expect("tables");
        let table = tables.iter().find(|it| it["name"] == table).expect(table);
        let rows = table["rows"].as_array().expect("rows");
        let values = &rows.iter().find(|it| it[0] == row).expect(row)[1];
        [0, 1, 2].map(|column| values[column].as_f64().expect("a count"))
    }

    #[test]
    fn what_two_changes_of_this_code_brought_is_predicted_for_a_batch_that_was_not_used() {
        let (switch, virtio) = ("From guest to guest", "Virtio rings, the copy among it");
        let of_switch = |table| measured("icount-switch.json", table, "default rules, UDP");
        let of_virtio = |row| measured("icount.json", virtio, row);
        for [before, after] in [
            [of_switch(switch), of_switch("From guest to guest, 5ed31959")],
            [
                of_virtio("split, to the guest, 9df45e22"),
                of_virtio("split, to the guest, 5ed31959"),
            ],
            [
                of_virtio("split, from the guest, 9df45e22"),
                of_virtio("split, from the guest, 5ed31959"),
            ],
        ] {
            let cost = |[one, _, many]: [f64; 3]| {
                Cost::of(&counts(&[(1.0, 64.0, one), (64.0, 64.0, many)])).expect("two batches")
            };
            let change = Change::of(&cost(before), &cost(after), &busy(8.0, 64.0));
            let [predicted, counted] =
                [change.instructions, [before[1], after[1]]].map(|[old, new]| new / old - 1.0);
            assert!(counted < -0.02, "a change that can be seen: {counted}");
            assert!((predicted - counted).abs() < 0.01, "{predicted} {counted}");
            assert!(change.capacity[0] == 1.0 && change.capacity[1] > 1.02, "{change:?}");
        }
    }
}

//! What the model says about published figures: which it was calibrated on, which it predicts and
//! how well, which one free parameter fits, and which it cannot say anything about.
//!
//! Figures are cited by their ids in `docs/sources.toml`.

use serde::Serialize;

use crate::estimate::Estimate;
use crate::fit::{Data, Fit, FitError, Point};
use crate::line::{Line, Tunnel, window_bps, window_bytes};
use crate::predict::{Parameters, Placed, ways};

/// How a figure and the model are related.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// A parameter was calculated from it.
    CalibratedOn,
    /// It was not used.
    Predicted,
    /// A parameter that nothing else identifies was chosen so that it agrees.
    Fitted,
    /// The published data do not say enough for a prediction.
    NotPredicted,
}

/// A published figure beside the model's.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Figure {
    /// Its place in the sources.
    pub source: &'static str,
    /// What it is a figure of.
    pub what: &'static str,
    /// The figure.
    pub published: f64,
    /// Its unit.
    pub unit: &'static str,
    /// How the model is related to it.
    pub role: Role,
    /// What the model says; nothing if it says nothing.
    pub model: Option<Estimate>,
    /// What it rests on, or why there is nothing.
    pub note: &'static str,
}

impl Figure {
    fn of(source: &'static str, what: &'static str, published: f64, unit: &'static str) -> Figure {
        let (role, model, note) = (Role::NotPredicted, None, "");
        Figure { source, what, published, unit, role, model, note }
    }

    fn with(self, role: Role, model: Estimate, note: &'static str) -> Figure {
        Figure { role, model: Some(model), note, ..self }
    }

    /// Without a word of the model, for a reason.
    fn unknown(self, note: &'static str) -> Figure {
        Figure { note, ..self }
    }

    /// How far the model's value is above the figure, relative to it; `None` without a value.
    pub fn error(&self) -> Option<f64> {
        Some(self.model?.value? / self.published - 1.0)
    }
}

/// All published figures.
///
/// # Errors
/// A figure contradicts another, which no published figure does.
pub fn figures() -> Result<Vec<Figure>, FitError> {
    let mut all = Vec::new();
    all.extend(node(&NODE_NEW)?);
    all.extend(node(&NODE_OLD)?);
    all.extend(transmit()?);
    all.extend(receive()?);
    all.extend(guests()?);
    all.extend(arm64());
    all.extend(rules());
    all.extend(switches());
    all.extend(paths());
    Ok(all)
}

const GBIT: &str = "Gbit/s";

/// The payload of a wire of 10 Gbit/s with plain frames of 1500 bytes, in Gbit/s.
fn ten_gigabit() -> f64 {
    Line::plain(10e9, 1500.0).payload_bps() / 1e9
}

fn point(queues: usize, flows: usize, gbit: f64) -> Point {
    Point {
        name: format!("{queues} queues, {flows} flows"),
        queues,
        flows,
        splits: ways(queues, flows, Placed::Random),
        bps: gbit * 1e9,
        half_width_bps: 0.0,
        cpus_used: [].into(),
        cpus_error: [].into(),
    }
}

fn fitted(points: Vec<Point>, line_bps: Option<f64>) -> Result<Fit, FitError> {
    Fit::of(&Data { points, line_bps, ..Data::default() })
}

/// The throughput that a fit predicts, in Gbit/s.
fn gbit(fit: &Fit, queues: usize, flows: usize) -> Estimate {
    fit.predict(queues, flows, Placed::Random).throughput.times(1e-9)
}

/// A single stream on 8 queues against on 1, which two of the pages call about the same.
fn one_stream(source: &'static str, what: &'static str, fit: &Fit) -> Figure {
    let of = |it: &Parameters, queues| it.outcome(queues, 1, Placed::Random).mean_bps;
    let times = Estimate::over(fit.possible().map(|it| of(it, 8) / of(it, 1)));
    let note = "one flow is on one queue, however many there are";
    Figure::of(source, what, 1.0, "x").with(Role::Predicted, times, note)
}

/// A series of the network node: queues, flows and Gbit/s.
struct Series {
    source: &'static str,
    points: &'static [(usize, usize, f64, &'static str)],
    note: &'static str,
}

const NODE_NEW: Series = Series {
    source: "network-node-blog:new-kernel",
    points: &[
        (1, 6, 3.23, "Linux 4.4: 1 queue, 6 targets"),
        (2, 6, 6.00, "Linux 4.4: 2 queues, 6 targets"),
        (4, 6, 8.02, "Linux 4.4: 4 queues, 6 targets"),
        (8, 6, 8.42, "Linux 4.4: 8 queues, 6 targets"),
        (8, 12, 8.75, "Linux 4.4: 8 queues, 12 targets"),
    ],
    note: "1 and 2 queues; one 10 Gbit/s card for both sides, VXLAN on one",
};

const NODE_OLD: Series = Series {
    source: "network-node-blog:old-kernel",
    points: &[
        (1, 6, 3.28, "Linux 3.13: 1 queue, 6 targets"),
        (2, 6, 3.41, "Linux 3.13: 2 queues, 6 targets"),
        (4, 6, 3.51, "Linux 3.13: 4 queues, 6 targets"),
        (8, 6, 3.57, "Linux 3.13: 8 queues, 6 targets"),
    ],
    note: "1 and 2 queues; the old datapath is serial, which 1 queue cannot show",
};

/// Calibrated on the first two points.
fn node(series: &Series) -> Result<Vec<Figure>, FitError> {
    let wire = Line { tunnel: Tunnel::Vxlan, acks: 0.5, ..Line::plain(10e9, 1500.0) };
    let (base, _) = series.points.split_at(2);
    let points = base.iter().map(|(queues, flows, gbit, _)| point(*queues, *flows, *gbit));
    let fit = fitted(points.collect(), Some(wire.payload_bps()))?;
    let of = |(at, &(queues, flows, published, what)): (usize, &(usize, usize, f64, _))| {
        let role = if at < base.len() { Role::CalibratedOn } else { Role::Predicted };
        let model = gbit(&fit, queues, flows);
        Figure::of(series.source, what, published, GBIT).with(role, model, series.note)
    };
    Ok(series.points.iter().enumerate().map(of).collect())
}

/// One queue at full line length, and what the framing allows.
fn transmit() -> Result<Vec<Figure>, FitError> {
    let fit = fitted(vec![point(1, 8, 6.25)], Some(ten_gigabit() * 1e9))?;
    let alone = "multi-queue-study:tx-one-stream";
    let many = |what| Figure::of("multi-queue-study:tx-many-queues", what, 9.4, GBIT);
    let one = |source, what, published| Figure::of(source, what, published, GBIT);
    let framing = "framing alone: 10 Gbit/s, MTU 1500, TCP timestamps";
    let open = "contention is not identified: no figure for 2 queues is published";
    let drop =
        "the page shows a drop here, without a figure; it needs the guest's use of its 4 CPUs";
    let rounded = "the other figure, 6, rounds it";
    let differ = "from the 6.25 of the study that it sums up: the two disagree by 4 %";
    Ok(vec![
        one_stream(alone, "transmit, 1 stream: 8 queues against 1", &fit),
        one("multi-queue-study:tx-one-queue", "transmit: 1 queue, 8 streams", 6.25).with(
            Role::CalibratedOn,
            gbit(&fit, 1, 8),
            rounded,
        ),
        one("multi-queue-series:tx", "transmit: 1 queue at most", 6.0).with(
            Role::Predicted,
            gbit(&fit, 1, 8),
            differ,
        ),
        many("transmit: line rate").with(Role::Predicted, Estimate::known(ten_gigabit()), framing),
        many("transmit: 4 queues, 8 streams").with(Role::NotPredicted, gbit(&fit, 4, 8), open),
        many("transmit: 8 queues, 8 streams").with(Role::NotPredicted, gbit(&fit, 8, 8), drop),
    ])
}

fn receive() -> Result<Vec<Figure>, FitError> {
    let line = Some(ten_gigabit() * 1e9);
    let alone = fitted(vec![point(1, 8, 1.8)], line)?;
    let both = fitted(vec![point(1, 8, 1.8), point(8, 8, 6.0)], line)?;
    let source = "multi-queue-study:rx";
    let of = |what, published| Figure::of(source, what, published, GBIT);
    let eight = || of("receive: 8 queues, 8 streams", 6.0);
    let open = "from 1 queue alone, contention is not identified";
    let limits = "serial work or a guest's interrupts on one CPU: the figures do not say which";
    Ok(vec![
        one_stream(source, "receive, 1 stream: 8 queues against 1", &alone),
        of("receive: 1 queue", 1.8).with(Role::CalibratedOn, gbit(&alone, 1, 8), "without GRO"),
        eight().with(Role::NotPredicted, gbit(&alone, 8, 8), open),
        eight().with(Role::Fitted, gbit(&both, 8, 8), limits),
    ])
}

/// Guest to guest: one source has a ratio, the other two rates whose ratio is another one.
fn guests() -> Result<Vec<Figure>, FitError> {
    let baseline = 12.0 / 1.71;
    let of_study = fitted(vec![point(1, 8, baseline), point(8, 8, 12.0)], None)?;
    let of_series = fitted(vec![point(1, 8, 6.0), point(8, 8, 12.0)], None)?;
    let alone = fitted(vec![point(1, 8, 6.0)], None)?;
    let ratio = gbit(&of_study, 8, 8).times(1.0 / baseline);
    let study = "multi-queue-study:eight-queues";
    let of = |what, published| Figure::of("multi-queue-series:guests", what, published, GBIT);
    let eight = || of("guest to guest: 8 queues, 8 streams", 12.0);
    let disagree = "the sources disagree: 12 is 171 % of 7.02, and 200 % of 6";
    let open = "from 1 queue alone, contention is not identified, and no line limits it";
    let form = "no figure for 2 queues is published, so the form of contention is unknown";
    Ok(vec![
        Figure::of(study, "guest to guest: 8 queues against 1", 1.71, "x").with(
            Role::Fitted,
            ratio,
            disagree,
        ),
        of("guest to guest: 1 queue, 8 streams", 6.0).with(
            Role::CalibratedOn,
            gbit(&alone, 1, 8),
            disagree,
        ),
        eight().with(Role::NotPredicted, gbit(&alone, 8, 8), open),
        eight().with(Role::Fitted, gbit(&of_series, 8, 8), form),
    ])
}

/// The payload of a segment, with timestamps.
const SEGMENT: f64 = 1448.0;
/// From sending a packet to its release on the Arm64 board, in seconds.
const SEND_TO_FREE: f64 = 180e-6;

fn arm64() -> Vec<Figure> {
    let wire = Line::plain(1e9, 1500.0).payload_bps() / 1e6;
    let flight = |segments: f64| window_bps(segments * SEGMENT, SEND_TO_FREE) / 1e6;
    let rate =
        |what, published| Figure::of("arm64-latency-report:netperf", what, published, "Mbit/s");
    let ddsperf = |what, published| {
        let programs = "neither the program's messages nor what it waits for are published";
        Figure { note: programs, source: "arm64-latency-report:ddsperf", ..rate(what, published) }
    };
    let time = |source, what, published| Figure::of(source, what, published, "us");
    let ping = |what, published| {
        let programs = ddsperf("", 0.0).note;
        time("arm64-latency-report:ping", what, published).unknown(programs)
    };
    let framing = "framing alone: 1 Gbit/s, MTU 1500, TCP timestamps";
    let in_flight = "1 to 2 segments in flight for 180 us each; how many is not published";
    let scheduling = "longer than any service time that is published: scheduling, not queueing";
    let free = "the round trip of what is in flight";
    let (rx, tx) = ("arm64-latency-report:rx", "arm64-latency-report:tx");
    vec![
        rate("Arm64: domain 0", 939.41).with(Role::Predicted, Estimate::known(wire), framing),
        rate("Arm64: guest", 107.73).with(
            Role::NotPredicted,
            Estimate::range(flight(1.0), flight(2.0)),
            in_flight,
        ),
        ddsperf("Arm64: domain 0, ddsperf, at least", 620.0),
        ddsperf("Arm64: guest, ddsperf, at least", 4.0),
        ddsperf("Arm64: guest, ddsperf, at most", 12.0),
        ping("Arm64: longest round trip, domain 0, at least", 200.0),
        ping("Arm64: longest round trip, domain 0, at most", 1400.0),
        ping("Arm64: longest round trip, guest, at least", 60_000.0).unknown(scheduling),
        time(rx, "Arm64: service of a packet to the guest, at least", 30.0)
            .unknown("no figure depends on it alone"),
        time(tx, "Arm64: from send to free, at least", 180.0).with(
            Role::CalibratedOn,
            Estimate::known(SEND_TO_FREE * 1e6),
            free,
        ),
        time("arm64-latency-report:domain-switch", "Arm64: switch of domains", 10.0)
            .unknown("how many of the 180 us are switches is not said"),
    ]
}

/// Threads of the backend of before Linux 3.12: no more than 4, however many CPUs domain 0 has.
pub fn old_threads(cpus: usize) -> usize {
    cpus.min(4)
}

/// Rules of thumb about threads and CPUs, as far as they have a figure.
fn rules() -> Vec<Figure> {
    let threads = |cpus| Estimate::known(ringway_stats::float(old_threads(cpus)));
    let netback = "threads of the old backend with 8 CPUs";
    let own = "min(4, CPUs of domain 0): stations of their own, so more CPUs gain nothing";
    let part = "between nothing and all of 4 CPUs: needs the interrupts' part of the full CPU";
    let pairs = |what, flows, note| {
        Figure::of("throughput-guide:pairs-and-threads", what, flows, "").unknown(note)
    };
    let left = "CPUs left to domain 0 by the best number of guests";
    let each = "guests of one full CPU each, and one CPU for each thread of the old backend";
    vec![
        Figure::of("throughput-guide:netback-threads", netback, 4.0, "").with(
            Role::CalibratedOn,
            threads(8),
            own,
        ),
        Figure::of("throughput-guide:irqbalance", "irqbalance", 1.16, "x").with(
            Role::NotPredicted,
            Estimate::range(1.0, 4.0),
            part,
        ),
        pairs(
            "best load for Linux guests: flows",
            16.0,
            "8 pairs with 2 threads each; no throughput is published",
        ),
        pairs(
            "best load for Windows guests: flows",
            32.0,
            "4 pairs with 8 threads each; no throughput is published",
        ),
        Figure::of("throughput-guide:one-cpu-guests", left, 4.0, "").with(
            Role::Predicted,
            threads(usize::MAX),
            each,
        ),
    ]
}

/// Open vSwitch against a bridge, on three paths.
fn switches() -> impl Iterator<Item = Figure> {
    let paths = [
        ("Open vSwitch against a bridge, domain 0 to domain 0", 1.0),
        ("Open vSwitch against a bridge, Linux guests", 0.97),
        ("Open vSwitch against a bridge, Windows guests", 0.90),
    ];
    let note = "needs what each switch costs for a packet";
    paths.into_iter().map(move |(what, published)| {
        Figure::of("throughput-guide:ovs-or-bridge", what, published, "x").with(
            Role::NotPredicted,
            Estimate::range(0.0, 1.0),
            note,
        )
    })
}

/// What is said of paths: cards, frames, windows.
fn paths() -> Vec<Figure> {
    let jumbo = Line::plain(10e9, 9000.0).payload_bps() / 1e9;
    let open = |figure: Figure, low, high, note| {
        figure.with(Role::NotPredicted, Estimate::range(low, high), note)
    };
    let of = |source, what, published| Figure::of(source, what, published, GBIT);
    let card = "SR-IOV: a guest of one CPU, nearly the line";
    let frames = "jumbo frames: a line of 10 Gbit/s";
    let window = "window for 100 ms at 10 Gbit/s";
    let ports = "an instance, ideally, on two ports of 10 Gbit/s";
    vec![
        open(
            of("throughput-guide:sr-iov-gain", card, 10.0),
            0.0,
            ten_gigabit(),
            "the line's payload at most; the cost of a packet is not published",
        ),
        open(
            of("throughput-guide:jumbo-frames", frames, 10.0),
            ten_gigabit(),
            jumbo,
            "no gain is published; framing alone gives 5 %, a CPU that is full of packets up to 6x",
        ),
        Figure::of("throughput-guide:bdp", window, 134_217_728.0, "bytes").with(
            Role::Predicted,
            Estimate::known(window_bytes(10e9, 0.1)),
            "10^9 bit; the guide rounds to 2^30",
        ),
        open(
            of("network-node-blog:ideal", ports, 20.0),
            2.0 * ten_gigabit(),
            20.0,
            "the payload of two lines, or the lines themselves; one flow has only one of them",
        ),
        of("network-node-blog:starving", "an instance before, at most", 2.0)
            .unknown("the set-up then was not that of the series with 1 queue"),
    ]
}

//! What the model says about published figures: which it was calibrated on, which it predicts and
//! how well, which one free parameter fits, and which it cannot say anything about.
//!
//! Figures are cited by their ids in `docs/sources.toml`.

use serde::Serialize;

use crate::estimate::Estimate;
use crate::fit::{Data, Fit, FitError, Point};
use crate::line::{Line, Tunnel, window_bps, window_bytes};
use crate::predict::{Placed, Window, ways};

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

fn figure(
    source: &'static str,
    what: &'static str,
    published: f64,
    unit: &'static str,
    role: Role,
    model: Option<Estimate>,
    note: &'static str,
) -> Figure {
    Figure { source, what, published, unit, role, model, note }
}

/// The payload of a wire of 10 Gbit/s with plain frames of 1500 bytes.
fn ten_gigabit() -> f64 {
    Line::plain(10e9, 1500.0).payload_bps()
}

const fn known(value: f64) -> Option<Estimate> {
    Some(Estimate { value: Some(value), low: value, high: value })
}

const fn range(low: f64, high: f64) -> Option<Estimate> {
    Some(Estimate { value: None, low, high })
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
    }
}

fn fitted(points: Vec<Point>, line_bps: Option<f64>) -> Result<Fit, FitError> {
    let (window, cpus) = (Window::default(), [].into());
    Fit::of(&Data { points, line_bps, window, cpus })
}

/// The throughput that a fit predicts, in Gbit/s.
fn gbit(fit: &Fit, queues: usize, flows: usize) -> Option<Estimate> {
    Some(fit.predict(queues, flows, Placed::Random).throughput.times(1e-9))
}

/// A single stream on 8 queues against on 1, which two of the pages call about the same.
fn one_stream(source: &'static str, what: &'static str, fit: &Fit) -> Figure {
    let one = gbit(fit, 1, 1).and_then(|it| it.value).unwrap_or(f64::NAN);
    let times = gbit(fit, 8, 1).map(|it| it.times(1.0 / one));
    let note = "one flow is on one queue, however many there are";
    figure(source, what, 1.0, "x", Role::Predicted, times, note)
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
    let mut figures = Vec::new();
    for (at, &(queues, flows, published, what)) in series.points.iter().enumerate() {
        let role = if at < base.len() { Role::CalibratedOn } else { Role::Predicted };
        let model = gbit(&fit, queues, flows);
        figures.push(figure(series.source, what, published, "Gbit/s", role, model, series.note));
    }
    Ok(figures)
}

/// One queue at full line length, and what the framing allows.
fn transmit() -> Result<Vec<Figure>, FitError> {
    let fit = fitted(vec![point(1, 8, 6.25)], Some(ten_gigabit()))?;
    let figure = |source, what, published, role, model, note| {
        figure(source, what, published, "Gbit/s", role, model, note)
    };
    let alone = "multi-queue-study:tx-one-stream";
    Ok(vec![
        one_stream(alone, "transmit, 1 stream: 8 queues against 1", &fit),
        figure(
            "multi-queue-study:tx-one-queue",
            "transmit: 1 queue, 8 streams",
            6.25,
            Role::CalibratedOn,
            gbit(&fit, 1, 8),
            "the other figure, 6, rounds it",
        ),
        figure(
            "multi-queue-series:tx",
            "transmit: 1 queue at most",
            6.0,
            Role::Predicted,
            gbit(&fit, 1, 8),
            "from the 6.25 of the study that it sums up: the two disagree by 4 %",
        ),
        figure(
            "multi-queue-study:tx-many-queues",
            "transmit: line rate",
            9.4,
            Role::Predicted,
            known(ten_gigabit() / 1e9),
            "framing alone: 10 Gbit/s, MTU 1500, TCP timestamps",
        ),
        figure(
            "multi-queue-study:tx-many-queues",
            "transmit: 4 queues, 8 streams",
            9.4,
            Role::NotPredicted,
            gbit(&fit, 4, 8),
            "contention is not identified: no figure for 2 queues is published",
        ),
        figure(
            "multi-queue-study:tx-many-queues",
            "transmit: 8 queues, 8 streams",
            9.4,
            Role::NotPredicted,
            gbit(&fit, 8, 8),
            "the page shows a drop here, without a figure; it needs the guest's use of its 4 CPUs",
        ),
    ])
}

fn receive() -> Result<Vec<Figure>, FitError> {
    let line = Some(ten_gigabit());
    let alone = fitted(vec![point(1, 8, 1.8)], line)?;
    let both = fitted(vec![point(1, 8, 1.8), point(8, 8, 6.0)], line)?;
    let figure = |what, published, role, model, note| {
        figure("multi-queue-study:rx", what, published, "Gbit/s", role, model, note)
    };
    let limits = "serial work or a guest's interrupts on one CPU: the figures do not say which";
    Ok(vec![
        one_stream("multi-queue-study:rx", "receive, 1 stream: 8 queues against 1", &alone),
        figure("receive: 1 queue", 1.8, Role::CalibratedOn, gbit(&alone, 1, 8), "without GRO"),
        figure(
            "receive: 8 queues, 8 streams",
            6.0,
            Role::NotPredicted,
            gbit(&alone, 8, 8),
            "from 1 queue alone, contention is not identified",
        ),
        figure("receive: 8 queues, 8 streams", 6.0, Role::Fitted, gbit(&both, 8, 8), limits),
    ])
}

/// Guest to guest: one source has a ratio, the other two rates whose ratio is another one.
fn guests() -> Result<Vec<Figure>, FitError> {
    let baseline = 12.0 / 1.71;
    let of_study = fitted(vec![point(1, 8, baseline), point(8, 8, 12.0)], None)?;
    let of_series = fitted(vec![point(1, 8, 6.0), point(8, 8, 12.0)], None)?;
    let alone = fitted(vec![point(1, 8, 6.0)], None)?;
    let ratio = gbit(&of_study, 8, 8).map(|it| it.times(1.0 / baseline));
    let series = "multi-queue-series:guests";
    let disagree = "the sources disagree: 12 is 171 % of 7.02, and 200 % of 6";
    Ok(vec![
        figure(
            "multi-queue-study:eight-queues",
            "guest to guest: 8 queues against 1",
            1.71,
            "x",
            Role::Fitted,
            ratio,
            disagree,
        ),
        figure(
            series,
            "guest to guest: 1 queue, 8 streams",
            6.0,
            "Gbit/s",
            Role::CalibratedOn,
            gbit(&alone, 1, 8),
            disagree,
        ),
        figure(
            series,
            "guest to guest: 8 queues, 8 streams",
            12.0,
            "Gbit/s",
            Role::NotPredicted,
            gbit(&alone, 8, 8),
            "from 1 queue alone, contention is not identified, and no line limits it",
        ),
        figure(
            series,
            "guest to guest: 8 queues, 8 streams",
            12.0,
            "Gbit/s",
            Role::Fitted,
            gbit(&of_series, 8, 8),
            "no figure for 2 queues is published, so the form of contention is unknown",
        ),
    ])
}

/// The payload of a segment, with timestamps.
const SEGMENT: f64 = 1448.0;
/// From sending a packet to its release on the Arm64 board, in seconds.
const SEND_TO_FREE: f64 = 180e-6;

fn arm64() -> Vec<Figure> {
    let wire = Line::plain(1e9, 1500.0).payload_bps() / 1e6;
    let flight = |segments: f64| window_bps(segments * SEGMENT, SEND_TO_FREE) / 1e6;
    let figure = |source, what, published, role, model, note| {
        figure(source, what, published, "Mbit/s", role, model, note)
    };
    let programs = "neither the program's messages nor what it waits for are published";
    let waits = |what, published, note| Figure {
        unit: "us",
        ..figure("arm64-latency-report:ping", what, published, Role::NotPredicted, None, note)
    };
    let place = "arm64-latency-report:netperf";
    let ddsperf = "arm64-latency-report:ddsperf";
    let framing = "framing alone: 1 Gbit/s, MTU 1500, TCP timestamps";
    let in_flight = "1 to 2 segments in flight for 180 us each; how many is not published";
    let scheduling = "longer than any service time that is published: scheduling, not queueing";
    vec![
        figure(place, "Arm64: domain 0", 939.41, Role::Predicted, known(wire), framing),
        figure(
            place,
            "Arm64: guest",
            107.73,
            Role::NotPredicted,
            range(flight(1.0), flight(2.0)),
            in_flight,
        ),
        figure(ddsperf, "Arm64: domain 0, ddsperf", 620.0, Role::NotPredicted, None, programs),
        figure(ddsperf, "Arm64: guest, ddsperf, at least", 4.0, Role::NotPredicted, None, programs),
        figure(ddsperf, "Arm64: guest, ddsperf, at most", 12.0, Role::NotPredicted, None, programs),
        waits("Arm64: longest round trip, domain 0, at least", 200.0, programs),
        waits("Arm64: longest round trip, domain 0, at most", 1400.0, programs),
        waits("Arm64: longest round trip, guest, at least", 60_000.0, scheduling),
        Figure {
            source: "arm64-latency-report:rx",
            ..waits("Arm64: service of a packet to the guest", 30.0, "a time that the model takes")
        },
        Figure {
            source: "arm64-latency-report:tx",
            role: Role::CalibratedOn,
            model: known(SEND_TO_FREE * 1e6),
            ..waits("Arm64: from send to free", 180.0, "the round trip of what is in flight")
        },
        Figure {
            source: "arm64-latency-report:domain-switch",
            ..waits(
                "Arm64: switch of domains",
                10.0,
                "how many of the 180 us are switches is not said",
            )
        },
    ]
}

/// Threads of the backend of before Linux 3.12: no more than 4, however many CPUs domain 0 has.
pub fn old_threads(cpus: usize) -> usize {
    cpus.min(4)
}

/// Rules of thumb about threads and CPUs, as far as they have a figure.
fn rules() -> Vec<Figure> {
    vec![
        figure(
            "throughput-guide:netback-threads",
            "threads of the old backend with 8 CPUs",
            4.0,
            "",
            Role::CalibratedOn,
            known(ringway_stats::float(old_threads(8))),
            "min(4, CPUs of domain 0): stations of their own, so more CPUs gain nothing",
        ),
        figure(
            "throughput-guide:irqbalance",
            "irqbalance",
            1.16,
            "x",
            Role::NotPredicted,
            range(1.0, 4.0),
            "between nothing and all of 4 CPUs: needs the interrupts' part of the full CPU",
        ),
        figure(
            "throughput-guide:pairs-and-threads",
            "best load for Linux guests: flows",
            16.0,
            "",
            Role::NotPredicted,
            None,
            "8 pairs with 2 threads each; no throughput is published",
        ),
        figure(
            "throughput-guide:pairs-and-threads",
            "best load for Windows guests: flows",
            32.0,
            "",
            Role::NotPredicted,
            None,
            "4 pairs with 8 threads each; no throughput is published",
        ),
        figure(
            "throughput-guide:one-cpu-guests",
            "CPUs left to domain 0 by the best number of guests",
            4.0,
            "",
            Role::Predicted,
            known(ringway_stats::float(old_threads(usize::MAX))),
            "guests of one full CPU each, and one CPU for each thread of the old backend",
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
    let source = "throughput-guide:ovs-or-bridge";
    let note = "needs what each switch costs for a packet";
    paths.into_iter().map(move |(what, published)| {
        figure(source, what, published, "x", Role::NotPredicted, range(0.0, 1.0), note)
    })
}

/// What is said of paths: cards, frames, windows.
fn paths() -> Vec<Figure> {
    let bytes = window_bytes(10e9, 0.1);
    let jumbo = Line::plain(10e9, 9000.0).payload_bps() / 1e9;
    vec![
        figure(
            "throughput-guide:sr-iov-gain",
            "SR-IOV: a guest of one CPU, nearly the line",
            10.0,
            "Gbit/s",
            Role::NotPredicted,
            range(0.0, ten_gigabit() / 1e9),
            "the line's payload at most; the cost of a packet is not published",
        ),
        figure(
            "throughput-guide:jumbo-frames",
            "jumbo frames: payload of 10 Gbit/s",
            10.0,
            "Gbit/s",
            Role::NotPredicted,
            range(ten_gigabit() / 1e9, jumbo),
            "no gain is published; framing alone gives 5 %, a CPU that is full of packets up to 6x",
        ),
        figure(
            "throughput-guide:bdp",
            "window for 100 ms at 10 Gbit/s",
            134_217_728.0,
            "bytes",
            Role::Predicted,
            known(bytes),
            "10^9 bit; the guide rounds to 2^30",
        ),
        figure(
            "network-node-blog:ideal",
            "an instance, ideally, on two ports of 10 Gbit/s",
            20.0,
            "Gbit/s",
            Role::Predicted,
            known(2.0 * ten_gigabit() / 1e9),
            "the payload of two lines; one flow has only one of them",
        ),
        figure(
            "network-node-blog:starving",
            "an instance before, at most",
            2.0,
            "Gbit/s",
            Role::NotPredicted,
            None,
            "the set-up then was not that of the series with 1 queue",
        ),
    ]
}

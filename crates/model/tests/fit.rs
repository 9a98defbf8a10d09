//! Parameters are found again in what they predict, and stay ranges where nothing identifies them.

use std::collections::BTreeMap;

use ringway_model::contention::Contention;
use ringway_model::fit::{Data, Fit, Point};
use ringway_model::predict::{Parameters, Placed, Window, ways};

const TRUE: Parameters = Parameters {
    queue_bps: 3e9,
    contention: Contention { serial: 0.1, pairwise: 0.01 },
    shared_bps: 20e9,
    window: Window { bytes: 262_144.0, chunk: 65_536.0, delay: 50e-6 },
};

fn measured(cells: &[(usize, usize)], half_width_bps: f64) -> Data {
    let point = |(queues, flows): &(usize, usize)| Point {
        name: format!("q{queues}.s{flows}"),
        queues: *queues,
        flows: *flows,
        splits: ways(*queues, *flows, Placed::Random),
        bps: TRUE.outcome(*queues, *flows, Placed::Random).mean_bps,
        half_width_bps,
        cpus_used: BTreeMap::new(),
        cpus_error: BTreeMap::new(),
    };
    let points = cells.iter().map(point).collect();
    Data { points, line_bps: Some(TRUE.shared_bps), ..Data::default() }
}

#[test]
fn parameters_are_found_again_in_what_they_predict() {
    let cells = [(1, 1), (1, 8), (2, 8), (4, 8), (8, 8)];
    let fit = Fit::of(&measured(&cells, 0.0)).expect("enough");
    assert!((fit.best.window.delay / 50e-6 - 1.0).abs() < 0.02, "{fit:?}");
    assert!((fit.best.queue_bps / TRUE.queue_bps - 1.0).abs() < 1e-3, "{fit:?}");
    assert!((fit.best.contention.serial - 0.1).abs() < 5e-3, "{fit:?}");
    assert!((fit.best.contention.pairwise - 0.01).abs() < 1e-3, "{fit:?}");
    assert_eq!(fit.missing(), None);
    let predicted = fit.predict(6, 8, Placed::Evenly).throughput.value.expect("identified");
    assert!((predicted / TRUE.outcome(6, 8, Placed::Evenly).mean_bps - 1.0).abs() < 5e-3);
}

#[test]
fn one_queue_gives_itself_and_a_range_for_more() {
    let fit = Fit::of(&measured(&[(1, 8)], 0.0)).expect("one queue is enough");
    let one = fit.predict(1, 8, Placed::Random).throughput.value.expect("measured");
    assert!((one / measured(&[(1, 8)], 0.0).points[0].bps - 1.0).abs() < 1e-6);
    let more = fit.predict(4, 8, Placed::Random).throughput;
    assert_eq!(more.value, None, "{more:?}");
    let truth = TRUE.outcome(4, 8, Placed::Random).mean_bps;
    assert!(more.low < truth && truth < more.high);
    assert!(fit.missing().is_some_and(|it| it.name == "serial part of the work"));
}

#[test]
fn one_queue_that_fills_the_line_with_some_flows_fills_it() {
    // As measured; with eight flows less than with four, by chance.
    let mut data = measured(&[(1, 1), (1, 2), (1, 4), (1, 8)], 0.1e9);
    for (point, gbps) in data.points.iter_mut().zip([9.06, 9.31, 9.38, 9.10]) {
        point.bps = gbps * 1e9;
    }
    let fit = Fit::of(&Data { line_bps: Some(9.41e9), ..data }).expect("one queue is enough");
    let capacity = &fit.parameters[0];
    assert!(capacity.estimate.value.is_none() && capacity.missing.is_some(), "{capacity:?}");
    for (queues, flows) in [(1, 1), (4, 1), (8, 8)] {
        let bps = fit.predict(queues, flows, Placed::Random).throughput.value.expect("the line");
        assert!((9.2e9..9.42e9).contains(&bps), "{queues} queues, {flows} flows: {bps}");
    }
}

#[test]
fn one_queue_that_fills_the_line_with_many_flows_leaves_few_a_range() {
    let mut data = measured(&[(1, 8)], 0.0);
    data.points[0].bps = 9.3e9;
    let data = Data { line_bps: Some(9.41e9), ..data };
    let fit = Fit::of(&data).expect("one queue is enough");
    let of = |fit: &Fit, flows| fit.predict(1, flows, Placed::Random);
    assert!(of(&fit, 8).throughput.value.is_some(), "it was measured");
    // One flow may fill the line, or wait for its window: eight windows in 1.2 ms fill it, too.
    let one = of(&fit, 1);
    assert_eq!(one.throughput.value, None, "{one:?}");
    assert!(one.throughput.low < 2e9 && one.throughput.high > 9e9, "{one:?}");
    let run = one.missing.and_then(|it| it.missing).expect("the delay is unknown");
    assert_eq!(run, "1 queue with 1 flow");
    // On a short path only the capacity of the queue is open, which takes little from one flow.
    let near = Fit::of(&Data { is_delay_known: true, ..data }).expect("one queue");
    let one = of(&near, 1).throughput;
    assert!(one.value.is_some() && one.low > 7e9 && one.low < 8e9, "{one:?}");
    // Of two queues nothing is known but that they carry no less than one.
    let two = near.predict(8, 2, Placed::Random).throughput;
    assert!(two.value.is_some() && two.low < 8e9 && two.low > one.low, "{two:?}");
    // A flow that fills the line by itself shows no delay either.
    let mut both = measured(&[(1, 1), (1, 8)], 0.0);
    both.points.iter_mut().for_each(|point| point.bps = 9.3e9);
    let full = Fit::of(&Data { line_bps: Some(9.41e9), ..both }).expect("one queue");
    let run = full.parameters[3].missing.as_deref().expect("the delay is unknown");
    assert_eq!(run, "1 queue with 1 flow and a smaller window");
}

#[test]
fn stations_without_variation_are_in_the_interval() {
    // A queue of 6.25 Gbit/s and a line of 9.415, and nothing waits before one of them is full:
    // eight flows on two queues miss the line in 2 of 256 ways.
    let mut data = Data { is_delay_known: true, ..measured(&[(1, 8), (2, 8)], 0.0) };
    (data.points[0].bps, data.points[1].bps) = (6.25e9, 9.390e9);
    data.line_bps = Some(9.415e9);
    let fit = Fit::of(&data).expect("enough");
    let of = |queues, flows| fit.predict(queues, flows, Placed::Random).throughput;
    let (one, two) = (of(1, 1), of(2, 2));
    assert!((one.high / 6.25e9 - 1.0).abs() < 0.01 && one.low < 6e9, "{one:?}");
    // Two are on one queue half of the time.
    assert!(two.low < 7.832e9 && two.high > 7.83e9, "{two:?}");
    assert!(one.value.is_some() && two.value.is_some(), "{one:?} {two:?}");
}

#[test]
fn few_flows_that_do_not_fill_the_line_show_their_delay() {
    // On a path of 1 ms one flow has 2 Gbit/s of its window, and eight fill the line.
    let window = Window { delay: 1e-3, ..Window::default() };
    let truth = Parameters { queue_bps: 40e9, shared_bps: 9.41e9, window, ..TRUE };
    let of = |it: &Parameters, flows| it.outcome(1, flows, Placed::Random).mean_bps;
    let mut data = measured(&[(1, 1), (1, 8)], 0.0);
    for point in &mut data.points {
        point.bps = of(&truth, point.flows);
    }
    let fit = Fit::of(&Data { line_bps: Some(9.41e9), ..data.clone() }).expect("one queue");
    assert!(data.points[1].bps > 9.2e9, "it fills the line: {data:?}");
    assert_eq!((fit.parameters[0].estimate.value, fit.unexplained().len()), (None, 0), "{fit:?}");
    let delay = fit.parameters[3].estimate.value.expect("one flow shows it");
    assert!((delay / 1e-3 - 1.0).abs() < 0.05, "{delay}");
    for flows in [1, 2, 3, 8] {
        let bps = fit.predict(1, flows, Placed::Random).throughput.value.expect("it is known");
        assert!((bps / of(&truth, flows) - 1.0).abs() < 0.03, "{flows} flows: {bps}");
    }
}

#[test]
fn capacity_and_delay_are_found_where_each_hides_the_other() {
    // Of a queue of 1 Gbit/s, one flow has 0.23 on a path of 2 ms, and two 0.45.
    let window = Window { bytes: 65_536.0, delay: 2e-3, ..Window::default() };
    let truth = Parameters { queue_bps: 1e9, window, contention: Contention::default(), ..TRUE };
    let mut data = measured(&[(1, 1), (1, 2)], 0.0);
    for point in &mut data.points {
        point.bps = truth.over(&point.splits).mean_bps;
    }
    let usual = Window { bytes: 65_536.0, ..Window::default() };
    let fit = Fit::of(&Data { window: usual, ..data }).expect("one queue is enough");
    assert!((fit.best.queue_bps / 1e9 - 1.0).abs() < 0.01, "{:?}", fit.best);
    assert!((fit.best.window.delay / 2e-3 - 1.0).abs() < 0.01, "{:?}", fit.best);
}

#[test]
fn few_flows_on_a_long_path_may_stand_for_a_slow_queue() {
    // Two flows have 51 Mbit/s, by their windows in 20 ms, and eight over four queues four times
    // as much: a little more than four queues of 51 would carry.
    let window = Window { bytes: 65_536.0, delay: 20e-3, ..Window::default() };
    let truth = Parameters { queue_bps: 4.6e9, window, contention: Contention::default(), ..TRUE };
    let mut data = measured(&[(1, 2), (4, 8)], 0.0);
    for point in &mut data.points {
        point.bps = truth.over(&point.splits).mean_bps;
    }
    let usual = Window { bytes: 65_536.0, ..Window::default() };
    let data = Data { window: usual, ..data };
    let many = |data: &Data| {
        let fit = Fit::of(data).expect("one queue is enough");
        fit.predict(1, 8, Placed::Random).throughput
    };
    let open = many(&data);
    assert!(open.value.is_none() && open.high > 0.2e9, "{open:?}");
    // One flow shows it, on whichever of several queues it is.
    let mut one = measured(&[(8, 1)], 0.0).points.remove(0);
    one.bps = truth.over(&one.splits).mean_bps;
    let shown = many(&Data { points: [data.points.clone(), vec![one]].concat(), ..data.clone() });
    assert!(shown.value.is_none_or(|bps| bps > 0.19e9) && shown.high > 0.2e9, "{shown:?}");
}

#[test]
fn flows_that_nearly_fill_a_queue_show_no_delay() {
    // Four carry a percent less than eight, which may be noise.
    let mut data = measured(&[(1, 4), (1, 8), (2, 8)], 0.0);
    for (point, gbps) in data.points.iter_mut().zip([6.2, 6.25, 9.0]) {
        point.bps = gbps * 1e9;
    }
    let fit = Fit::of(&data).expect("one queue is enough");
    let one = fit.predict(1, 1, Placed::Random);
    assert_eq!(one.throughput.value, None, "{one:?}");
    assert!(one.throughput.low < 3e9 && one.throughput.high > 6e9, "{one:?}");
    let run = one.missing.and_then(|it| it.missing).expect("the delay is unknown");
    assert_eq!(run, "1 queue with 1 flow");
}

#[test]
fn points_that_fill_the_line_bound_contention() {
    // The published study.
    let mut data = measured(&[(1, 8), (4, 8), (8, 8)], 0.0);
    for (point, gbps) in data.points.iter_mut().zip([6.25, 9.4, 9.4]) {
        point.bps = gbps * 1e9;
    }
    let fit = Fit::of(&Data { line_bps: Some(9.415e9), ..data }).expect("one queue is enough");
    let four = fit.predict(4, 8, Placed::Random).throughput;
    assert!(four.value.is_some_and(|bps| bps > 9.1e9), "{four:?}");
    let serial = &fit.parameters[1];
    assert!(serial.estimate.value.is_none() && serial.estimate.high < 0.9, "{serial:?}");
}

#[test]
fn a_delay_that_nothing_shows_leaves_fewer_flows_a_range() {
    let data = measured(&[(1, 8)], 0.0);
    let one = |data: &Data| {
        let fit = Fit::of(data).expect("one queue is enough");
        fit.predict(1, 1, Placed::Random).throughput
    };
    let open = one(&data);
    assert!(open.value.is_none() && open.low < 0.5e9 && open.high > 2.5e9, "{open:?}");
    assert!(one(&Data { is_delay_known: true, ..data }).value.is_some());
}

#[test]
fn a_queue_that_windows_do_not_fill_has_no_known_capacity() {
    let window = Window { bytes: 65_536.0, delay: 20e-3, ..Window::default() };
    let mut data = Data { window, is_delay_known: true, ..measured(&[(1, 8)], 0.0) };
    // Eight windows in a round trip carry 0.21 Gbit/s.
    data.points[0].bps = 0.2e9;
    let fit = Fit::of(&data).expect("one queue is enough");
    let capacity = &fit.parameters[0];
    assert!(capacity.estimate.value.is_none(), "{capacity:?}");
    assert!(capacity.missing.as_ref().is_some_and(|run| run.contains("larger windows")));
    let more = fit.predict(1, 64, Placed::Random).throughput;
    assert!(more.value.is_none() && more.low < 0.8e9 && more.high > 1.4e9, "{more:?}");
    // Nothing but the line bounds what that queue may carry.
    let many = fit.predict(1, 1000, Placed::Random).throughput;
    assert!(many.value.is_none() && many.high > 15e9, "{many:?}");
}

#[test]
fn many_flows_on_a_long_path_are_predicted() {
    let window = Window { delay: 20e-3, ..Window::default() };
    let mut data = Data { window, is_delay_known: true, ..measured(&[(1, 8)], 0.0) };
    data.points[0].bps = 0.6e9;
    let fit = Fit::of(&data).expect("one queue is enough");
    for flows in [48, 128, 10_000] {
        let it = fit.predict(1, flows, Placed::Random).throughput;
        assert!(it.low > 0.5e9 && it.low <= it.high && it.high.is_finite(), "{flows}: {it:?}");
    }
}

#[test]
fn what_may_be_twice_as_much_has_no_value() {
    // One flow may be all that its queue carries, or all that its window does.
    let fit = Fit::of(&measured(&[(1, 1)], 0.0)).expect("one queue is enough");
    let eight = fit.predict(1, 8, Placed::Random);
    assert!(eight.throughput.value.is_none() && eight.throughput.high > 15e9, "{eight:?}");
    assert!(eight.missing.is_some_and(|it| it.name == "delay of a flow"));
    // Points that contradict each other identify nothing, and no run is missing.
    let mut data = measured(&[(1, 1), (1, 8), (2, 8), (4, 8)], 0.0);
    (data.points[2].bps, data.points[3].bps) = (1e9, 9e9);
    let four = Fit::of(&data).expect("one queue is enough").predict(4, 8, Placed::Random);
    assert!(four.throughput.value.is_none() && four.throughput.high > 8.9e9, "{four:?}");
    assert_eq!(four.missing, None);
}

#[test]
fn intervals_of_points_become_an_interval_of_the_prediction() {
    let wide = Fit::of(&measured(&[(1, 8), (2, 8)], 0.1e9)).expect("enough");
    let narrow = Fit::of(&measured(&[(1, 8), (2, 8)], 0.01e9)).expect("enough");
    let width = |fit: &Fit| {
        let it = fit.predict(4, 8, Placed::Random).throughput;
        it.high - it.low
    };
    assert!(width(&wide) > width(&narrow));
    let least = wide.predict(4, 8, Placed::Random).least_certain.expect("both are uncertain");
    assert!(least.1 > 0.0 && ["q1.s8", "q2.s8"].contains(&least.0.as_str()));
}

#[test]
fn what_is_worse_than_any_contention_has_no_parameters() {
    let mut data = measured(&[(1, 8), (2, 8), (4, 8)], 0.0);
    (data.points[1].bps, data.points[2].bps) = (1e9, 0.3e9);
    let fit = Fit::of(&data).expect("one queue is enough");
    for one in &fit.parameters[1..3] {
        assert!(one.estimate.value.is_none() && one.estimate.high.is_infinite(), "{one:?}");
    }
    assert_eq!(fit.unexplained().first().map(|(name, _)| name.as_str()), Some("q4.s8"));
}

#[test]
fn a_point_with_a_wide_interval_weighs_little() {
    let mut data = Data { is_delay_known: true, ..measured(&[(1, 8), (2, 8), (2, 4)], 0.0) };
    data.line_bps = None;
    for (point, (gbps, half)) in data.points.iter_mut().zip([(3.0, 0.02), (5.5, 0.02), (3.0, 1.5)])
    {
        (point.bps, point.half_width_bps) = (gbps * 1e9, half * 1e9);
    }
    let fit = Fit::of(&data).expect("enough");
    let two = fit.predict(2, 8, Placed::Random).outcome.mean_bps;
    assert!((two / 5.5e9 - 1.0).abs() < 0.01, "{two}");
    // 5.2 Gbit/s fit, and the upper end is 4.5.
    let ratio = |fit: &Fit| fit.unexplained().first().map(|(name, ratio)| (name.clone(), *ratio));
    let (name, above) = ratio(&fit).expect("one point");
    assert!(name == "q2.s4" && (above - 4.5 / 5.2).abs() < 0.01, "{above}");
    data.points[2].half_width_bps = 2.9e9;
    assert_eq!(ratio(&Fit::of(&data).expect("enough")), None);
}

#[test]
fn the_interval_of_points_that_were_faster_than_queues_allow_is_no_smaller() {
    // Two queues measured more than two can carry, so that there is no contention: the interval of
    // one of 3 Gbit/s, more or less 0.1, is twice as wide for both, and more by their own.
    let mut data = Data { is_delay_known: true, ..measured(&[(1, 8), (2, 8)], 0.0) };
    data.line_bps = None;
    for (point, (gbps, half)) in data.points.iter_mut().zip([(3.0, 0.1), (6.1, 0.2)]) {
        (point.bps, point.half_width_bps) = (gbps * 1e9, half * 1e9);
    }
    let two = Fit::of(&data).expect("enough").predict(2, 8, Placed::Random).throughput;
    // All eight flows are on one queue in 2 of 256 ways: 5.977 Gbit/s on average, less 0.214.
    assert!((two.low / 5.763e9 - 1.0).abs() < 2e-3 && two.high > 6.1e9, "{two:?}");
}

#[test]
fn a_round_trip_is_as_uncertain_as_throughput_and_windows_are() {
    let data = measured(&[(1, 8), (2, 8)], 0.1e9);
    let known = Fit::of(&Data { is_window_known: true, ..data.clone() }).expect("enough");
    let throughput = known.predict(2, 8, Placed::Random).throughput;
    let round_trip = known.round_trip(8, throughput);
    let bits = 8.0 * 262_144.0 * 8.0;
    assert!((round_trip.low * throughput.high / bits - 1.0).abs() < 1e-9, "{round_trip:?}");
    assert!((round_trip.high * throughput.low / bits - 1.0).abs() < 1e-9, "{round_trip:?}");
    assert!(round_trip.value.is_some() && round_trip.high > round_trip.low * 1.01);
    let open = Fit::of(&data).expect("enough").round_trip(8, throughput);
    assert!(open.value.is_none() && open.low < round_trip.low / 3.9, "{open:?}");
    assert!(open.high > round_trip.high * 15.9, "{open:?}");
}

#[test]
fn what_flows_get_is_as_uncertain_as_what_their_queue_carries() {
    let data = Data { is_delay_known: true, ..measured(&[(1, 8)], 0.5e9) };
    let share = Fit::of(&data).expect("one queue is enough").shares(1, &[5e9, 5e9, 0.1e9]);
    // Two flows of equal rights share 3 Gbit/s, more or less 0.5.
    for flow in &share[..2] {
        let value = flow.value.expect("one queue");
        assert!((value / 1.45e9 - 1.0).abs() < 0.02, "{share:?}");
        assert!(flow.low < 1.25e9 && flow.high > 1.65e9, "{share:?}");
    }
    assert!(share[2].high <= 0.1e9 && share[2].low > 0.09e9, "{share:?}");
}

#[test]
fn stations_bound_what_queues_could_do() {
    let mut data = measured(&[(1, 8), (2, 8)], 0.0);
    let used = data.points[0].bps / 6e9;
    data.points[0].cpus_used.insert("guest".to_owned(), used);
    data.points[0].cpus_error.insert("guest".to_owned(), 0.125);
    data.cpus.insert("guest".to_owned(), 1.0);
    let fit = Fit::of(&data).expect("enough");
    assert_eq!((fit.stations[0].name.as_str(), fit.stations[0].cpus_error), ("guest", 0.125));
    assert!((fit.stations[0].bps / 6e9 - 1.0).abs() < 1e-9);
    assert!(fit.predict(8, 32, Placed::Random).outcome.mean_bps < 6e9 * 1.000_001);
    let (_, cpus) = fit.used(3e9).find(|(station, _)| station.name == "guest").expect("known");
    assert!((cpus - 0.5).abs() < 1e-9);
}

#[test]
fn a_station_that_only_some_points_have_is_one() {
    let mut data = measured(&[(1, 8), (2, 8), (4, 8)], 0.0);
    // The use of all CPUs was measured with more queues only.
    for (at, of_one) in [(1, 7e9), (2, 8e9)] {
        let used = data.points[at].bps / of_one;
        data.points[at].cpus_used.insert("guest".to_owned(), used);
    }
    data.cpus.insert("guest".to_owned(), 2.0);
    let fit = Fit::of(&data).expect("enough");
    assert_eq!((fit.stations[0].name.as_str(), fit.stations.len()), ("guest", 2), "{fit:?}");
    assert!((fit.stations[0].bps / 14e9 - 1.0).abs() < 1e-9, "{fit:?}");
}

#[test]
fn what_was_carried_with_the_cpus_of_a_station_is_below_its_limit() {
    // 3.1 of 4 CPUs for 3 Gbit/s, and yet 9 Gbit/s: a bit costs less where batches are long.
    let mut data = measured(&[(1, 8), (4, 8)], 0.0);
    (data.points[0].bps, data.points[1].bps) = (3e9, 9e9);
    data.points[0].cpus_used.insert("guest".to_owned(), 3.1);
    data.cpus.insert("guest".to_owned(), 4.0);
    let fit = Fit::of(&data).expect("enough");
    let four = fit.predict(4, 8, Placed::Random).throughput;
    assert!(four.high > 8.99e9, "{four:?}");
    assert!(fit.unexplained().is_empty(), "{fit:?}");
    let (_, cpus) = fit.used(9e9).find(|(station, _)| station.name == "guest").expect("known");
    assert!((cpus - 4.0).abs() < 1e-9, "{cpus}");
}

#[test]
fn another_line_limits_what_was_measured_without_it() {
    let fit = Fit::of(&measured(&[(1, 8), (2, 8)], 0.0)).expect("enough").on_line(4e9);
    assert_eq!((fit.stations[0].name.as_str(), fit.stations.len()), ("line", 1));
    let many = fit.predict(8, 32, Placed::Random).throughput;
    assert!(many.value.is_some_and(|bps| bps > 3.9e9) && many.high < 4e9 * 1.000_001);
    let mut data = measured(&[(1, 8)], 0.0);
    data.line_bps = Some(data.points[0].bps * 1.01);
    let fast = Fit::of(&data).expect("enough").on_line(20e9);
    let one = fast.predict(1, 8, Placed::Random).throughput;
    assert!(one.value.is_none() && one.low < 3.1e9 && one.high > 19e9, "{one:?}");
    // Nor does the lower end of its interval, which fills no line, say that it carries less.
    data.points[0].half_width_bps = 0.2e9;
    let wide = Fit::of(&data).expect("enough").on_line(20e9);
    let one = wide.predict(1, 8, Placed::Random).throughput;
    assert!(one.low > 2.5e9 && one.low < 3.1e9, "{one:?}");
}

#[test]
fn a_missing_or_impossible_point_is_named() {
    let missing = Fit::of(&measured(&[(2, 8)], 0.0)).expect_err("no queue alone").to_string();
    assert!(missing.contains("measure 8 flows over 1 queue"), "{missing}");
    let mut data = measured(&[(1, 8), (2, 8)], 0.0);
    data.line_bps = Some(4e9);
    let above = Fit::of(&data).expect_err("faster than the line").to_string();
    assert!(above.starts_with("q2.s8") && above.contains("`throughput`"), "{above}");
    data.points[1].flows = 0;
    let zero = Fit::of(&data).expect_err("no flows").to_string();
    assert!(zero.contains("q2.s8: `flows`"), "{zero}");
}

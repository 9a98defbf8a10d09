//! What a plan asks for, and what it says of a target that nothing reaches.

use ringway_model::fit::{Data, Fit, Point};
use ringway_model::line::Line;
use ringway_model::plan::{Target, mtu_for, plan};
use ringway_model::predict::{Placed, ways};

fn data(points: &[(usize, usize, f64)], line_bps: Option<f64>) -> Data {
    let point = |(queues, flows, gbit): &(usize, usize, f64)| Point {
        name: format!("q{queues}.s{flows}"),
        queues: *queues,
        flows: *flows,
        splits: ways(*queues, *flows, Placed::Random),
        bps: gbit * 1e9,
        half_width_bps: 0.01e9,
        cpus_used: [("netback", 0.9), ("guest system", 1.1), ("netfront", 0.7)]
            .map(|(name, cpus)| (name.to_owned(), cpus))
            .into(),
        cpus_error: [].into(),
    };
    let cpus = [("netback".to_owned(), 16.0)].into();
    let points = points.iter().map(point).collect();
    Data { points, line_bps, cpus, ..Data::default() }
}

fn fit(points: &[(usize, usize, f64)], line_bps: Option<f64>) -> Fit {
    Fit::of(&data(points, line_bps)).expect("it has one queue")
}

fn target(gbit: f64, flows: usize) -> Target {
    Target { bps: gbit * 1e9, flows, probability: 0.9, vifs: 1 }
}

#[test]
fn the_fewest_queues_suffice_with_the_probability_of_their_placement() {
    // Two busy queues are enough: 87.5 % with 2 queues and 4 flows, 98.4 % with 4.
    let fit = fit(&[(1, 8, 5.0), (2, 8, 9.9)], None);
    let found = plan(&fit, &target(8.0, 4));
    assert_eq!(found.queues, Some(3), "{found:?}");
    let few = plan(&fit, &target(4.0, 4));
    assert_eq!((few.queues, few.workers, few.grants), (Some(1), 2, 514));
    assert_eq!(few.memory_bytes, [44_000, 65_536]);
    // 0.9 CPUs for 5 Gbit/s, at four fifths of their time; and 1.8 of the guest.
    assert!(found.cpus.contains(&("netback".to_owned(), 2)), "{found:?}");
    assert_eq!((found.guest_cpus, few.guest_cpus), (Some(4), Some(2)));
}

#[test]
fn what_was_measured_is_reached() {
    let mut even = data(&[(1, 8, 3.0), (2, 8, 5.0)], Some(9.41e9));
    even.points[1].splits = ways(2, 8, Placed::Evenly);
    let fit = Fit::of(&even).expect("it has one queue");
    let one = plan(&fit, &target(3.0, 8));
    assert_eq!((one.queues_range, one.probability.low), ([Some(1); 2], 1.0), "{one:?}");
    let two = plan(&fit, &target(5.0, 24));
    assert_eq!(two.queues_range, [Some(2); 2], "{two:?}");
    // Two flows keep two queues busy in exactly half of all ways.
    let half = plan(&fit, &Target { probability: 0.5, ..target(4.5, 2) });
    assert_eq!(half.queues, Some(2), "{half:?}");
    // A wire does not carry more than it does.
    assert_eq!(plan(&fit, &target(9.42, 8)).queues, None);
}

#[test]
fn intervals_of_points_are_in_the_range_of_queues() {
    // Two queues of 3 Gbit/s are enough for 5.5; of 2.7, the lower end, three are, which eight
    // flows keep busy in 88 % of all ways on three queues, and in 98 % on four.
    let mut data = Data { is_delay_known: true, ..data(&[(1, 8, 3.0), (2, 8, 5.95)], None) };
    let of = |data: &Data| plan(&Fit::of(data).expect("it has one queue"), &target(5.5, 8));
    assert_eq!(of(&data).queues_range, [Some(2), Some(2)], "{data:?}");
    data.points[0].half_width_bps = 0.3e9;
    let wide = of(&data);
    assert_eq!((wide.queues, wide.queues_range), (Some(2), [Some(2), Some(4)]), "{wide:?}");
    assert!(wide.probability.low < 0.01 && wide.probability.high > 0.99, "{wide:?}");
}

#[test]
fn queues_beyond_which_all_are_slower_are_named() {
    let of = |points: &[(usize, usize, f64)]| plan(&fit(points, None), &target(0.5, 8));
    // Pairs of queues cost so much that eight carry less than four.
    let best = of(&[(1, 32, 1.0), (2, 32, 1.7), (4, 32, 2.0), (8, 32, 1.5)]).busy_best;
    assert!(best.is_some_and(|busy| busy > 2.5 && busy < 5.0), "{best:?}");
    // Two numbers of queues do not tell pairs from a lock.
    assert_eq!(of(&[(1, 32, 1.0), (2, 32, 1.7)]).busy_best, None);
}

#[test]
fn a_lock_binds_however_many_flows_there_are() {
    // As a node with a serial datapath: more flows or queues bring nothing.
    let locked = plan(&fit(&[(1, 6, 3.28), (2, 6, 3.41)], Some(8.83e9)), &target(9.4, 8));
    let binds = |start: &str| locked.binding.iter().any(|it| it.starts_with(start));
    assert!(binds("contention") && !binds("queues without flows"), "{locked:?}");
    assert!(locked.may_be_slower_beyond.is_some_and(|busy| busy < locked.busy), "{locked:?}");
}

#[test]
fn cpus_are_planned_for_the_target_and_not_for_what_there_are() {
    let mut data = data(&[(1, 8, 6.0)], Some(9.41e9));
    data.points[0].cpus_used = [("guest".to_owned(), 3.0)].into();
    data.cpus = [("guest".to_owned(), 4.0)].into();
    let found = plan(&Fit::of(&data).expect("it has one queue"), &target(9.3, 32));
    // 3 CPUs for 6 Gbit/s, at four fifths of their time.
    assert_eq!((found.queues, found.guest_cpus), (None, Some(6)), "{found:?}");
}

#[test]
fn a_target_beyond_the_line_is_not_promised() {
    let line = Line::plain(10e9, 1500.0);
    let fit = fit(&[(1, 8, 3.0), (2, 8, 5.8)], Some(line.payload_bps()));
    let found = plan(&fit, &target(9.9, 32));
    assert_eq!((found.queues, found.binding[0].as_str()), (None, "line"), "{found:?}");
    assert!(found.throughput_bps.high < line.payload_bps() * 1.01);
    assert_eq!(format!("{:?}", found.probability.value), "Some(0.0)", "and not -0");
    assert_eq!(mtu_for(9.4e9, line), Some(1500.0));
    assert_eq!(mtu_for(9.8e9, line), Some(9000.0));
    assert_eq!(mtu_for(9.99e9, line), None);
}

#[test]
fn the_next_run_is_the_one_that_identifies_what_is_unknown() {
    let alone = plan(&fit(&[(1, 8, 3.0)], None), &target(9.0, 8));
    let next = alone.next_run.as_deref().expect("contention is unknown");
    assert!(next.starts_with("2 queues with 8 flows"), "{next}");
    // With the most contention no number of queues is enough.
    assert!(matches!(alone.queues_range, [Some(_), None]), "{alone:?}");
    // Nor does anything else hide how little is known.
    assert_eq!((alone.probability.value, alone.throughput_bps.value), (None, None), "{alone:?}");
    assert!(alone.probability.low < 1e-9 && alone.binding.len() > 1, "{alone:?}");
    assert!(alone.sensitivity.iter().all(|it| it.low <= it.high), "{alone:?}");
    let few = plan(&fit(&[(1, 8, 3.0)], None), &target(2.0, 8));
    assert_eq!(few.queues_range, [Some(1), Some(1)]);
    let both = plan(&fit(&[(1, 8, 3.0), (2, 8, 5.5)], None), &target(5.0, 8));
    assert!(both.next_run.is_some_and(|next| next.starts_with("more repeats of q")));
}

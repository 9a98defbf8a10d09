//! Max-min fair shares: what flows of different rates get of their queues and of the line.

use ringway_model::fill::max_min;

fn close(rates: &[f64], expected: &[f64]) -> bool {
    let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-6;
    rates.len() == expected.len() && rates.iter().zip(expected).all(near)
}

#[test]
fn a_small_flow_leaves_its_share_to_others() {
    let rates = max_min(&[1.0, 9.0, 9.0], &[0, 0, 1], &[6.0, 4.0], 100.0);
    assert!(close(&rates, &[1.0, 5.0, 4.0]), "{rates:?}");
    let rates = max_min(&[1.0, 9.0, 9.0], &[0, 0, 1], &[6.0, 4.0], 5.0);
    assert!(close(&rates, &[1.0, 2.0, 2.0]), "{rates:?}");
    // Without a line, only queues and wishes end a flow.
    let rates = max_min(&[1.0, f64::INFINITY], &[0, 0], &[6.0], f64::INFINITY);
    assert!(close(&rates, &[1.0, 5.0]), "{rates:?}");
    // A flow on no queue carries nothing.
    assert!(close(&max_min(&[1.0, 2.0], &[5, 0], &[3.0], 9.0), &[0.0, 2.0]));
}

#[test]
fn nothing_is_created_and_the_slowest_cannot_have_more() {
    let mut state = 7_u32;
    let mut next = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    for _ in 0..500 {
        let count = 1 + next(8);
        let wanted: Vec<f64> = (0..count).map(|_| f64::from(next(10))).collect();
        let queue: Vec<usize> =
            (0..count).map(|_| usize::try_from(next(3)).expect("small")).collect();
        let capacity: Vec<f64> = (0..3).map(|_| f64::from(next(12))).collect();
        let line = f64::from(1 + next(30));
        let rates = max_min(&wanted, &queue, &capacity, line);
        let sum: f64 = rates.iter().sum();
        assert!(sum <= line + 1e-6);
        for (flow, rate) in rates.iter().enumerate() {
            let on = |other: &usize| queue[*other] == queue[flow];
            let carried: f64 = (0..rates.len()).filter(on).map(|other| rates[other]).sum();
            let own = capacity[queue[flow]];
            assert!(*rate <= wanted[flow] + 1e-6 && carried <= own + 1e-6);
            let most = (0..rates.len()).filter(on).map(|other| rates[other]).fold(0.0, f64::max);
            let is_satisfied = *rate >= wanted[flow] - 1e-6;
            let is_fair = carried >= own - 1e-6 && *rate >= most - 1e-6;
            let fastest = rates.iter().copied().fold(0.0, f64::max);
            let is_last = sum >= line - 1e-6 && *rate >= fastest - 1e-6;
            assert!(is_satisfied || is_fair || is_last, "{wanted:?} {queue:?} {rates:?}");
        }
    }
}

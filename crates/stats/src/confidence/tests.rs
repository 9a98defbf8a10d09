//! Compared with independently computed values, and with the expected behaviour of simulated
//! samples.

use super::*;

fn near(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-6 * b.abs().max(1.0), "{a} is not {b}");
}

/// A normally distributed number by the Box-Muller method.
fn normal(random: &mut fastrand::Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

/// The fraction of seeded samples for which something is true.
fn share(samples: u64, mut is_true: impl FnMut(&mut fastrand::Rng) -> bool) -> f64 {
    let mut random = fastrand::Rng::with_seed(20);
    let hits = (0..samples).filter(|_| is_true(&mut random)).count();
    float(hits) / float(usize::try_from(samples).unwrap())
}

#[test]
fn a_summary_has_the_textbook_values() {
    let summary = Summary::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
    near(summary.mean, 5.0);
    near(summary.sd.unwrap(), (32.0_f64 / 7.0).sqrt());
    near(summary.median, 4.5);
    near(summary.quartile_low, 4.0);
    near(summary.quartile_high, 5.5);
    assert_eq!((summary.min, summary.max, summary.count), (2.0, 9.0, 8));
    assert_eq!(Summary::of(&[]), None);
    let single = Summary::of(&[3.0]).unwrap();
    assert_eq!((single.median, single.sd, single.interval), (3.0, None, None));
}

#[test]
fn students_interval_is_that_of_the_table() {
    // t for 4 degrees of freedom and 95 % is 2.776445.
    let interval = student_interval(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
    near(interval.high - 3.0, 2.776_445 * 2.5_f64.sqrt() / 5.0_f64.sqrt());
    near(f64::midpoint(interval.low, interval.high), 3.0);
    assert_eq!(student_interval(&[0.0, 2.0]), None);
}

#[test]
fn what_groups_differ_by_is_not_in_their_interval() {
    // t for 3 degrees of freedom and 95 % is 3.182446; the squares within groups are 2 and 8.
    let half = half_within(&[vec![1.0, 3.0], vec![10.0, 12.0, 14.0]]).unwrap();
    near(half, 3.182_446 * (10.0_f64 / 3.0 / 5.0).sqrt());
    let one = student_interval(&[1.0, 2.0, 4.0]).unwrap();
    near(half_within(&[vec![1.0, 2.0, 4.0]]).unwrap(), (one.high - one.low) / 2.0);
    assert_eq!((half_within(&[vec![1.0], vec![2.0]]), half_within(&[])), (None, None));
}

#[test]
fn an_interval_holds_only_what_can_be() {
    let few = [1.0, 1.0, 10.0];
    let raw = student_interval(&few).unwrap();
    assert!(raw.low < 0.0, "{raw:?}");
    let summary = Summary::of(&few).unwrap();
    assert_eq!(summary.interval, Some(Interval { low: 0.0, ..raw }));
    // Cutting off the interval does not make it more precise.
    near(summary.precision().unwrap(), (raw.high - 4.0) / 4.0);
    let below = Summary::of(&[-1.0, 1.0, 10.0]).unwrap();
    assert!(below.interval.unwrap().low < 0.0, "a mean that may be negative");
    assert_eq!(ratio(&[1.0, 2.0], &[1.0, 2.0, 3.0]).unwrap().interval, None);
}

#[test]
fn students_interval_holds_the_truth_as_often_as_it_says() {
    let held = share(4_000, |random| {
        let values: Vec<f64> = (0..6).map(|_| 10.0 + normal(random)).collect();
        student_interval(&values).unwrap().has(10.0)
    });
    assert!((0.94..0.96).contains(&held), "{held}");
}

#[test]
fn a_ratio_holds_the_truth_as_often_as_it_says() {
    let held = share(4_000, |random| {
        let of: Vec<f64> = (0..10).map(|_| 17.0 + normal(random)).collect();
        let to: Vec<f64> = (0..5).map(|_| 10.0 + normal(random)).collect();
        ratio(&of, &to).unwrap().interval.unwrap().has(1.7)
    });
    assert!((0.935..0.965).contains(&held), "{held}");
    assert_eq!(ratio(&[1.0], &[2.0]).unwrap(), Ratio { value: 0.5, interval: None });
    assert_eq!(ratio(&[1.0], &[]), None);
    assert_eq!(ratio(&[1.0], &[0.0, 0.0]), None);
    let exact = ratio(&[3.0; 3], &[1.5; 4]).unwrap().interval.expect("enough, without a spread");
    assert!((exact.low - 2.0).abs() < 1e-12 && (exact.high - 2.0).abs() < 1e-12, "{exact:?}");
}

#[test]
fn skewed_values_get_a_bootstrapped_interval() {
    let skewed = [1.0, 1.0, 1.1, 1.1, 1.2, 1.0, 1.1, 9.0];
    let summary = Summary::of(&skewed).unwrap();
    assert_eq!(summary.method, Method::Bootstrap);
    let interval = summary.interval.unwrap();
    // The mean cannot be less than the least value.
    assert!(interval.low >= 1.0 && interval.high < 9.0 && interval.has(summary.mean));
    assert_eq!(bootstrap_interval(&skewed), bootstrap_interval(&skewed));
    let held = share(400, |random| {
        let values: Vec<f64> = (0..30).map(|_| -(1.0 - random.f64()).ln()).collect();
        bootstrap_interval(&values).unwrap().has(1.0)
    });
    assert!((0.88..0.98).contains(&held), "{held}");
}

#[test]
fn jain_is_one_if_even_and_a_share_if_one_has_all() {
    near(jain(&[5.0; 7]).unwrap(), 1.0);
    near(jain(&[0.0, 0.0, 3.0, 0.0]).unwrap(), 0.25);
    near(jain(&[1.0, 2.0, 3.0]).unwrap(), 36.0 / 42.0);
    assert_eq!(jain(&[]), None);
    assert_eq!(jain(&[0.0]), None);
}

#[test]
fn skewness_is_that_of_its_formula() {
    near(skewness(&[1.0, 2.0, 2.0, 3.0, 10.0]).unwrap(), 2.028_699_102_080_332_7);
    near(skewness(&[1.0, 2.0, 3.0]).unwrap(), 0.0);
    assert_eq!(skewness(&[1.0; 9]), None);
}

#[test]
fn two_modes_are_seen_and_one_is_left_alone() {
    let found = modes(&[4.0, 4.1, 3.9, 4.0, 9.0, 9.1, 8.9, 9.2, 4.1, 9.0]).unwrap();
    near(found.low, 4.02);
    near(found.high, 9.04);
    assert_eq!(modes(&[1.0, 1.0, 9.0, 9.0]), None, "too few");
    assert_eq!(modes(&[1.0; 20]), None);
    for count in [8, 10, 20, 40] {
        let false_alarms = share(4_000, |random| {
            modes(&(0..count).map(|_| normal(random)).collect::<Vec<_>>()).is_some()
        });
        assert!(false_alarms < 0.02, "{count}: {false_alarms}");
        let seen = share(1_000, |random| {
            let value = |at| normal(random) + if at % 3 == 0 { 10.0 } else { 0.0 };
            modes(&(0..count).map(value).collect::<Vec<_>>()).is_some()
        });
        assert!(seen > 0.9, "{count}: {seen}");
    }
}

#[test]
fn a_trend_has_the_chance_that_counting_orders_gives() {
    let rising = mann_kendall(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
    near(rising.tau, 1.0);
    near(rising.chance, 2.0 / 120.0);
    // 2 inversions among 6 values: 20 of 720 orders have at most as many.
    near(mann_kendall(&[1.0, 3.0, 2.0, 4.0, 6.0, 5.0]).unwrap().chance, 40.0 / 720.0);
    near(mann_kendall(&[2.0; 6]).unwrap().chance, 1.0);
    assert_eq!(mann_kendall(&[1.0, 2.0, 3.0]), None);
    // The approximation is close to the exact probability.
    let values: Vec<f64> = (0..40).map(|at| float(at) + 9.0 * float(at * 7 % 11)).collect();
    let exact = mann_kendall(&values).unwrap();
    let approximate = normal_chance(&values, exact.tau * 780.0).unwrap();
    assert!((exact.chance - approximate).abs() < 5e-3, "{exact:?} {approximate}");
}

#[test]
fn drift_is_seen_and_noise_is_not() {
    assert!(drift(&[9.0, 8.5, 8.6, 8.0, 7.5, 7.4, 7.0, 6.8]).is_some_and(|found| found.tau < 0.0));
    let false_alarms = share(4_000, |random| {
        drift(&(0..12).map(|_| normal(random)).collect::<Vec<_>>()).is_some()
    });
    assert!(false_alarms < 0.015, "{false_alarms}");
}

#[test]
fn welchs_test_gives_the_values_of_another_implementation() {
    let a =
        [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4];
    let b =
        [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 30.5, 24.4];
    let test = welch(&a, &b).unwrap();
    near(test.t, 2.852_954_870_171_525);
    near(test.freedom, 27.887_303_988_420_12);
    assert!((test.chance - 0.008_071_94).abs() < 1e-6, "{}", test.chance);
    assert!(!test.difference.has(0.0) && test.difference.has(mean(&b) - mean(&a)));
    assert_eq!(welch(&[1.0], &[2.0, 3.0]), None);
    assert_eq!(welch(&[1.0, 1.0], &[1.0, 1.0]), None, "no spread, no test");
}

#[test]
fn holm_raises_each_chance_by_the_tests_left() {
    let raised = holm(&[0.01, 0.04, 0.03, 0.005]);
    [0.03, 0.06, 0.06, 0.02].iter().zip(raised).for_each(|(want, got)| near(got, *want));
    assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
    assert!(holm(&[]).is_empty());
}

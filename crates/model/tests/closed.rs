//! Rates of a closed network against sums over every state.

use ringway_model::closed::{Times, rates, total};
use ringway_stats::float;

fn close(one: f64, other: f64) -> bool {
    (one / other - 1.0).abs() < 1e-9
}

/// The sum over every state of two queues, written out.
fn by_states(chunks: [usize; 2], times: Times) -> f64 {
    let factorial = |n: usize| (1..=n).map(float).product::<f64>();
    let power = |base: f64, n: usize| std::iter::repeat_n(base, n).product::<f64>();
    let mut sum = 0.0;
    for shared_a in 0..=chunks[0] {
        for delay_a in 0..=chunks[0] - shared_a {
            for shared_b in 0..=chunks[1] {
                for delay_b in 0..=chunks[1] - shared_b {
                    let own = chunks[0] + chunks[1] - shared_a - shared_b - delay_a - delay_b;
                    let mixed = factorial(shared_a + shared_b)
                        / (factorial(shared_a) * factorial(shared_b));
                    let delays = power(times.delay, delay_a + delay_b)
                        / (factorial(delay_a) * factorial(delay_b));
                    let shared = power(times.shared, shared_a + shared_b);
                    sum += mixed * delays * shared * power(times.own, own);
                }
            }
        }
    }
    sum
}

const TIMES: [Times; 4] = [
    Times { own: 1.0, shared: 0.4, delay: 0.3 },
    Times { own: 2e-4, shared: 6e-5, delay: 5e-5 },
    Times { own: 0.1, shared: 3.0, delay: 0.0 },
    Times { own: 2e-4, shared: 0.0, delay: 5e-4 },
];

#[test]
fn rates_are_those_of_every_state() {
    for times in TIMES {
        let both = rates(&[3, 2], times);
        let all = by_states([3, 2], times);
        assert!(close(both[0], by_states([2, 2], times) / all), "{both:?}");
        assert!(close(both[1], by_states([3, 1], times) / all), "{both:?}");
        assert!(close(total(&[3, 2], times), both[0] + both[1]), "{both:?}");
    }
}

#[test]
fn many_chunks_fill_the_slowest_station_and_never_overflow() {
    let times = Times { own: 1e-3, shared: 1e-4, delay: 1e-5 };
    let all: f64 = rates(&[96; 24], times).iter().sum();
    assert!(close(all, 10_000.0) || (all < 10_000.0 && all > 9_900.0), "{all}");
    assert!(close(total(&[96; 24], times), all), "{all}");
    assert_eq!(rates(&[0, 2], TIMES[0])[0], 0.0);
    assert_eq!(rates(&[], TIMES[0]), []);
    let instant = Times { own: 0.0, shared: 0.0, delay: 0.0 };
    assert_eq!(rates(&[1], instant), [f64::INFINITY]);
}

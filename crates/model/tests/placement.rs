//! Odds of placements against counting every way.

use ringway_model::placement::{FLOWS_MAX, busy, busy_mean, fullest_mean, splits, typical};
use ringway_stats::float;

/// The flows of each queue, the fullest first, for every way to place them.
fn every_way(flows: u32, queues: usize) -> Vec<Vec<usize>> {
    let place = |mut way: usize| {
        let mut parts = vec![0; queues];
        for _ in 0..flows {
            parts[way % queues] += 1;
            way /= queues;
        }
        parts.sort_unstable_by(|a, b| b.cmp(a));
        parts
    };
    (0..queues.pow(flows)).map(place).collect()
}

const SMALL: [(u32, usize); 6] = [(1, 1), (1, 4), (2, 2), (4, 4), (5, 3), (6, 4)];

fn close(one: f64, other: f64) -> bool {
    (one - other).abs() < 1e-9
}

#[test]
fn all_odds_agree_with_counting_every_way() {
    for (flows, queues) in SMALL {
        let ways = every_way(flows, queues);
        let part = |count: usize| float(count) / float(ways.len());
        let flows = usize::try_from(flows).expect("small");
        for split in splits(flows, queues) {
            let mut padded = split.parts.clone();
            padded.resize(queues, 0);
            let counted = ways.iter().filter(|parts| **parts == padded).count();
            assert!(close(split.probability, part(counted)), "{split:?}");
        }
        let busy_of = |parts: &[usize]| parts.iter().filter(|part| **part > 0).count();
        for (number, odds) in busy(flows, queues).iter().enumerate() {
            let counted = ways.iter().filter(|parts| busy_of(parts) == number).count();
            assert!(close(*odds, part(counted)), "{number} of {queues} busy");
        }
        let busy: usize = ways.iter().map(|parts| busy_of(parts)).sum();
        assert!(close(busy_mean(flows, queues), part(busy)));
        let fullest: usize = ways.iter().map(|parts| parts[0]).sum();
        let over_mean = part(fullest) * float(queues) / float(flows);
        assert!(close(fullest_mean(flows, queues), over_mean), "{flows} on {queues}");
    }
}

#[test]
fn odds_sum_to_one_and_splits_have_the_same_busy_queues() {
    for (flows, queues) in [(1, 8), (8, 4), (8, 8), (12, 3), (24, 8)] {
        let splits = splits(flows, queues);
        let sum: f64 = splits.iter().map(|split| split.probability).sum();
        assert!(close(sum, 1.0), "{flows} on {queues}: {sum}");
        for (number, odds) in busy(flows, queues).iter().enumerate() {
            let with = splits.iter().filter(|split| split.parts.len() == number);
            assert!(close(*odds, with.map(|split| split.probability).sum()));
        }
    }
    assert!(splits(FLOWS_MAX + 1, 2).is_empty() && splits(2, 0).is_empty());
    assert_eq!((busy(3, 0), busy(0, 2)), (vec![1.0], vec![1.0, 0.0, 0.0]));
    assert!(close(busy(usize::MAX, 4)[4], 1.0));
    assert!(close(busy_mean(3, 0), 0.0));
}

#[test]
fn a_typical_split_has_all_flows_and_is_as_uneven_as_most() {
    for (flows, busy) in [(1, 1), (3, 3), (13, 8), (24, 7), (1000, 64), (10_000, 2)] {
        let parts = typical(flows, busy);
        assert_eq!((parts.len(), parts.iter().sum::<usize>()), (busy, flows), "{parts:?}");
        assert!(parts.is_sorted_by(|a, b| a >= b) && parts[busy - 1] > 0, "{parts:?}");
    }
    assert_eq!(typical(16, 7), [4, 3, 3, 2, 2, 1, 1]);
    assert_eq!((typical(2, 5), typical(0, 5), typical(5, 0)), (vec![1, 1], vec![], vec![]));
}

#[test]
fn the_fullest_of_many_flows_is_counted_and_of_more_continues_that() {
    // By coefficients of powers of exponential series that end.
    for (flows, queues, mean) in [(32, 8, 1.761_946), (64, 4, 1.262_623), (128, 64, 2.983_661)] {
        let found = fullest_mean(flows, queues);
        assert!((found - mean).abs() < 1e-5, "{flows} on {queues}: {found}");
    }
    for queues in [2, 8, 64, 1 << 30] {
        let [exact, near] = [128, 129].map(|flows| fullest_mean(flows, queues));
        assert!(near < exact && near > exact * 0.99, "{queues}: {exact} {near}");
    }
}

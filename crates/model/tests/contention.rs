//! What a lock and what pairs of queues cost.

use ringway_model::contention::{Contention, gain};
use ringway_stats::float;

#[test]
fn a_lock_bounds_all_queues_and_pairs_of_queues_turn_the_gain_around() {
    let together = |law: Contention, busy: usize| float(busy) * law.efficiency(busy);
    let lock = Contention { serial: 0.5, pairwise: 0.0 };
    assert!((together(lock, 1) - 1.0).abs() < 1e-12);
    assert!(together(lock, 64) < 2.0 && together(lock, 64) > together(lock, 8));
    assert_eq!((lock.busy_best(), Contention::default().efficiency(9)), (None, 1.0));
    for serial in [0.0, 0.3, 1.0] {
        let law = Contention { serial, pairwise: 0.0 };
        let times = together(law, 8) / together(law, 2);
        let [low, high] = gain(2.0, 8.0);
        assert!(low <= times + 1e-9 && times <= high + 1e-9, "{serial}: {times}");
    }
    assert_eq!((gain(2.0, 8.0), gain(8.0, 2.0)), ([1.0, 4.0], [0.25, 1.0]));
    let pairs = Contention { serial: 0.1, pairwise: 0.1 };
    assert_eq!(pairs.busy_best(), Some(3.0));
    let worse = Contention { serial: 1.5, pairwise: 0.0 };
    assert_eq!(worse.busy_best(), Some(1.0));
    assert!(together(pairs, 3) > together(pairs, 2) && together(pairs, 3) > together(pairs, 4));
}

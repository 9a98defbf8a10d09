//! Pools: memory goes round and comes back.

use ringway_datapath::{Frame, FramePool, PoolBudget};

const BUDGET: usize = 4 << 20;
const LARGE: usize = 60_000;
const SMALL: usize = 60;

fn take_all(pool: &mut FramePool, len: usize) -> Vec<Frame> {
    std::iter::from_fn(|| pool.take(len)).collect()
}

#[test]
fn all_memory_comes_back_when_frames_and_pools_are_gone() {
    let budget = PoolBudget::new(BUDGET);
    let (mut one, mut other) = (FramePool::new(budget.clone()), FramePool::new(budget.clone()));
    for len in [SMALL, LARGE, SMALL] {
        for frame in take_all(&mut one, len) {
            other.recycle(frame);
        }
    }
    drop((one, other));
    assert_eq!(budget.bytes_left(), BUDGET);
}

#[test]
fn memory_of_large_frames_serves_small_ones_and_the_reverse() {
    let budget = PoolBudget::new(BUDGET);
    let mut pool = FramePool::new(budget);
    for _ in 0..3 {
        for len in [LARGE, SMALL] {
            let frames = take_all(&mut pool, len);
            let bytes: usize = frames.iter().map(Frame::capacity).sum();
            assert!(bytes > BUDGET - (128 << 10), "{bytes} bytes for frames of {len}");
            assert!(pool.take_shortage() && !pool.take_shortage());
            frames.into_iter().for_each(|frame| pool.recycle(frame));
        }
    }
}

#[test]
fn a_worker_that_only_sends_does_not_keep_all_memory() {
    let budget = PoolBudget::new(16 << 20);
    let (mut taker, mut sender) = (FramePool::new(budget.clone()), FramePool::new(budget));
    for _ in 0..100 {
        let frames = take_all(&mut taker, LARGE);
        assert!(frames.len() > 150, "{} frames are left to take", frames.len());
        frames.into_iter().for_each(|frame| sender.recycle(frame));
    }
}

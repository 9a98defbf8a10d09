//! Pools: memory circulates and is returned.

use std::sync::Arc;
use std::task::Waker;

use ringway_datapath::{End, Frame, FramePool, Gso, GsoKind, Pages, PoolBudget, Receipts};

const BUDGET: usize = 4 << 20;
const LARGE: usize = 60_000;
const MIDDLE: usize = 2049;
const SMALL: usize = 60;

fn take_all(pool: &mut FramePool, len: usize) -> Vec<Frame> {
    std::iter::from_fn(|| pool.take(len)).collect()
}

#[test]
fn all_memory_is_returned_when_frames_and_pools_are_dropped() {
    let budget = PoolBudget::new(BUDGET);
    let (mut one, mut other) = (FramePool::new(budget.clone()), FramePool::new(budget.clone()));
    for len in [SMALL, LARGE, MIDDLE, SMALL] {
        for frame in take_all(&mut one, len) {
            other.recycle(frame);
        }
    }
    drop((one, other));
    assert_eq!(budget.bytes_left(), BUDGET);
}

#[test]
fn memory_of_one_frame_size_can_serve_all_others() {
    let budget = PoolBudget::new(BUDGET);
    let mut pool = FramePool::new(budget);
    for _ in 0..3 {
        for len in [LARGE, SMALL, MIDDLE, SMALL, LARGE, MIDDLE] {
            let frames = take_all(&mut pool, len);
            // A long frame may begin anywhere in a page.
            let spare = if len == LARGE { 4096 } else { 0 };
            let bytes: usize = frames.iter().map(|frame| frame.capacity() + spare).sum();
            assert!(bytes > BUDGET - (128 << 10), "{bytes} bytes for frames of {len}");
            assert!(pool.take_shortage() && !pool.take_shortage());
            frames.into_iter().for_each(|frame| pool.recycle(frame));
        }
    }
}

#[test]
fn a_worker_that_only_sends_does_not_hoard_memory() {
    let budget = PoolBudget::new(16 << 20);
    let (mut taker, mut sender) = (FramePool::new(budget.clone()), FramePool::new(budget));
    for _ in 0..100 {
        let frames = take_all(&mut taker, LARGE);
        assert!(frames.len() > 150, "{} frames are left to take", frames.len());
        frames.into_iter().for_each(|frame| sender.recycle(frame));
    }
}

#[test]
fn a_frame_of_one_page_uses_only_one_page() {
    let mut pool = FramePool::new(PoolBudget::new(BUDGET));
    for (len, capacity) in [(2048, 2048), (2049, 4096), (4096, 4096), (4097, 65_792)] {
        assert_eq!(pool.take(len).map(|frame| frame.capacity()), Some(capacity), "{len}");
    }
    let frames = take_all(&mut pool, MIDDLE);
    assert!(frames.len() > 900, "{} frames of one page are 4 MiB", frames.len());
}

#[test]
fn a_frame_with_very_short_segments_counts_as_the_work_of_all_segments() {
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    let mut frame = pool.take(65_000).expect("there is memory");
    assert_eq!(frame.work(), 65_000);
    for (size, excess) in [(1448, 0), (512, 0), (500, 130 - 126), (48, 1354 - 126), (1, 64_874)] {
        frame.offload.gso = Some(Gso { kind: GsoKind::TcpV4, size });
        assert_eq!(frame.work(), 65_000 + excess * 16_384, "{size}");
    }
}

#[test]
fn the_end_of_a_frame_is_copied_and_its_pages_are_released() {
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    let pages: Arc<dyn Pages> =
        Arc::new((0..20_000_u32).map(|n| n.to_le_bytes()[0]).collect::<Vec<u8>>());
    let receipts = Receipts::new(1, Waker::noop());
    let mut end = End::kept(Arc::clone(&pages), receipts.issue(0));
    assert!(
        [(100, 5000), (5100, 1000), (0, 50), (19_000, 900)]
            .iter()
            .all(|(at, len)| end.push(*at, *len))
    );
    assert!(!end.push(0, 1), "it has three pieces, the first two of them joined");
    end.truncate(6849);
    assert_eq!((end.len(), end.pieces().len()), (6849, 3));
    let mut expected = vec![7; 64];
    for range in [100..6100, 0..50, 19_000..19_799] {
        expected.extend((range.start..range.end).map(|n: u32| n.to_le_bytes()[0]));
    }

    let mut frame = pool.take(6913).expect("there is memory");
    frame.set_len(64);
    frame.bytes_mut().fill(7);
    frame.set_end(end);
    assert_eq!((frame.len(), frame.bytes().len()), (6913, 64));
    assert!(receipts.is_held(0));
    pool.complete(&mut frame).expect("its pages are our own");
    assert!(!receipts.is_held(0), "its pages may change again");
    assert_eq!(frame.bytes(), expected);

    // Also if it is not copied.
    frame.set_len(64);
    frame.set_end(End::kept(pages, receipts.issue(0)));
    pool.recycle(frame);
    assert!(!receipts.is_held(0));
    let mut frame = pool.take(5000).expect("there is memory");
    frame.set_end(End::kept(Arc::new(Vec::new()), receipts.issue(0)));
    drop(frame);
    assert!(!receipts.is_held(0));
}

//! A minimal worker: it joins each queue of one device to one of another.

use std::error::Error;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use ringway_datapath::{
    Budget, Frame, FrameBatch, FramePool, FrameQueue, PoolBudget, PortQueue, QueueDown,
};
use ringway_tap::TapQueue;
use rustix::event::{PollFd, PollFlags, poll};

pub(crate) struct Wire {
    /// The loop ends when this is closed.
    running: UnixStream,
    thread: JoinHandle<Result<Report, String>>,
}

/// What has crossed.
pub(crate) struct Report {
    pub(crate) longest: usize,
    pub(crate) with_gso: usize,
    /// Frames whose ends were in pages.
    pub(crate) in_pages: usize,
    budget: Arc<PoolBudget>,
}

/// Buffers of each size that the wire may use at once.
const BUFFERS: usize = 200;
const SMALL_LEN: usize = 2048;
const LARGE_LEN: usize = 65536;
/// What a large buffer takes out of a budget.
const LARGE_COST: usize = LARGE_LEN + 256 + 4096;

impl Wire {
    pub(crate) fn start(a: Vec<TapQueue>, b: Vec<TapQueue>) -> Result<Wire, Box<dyn Error>> {
        let (running, stopped) = UnixStream::pair()?;
        let thread =
            thread::spawn(move || run(a, b, &stopped).map_err(|error| format!("wire: {error}")));
        Ok(Wire { running, thread })
    }

    pub(crate) fn stop(self) -> Result<Report, Box<dyn Error>> {
        drop(self.running);
        Ok(self.thread.join().map_err(|_| "the wire panicked")??)
    }
}

impl Report {
    /// Takes every buffer that the budget allows: no buffer is held or was leaked.
    pub(crate) fn assert_nothing_leaked(&self) {
        let mut pool = FramePool::new(Arc::clone(&self.budget));
        for len in [SMALL_LEN, LARGE_LEN] {
            let frames: Vec<Frame> = (0..BUFFERS).map_while(|_| pool.take(len)).collect();
            assert_eq!(frames.len(), BUFFERS, "frames of {len} bytes were leaked");
            // Not recycled: those of the other size must come from elsewhere.
            drop(frames);
        }
        assert!(pool.take(1).is_none(), "the budget has more than before");
    }
}

fn run(
    mut a: Vec<TapQueue>,
    mut b: Vec<TapQueue>,
    stopped: &UnixStream,
) -> Result<Report, Box<dyn Error>> {
    let budget = PoolBudget::new(BUFFERS * (SMALL_LEN + LARGE_COST));
    let mut pool = FramePool::new(Arc::clone(&budget));
    let mut report = Report { longest: 0, with_gso: 0, in_pages: 0, budget };
    let mut waiting = FrameQueue::new();
    while !wait_for_work(&a, &b, stopped)? {
        for (a, b) in a.iter_mut().zip(&mut b) {
            cross(a, b, &mut waiting, &mut pool, &mut report)?;
            cross(b, a, &mut waiting, &mut pool, &mut report)?;
        }
    }
    drop((a, b));
    Ok(report)
}

/// Sleeps until a frame waits, or until the wire must stop; true in the latter case.
fn wait_for_work(
    a: &[TapQueue],
    b: &[TapQueue],
    mut stopped: &UnixStream,
) -> Result<bool, Box<dyn Error>> {
    let mut fds: Vec<_> = std::iter::once(stopped.as_fd())
        .chain(a.iter().chain(b).map(AsFd::as_fd))
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    poll(&mut fds, None)?;
    if fds.first().is_some_and(|fd| fd.revents().is_empty()) {
        return Ok(false);
    }
    assert_eq!(stopped.read(&mut [0])?, 0, "nothing writes to it");
    Ok(true)
}

fn cross(
    from: &mut TapQueue,
    to: &mut TapQueue,
    waiting: &mut FrameQueue,
    pool: &mut FramePool,
    report: &mut Report,
) -> Result<(), QueueDown> {
    let mut batch = FrameBatch::new();
    from.ingress(Budget::BATCH, pool, &mut batch)?;
    for frame in &batch {
        report.longest = report.longest.max(frame.len());
        report.in_pages += usize::from(!frame.is_complete());
        report.with_gso += usize::from(frame.offload.gso.is_some());
    }
    waiting.extend(batch);
    to.egress(waiting, pool)?;
    assert!(waiting.is_empty(), "a TAP device takes everything");
    Ok(())
}

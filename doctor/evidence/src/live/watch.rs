//! A thread that watches the host between the two samples.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// What is recorded until it is over.
pub(super) struct Watch {
    file: &'static str,
    is_over: Arc<AtomicBool>,
    pub(super) thread: JoinHandle<io::Result<String>>,
}

impl Watch {
    /// Begins to record a file, whose text `record` returns once it is over, or earlier.
    pub(super) fn start(
        file: &'static str,
        record: fn(&AtomicBool) -> io::Result<String>,
    ) -> Watch {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let thread = thread::spawn(move || record(&ends));
        Watch { file, is_over, thread }
    }

    /// Name and text of the file of the record, or why it could not be recorded.
    pub(super) fn finish(self) -> (&'static str, io::Result<String>) {
        self.is_over.store(true, Ordering::Relaxed);
        let failed = |_| Err(io::Error::other("the thread that recorded it failed"));
        (self.file, self.thread.join().unwrap_or_else(failed))
    }
}

//! The log: lines on standard error, each with the name of its process.

use std::io::{self, Write};

use tracing::level_filters::LevelFilter;

/// Writes each event as one piece, so that lines of several processes do not mix.
struct Lines {
    prefix: String,
}

impl Write for Lines {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let line = [self.prefix.as_bytes(), event].concat();
        // If standard error is closed, no one wants the log.
        let _ = io::stderr().write_all(&line);
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts the log of this process. The command line itself has an empty name.
pub fn start(level: LevelFilter, process: &str) {
    let prefix = if process.is_empty() { String::new() } else { format!("{process}: ") };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(false)
        .with_writer(move || Lines { prefix: prefix.clone() })
        .init();
}

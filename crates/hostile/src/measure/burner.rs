//! A process that burns as much CPU as a hostile guest did, and does nothing else. What its
//! neighbours lose beside it, they lose to the machine and not to the backend.

use std::time::{Duration, Instant};

use anyhow::Result;
use ringway_rig::child::Child;
use ringway_rig::launcher::Launcher;

/// The subcommand of this program.
pub(crate) const BURN: &str = "burn";
/// A slice of time, of which a fraction is burnt.
const SLICE: Duration = Duration::from_millis(10);

/// Burns a fraction of one CPU, in thousandths. Never returns.
pub(crate) fn burn(thousandths: u32) -> ! {
    loop {
        let start = Instant::now();
        let busy = SLICE * thousandths.min(1000) / 1000;
        while start.elapsed() < busy {
            std::hint::spin_loop();
        }
        // waits: the rest of the slice is for others.
        std::thread::sleep(SLICE.saturating_sub(start.elapsed()));
    }
}

/// Processes that together burn this many CPUs, until they are dropped.
pub(crate) fn start(launcher: &Launcher, cpus: f64) -> Result<Vec<Child>> {
    let mut left = cpus.clamp(0.0, 16.0);
    let mut burners = Vec::new();
    while left > 0.001 {
        let mut command = launcher.command(launcher.program());
        command.args([BURN.to_owned(), format!("{:.0}", left.min(1.0) * 1000.0)]);
        burners.push(launcher.start("a busy process", command)?);
        left -= 1.0;
    }
    Ok(burners)
}

//! Prints the cost of one grant copy, in nanoseconds: `cargo run --release --example copy_rate`.
//!
//! Batches of 64 operations on one core, each on its own grant as in a ring. Prints the median of
//! several runs, with the fastest and the slowest.

use std::error::Error;
use std::time::Instant;

use ringway_emu::{Broker, EmuHypervisor, NewDomain, Role};
use ringway_hypervisor::{Access, ForeignMemory, GrantCopy, GrantStatus, Hypervisor};
use ringway_wire::DomId;

const BATCH: u16 = 64;
const BATCHES: u32 = 50_000;
const RUNS: usize = 9;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::temp_dir().join(format!("ringway-copy-rate-{}", std::process::id()));
    let broker = Broker::bind(&dir)?;
    let handle = broker.handle();
    let thread = std::thread::spawn(move || broker.run());
    let backend = EmuHypervisor::connect(&dir, DomId(0))?;
    let new = NewDomain { domid: None, memory_bytes: 1 << 24, role: Role::Guest };
    let guest = EmuHypervisor::connect(&dir, backend.create_domain(new)?)?;

    let mut grants = guest.grants()?;
    let pages = grants.alloc_pages(usize::from(BATCH))?;
    let grefs = (pages.first_frame..)
        .take(usize::from(BATCH))
        .map(|frame| grants.grant(DomId(0), frame, Access::ReadWrite))
        .collect::<Result<Vec<_>, _>>()?;

    let mut memory = backend.memory()?;
    let mut locals = vec![vec![0u8; 2048]; usize::from(BATCH)];
    for len in [64, 1500] {
        let mut ops = (0..BATCH)
            .zip(&grefs)
            .map(|(local, gref)| {
                let status = GrantStatus::GeneralError;
                GrantCopy { gref: *gref, offset: 0, len, local, local_offset: 0, status }
            })
            .collect::<Vec<_>>();
        let guest = guest.domid();
        let from = measure(|| memory.copy_from_peer(guest, &mut ops, &mut locals))?;
        println!("copy_from_peer {len:4} bytes: {from}");
        let to = measure(|| memory.copy_to_peer(guest, &mut ops, &locals))?;
        println!("copy_to_peer   {len:4} bytes: {to}");
        if ops.iter().any(|op| op.status != GrantStatus::Okay) {
            return Err("an operation was refused".into());
        }
    }

    handle.stop();
    thread.join().map_err(|_| "the broker panicked")??;
    std::fs::remove_dir(dir)?;
    Ok(())
}

/// The first run is a warm-up and does not count.
fn measure(mut batch: impl FnMut() -> std::io::Result<()>) -> std::io::Result<String> {
    let mut runs = Vec::with_capacity(RUNS + 1);
    for _ in 0..=RUNS {
        let start = Instant::now();
        for _ in 0..BATCHES {
            batch()?;
        }
        let ops = f64::from(BATCHES) * f64::from(BATCH);
        runs.push(start.elapsed().as_secs_f64() * 1e9 / ops);
    }
    runs.remove(0);
    runs.sort_by(f64::total_cmp);
    let (fastest, median, slowest) = (runs[0], runs[RUNS / 2], runs[RUNS - 1]);
    Ok(format!("{median:.1} ns per operation (fastest {fastest:.1}, slowest {slowest:.1})"))
}

//! The cost of connected but idle vifs: CPU time and memory of the backend. Guests' kernels are not
//! idle at first, so the measurement waits until IPv6 stops multicasting.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ringway_rig::host::RunningHost;
use ringway_sys::process::SchedulerTime;

use crate::options::Options;
use crate::path::Ringway;
use crate::report::{Better, Case, Report};

/// Duration of the measurement.
const WATCHED: Duration = Duration::from_secs(10);
/// How long the backend has work because it was asked for its state.
const SETTLING: Duration = Duration::from_secs(2);
/// How long guests may keep sending before the case is given up. IPv6 solicits routers forever, at
/// growing intervals, so the measurement must fit between two of its frames.
const PATIENCE: Duration = Duration::from_secs(180);
/// Vifs of one guest.
const VIFS_A_GUEST: usize = 25;
/// Memory of one guest: each vif has a queue with 514 pages, and 240 pages of slabs.
const GUEST_MEMORY_MIB: usize = 96;

/// One round.
pub(crate) fn round(options: &Options, report: &mut Report) {
    let vifs = options.vifs;
    let cases = [("CPU", "% of a CPU"), ("memory a vif", "KiB")].map(|(what, unit)| {
        let name = format!("{what}, {vifs} idle vifs");
        Case::new("idle", name, unit, Better::Less)
    });
    if !cases.iter().any(|case| options.wants(&case.name)) {
        return;
    }
    match Ringway::find(options.ringway.as_deref()) {
        Err(missing) => report.skip("idle", "ringway", &missing),
        Ok(ringway) => report.measure_all(&cases, "ringway", || {
            // The memory of a backend with hardly any vif is not part of the cost of a vif.
            let small = ringway.run(&description(1))?;
            let base_kib = own_memory_kib(small.backend()?.pid)?;
            drop(small);
            let host = ringway.run(&description(vifs))?;
            let pid = host.backend()?.pid;
            let cpu_percent = quiet_cpu_percent(&host, pid)?;
            let further_vifs = f64::from(u32::try_from(vifs.saturating_sub(1).max(1))?);
            Ok(vec![cpu_percent, (own_memory_kib(pid)? - base_kib) / further_vifs])
        }),
    }
}

/// A host with a number of vifs, spread over guests.
pub(crate) fn description(vifs: usize) -> String {
    let mut text = "[host]\nnetwork = \"private\"\n".to_owned();
    for (guest, first) in (0..vifs).step_by(VIFS_A_GUEST).enumerate() {
        text += &format!("[[guest]]\nname = \"guest{guest}\"\nmemory-mib = {GUEST_MEMORY_MIB}\n");
        text += &"[[guest.vif]]\nqueues = 1\n".repeat(VIFS_A_GUEST.min(vifs - first));
    }
    text
}

/// CPU time of the backend while no guest sends.
fn quiet_cpu_percent(host: &RunningHost, pid: u32) -> Result<f64> {
    let start = Instant::now();
    loop {
        let before = frames(host)?;
        thread::sleep(SETTLING);
        let percent = cpu_percent(pid, WATCHED)?;
        if frames(host)? == before {
            return Ok(percent);
        }
        ensure!(start.elapsed() < PATIENCE, "guests still send after {PATIENCE:?}");
    }
}

/// Frames that guests have sent.
fn frames(host: &RunningHost) -> Result<u64> {
    let vifs = host.backend()?.vifs;
    Ok(vifs.iter().flat_map(|vif| &vif.queues).map(|queue| queue.tx_packets).sum())
}

/// CPU time of a process, all threads together. The threads must not change.
fn cpu_percent(pid: u32, span: Duration) -> Result<f64> {
    let (start, before) = (Instant::now(), cpu_time(pid)?);
    thread::sleep(span);
    let during = cpu_time(pid)?.saturating_sub(before);
    Ok(during.as_secs_f64() * 100.0 / start.elapsed().as_secs_f64())
}

/// CPU time of all threads of a process, by the scheduler: clock ticks are too coarse here.
fn cpu_time(pid: u32) -> Result<Duration> {
    let tasks = format!("/proc/{pid}/task");
    let mut sum = Duration::ZERO;
    for task in fs::read_dir(&tasks).with_context(|| tasks.clone())? {
        let file = task?.path().join("schedstat");
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let time = SchedulerTime::parse(&text);
        sum += time.with_context(|| format!("{}: {text}", file.display()))?.cpu;
    }
    Ok(sum)
}

/// Memory of a process, without guests' memory and files.
pub(crate) fn own_memory_kib(pid: u32) -> Result<f64> {
    let file = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&file).with_context(|| file.clone())?;
    anonymous_kib(&text).with_context(|| format!("no Pss_Anon in {file}"))
}

fn anonymous_kib(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Pss_Anon:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn memory_of_guests_and_files_is_not_read() {
        let text = "Rss:  900 kB\nPss:       123 kB\nPss_Anon:  5 kB\nPss_File:  7 kB\n";
        assert_eq!(anonymous_kib(text), Some(5.0));
        assert_eq!(anonymous_kib("Pss: 1 kB"), None);
    }

    #[test]
    fn every_vif_is_described_once() {
        let text = description(60);
        assert_eq!(text.matches("[[guest.vif]]").count(), 60);
        assert_eq!(text.matches("[[guest]]").count(), 3);
        assert_eq!(description(0).matches("guest").count(), 0);
    }

    #[test]
    fn the_costs_of_a_process_can_be_read() {
        // Not this process: tests are threads, which come and go.
        let mut child = Command::new("sleep").arg("1000").spawn().expect("sleep is there");
        let costs = (own_memory_kib(child.id()), cpu_percent(child.id(), Duration::ZERO));
        child.kill().expect("it runs");
        child.wait().expect("it is ours");
        assert!(costs.0.expect("smaps_rollup") > 0.0);
        assert!(costs.1.expect("schedstat") >= 0.0);
    }
}

//! Counters, read at both ends of the measured seconds: CPU time by station, and what each queue
//! carried.

use std::fs;
use std::time::Instant;

use ringway_control::{BackendStatus, Times, VifStatus};

use crate::record::{Cpu, Disturbance, QueueUse};
use crate::topology::Topology;
use ringway_rig::child::PartError;
use ringway_rig::cpu_time::Machine;

/// The processes whose CPU time is counted.
#[derive(Debug, Default)]
pub struct Stations {
    /// Tools in the measured guests.
    pub near_tools: Vec<u32>,
    /// Tools in their peers.
    pub far_tools: Vec<u32>,
}

/// All counters at one moment.
#[derive(Debug)]
pub struct Reading {
    at: Instant,
    near_user: f64,
    near_system: f64,
    far: f64,
    netfront: Option<f64>,
    netback: Option<f64>,
    switch: Option<f64>,
    machine: Machine,
    queues: Vec<QueueUse>,
    response_times: Times,
}

/// What was counted between two readings.
#[derive(Debug)]
pub struct Counted {
    /// Seconds between them.
    pub seconds: f64,
    /// CPU time by station.
    pub cpu: Cpu,
    /// CPU time of all these processes, at both ends and in between.
    pub cpu_seconds: f64,
    /// What each queue carried.
    pub queues: Vec<QueueUse>,
    /// How long guests' transmit requests waited for a response.
    pub response_times: Times,
    /// What else the machine did.
    pub disturbance: Disturbance,
}

impl Reading {
    /// Reads everything.
    ///
    /// # Errors
    /// If a process has ended, or the backend does not reply.
    pub fn take(topology: &Topology, stations: &Stations) -> Result<Reading, PartError> {
        let (near_user, near_system) = sum(&stations.near_tools)?;
        let (far_user, far_system) = sum(&stations.far_tools)?;
        let (mut netfront, mut netback, mut queues) = (None, None, Vec::new());
        let mut response_times = Times::default();
        if let Some(host) = &topology.host {
            let backend: BackendStatus = host.backend()?;
            netfront = Some(total(&topology.frontends())?);
            netback = Some(total(&[backend.pid])?);
            queues = backend.vifs.iter().chain(&backend.uplink).flat_map(queues_of).collect();
            let all = backend.vifs.iter().flat_map(|vif| &vif.queues);
            response_times =
                all.fold(response_times, |sum, queue| sum.with(&queue.tx_response_times));
        }
        let switch = match topology.switch_pid() {
            Some(pid) => Some(total(&[pid])?),
            None => None,
        };
        Ok(Reading {
            at: Instant::now(),
            near_user,
            near_system,
            far: far_user + far_system,
            netfront,
            netback,
            switch,
            machine: Machine::now()?,
            queues,
            response_times,
        })
    }

    /// What was counted between an earlier reading and this one.
    pub fn since(&self, before: &Reading) -> Counted {
        let part = |now: Option<f64>, then: Option<f64>| Some(now? - then?);
        let cpu = Cpu {
            guest_user: Some(self.near_user - before.near_user),
            guest_system: Some(self.near_system - before.near_system),
            // Namespaces share the machine's softirqs, so a guest's part is unknown.
            guest_softirq: None,
            netfront: part(self.netfront, before.netfront),
            netback: part(self.netback, before.netback),
            // ringway's switch runs in the backend's threads; other switches have threads of their
            // own.
            switch: part(self.switch, before.switch),
            host_softirq: Some(self.machine.softirq - before.machine.softirq),
            steal: Some(self.machine.steal - before.machine.steal),
            far_tools: Some(self.far - before.far),
        };
        let ends = [cpu.guest_user, cpu.guest_system, cpu.netfront, cpu.far_tools];
        let parts = ends.into_iter().chain([cpu.netback, cpu.switch]);
        let seconds = (self.at - before.at).as_secs_f64();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let capacity = (seconds * ringway_stats::float(cpus)).max(1e-9);
        let cpu_seconds = parts.flatten().sum::<f64>();
        let busy = self.machine.busy - before.machine.busy;
        Counted {
            seconds,
            cpu,
            cpu_seconds,
            queues: self.queues.iter().map(|queue| carried(queue, &before.queues)).collect(),
            response_times: self.response_times.since(&before.response_times),
            disturbance: Disturbance {
                steal_share: Some((self.machine.steal - before.machine.steal) / capacity),
                foreign_share: Some((busy - cpu_seconds).max(0.0) / capacity),
                cpu_mhz: cpu_mhz(),
            },
        }
    }
}

fn queues_of(vif: &VifStatus) -> impl Iterator<Item = QueueUse> {
    vif.queues.iter().map(|queue| QueueUse {
        vif: vif.name.clone(),
        index: queue.index,
        tx_packets: queue.tx_packets,
        tx_bytes: queue.tx_bytes,
        rx_packets: queue.rx_packets,
        rx_bytes: queue.rx_bytes,
    })
}

fn carried(now: &QueueUse, before: &[QueueUse]) -> QueueUse {
    let then = before.iter().find(|then| then.vif == now.vif && then.index == now.index);
    let Some(then) = then else { return now.clone() };
    QueueUse {
        vif: now.vif.clone(),
        index: now.index,
        tx_packets: now.tx_packets.saturating_sub(then.tx_packets),
        tx_bytes: now.tx_bytes.saturating_sub(then.tx_bytes),
        rx_packets: now.rx_packets.saturating_sub(then.rx_packets),
        rx_bytes: now.rx_bytes.saturating_sub(then.rx_bytes),
    }
}

/// Seconds of processes in user mode and in the kernel, all threads together, including the few
/// that only serve requests.
pub(crate) fn sum(pids: &[u32]) -> Result<(f64, f64), PartError> {
    let mut sum = (0.0, 0.0);
    for pid in pids {
        let time = ringway_sys::process::cpu_time(*pid)
            .map_err(PartError::at(format!("read the time of process {pid}")))?;
        sum.0 += time.user.as_secs_f64();
        sum.1 += time.system.as_secs_f64();
    }
    Ok(sum)
}

fn total(pids: &[u32]) -> Result<f64, PartError> {
    sum(pids).map(|(user, system)| user + system)
}

/// The mean of the CPUs' frequencies as the kernel reports them; `None` on machines that do not.
pub(crate) fn cpu_mhz() -> Option<f64> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let lines = text.lines().filter(|line| line.starts_with("cpu MHz"));
    let all: Vec<f64> =
        lines.filter_map(|line| line.split(':').nth(1)?.trim().parse().ok()).collect();
    (!all.is_empty()).then(|| ringway_stats::mean(&all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_was_not_there_before_counts_from_nothing() {
        let queue = |index, tx_bytes| QueueUse {
            vif: "vif1.0".to_owned(),
            index,
            tx_packets: 0,
            tx_bytes,
            rx_packets: 0,
            rx_bytes: 0,
        };
        let before = [queue(0, 10), queue(1, 20)];
        assert_eq!(carried(&queue(1, 25), &before).tx_bytes, 5);
        assert_eq!(carried(&queue(2, 25), &before).tx_bytes, 25);
    }
}

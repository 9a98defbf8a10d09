//! The results of a demonstration. The JSON names are fixed: scripts depend on them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use ringway_control::{BackendStatus, GuestStatus, QueueStatus};
use ringway_stats::float;
use ringway_terminal::output::{OutFile, print};
use ringway_terminal::table;
use serde::Serialize;

use super::Demo;
use crate::cells;

/// Where results go as JSON.
pub(super) enum Json<'a> {
    Nowhere,
    /// To standard output, instead of the tables.
    Output,
    File(OutFile<'a>),
}

impl Json<'_> {
    /// What `--json` says. A file that cannot be written is an error before the measurement.
    pub(super) fn to(path: Option<&Path>) -> Result<Json<'_>> {
        match path {
            None => Ok(Json::Nowhere),
            Some(path) if path == Path::new("-") => Ok(Json::Output),
            Some(path) => OutFile::new(path).context("--json").map(Json::File),
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The profile of the program: only the rates of `release` can be compared.
    build: &'static str,
    queues: u16,
    streams: u16,
    seconds: u32,
    /// From guest a to guest b.
    tx_bits_per_second: f64,
    /// From guest b to guest a.
    rx_bits_per_second: f64,
    vifs: Vec<VifReport>,
    /// Frames, by reason, of backend and guests together.
    dropped: BTreeMap<String, u64>,
    ping: PingReport,
    /// Bytes that went over TCP in both directions and were compared.
    pub(super) payload_bytes: u64,
    cpu: Vec<CpuReport>,
    pub(super) leftovers: Vec<String>,
}

#[derive(Debug, Serialize)]
struct VifReport {
    name: String,
    kind: String,
    guest: String,
    state: String,
    max_queues: u16,
    offloads: Vec<String>,
    /// As the backend counts.
    queues: Vec<QueueStatus>,
    /// As the guest counts.
    guest_queues: Vec<QueueStatus>,
}

/// Packets of one ping and its ARP, by queue of guest a.
#[derive(Debug, Serialize)]
struct PingReport {
    tx_packets: Vec<u64>,
    rx_packets: Vec<u64>,
}

/// CPU time of a process while iperf3 ran.
#[derive(Debug, Default, Serialize)]
pub(super) struct CpuReport {
    pub(super) process: String,
    pub(super) user_seconds: f64,
    pub(super) system_seconds: f64,
}

impl Report {
    pub(super) fn new(
        args: &Demo,
        streams: u16,
        results: &[f64],
        (idle, pinged): (&BackendStatus, &BackendStatus),
        backend: &BackendStatus,
        guests: &[GuestStatus],
        cpu: Vec<CpuReport>,
    ) -> Report {
        let mut dropped = BTreeMap::new();
        let mut vifs = Vec::new();
        for vif in &backend.vifs {
            // A guest behind a socket has no domain: it is the second guest.
            let other = if vif.kind == "virtio" { "b" } else { "" };
            let guest = guests.iter().find(|guest| Some(guest.domid) == vif.domid);
            let guest_vif =
                guest.and_then(|guest| guest.vifs.iter().find(|own| own.handle == vif.handle));
            let guest_queues = guest_vif.map(|own| own.queues.clone()).unwrap_or_default();
            for queue in vif.queues.iter().chain(&guest_queues) {
                for (reason, count) in &queue.dropped {
                    *dropped.entry(reason.clone()).or_default() += count;
                }
            }
            vifs.push(VifReport {
                name: vif.name.clone(),
                kind: vif.kind.clone(),
                guest: guest.map_or(other, |guest| guest.name.as_str()).to_owned(),
                state: vif.state.clone(),
                max_queues: vif.max_queues,
                offloads: vif.offloads.clone(),
                queues: vif.queues.clone(),
                guest_queues,
            });
        }
        Report {
            build: super::PROFILE,
            queues: args.queues,
            streams,
            seconds: args.seconds,
            tx_bits_per_second: results.first().copied().unwrap_or_default(),
            rx_bits_per_second: results.get(1).copied().unwrap_or_default(),
            vifs,
            dropped,
            ping: PingReport {
                tx_packets: change(idle, pinged, |queue| queue.tx_packets),
                rx_packets: change(idle, pinged, |queue| queue.rx_packets),
            },
            payload_bytes: 0,
            cpu,
            leftovers: Vec::new(),
        }
    }

    pub(super) fn print(&self, json: Json<'_>) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        match json {
            Json::Output => print(&text)?,
            Json::File(file) => {
                file.write(|out| Ok(out.write_all(text.as_bytes())?))?;
                print(&self.for_people())?;
            }
            Json::Nowhere => print(&self.for_people())?,
        }
        for leftover in &self.leftovers {
            eprintln!("ringway: left behind: {leftover}");
        }
        Ok(())
    }

    fn for_people(&self) -> String {
        let mut text = format!(
            "\niperf3, {} TCP streams, {} s each way\n  a to b  {}\n  b to a  {}\n\n",
            self.streams,
            self.seconds,
            table::scaled(self.tx_bits_per_second, "bit/s"),
            table::scaled(self.rx_bits_per_second, "bit/s"),
        );
        text += &self.queue_table();
        text += &format!(
            "\none ping with its ARP, packets by queue of a: tx {:?}, rx {:?}\n\n",
            self.ping.tx_packets, self.ping.rx_packets
        );
        for vif in &self.vifs {
            text += &format!(
                "{}: {} bytes for each frame of tx, {} of rx, on average\n",
                vif.name,
                vif.bytes_each(|queue| [queue.tx_packets, queue.tx_bytes]),
                vif.bytes_each(|queue| [queue.rx_packets, queue.rx_bytes]),
            );
        }
        text += &format!(
            "payload sent both ways and compared: {}\n\n",
            table::scaled(float(self.payload_bytes), "B")
        );
        let rows = self.cpu.iter().map(|cpu| {
            let (user, system) = (cpu.user_seconds, cpu.system_seconds);
            vec![cpu.process.clone(), format!("{user:.2}"), format!("{system:.2}")]
        });
        text += &table::render(&["CPU SECONDS OF", ">USER", ">SYSTEM"], rows);
        text += &format!("\ndropped: {}\n", drops(&self.dropped));
        let left = if self.leftovers.is_empty() { "nothing" } else { "see below" };
        text + &format!("left behind: {left}\n")
    }

    /// What each queue counted at both ends.
    fn queue_table(&self) -> String {
        let head = [
            "VIF",
            "SEEN BY",
            ">QUEUE",
            ">TX PACKETS",
            ">TX BYTES",
            ">RX PACKETS",
            ">RX BYTES",
            "DROPPED",
        ];
        let mut rows = Vec::new();
        for vif in &self.vifs {
            for (by, queues) in [("backend", &vif.queues), (vif.guest.as_str(), &vif.guest_queues)]
            {
                for queue in queues {
                    let mut row = vec![vif.name.clone(), by.to_owned(), queue.index.to_string()];
                    let bytes = |bytes| table::scaled(float(bytes), "B");
                    row.extend([queue.tx_packets.to_string(), bytes(queue.tx_bytes)]);
                    row.extend([queue.rx_packets.to_string(), bytes(queue.rx_bytes)]);
                    row.push(cells::drops(&queue.dropped));
                    rows.push(row);
                }
            }
        }
        table::render(&head, rows)
    }
}

impl VifReport {
    /// Bytes of a frame, on average, of the packets and bytes that the backend counted.
    fn bytes_each(&self, of: fn(&QueueStatus) -> [u64; 2]) -> u64 {
        let counts = self.queues.iter().map(of);
        let [packets, bytes] = counts.fold([0, 0], |sums, it| [sums[0] + it[0], sums[1] + it[1]]);
        bytes.checked_div(packets).unwrap_or(0)
    }
}

/// Drops by reason. The first frames of a guest find no other one, which is nothing to look into.
fn drops(dropped: &BTreeMap<String, u64>) -> String {
    let is_of_start = dropped.keys().eq(["no_route"]);
    let why = if is_of_start { " (sent while the other guest was not connected)" } else { "" };
    cells::drops(dropped) + why
}

/// Whether a ping and the ARP before it are counted in both directions.
pub(super) fn has_pinged(idle: &BackendStatus, pinged: &BackendStatus) -> bool {
    let packets = |of: fn(&QueueStatus) -> u64| change(idle, pinged, of).into_iter().sum::<u64>();
    packets(|queue| queue.tx_packets) >= 2 && packets(|queue| queue.rx_packets) >= 2
}

/// What the queues of the first vif counted between two readings.
fn change(before: &BackendStatus, after: &BackendStatus, of: fn(&QueueStatus) -> u64) -> Vec<u64> {
    let queues = |status: &BackendStatus| -> Vec<u64> {
        status.vifs.first().map(|vif| vif.queues.iter().map(of).collect()).unwrap_or_default()
    };
    let pairs = queues(after).into_iter().zip(queues(before));
    pairs.map(|(after, before)| after.saturating_sub(before)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_the_start_are_explained_and_no_others() {
        let shown = |all: &[(&str, u64)]| {
            let all = all.iter().map(|(reason, count)| ((*reason).to_owned(), *count));
            drops(&all.collect())
        };
        assert_eq!(shown(&[]), "-");
        let why = "no_route 1 (sent while the other guest was not connected)";
        assert_eq!(shown(&[("no_route", 1)]), why);
        assert_eq!(shown(&[("no_route", 1), ("queue_full", 2)]), "no_route 1, queue_full 2");
    }
}

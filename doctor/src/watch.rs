//! Findings as metrics, in Prometheus' text format.
//!
//! Findings are gauges. The counters that they are based on are exported as well, so that a rule
//! can cover more time than two samples. Names of interfaces come from guests' toolstacks, so
//! labels are escaped and the number of series is limited to [`SERIES_MAX`].

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::check::{BYTES_PER_SECOND_MIN, CATALOGUE};
use crate::fact::{Host, Interfaces, PausedGuests, QueueCounters, Span, Tried, float, share};
use crate::finding::Severity;
use crate::parse::cpu::CpuTimes;
use crate::parse::ethtool::queue_counter;
use crate::parse::nic::NicCounters;
use crate::parse::ringway::{CONNECTED, Queue, Vif, Vifs, Wait};
use crate::parse::softnet::Softnet;
use crate::report::Report;
use ringway_evidence::facts;

/// Series of one family: a host may have a thousand interfaces with many queues each.
pub const SERIES_MAX: usize = 10_000;

/// The cost of examinations.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Duration of the last examination in seconds, with the wait between its samples.
    pub seconds: f64,
    /// CPU seconds of all examinations, including the tools that they run.
    pub cpu_seconds: f64,
}

facts! {
    /// The counters that are exported beside findings.
    pub(crate) struct Shown {
        nics: Interfaces,
        queues: QueueCounters,
        vifs: Tried<Span<Vifs>>,
        paused: PausedGuests,
        moved: Tried<Span<NicCounters>>,
        softnet: Tried<Span<Softnet>>,
        times: Tried<Span<CpuTimes>>,
    }
}

/// All metrics of one examination.
pub fn metrics(host: &Host, report: &Report, cost: Cost) -> String {
    let mut page = Page::default();
    page.add(INFO, &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    page.findings(report);
    if let Ok(shown) = host.fact::<Shown>() {
        page.shown(&shown);
    }
    page.add(LOOK, &[], cost.seconds);
    page.add(CPU, &[], cost.cpu_seconds);
    page.render()
}

/// The type of a family of series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: "gauge", help }
}

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: "counter", help }
}

const INFO: Family = gauge("ringway_doctor_info", "Always 1: the version of the doctor.");
const WORST: Family = gauge(
    "ringway_doctor_check_severity",
    "The highest severity that a check found: 0 ok, 1 unknown, 2 note, 3 warning, 4 problem.",
);
const FINDINGS: Family = gauge("ringway_doctor_findings", "Findings by check and severity.");
const QUEUE_BYTES: Family =
    counter("ringway_doctor_queue_bytes_total", "Bytes of a queue, as its driver counts them.");
const QUEUE_PACKETS: Family =
    counter("ringway_doctor_queue_packets_total", "Packets of a queue, as its driver counts them.");
const IMBALANCE: Family = gauge(
    "ringway_doctor_queue_imbalance_ratio",
    "Bytes of the fullest queue divided by the mean, between the two samples, from 1 MB/s on.",
);
const VIF: Family = gauge(
    "ringway_doctor_vif_info",
    "Always 1: a vif of ringway, whether it is of Xen, virtio or a network namespace, and the \
     version of ringway that serves it.",
);
const VIF_CONNECTED: Family = gauge(
    "ringway_doctor_vif_connected",
    "1 if the guest of a vif of ringway is connected, else 0.",
);
const VIF_BYTES: Family = counter(
    "ringway_doctor_vif_bytes_total",
    "Bytes of a queue of a vif of ringway: tx is what its guest transmits, as in `ringway vif \
     stats`. resets() counts how often guest or backend connected again.",
);
const VIF_PACKETS: Family =
    counter("ringway_doctor_vif_packets_total", "Packets of such a queue, likewise.");
const VIF_DROPS: Family = counter(
    "ringway_doctor_vif_drops_total",
    "Frames that ringway dropped at a vif, by its reasons.",
);
const VIF_WAIT: Family = gauge(
    "ringway_doctor_vif_wait_seconds",
    "For how long frames of such a queue have waited, and the kind of what they wait for in \
     `ringway vif show --json`, or `paused` for buffers of a guest that is paused; 0 if they do \
     not. Without a queue: what the vif waits for.",
);
const VIF_LIMIT: Family = gauge(
    "ringway_doctor_vif_limit",
    "A limit of a vif of ringway, by its name in `ringway vif set`: frames a second if it ends in \
     -rate, else bits a second. There is no series where there is no limit.",
);
const VIF_RESTARTS: Family = counter(
    "ringway_doctor_vif_restarts_total",
    "How often the process that serves a vif of ringway was replaced since the vif was made.",
);
const REFUSED: Family = gauge(
    "ringway_doctor_description_refused",
    "1 if ringway serves the last accepted description because the one in the file is wrong.",
);
const NIC_BYTES: Family = counter("ringway_doctor_interface_bytes_total", "Bytes of an interface.");
const NIC_PACKETS: Family =
    counter("ringway_doctor_interface_packets_total", "Packets of an interface.");
const NIC_DROPS: Family =
    counter("ringway_doctor_interface_drops_total", "Packets that an interface dropped.");
const NIC_PAUSED: Family = gauge(
    "ringway_doctor_interface_paused",
    "Always 1: the toolstack of the guest behind an interface says that it is paused.",
);
const BACKLOG_FRAMES: Family =
    counter("ringway_doctor_backlog_frames_total", "Frames that a CPU has taken in.");
const BACKLOG_DROPS: Family =
    counter("ringway_doctor_backlog_drops_total", "Frames that the backlog of a CPU dropped.");
const SQUEEZES: Family =
    counter("ringway_doctor_squeezes_total", "Rounds of a CPU that ended with frames left.");
const STEAL: Family =
    gauge("ringway_doctor_steal_ratio", "Time of a CPU that the hypervisor gave to others.");
const SOFTIRQ: Family = gauge("ringway_doctor_softirq_ratio", "Time of a CPU in softirqs.");

const LOOK: Family = gauge("ringway_doctor_look_seconds", "Duration of the last examination.");
const CPU: Family = counter(
    "ringway_doctor_cpu_seconds_total",
    "CPU time of all examinations and the tools that they \
         ran.",
);

/// Lines by family, in the order in which they are shown.
#[derive(Debug, Default)]
struct Page {
    families: BTreeMap<Family, Vec<String>>,
}

impl Page {
    fn add(&mut self, family: Family, labels: &[(&str, &str)], value: f64) {
        let lines = self.families.entry(family).or_default();
        if lines.len() < SERIES_MAX {
            let label = |(key, value): &(&str, &str)| format!("{key}=\"{}\"", escaped(value));
            let labels: Vec<String> = labels.iter().map(label).collect();
            let labels = labels.join(",");
            let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
            lines.push(format!("{}{labels} {value}", family.name));
        }
    }

    fn shown(&mut self, shown: &Shown) {
        self.queues(shown);
        if let Some(span) = shown.vifs.ok() {
            self.ringway_vifs(span, &shown.paused);
        }
        if let Some(span) = shown.moved.ok() {
            self.nics(&span.after, &shown.paused);
        }
        if let Some(span) = shown.softnet.ok() {
            self.backlogs(&span.after);
        }
        if let Some(span) = shown.times.ok() {
            self.cpus(span);
        }
    }

    fn findings(&mut self, report: &Report) {
        for check in CATALOGUE {
            let found = || report.findings.iter().filter(|one| one.check == check.id);
            // A check that does not apply to this host has no series.
            let Some(worst) = found().map(|one| one.severity).max() else { continue };
            self.add(WORST, &[("check", check.id), ("title", check.title)], level(worst));
            for (severity, name) in SEVERITIES {
                let count = found().filter(|one| one.severity == severity).count();
                let count = float(u64::try_from(count).unwrap_or(u64::MAX));
                self.add(FINDINGS, &[("check", check.id), ("severity", name)], count);
            }
        }
    }

    fn queues(&mut self, shown: &Shown) {
        for nic in shown.nics.names() {
            let Ok(span) = shown.queues.of_queues(&nic) else { continue };
            let mut passed: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
            for (name, (count, _)) in &span.after.counters {
                let Some((counter, queue)) = queue_counter(name) else { continue };
                let direction = if counter.is_tx { "transmit" } else { "receive" };
                let family = if counter.is_bytes { QUEUE_BYTES } else { QUEUE_PACKETS };
                self.queue(family, [&nic, &queue.to_string(), direction], *count);
                let known = span.before.counters.get(name).map(|(before, _)| before);
                if let Some(before) = span.past(known).filter(|_| counter.is_bytes) {
                    passed.entry(direction).or_default().push(count.saturating_sub(before));
                }
            }
            self.imbalance(&nic, &passed, span.seconds);
        }
    }

    /// Ringway's vifs, and the counters of each of their queues by the direction of the guest, as
    /// all of ringway has them. Their families are their own: an interface on a bridge may have the
    /// name of its vif, and the opposite directions.
    fn ringway_vifs(&mut self, span: &Span<Vifs>, paused: &PausedGuests) {
        if !span.after.all.is_empty() {
            let is_refused = span.after.all.iter().any(|vif| vif.refusal().is_some());
            self.add(REFUSED, &[], f64::from(u8::from(is_refused)));
        }
        for vif in &span.after.all {
            // The uplink has no kind, and neither have vifs in records of older versions.
            if !vif.kind.is_empty() {
                let Vif { name, kind, version, .. } = vif;
                self.add(VIF, &[("interface", name), ("kind", kind), ("version", version)], 1.0);
                let is_connected = f64::from(u8::from(vif.state == CONNECTED));
                self.add(VIF_CONNECTED, &[("interface", &vif.name)], is_connected);
                self.add(VIF_RESTARTS, &[("interface", &vif.name)], float(vif.restarts));
            }
            for (limit, most) in vif.limits.named() {
                self.add(VIF_LIMIT, &[("interface", &vif.name), ("limit", limit)], most);
            }
            self.drops(vif);
            self.waits(vif, if paused.has(vif) { PAUSED } else { NO_BUFFERS });
            let mut passed: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
            for queue in &vif.queues {
                let before = span.before.queue(&vif.name, queue.index);
                for (direction, bytes, packets, known) in [
                    ("tx", queue.tx_bytes, queue.tx_packets, before.map(|old| old.tx_bytes)),
                    ("rx", queue.rx_bytes, queue.rx_packets, before.map(|old| old.rx_bytes)),
                ] {
                    let names = [vif.name.as_str(), &queue.index.to_string(), direction];
                    self.queue(VIF_BYTES, names, bytes);
                    self.queue(VIF_PACKETS, names, packets);
                    if let Some(before) = span.past(known.as_ref()) {
                        passed.entry(direction).or_default().push(bytes.saturating_sub(before));
                    }
                }
            }
            self.imbalance(&vif.name, &passed, span.seconds);
        }
    }

    /// What was dropped at a vif. A series that began with its first drop would have no rate then,
    /// so the most frequent reason has one from the start.
    fn drops(&mut self, vif: &Vif) {
        let mut dropped = BTreeMap::from([("queue_full", 0_u64)]);
        for (reason, count) in vif.queues.iter().flat_map(|queue| &queue.dropped) {
            let sum = dropped.entry(reason.as_str()).or_default();
            *sum = sum.saturating_add(*count);
        }
        for (reason, count) in dropped {
            self.add(VIF_DROPS, &[("interface", &vif.name), ("reason", reason)], float(count));
        }
    }

    /// What a vif and its queues wait for. Why its guest posts no buffers is known here only.
    fn waits(&mut self, vif: &Vif, no_buffers: &str) {
        let interface = ("interface", vif.name.as_str());
        for wait in &vif.waits {
            self.add(VIF_WAIT, &[interface, ("reason", &wait.kind)], wait.seconds());
        }
        for Queue { index, tx_wait, rx_wait, .. } in &vif.queues {
            let index = index.to_string();
            let queue = ("queue", index.as_str());
            for (direction, wait) in [("tx", tx_wait), ("rx", rx_wait)] {
                let kind = wait.as_ref().map_or("", |wait| wait.kind.as_str());
                let reason = if kind == NO_BUFFERS { no_buffers } else { kind };
                let labels = [interface, queue, ("direction", direction), ("reason", reason)];
                self.add(VIF_WAIT, &labels, wait.as_ref().map_or(0.0, Wait::seconds));
            }
        }
    }

    fn queue(&mut self, family: Family, [interface, queue, direction]: [&str; 3], count: u64) {
        let labels = [("interface", interface), ("queue", queue), ("direction", direction)];
        self.add(family, &labels, float(count));
    }

    /// The imbalance of the bytes that passed each queue, by direction, if they are as many as D06
    /// judges: one ping in one of four queues is four times the mean.
    fn imbalance(&mut self, nic: &str, passed: &BTreeMap<&str, Vec<u64>>, seconds: f64) {
        for (direction, bytes) in passed {
            let total = bytes.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
            let most = bytes.iter().max().copied().unwrap_or(0);
            let queues = float(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
            if float(total) / seconds >= BYTES_PER_SECOND_MIN {
                let ratio = share(most, total) * queues;
                self.add(IMBALANCE, &[("interface", nic), ("direction", direction)], ratio);
            }
        }
    }

    fn nics(&mut self, counters: &NicCounters, paused: &PausedGuests) {
        for (nic, moved) in &counters.nics {
            if paused.has_interface(nic) {
                self.add(NIC_PAUSED, &[("interface", nic)], 1.0);
            }
            for (direction, bytes, packets, drops) in [
                ("receive", moved.rx_bytes, moved.rx_packets, moved.rx_dropped),
                ("transmit", moved.tx_bytes, moved.tx_packets, moved.tx_dropped),
            ] {
                let labels = [("interface", nic.as_str()), ("direction", direction)];
                self.add(NIC_BYTES, &labels, float(bytes));
                self.add(NIC_PACKETS, &labels, float(packets));
                self.add(NIC_DROPS, &labels, float(drops));
            }
        }
    }

    fn backlogs(&mut self, counters: &Softnet) {
        for row in &counters.rows {
            let cpu = row.cpu.to_string();
            self.add(BACKLOG_FRAMES, &[("cpu", &cpu)], f64::from(row.processed));
            self.add(BACKLOG_DROPS, &[("cpu", &cpu)], f64::from(row.dropped));
            self.add(SQUEEZES, &[("cpu", &cpu)], f64::from(row.squeezed));
        }
    }

    fn cpus(&mut self, span: &Span<CpuTimes>) {
        for (cpu, after) in &span.after.cpus {
            let Some(before) = span.past(span.before.cpus.get(cpu)) else { continue };
            let (spent, cpu) = (after.since(&before), cpu.to_string());
            self.add(STEAL, &[("cpu", &cpu)], share(spent.steal, spent.total));
            self.add(SOFTIRQ, &[("cpu", &cpu)], share(spent.softirq, spent.total));
        }
    }

    fn render(&self) -> String {
        let mut text = String::new();
        for (Family { name, kind, help }, lines) in &self.families {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for line in lines {
                let _ = writeln!(text, "{line}");
            }
        }
        text
    }
}

/// The kind of a wait for a guest that posts no buffers, and what it is if that guest is paused:
/// no fault, and no alarm.
const NO_BUFFERS: &str = "no_buffers";
const PAUSED: &str = "paused";

const SEVERITIES: [(Severity, &str); 4] = [
    (Severity::Unknown, "unknown"),
    (Severity::Note, "note"),
    (Severity::Warning, "warning"),
    (Severity::Problem, "problem"),
];

fn level(severity: Severity) -> f64 {
    match severity {
        Severity::Ok => 0.0,
        Severity::Unknown => 1.0,
        Severity::Note => 2.0,
        Severity::Warning => 3.0,
        Severity::Problem => 4.0,
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The names of all families, for rules and dashboards.
pub fn names() -> [&'static str; 26] {
    [
        INFO,
        WORST,
        FINDINGS,
        QUEUE_BYTES,
        QUEUE_PACKETS,
        IMBALANCE,
        VIF,
        VIF_CONNECTED,
        VIF_BYTES,
        VIF_PACKETS,
        VIF_DROPS,
        VIF_WAIT,
        VIF_LIMIT,
        VIF_RESTARTS,
        REFUSED,
        NIC_BYTES,
        NIC_PACKETS,
        NIC_DROPS,
        NIC_PAUSED,
        BACKLOG_FRAMES,
        BACKLOG_DROPS,
        SQUEEZES,
        STEAL,
        SOFTIRQ,
        LOOK,
        CPU,
    ]
    .map(|family| family.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Source, command_path};

    #[test]
    fn a_guest_that_is_paused_is_no_alarm() {
        let rules = include_str!("../../packaging/doctor/alerts.yml");
        let rule = |name: &str| {
            let (_, rule) = rules.split_once(&format!("alert: {name}\n")).expect("its rule");
            rule.split_once("for:").map_or(rule, |(rule, _)| rule)
        };
        let waits = format!("vif_wait_seconds{{reason!=\"{PAUSED}\"}}");
        assert!(rule("RingwayDoctorVifWaits").contains(&waits));
        let pauses = format!("ringway_doctor_vif_wait_seconds{{reason=\"{PAUSED}\"}} > 0");
        let drops = format!("unless on (instance, interface) {pauses}");
        assert!(rule("RingwayDoctorVifDrops").contains(&drops));
        let pauses = format!("unless on (instance, interface) {} == 1", NIC_PAUSED.name);
        assert!(rule("RingwayDoctorInterfaceDrops").contains(&pauses));
        let domains = "Name ID Mem VCPUs State Time(s)\nweb 7 9 4 --p--- 3\n";
        let dev = "Inter-|   Receive   |  Transmit\n face |bytes packets|bytes\n\
                   vif7.0: 9 3 0 0 0 0 0 0 9 4 0 0 0 0 0 0\n\
                   vif8.0: 9 3 0 0 0 0 0 0 9 4 0 0 0 0 0 0\n";
        let pieces = [
            (command_path(&["xl", "list"]), domains),
            ("sample-1/monotonic".to_owned(), "1.0\n"),
            ("sample-1/proc/net/dev".to_owned(), dev),
            ("sample-2/monotonic".to_owned(), "2.0\n"),
            ("sample-2/proc/net/dev".to_owned(), dev),
        ];
        let pieces = pieces.map(|(path, text)| (path, text.to_owned()));
        let host = Host::new(Source::Memory(pieces.into()));
        let text = metrics(&host, &Report::of(&host, &[]), Cost::default());
        assert!(text.contains("interface_paused{interface=\"vif7.0\"} 1"), "{text}");
        assert!(!text.contains("interface_paused{interface=\"vif8.0\"}"), "{text}");
    }

    #[test]
    fn queues_that_the_kernel_reports_are_series() {
        let mut pieces: BTreeMap<String, String> = BTreeMap::new();
        for (sample, time, bytes) in [("sample-1", 1, 0), ("sample-2", 2, 3_000_000)] {
            let mut put =
                |path: &str, text: String| pieces.insert(format!("{sample}/{path}"), text);
            put("monotonic", format!("{time}\n"));
            let kicks = "NIC statistics:\n     rx0_kicks: 5\n";
            put(&command_path(&["ethtool", "-S", "eth0"]), kicks.to_owned());
            let lines = format!("rx-0 packets: 4\nrx-0 bytes: {bytes}\nrx-1 bytes: 9\n");
            put("netlink/eth0/qstats", format!("qstats of eth0: 3\n{lines}"));
            let lines = format!("rx-0 bytes: {}\nrx-1 bytes: 9\n", bytes / 10_000);
            put("netlink/eth1/qstats", format!("qstats of eth1: 2\n{lines}"));
        }
        pieces.insert("sys/class/net/eth0/mtu".into(), "1500\n".into());
        pieces.insert("sys/class/net/eth1/mtu".into(), "1500\n".into());
        let host = Host::new(Source::Memory(pieces));
        let text = metrics(&host, &Report::of(&host, &[]), Cost::default());
        for line in [
            "queue_packets_total{interface=\"eth0\",queue=\"0\",direction=\"receive\"} 4",
            "queue_bytes_total{interface=\"eth0\",queue=\"0\",direction=\"receive\"} 3000000",
            "queue_bytes_total{interface=\"eth1\",queue=\"0\",direction=\"receive\"} 300",
            "queue_imbalance_ratio{interface=\"eth0\",direction=\"receive\"} 2",
        ] {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
        assert!(!text.contains("imbalance_ratio{interface=\"eth1\""), "it moves little:\n{text}");
    }

    /// A vif with two queues, as `ringway vif list` shows it.
    fn vif(name: &str, kind: &str, state: &str, bytes: u32) -> String {
        let notice = "serving the last accepted description, not host.toml, line 3: ...";
        let queue = format!(
            "{{\"index\":0,\"tx_packets\":7,\"tx_bytes\":{bytes},\"rx_packets\":5,\
             \"rx_bytes\":6,\"dropped\":{{\"rate_limit\":3}},\
             \"rx_wait\":{{\"kind\":\"no_buffers\",\"milliseconds\":1500}}}}"
        );
        format!(
            "{{\"name\":\"{name}\",\"kind\":\"{kind}\",\"max_queues\":1,\
             \"state\":\"{state}\",\"version\":\"7\",\"restarts\":2,\
             \"limits\":{{\"rate\":{{\"bytes\":1250,\"interval_us\":1000}},\
             \"broadcast\":{{\"frames_per_second\":50}}}},\
             \"waits\":[{{\"kind\":\"script\",\"milliseconds\":250}}],\
             \"queues\":[{queue},{queue}],\"notice\":\"{notice}\"}}"
        )
    }

    const SERIES: [&str; 25] = [
        "ringway_doctor_backlog_frames_total{cpu=\"0\"} 1",
        "ringway_doctor_interface_packets_total{interface=\"eth1\",direction=\"transmit\"} 4",
        "ringway_doctor_findings{check=\"D19\",severity=\"problem\"} 1",
        "ringway_doctor_steal_ratio{cpu=\"0\"} 0.5",
        "ringway_doctor_squeezes_total{cpu=\"0\"} 3",
        "ringway_doctor_queue_bytes_total{interface=\"eth\\\"0\",queue=\"0\",\
         direction=\"transmit\"} 30000000",
        "ringway_doctor_queue_imbalance_ratio{interface=\"eth\\\"0\",direction=\"transmit\"} 2",
        "ringway_doctor_vif_info{interface=\"vif1.0\",kind=\"xen\",version=\"7\"} 1",
        "ringway_doctor_vif_info{interface=\"vm1\",kind=\"virtio\",version=\"7\"} 1",
        "ringway_doctor_vif_connected{interface=\"vif1.0\"} 1",
        "ringway_doctor_vif_connected{interface=\"vm1\"} 0",
        "ringway_doctor_vif_restarts_total{interface=\"vm1\"} 2",
        "ringway_doctor_vif_bytes_total{interface=\"vif1.0\",queue=\"0\",direction=\"tx\"} \
         30000000",
        "ringway_doctor_vif_packets_total{interface=\"vm1\",queue=\"0\",direction=\"rx\"} 5",
        "ringway_doctor_vif_drops_total{interface=\"vif1.0\",reason=\"queue_full\"} 0",
        "ringway_doctor_vif_drops_total{interface=\"vif1.0\",reason=\"rate_limit\"} 6",
        "ringway_doctor_vif_wait_seconds{interface=\"vif1.0\",reason=\"script\"} 0.25",
        "ringway_doctor_vif_wait_seconds{interface=\"vif1.0\",queue=\"0\",direction=\"rx\",\
         reason=\"no_buffers\"} 1.5",
        "ringway_doctor_vif_wait_seconds{interface=\"vm1\",queue=\"0\",direction=\"tx\",\
         reason=\"\"} 0",
        "ringway_doctor_vif_limit{interface=\"vm1\",limit=\"rate\"} 10000000",
        "ringway_doctor_vif_limit{interface=\"vif1.0\",limit=\"broadcast-rate\"} 50",
        "ringway_doctor_description_refused 1",
        // The uplink, too, has what `ringway vif show` has of it.
        "ringway_doctor_vif_bytes_total{interface=\"uplink\",queue=\"0\",direction=\"tx\"} \
         30000000",
        "ringway_doctor_vif_drops_total{interface=\"uplink\",reason=\"rate_limit\"} 6",
        "ringway_doctor_vif_limit{interface=\"uplink\",limit=\"broadcast-rate\"} 50",
    ];

    #[test]
    fn findings_queues_and_cpus_are_series() {
        let softnet = "00000001 00000002 00000003 00000000 00000000 00000000 00000000 00000000 \
                       00000000 00000000 00000000 00000000 00000000\n";
        let mut pieces: BTreeMap<String, String> = BTreeMap::new();
        for (sample, ticks, bytes) in [("sample-1", 0, 0), ("sample-2", 50, 30_000_000)] {
            let mut put =
                |path: &str, text: String| pieces.insert(format!("{sample}/{path}"), text);
            put("monotonic", format!("{}\n", ticks / 10));
            put("proc/stat", format!("cpu0 {ticks} 0 0 0 0 0 0 {ticks} 0 0\nintr 1\n"));
            put("proc/net/softnet_stat", softnet.to_owned());
            let head = "Inter-|   Receive   |  Transmit\n face |bytes packets|bytes\n";
            put("proc/net/dev", format!("{head}eth1: 9 3 0 0 0 0 0 0 9 4 0 0 0 0 0 0\n"));
            let statistics = format!(
                "NIC statistics:\n     tx_queue_0_bytes: {bytes}\n     tx_queue_1_bytes: 100\n"
            );
            put(&command_path(&["ethtool", "-S", "eth\"0"]), statistics);
            let vif = |name, kind, state| vif(name, kind, state, bytes);
            let vifs = [
                vif("uplink", "", "Connected"),
                vif("vif1.0", "xen", "Connected"),
                vif("vm1", "virtio", "Waiting"),
            ];
            put(
                &command_path(&["ringway", "vif", "list", "--json"]),
                format!("[{}]\n", vifs.join(",")),
            );
        }
        pieces.insert("sys/class/net/eth\"0/mtu".into(), "1500\n".into());
        pieces.insert("proc/sys/net/ipv4/tcp_sack".into(), "0\n".into());
        let host = Host::new(Source::Memory(pieces));
        let text = metrics(&host, &Report::of(&host, &[]), Cost::default());
        for line in SERIES {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
        assert!(!text.contains("connected{interface=\"uplink\""), "it is no vif:\n{text}");
        assert!(
            text.contains(concat!("ringway_doctor_info{version=\"", env!("CARGO_PKG_VERSION")))
        );
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().expect("a name");
            assert!(names().contains(&name), "{line}");
            let value = line.rsplit(' ').next().expect("a value");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
}

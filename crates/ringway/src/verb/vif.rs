//! `ringway vif`: shows the state of vifs per queue, and changes them while they run.

mod show;
mod wait;

use std::iter;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail};
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, Subcommand};
use ringway_control::{
    BackendRequest, BackendStatus, OpenerRequest, Reconnect, TenantStatus, VifStatus, listed,
};
use ringway_terminal::options::number;
use ringway_terminal::output::{print, print_json};
use ringway_terminal::stop::Stop;
use ringway_terminal::table;
use ringway_xenbus::{LIMITS, Limit, RULES, Rule};

use crate::cells;
use crate::rates::{self, Reading};
use crate::target::{List, Target};

/// How long the process of a vif's tenant may take to report the vif's state.
const TENANT_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before it is asked again.
const RETRY: Duration = Duration::from_millis(20);
/// The column of the tenant in a list of vifs, where it is shown: after the guest.
const TENANT_COLUMN: usize = 3;

/// Show vifs and their counters per queue; add and remove vifs; change their limits
#[derive(Debug, Args)]
pub(crate) struct Vif {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show all vifs and the uplink
    List(List),
    /// Show one vif and its queues
    #[command(after_help = "Example:\n  ringway vif show vif1.0")]
    Show(show::Show),
    /// Add a virtio vif: a guest of QEMU, libvirt or DPDK behind a vhost-user socket
    ///
    /// It stays until it is removed or the host ends, also when the backend restarts. To keep it
    /// longer, add a [[vhost]] to the host's description.
    #[command(after_help = "Examples:\n  \
                            ringway vif add vm1 --vhost /run/vm1.sock --queues 4\n  \
                            ringway vif add vm2 --vhost /run/vm2.sock --mode server \
                            --set 'rate=\"100Mb/s\"' --set vlan=5")]
    Add(Add),
    /// Remove a vif that `add` made
    Remove(Remove),
    /// Change a vif's limits and rules
    ///
    /// max-queues applies when the guest connects the next time; a connected guest keeps its
    /// queues. With --reconnect a guest that runs ringway's frontend reconnects at once, and TCP
    /// connections survive. Linux's driver would not reconnect, so --reconnect is refused for it.
    ///
    /// All others apply at once and last as long as the vif, also when the backend restarts. rate
    /// and rate-rx limit what the guest transmits and receives: 100Mb/s, 1MB/s@20ms, or none.
    /// weight, from 1 to 1000, is its share while other vifs have work, too. flood-rate and
    /// flood-mbit limit the frames and megabits per second that it floods; the broadcast, multicast
    /// and unknown limits are for one kind of these. 0 is no limit; megabits may be a rate: 10Mb/s.
    ///
    /// offloads is what the guest and its network leave to each other of checksums and
    /// segmentation: all, none, or auto, which suits the network. A guest takes another offer when
    /// it connects the next time; until then, what it leaves undone is done in software.
    ///
    /// Rules, from locking-mode on, are those of a description. VLANs, private and the three after
    /// it are for vifs on the switch. mirror makes the vif the output of a mirror: it receives
    /// copies of what the given ports transmit (tx), receive (rx) or both, and nothing else, and
    /// what it transmits is dropped.
    ///
    /// The uplink has limits and rules of its own, in its section of the description.
    #[command(after_help = "Examples:\n  ringway vif set vif1.0 max-queues 4\n  \
                            ringway vif set vif1.0 max-queues 4 --reconnect\n  \
                            ringway vif set vif1.0 rate 100Mb/s\n  \
                            ringway vif set vif1.0 weight 4\n  \
                            ringway vif set vm1 allowed-ips 10.77.0.5,fd77::5")]
    Set(Set),
    /// Wait until the guest of a vif is connected
    #[command(after_help = "Example:\n  ringway vif wait vm1 --installed --timeout 10s")]
    Wait(wait::Wait),
    /// Take a vif out of quarantine
    ///
    /// If the backend panics twice while it serves a vif, the vif is in quarantine: it is not
    /// served for some hours.
    Release(Release),
    /// Show the counters of each queue, or rates with --watch
    ///
    /// Directions are the guest's: TX is what it transmits. TX BIT/S and RX BIT/S count Ethernet
    /// frames without their checksum; k, M and G are powers of 1000. Without --watch, LENT
    /// is the part of the guest's long frames that were copied once, into another guest's pages.
    #[command(after_help = "Examples:\n  ringway vif stats vif1.0\n  ringway vif stats --watch")]
    Stats(Stats),
}

#[derive(Debug, Args)]
struct Add {
    #[command(flatten)]
    target: Target,
    /// A name for it, such as vm1
    name: String,
    /// Path of the socket
    #[arg(long, value_name = "SOCKET")]
    vhost: PathBuf,
    /// Queues that the guest may have [default: 1]
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=64))]
    queues: Option<u16>,
    /// client: QEMU creates the socket (server=on), and ringway connects as soon as it exists.
    /// server: ringway creates the socket, and QEMU connects
    /// [default: client]
    #[arg(long, value_name = "MODE")]
    mode: Option<String>,
    /// The guest's address: with it, the guest can use no other
    #[arg(long, value_name = "MAC")]
    mac: Option<String>,
    /// The bridge to put it on, instead of ringway's switch: one of Linux, or one of Open vSwitch,
    /// perhaps with VLANs: br-int.7 is a port of VLAN 7, br-int:8:9 a trunk
    #[arg(long, value_name = "BRIDGE")]
    bridge: Option<String>,
    /// What the guest may transmit, such as 100Mb/s
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,
    /// Features to offer in addition to the default ones, or with a - before them, not to offer
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', allow_hyphen_values = true)]
    features: Vec<String>,
    /// Another key of [[vhost]], with its value as TOML
    #[arg(long = "set", value_name = "KEY=VALUE")]
    keys: Vec<String>,
}

#[derive(Debug, Args)]
struct Remove {
    #[command(flatten)]
    target: Target,
    /// The vif
    name: String,
}

#[derive(Debug, Args)]
struct Release {
    #[command(flatten)]
    target: Target,
    /// The vif, such as vif1.0
    vif: String,
}

#[derive(Debug, Args)]
struct Set {
    #[command(flatten)]
    target: Target,
    /// The vif, such as vif1.0
    vif: String,
    /// What to change
    #[arg(value_parser = settings())]
    setting: String,
    /// The new value
    value: String,
    /// Make a guest that runs ringway's frontend reconnect at once
    #[arg(long)]
    reconnect: bool,
}

#[derive(Debug, Args)]
struct Stats {
    #[command(flatten)]
    target: Target,
    /// The vif, such as vif1.0; all without it
    vif: Option<String>,
    /// Print rates every second, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Print JSON; with --watch a line for each second
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Vif) -> Result<()> {
    match &args.verb {
        Verb::List(args) => list(args),
        Verb::Show(args) => show::run(args),
        Verb::Add(args) => args.target.ask_opener(&OpenerRequest::Add { section: args.section()? }),
        Verb::Remove(args) => {
            args.target.ask_opener(&OpenerRequest::Remove { name: args.name.clone() })
        }
        Verb::Set(args) => args.target.ask_backend(&args.request()?),
        Verb::Release(args) => args.target.release(&args.vif),
        Verb::Wait(args) => wait::run(args),
        Verb::Stats(args) if args.watch => watch(args),
        Verb::Stats(args) => stats(args),
    }
}

impl Add {
    /// The vif as a section of a description.
    fn section(&self) -> Result<String> {
        let socket = std::path::absolute(&self.vhost)
            .with_context(|| format!("--vhost {}", self.vhost.display()))?;
        let socket = socket.to_str().context("--vhost: expected a path in UTF-8")?;
        let features = Some(self.features.clone()).filter(|features| !features.is_empty());
        let options: [(&str, &str, Option<toml::Value>); 8] = [
            ("NAME", "name", Some(self.name.clone().into())),
            ("--vhost", "socket", Some(socket.into())),
            ("--queues", "queues", self.queues.map(|queues| i64::from(queues).into())),
            ("--mode", "mode", self.mode.clone().map(Into::into)),
            ("--mac", "mac", self.mac.clone().map(Into::into)),
            ("--bridge", "bridge", self.bridge.clone().map(Into::into)),
            ("--rate", "rate", self.rate.clone().map(Into::into)),
            ("--features", "features", features.map(Into::into)),
        ];
        let mut table = toml::Table::new();
        for (_, key, value) in &options {
            table.extend(value.clone().map(|value| ((*key).to_owned(), value)));
        }
        for text in &self.keys {
            let one: toml::Table = toml::from_str(text)
                .with_context(|| format!("--set {text}: expected KEY=VALUE, with a TOML value"))?;
            for (key, value) in one {
                let option =
                    options.iter().find(|(_, name, value)| *name == key && value.is_some());
                let option = option.map_or("another --set", |(option, _, _)| option);
                if table.insert(key.clone(), value).is_some() {
                    bail!("--set {text}: {option} sets {key}, too; remove one of them");
                }
            }
        }
        let mut file = toml::Table::new();
        file.insert("vhost".to_owned(), toml::Value::Array(vec![table.into()]));
        Ok(toml::to_string(&file)?)
    }
}

/// The setting that applies when the guest connects the next time.
const MAX_QUEUES: &str = "max-queues";

/// The settings of a vif: its limits, its rules, and one more.
fn settings() -> PossibleValuesParser {
    let setting = |name, help| PossibleValue::new(name).help(help);
    let max_queues = setting(MAX_QUEUES, "Queues that the guest may ask for: 1 to 64");
    let limits = LIMITS.iter().map(|limit| setting(limit.name(), limit.help));
    let rules = RULES.iter().map(|rule| setting(rule.name, rule.help));
    iter::once(max_queues).chain(limits).chain(rules).collect::<Vec<_>>().into()
}

impl Set {
    fn request(&self) -> Result<BackendRequest> {
        let vif = self.vif.clone();
        let (setting, value) = (self.setting.as_str(), self.value.as_str());
        if self.reconnect && setting != MAX_QUEUES {
            bail!("--reconnect is only for max-queues: all others apply at once");
        }
        let value = match setting {
            MAX_QUEUES => {
                let max_queues = number::<u16>(1..=64)(value);
                let max_queues =
                    max_queues.map_err(|reason| anyhow!("max-queues {value}: {reason}"))?;
                let reconnect = if self.reconnect { Reconnect::Now } else { Reconnect::Later };
                return Ok(BackendRequest::SetMaxQueues { vif, max_queues, reconnect });
            }
            setting => match (Limit::named(setting), Rule::named(setting)) {
                (Some(limit), _) => limit.key_value(value)?,
                (None, Some(rule)) => rule.key_value(value).map_err(Error::msg)?,
                (None, None) => value.to_owned(),
            },
        };
        Ok(BackendRequest::SetLimit { vif, limit: setting.to_owned(), value })
    }
}

/// All vifs, and the uplink as the last; only the named one if there is a name.
fn vifs(target: &Target, name: Option<&str>) -> Result<Vec<VifStatus>> {
    match name {
        None => Ok(target.backend()?.ports().cloned().collect()),
        Some(name) => Ok(vec![vif(target, name)?]),
    }
}

/// One vif, or the uplink. Its tenant's process may be busy, or just starting.
fn vif(target: &Target, name: &str) -> Result<VifStatus> {
    let deadline = Instant::now() + TENANT_TIMEOUT;
    loop {
        let status = target.backend()?;
        if let Some(vif) = status.ports().find(|vif| vif.name == name) {
            return Ok(vif.clone());
        }
        let Some(tenant) = status.tenants.iter().find(|tenant| tenant.serves(name)) else {
            let known = listed(status.ports().map(|vif| &vif.name));
            bail!("there is no vif {name:?}; there is {}", table::shown(&known));
        };
        if Instant::now() >= deadline {
            bail!(table::shown(&without_state(name, tenant)));
        }
        thread::sleep(RETRY);
    }
}

/// Why a vif of a tenant has no state, and what can be done.
fn without_state(name: &str, tenant: &TenantStatus) -> String {
    let TenantStatus { name: whose, pid, state, error, .. } = tenant;
    let reason = error.as_ref().map_or_else(String::new, |error| format!(" ({error})"));
    let remedy = match pid {
        Some(pid) => {
            format!("a silent one is replaced after a minute, or at once by `kill -9 {pid}`")
        }
        None => "it is started again by itself, and the host's log says why it ended".to_owned(),
    };
    format!(
        "the process of tenant {whose}, which serves {name}, is {state} and does not \
         reply{reason}: {remedy}"
    )
}

fn list(args: &List) -> Result<()> {
    let status = args.target.backend()?;
    let vifs: Vec<VifStatus> = status.ports().cloned().collect();
    let notice = args.target.notice();
    if args.json {
        return print_json(&with_notice(&vifs, notice.as_deref())?);
    }
    let notice = notice.map_or_else(String::new, |notice| format!("\n{notice}\n"));
    print(&(list_table(vifs) + &not_listed(&status) + &notice))
}

/// Lines for vifs of tenants that have no state.
fn not_listed(status: &BackendStatus) -> String {
    let mut lines = String::new();
    for tenant in &status.tenants {
        for vif in &tenant.vifs {
            if status.ports().all(|port| port.name != *vif) {
                lines += &format!("\n{}\n", table::shown(&without_state(vif, tenant)));
            }
        }
    }
    lines
}

/// A table of vifs.
fn list_table(vifs: Vec<VifStatus>) -> String {
    let head = ["VIF", "KIND", "GUEST", "STATE", "MAC", "ATTACHED TO", ">QUEUES", ">OF"];
    // Tenants are shown only if they have processes of their own.
    let is_isolated = vifs.iter().any(|vif| vif.tenant.is_some());
    let mut head = [&head[..], &[">RESTARTS", "DROPPED", "ERROR"]].concat();
    if is_isolated {
        head.insert(TENANT_COLUMN, "TENANT");
    }
    let dash = || "-".to_owned();
    let rows = vifs.into_iter().map(|vif| {
        let tenant = is_isolated.then(|| vif.tenant.clone().unwrap_or_else(dash));
        let attached_to = attached_to(&vif);
        let dropped = cells::drops(&cells::dropped(&vif));
        let mut cells = vec![
            vif.name.clone(),
            cells::kind(&vif).to_owned(),
            vif.guest.unwrap_or_else(dash),
            vif.state,
            vif.mac.unwrap_or_else(dash),
            attached_to,
            vif.queues.len().to_string(),
            if vif.max_queues == 0 { dash() } else { vif.max_queues.to_string() },
            vif.restarts.to_string(),
            dropped,
            vif.error.unwrap_or_else(dash),
        ];
        if let Some(tenant) = tenant {
            cells.insert(TENANT_COLUMN, tenant);
        }
        cells
    });
    table::render(&head, rows)
}

/// Vifs for programs, each with what an administrator should know of the host.
fn with_notice(vifs: &[VifStatus], notice: Option<&str>) -> Result<serde_json::Value> {
    let mut listed = serde_json::to_value(vifs)?;
    let Some(notice) = notice else { return Ok(listed) };
    for vif in listed.as_array_mut().into_iter().flatten() {
        vif.as_object_mut().map(|keys| keys.insert("notice".to_owned(), notice.into()));
    }
    Ok(listed)
}

/// Where a vif is, and whether its network device is down.
fn attached_to(vif: &VifStatus) -> String {
    format!("{}{}", vif.attached_to, if vif.is_down { " (down)" } else { "" })
}

fn stats(args: &Stats) -> Result<()> {
    let vifs = vifs(&args.target, args.vif.as_deref())?;
    if args.json {
        return print_json(&vifs);
    }
    print(&counters(&vifs))
}

/// A table of what each queue has counted.
pub(crate) fn counters(vifs: &[VifStatus]) -> String {
    let head = [
        "VIF",
        "KIND",
        ">QUEUE",
        ">WORKER",
        ">TX PACKETS",
        ">TX BYTES",
        ">RX PACKETS",
        ">RX BYTES",
        ">EVENTS OUT",
        ">EVENTS IN",
        ">LENT",
        ">TX LATENCY (p50)",
        "DROPPED",
    ];
    let rows = vifs.iter().flat_map(|vif| {
        vif.queues.iter().map(|queue| {
            let numbers = [
                u64::from(queue.index),
                u64::try_from(queue.worker).unwrap_or(u64::MAX),
                queue.tx_packets,
                queue.tx_bytes,
                queue.rx_packets,
                queue.rx_bytes,
                queue.events_sent,
                queue.events_received,
            ];
            let mut row = vec![vif.name.clone(), cells::kind(vif).to_owned()];
            row.extend(numbers.map(|number| number.to_string()));
            let lent = (queue.tx_lent * 100).checked_div(queue.tx_long);
            row.push(lent.map_or_else(|| "-".to_owned(), |percent| format!("{percent} %")));
            let median = queue.tx_response_times.percentile(50);
            row.push(median.map_or_else(|| "-".to_owned(), |time| format!("{time:.1?}")));
            row.push(cells::drops(&queue.dropped));
            row
        })
    });
    table::render(&head, rows)
}

fn watch(args: &Stats) -> Result<()> {
    let stop = Stop::on_signals()?;
    let read = || -> Result<Reading> {
        Ok(Reading { at: Instant::now(), status: args.target.backend()? })
    };
    vifs(&args.target, args.vif.as_deref())?;
    let mut before = read()?;
    while !stop.wait(Duration::from_secs(1))? {
        let after = read()?;
        let mut rates = rates::between(&before, &after);
        rates.retain(|rate| args.vif.as_ref().is_none_or(|vif| *vif == rate.vif));
        if args.json {
            print(&(serde_json::to_string(&rates)? + "\n"))?;
        } else {
            print(&(rates::rate_table(&rates) + "\n"))?;
        }
        before = after;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ringway_control::QueueStatus;

    use super::*;

    #[test]
    fn a_list_says_what_each_vif_has_dropped() {
        let queue = |dropped: &[(&str, u64)]| {
            let dropped = dropped.iter().map(|(reason, count)| ((*reason).to_owned(), *count));
            QueueStatus { dropped: dropped.collect(), ..QueueStatus::default() }
        };
        let queues = [&[("queue_full", 2)][..], &[("no_buffer", 1), ("queue_full", 3)]];
        let queues = queues.map(queue).to_vec();
        let table = list_table(vec![VifStatus { queues, ..VifStatus::default() }]);
        assert!(table.contains("no_buffer 1, queue_full 5"), "{table}");
    }

    #[test]
    fn a_vif_whose_process_does_not_reply_is_not_missing() {
        let silent = TenantStatus {
            name: "red".to_owned(),
            pid: Some(77),
            state: "silent".to_owned(),
            error: Some("the process has not responded for 2 s".to_owned()),
            ..TenantStatus::default()
        };
        let said = without_state("vif1.0", &silent);
        for text in ["tenant red", "vif1.0", "is silent", "for 2 s", "kill -9 77"] {
            assert!(said.contains(text), "{said}");
        }
        let tenant = TenantStatus { vifs: vec!["vif1.0".to_owned()], ..silent.clone() };
        let mut status = BackendStatus { tenants: vec![tenant], ..BackendStatus::default() };
        assert_eq!(not_listed(&status), format!("\n{said}\n"));
        status.vifs = vec![VifStatus { name: "vif1.0".to_owned(), ..VifStatus::default() }];
        assert_eq!(not_listed(&status), "");
        let ended = TenantStatus { pid: None, error: None, ..silent };
        let said = without_state("vif1.0", &ended);
        assert!(said.contains("started again") && !said.contains("kill"), "{said}");
    }
}

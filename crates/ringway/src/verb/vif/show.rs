//! `ringway vif show`: all about one vif.

use anyhow::{Context as _, Result};
use clap::Args;
use ringway_control::{
    FloodStatus, HashStatus, LimitsStatus, OvsStatus, QueueStatus, RateStatus, VifStatus,
    VirtioStatus, WaitStatus,
};
use ringway_terminal::output::{print, print_json};
use ringway_terminal::table;
use ringway_xenbus::Rate;

use super::{attached_to, counters, vifs};
use crate::cells;
use crate::target::Target;

#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    target: Target,
    /// The vif, such as vif1.0
    vif: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Show) -> Result<()> {
    let mut vifs = vifs(&args.target, Some(&args.vif))?;
    let vif = vifs.pop().context("it was there a line ago")?;
    if args.json {
        return print_json(&vif);
    }
    let mut text = String::new();
    let vlan = vlans(&vif);
    let offloads = if vif.offloads.is_empty() { "none".to_owned() } else { vif.offloads.join(" ") };
    for (key, value) in [
        ("name", vif.name.as_str()),
        ("kind", cells::kind(&vif)),
        ("guest", vif.guest.as_deref().unwrap_or("-")),
        ("domain", &vif.domid.map_or_else(|| "-".to_owned(), |domid| domid.to_string())),
        ("handle", &vif.handle.to_string()),
        ("state", &vif.state),
        ("mac", vif.mac.as_deref().unwrap_or("-")),
        ("allowed macs", &joined(&vif.allowed_macs)),
        ("shared macs", &joined(&vif.shared_macs)),
        ("locking-mode", &vif.locking_mode),
        ("allowed ips", &joined(&vif.allowed_ips)),
        ("addresses", &vif.addresses_max.to_string()),
        ("vlan", &vlan),
        ("private", if vif.is_private { "yes" } else { "no" }),
        ("multicast", &multicast(&vif)),
        ("groups wanted", &vif.groups_wanted.as_ref().map_or("all".to_owned(), |it| joined(it))),
        ("announced", &vif.announced.map_or("no".to_owned(), |sent| format!("{sent} times"))),
        ("link-local to", vif.link_local_to.as_deref().unwrap_or("-")),
        ("mirror of", &joined(&vif.mirror)),
        ("refused", &cells::drops(&vif.refused)),
        ("taken", vif.taken.as_deref().unwrap_or("-")),
        ("attached to", &attached_to(&vif)),
        ("tenant", vif.tenant.as_deref().unwrap_or("-")),
        ("max-queues", &max_queues(&vif)),
        ("offloads", &offloads),
        ("version", &vif.version),
        ("restarts", &vif.restarts.to_string()),
        ("hash", &vif.hash.as_ref().map_or_else(|| "-".to_owned(), hash)),
        ("error", vif.error.as_deref().unwrap_or("-")),
    ] {
        text += &format!("{key:13} {}\n", table::shown(value));
    }
    for (key, value) in vif.virtio.iter().flat_map(virtio) {
        text += &format!("{key:13} {}\n", table::shown(&value));
    }
    for (key, value) in vif.ovs.iter().flat_map(ovs) {
        text += &format!("{key:13} {}\n", table::shown(&value));
    }
    for (key, value) in limits(&vif.limits) {
        text += &format!("{key:13} {}\n", table::shown(&value));
    }
    let waits: String = vif.queues.iter().flat_map(waits).collect();
    print(&(text + "\n" + &counters(&[vif]) + &waits))
}

/// What the sides of a queue wait for, in lines for people.
fn waits(queue: &QueueStatus) -> impl Iterator<Item = String> {
    let sides =
        [("frames from the guest", &queue.tx_wait), ("frames to the guest", &queue.rx_wait)];
    sides.into_iter().filter_map(|(what, wait)| {
        let WaitStatus { reason, milliseconds } = wait.as_ref()?;
        Some(format!("queue {}: {what} wait for {milliseconds} ms: {reason}\n", queue.index))
    })
}

/// The most queues of a vif, now and for its next front-end, for people.
fn max_queues(vif: &VifStatus) -> String {
    let now = vif.max_queues;
    match vif.virtio.as_ref().map_or(now, |virtio| virtio.max_queues_next) {
        next if next == now || next == 0 => now.to_string(),
        next => format!("{now}, {next} from the next start of its machine"),
    }
}

/// The hash that a guest has chosen, for people.
fn hash(hash: &HashStatus) -> String {
    let types = if hash.types.is_empty() { "nothing".to_owned() } else { hash.types.join(" ") };
    let mapping: Vec<String> = hash.mapping.iter().map(ToString::to_string).collect();
    let mapping = if mapping.is_empty() { "none".to_owned() } else { mapping.join(",") };
    format!("toeplitz of {types}, key {}, mapping {mapping}", hash.key)
}

/// The memory of a virtio vif's guest, for people.
fn memory(virtio: &VirtioStatus) -> String {
    let seals = match (virtio.memory_mib, virtio.memory_sealed) {
        (0, _) => "",
        (_, true) => ", sealed",
        (_, false) => ", not sealed: its owner may truncate it",
    };
    format!("{} MiB{seals}", virtio.memory_mib)
}

fn joined(items: &[String]) -> String {
    if items.is_empty() { "-".to_owned() } else { items.join(" ") }
}

/// The state of a virtio vif, for people.
fn virtio(virtio: &VirtioStatus) -> [(&'static str, String); 10] {
    let origin = if virtio.at_run_time { "vif add" } else { "description" };
    [
        ("socket", virtio.socket.clone()),
        ("mode", virtio.mode.clone()),
        ("from", origin.to_owned()),
        ("memory", memory(virtio)),
        ("features", joined(&virtio.features)),
        ("not taken", joined(&virtio.not_taken)),
        ("not offered", joined(&virtio.not_offered)),
        ("protocol", joined(&virtio.protocol)),
        ("  not taken", joined(&virtio.protocol_not_taken)),
        ("  not offered", joined(&virtio.protocol_not_offered)),
    ]
}

/// The port of a vif on a bridge of Open vSwitch, for people.
fn ovs(port: &OvsStatus) -> [(&'static str, String); 5] {
    let id = |id: &Option<String>| id.clone().unwrap_or_else(|| "-".to_owned());
    [
        ("port", port.port.clone()),
        ("  bridge", port.bridge.clone()),
        ("  iface-id", id(&port.iface_id)),
        ("  attached-mac", id(&port.attached_mac)),
        ("  vm-uuid", id(&port.vm_uuid)),
    ]
}

/// The VLANs of a vif for people: `10`, `10 tagged 20,30`, `tagged 20`.
fn vlans(vif: &VifStatus) -> String {
    let untagged = vif.vlan.map(|vid| vid.to_string());
    let trunk: Vec<String> = vif.trunk.iter().map(ToString::to_string).collect();
    let tagged = (!trunk.is_empty()).then(|| format!("tagged {}", trunk.join(",")));
    let parts: Vec<String> = untagged.into_iter().chain(tagged).collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join(" ") }
}

/// A vif's part in multicast for people: `3 groups`, `router`, `3 groups, receives all groups`.
fn multicast(vif: &VifStatus) -> String {
    let Some(multicast) = vif.multicast else { return "not snooped".to_owned() };
    let groups = format!("{} groups", multicast.groups);
    match (multicast.is_router, multicast.hears_all) {
        (true, _) => "router".to_owned(),
        (false, true) => groups + ", receives all groups",
        (false, false) => groups,
    }
}

/// A vif's limits, for people.
fn limits(limits: &LimitsStatus) -> [(&'static str, String); 10] {
    let none = || "none".to_owned();
    let rate = |rate: Option<RateStatus>| {
        let rate = rate.map(|it| Rate { bytes: it.bytes, interval_us: it.interval_us });
        rate.map_or_else(none, |rate| rate.to_string())
    };
    let bits = |bytes: Option<u64>| bytes.map(|bytes| Rate { bytes, interval_us: SECOND });
    let flood_bits = bits(limits.flood_bytes_per_second);
    let storm = |limit: FloodStatus| {
        let frames = limit.frames_per_second.map(|frames| format!("{frames}/s"));
        let rate = bits(limit.bytes_per_second).map(|rate| rate.to_string());
        let parts: Vec<String> = frames.into_iter().chain(rate).collect();
        if parts.is_empty() { none() } else { parts.join(" ") }
    };
    let number = |number: Option<String>| number.unwrap_or_else(none);
    [
        ("link", if limits.link_down { "down" } else { "up" }.to_owned()),
        ("rate", rate(limits.rate)),
        ("rate-rx", rate(limits.rate_rx)),
        ("weight", limits.weight.to_string()),
        ("flood-rate", number(limits.flood_frames_per_second.map(|it| it.to_string()))),
        ("flood bits", number(flood_bits.map(|rate| rate.to_string()))),
        ("broadcasts", storm(limits.broadcast)),
        ("multicasts", storm(limits.multicast)),
        ("unknown", storm(limits.unknown)),
        ("longest frame", number(limits.frame_len_max.map(|it| it.to_string()))),
    ]
}

/// In microseconds.
const SECOND: u64 = 1_000_000;

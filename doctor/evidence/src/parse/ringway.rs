//! `ringway vif list --json`: the queues that guests of a running ringway may request, and those in
//! use.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Counters;
use crate::number::{float, sum};
use crate::{Gap, Text};

/// All vifs, and the uplink, which has no guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vifs {
    /// In the order that the tool prints.
    pub all: Vec<Vif>,
}

/// One vif, with the fields that checks use.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Vif {
    /// Such as `vif1.0`.
    pub name: String,
    /// `xen`, or `virtio` for one behind a vhost-user socket.
    #[serde(default)]
    pub kind: String,
    /// Its guest's domain, if it is a vif of Xen.
    pub domid: Option<u16>,
    /// As Xen's tools name it; empty in records of older versions.
    #[serde(default)]
    pub state: String,
    /// Why it does not work as it should, if so.
    #[serde(default)]
    pub error: Option<String>,
    /// What kind of reason this is; records of older versions lack it.
    #[serde(default)]
    pub error_kind: Option<String>,
    /// The version of ringway that serves it; empty in records of older versions.
    #[serde(default)]
    pub version: String,
    /// How often the process that serves it was replaced since it was made; records of older
    /// versions lack it.
    #[serde(default)]
    pub restarts: u64,
    /// Queues that its guest may request; 0 for the uplink.
    pub max_queues: u64,
    /// Those in use.
    pub queues: Vec<Queue>,
    /// What an administrator should know of its host.
    #[serde(default)]
    pub notice: Option<String>,
    /// Details of a virtio vif; records of older versions lack them.
    #[serde(default)]
    pub virtio: Option<Virtio>,
    /// The offloads that it and its guest use, such as `csum-v4`.
    #[serde(default)]
    pub offloads: Vec<String>,
    /// How strictly its addresses are checked; empty in records of older versions.
    #[serde(default)]
    pub locking_mode: String,
    /// What it may send and receive at most.
    #[serde(default)]
    pub limits: Limits,
    /// What it waits for as a whole; records of older versions lack it.
    #[serde(default)]
    pub waits: Vec<Wait>,
}

/// Limits of a vif, by the direction of its guest; records of older versions lack those of floods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Limits {
    /// What the guest may send.
    #[serde(default)]
    pub rate: Option<Rate>,
    /// What it may receive.
    #[serde(default)]
    pub rate_rx: Option<Rate>,
    /// Frames a second that it may flood.
    #[serde(default)]
    pub flood_frames_per_second: Option<u64>,
    /// Bytes a second that it may flood.
    #[serde(default)]
    pub flood_bytes_per_second: Option<u64>,
    /// Broadcasts among these.
    #[serde(default)]
    pub broadcast: Flood,
    /// Multicasts.
    #[serde(default)]
    pub multicast: Flood,
    /// Frames to unknown addresses.
    #[serde(default)]
    pub unknown: Flood,
}

/// What a vif may flood of one kind a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Flood {
    /// Frames.
    #[serde(default)]
    pub frames_per_second: Option<u64>,
    /// Bytes.
    #[serde(default)]
    pub bytes_per_second: Option<u64>,
}

/// Bytes in each interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Rate {
    /// Bytes.
    pub bytes: u64,
    /// Length of an interval, in microseconds.
    pub interval_us: u64,
}

impl Rate {
    /// Bytes a second; none if a 0 says that there is no limit.
    pub fn per_second(self) -> Option<f64> {
        let Rate { bytes, interval_us } = self;
        (bytes > 0 && interval_us > 0).then(|| float(bytes) * 1e6 / float(interval_us))
    }
}

impl Limits {
    /// Those that are set, by their names in `ringway vif set`: in bits a second, or in frames a
    /// second where the name ends in `-rate`.
    pub fn named(&self) -> Vec<(&'static str, f64)> {
        let frames = |count: Option<u64>| count.map(float);
        let bits = |bytes: Option<u64>| bytes.map(|bytes| float(bytes) * 8.0);
        let rate = |rate: Option<Rate>| Some(rate?.per_second()? * 8.0);
        let all = [
            ("rate", rate(self.rate)),
            ("rate-rx", rate(self.rate_rx)),
            ("flood-rate", frames(self.flood_frames_per_second)),
            ("flood-mbit", bits(self.flood_bytes_per_second)),
            ("broadcast-rate", frames(self.broadcast.frames_per_second)),
            ("broadcast-mbit", bits(self.broadcast.bytes_per_second)),
            ("multicast-rate", frames(self.multicast.frames_per_second)),
            ("multicast-mbit", bits(self.multicast.bytes_per_second)),
            ("unknown-rate", frames(self.unknown.frames_per_second)),
            ("unknown-mbit", bits(self.unknown.bytes_per_second)),
        ];
        all.into_iter().filter_map(|(name, limit)| Some((name, limit?))).collect()
    }
}

impl Vif {
    /// How much a counter of its queues grew since an earlier sample. What that lacks does not
    /// count: growth before it is no growth since.
    pub fn grown(&self, before: &Vifs, of: impl Fn(&Queue) -> u64) -> u64 {
        let of_queue = |queue: &Queue| {
            let known = before.queue(&self.name, queue.index)?;
            Some(of(queue).saturating_sub(of(known)))
        };
        sum(&self.queues.iter().filter_map(of_queue).collect::<Vec<_>>())
    }

    /// Frames that were dropped at it since an earlier sample, by ringway's reasons.
    pub fn dropped(&self, before: &Vifs) -> BTreeMap<&str, u64> {
        let reasons = self.queues.iter().flat_map(|queue| queue.dropped.keys());
        let grown = |reason: &str| {
            self.grown(before, |queue| queue.dropped.get(reason).copied().unwrap_or(0))
        };
        let all = reasons.map(|reason| (reason.as_str(), grown(reason)));
        all.filter(|(_, frames)| *frames > 0).collect()
    }

    /// What ringway says of its host, if that serves the last accepted description instead of a
    /// wrong one.
    pub fn refusal(&self) -> Option<&str> {
        self.notice.as_deref().filter(|notice| notice.contains(LAST_ACCEPTED))
    }

    /// Whether all is well with it, and its guest is off, starts or is paused. Records of older
    /// versions say no more than that it waits, which is the usual reason.
    pub fn lacks_guest(&self) -> bool {
        match &self.error_kind {
            Some(kind) => kind == NO_GUEST,
            None => AWAITING.contains(&self.state.as_str()),
        }
    }

    /// Queues that its guest may request after the next start of its machine. A machine that runs
    /// keeps more than that if the configured number was lowered.
    pub fn max_queues_next(&self) -> u64 {
        let of_virtio = self.virtio.as_ref().and_then(|virtio| virtio.max_queues_next);
        of_virtio.unwrap_or(self.max_queues)
    }
}

/// Part of the notice of a host whose description is wrong.
const LAST_ACCEPTED: &str = "serving the last accepted description";

/// The state of a vif whose guest can exchange frames.
pub const CONNECTED: &str = "Connected";
/// States of one that waits for its guest, or begins to serve it.
const AWAITING: [&str; 2] = ["Waiting", "Initialising"];
/// The kind of an error while the guest is off, starts or is paused.
const NO_GUEST: &str = "no_guest";

/// Details of a virtio vif.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Virtio {
    /// The path of its socket.
    pub socket: String,
    /// ringway's end of that socket: `server` if it creates the socket, `client` if it connects;
    /// empty in records of older versions.
    #[serde(default)]
    pub mode: String,
    /// Queues that its next guest may request; records of older versions lack them.
    #[serde(default)]
    pub max_queues_next: Option<u64>,
    /// Features that its guest uses, by their names in Linux's headers.
    #[serde(default)]
    pub features: Vec<String>,
}

/// The names in the path of a socket, by which two paths are compared, without those that lead
/// nowhere. `..` stays, because it can lead elsewhere after a symbolic link.
pub fn socket_names(path: &str) -> Vec<&str> {
    path.split('/').filter(|name| !matches!(*name, "" | ".")).collect()
}

/// The counters of a queue. Directions are the guest's.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Queue {
    /// From 0.
    pub index: usize,
    /// Packets that the guest sent.
    pub tx_packets: u64,
    /// Bytes that the guest sent.
    pub tx_bytes: u64,
    /// Packets that the guest received.
    pub rx_packets: u64,
    /// Bytes that the guest received.
    pub rx_bytes: u64,
    /// Frames that ringway dropped, by its reasons.
    #[serde(default)]
    pub dropped: BTreeMap<String, u64>,
    /// What frames from the guest wait for, if they wait.
    #[serde(default)]
    pub tx_wait: Option<Wait>,
    /// What frames to it wait for, if they wait.
    #[serde(default)]
    pub rx_wait: Option<Wait>,
}

/// Why something waits.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Wait {
    /// In one word; empty in records of older versions.
    #[serde(default)]
    pub kind: String,
    /// For how long it has waited.
    pub milliseconds: u64,
}

impl Wait {
    /// For how long it has waited, in seconds.
    pub fn seconds(&self) -> f64 {
        float(self.milliseconds) / 1e3
    }
}

impl Counters for Vifs {
    fn parse(text: &Text) -> Result<Vifs, Gap> {
        let all = serde_json::from_str(text.value())
            .map_err(|error| text.unreadable(Some(error.line()), error.to_string()))?;
        Ok(Vifs { all })
    }
}

impl Vifs {
    /// A queue by its vif's name and its number.
    pub fn queue(&self, vif: &str, index: usize) -> Option<&Queue> {
        let vif = self.all.iter().find(|known| known.name == vif)?;
        vif.queues.iter().find(|queue| queue.index == index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vifs(queues: &str) -> Vifs {
        let limits = r#"{"weight":1,"rate":{"bytes":6250,"interval_us":50000},"rate_rx":null,
            "flood_frames_per_second":1000,"flood_bytes_per_second":1250000,
            "unknown":{"frames_per_second":7,"bytes_per_second":null}}"#;
        let text =
            format!(r#"[{{"name":"vm1","max_queues":2,"limits":{limits},"queues":[{queues}]}}]"#);
        Vifs::parse(&Text::new("ringway vif list --json", text + "\n")).expect("sound")
    }

    fn queue(index: u32, dropped: &str) -> String {
        format!(
            r#"{{"index":{index},"tx_packets":1,"tx_bytes":1,"rx_packets":1,"rx_bytes":1,
            "dropped":{{{dropped}}}}}"#
        )
    }

    #[test]
    fn what_was_dropped_since_is_summed_over_queues() {
        let before = vifs(&queue(0, r#""queue_full":5,"vlan":2"#));
        let of_first = queue(0, r#""queue_full":9,"vlan":2,"no_route":3"#);
        let after = vifs(&format!("{of_first},{}", queue(1, r#""queue_full":70"#)));
        let dropped = after.all[0].dropped(&before);
        // The second queue is new, so no one knows when its frames were dropped.
        assert_eq!(dropped, BTreeMap::from([("no_route", 3), ("queue_full", 4)]));
        assert!(before.all[0].dropped(&after).is_empty(), "the guest has connected again");
    }

    #[test]
    fn limits_have_the_names_by_which_they_are_set() {
        let named = vifs(&queue(0, "")).all[0].limits.named();
        let known =
            [("rate", 1e6), ("flood-rate", 1e3), ("flood-mbit", 1e7), ("unknown-rate", 7.0)];
        assert_eq!(named, known);
    }
}

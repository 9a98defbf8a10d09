//! The parameters of a cell, typed: parsed once, before anything is built.
//!
//! A parameter that the study leaves out gets its default here. An invalid value is an error and
//! never becomes a default.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::study::Study;
use crate::value::{Cell, PARAMETERS, bits_per_second, bytes};
use crate::word::{
    Attached, Direction, Driver, Encapsulation, GuestCpus, Layout, Offloads, Peers, Placement,
    Policy, Sender, Tool, Word,
};

/// The MTU of ordinary Ethernet.
pub const MTU_DEFAULT: u16 = 1500;

/// Every parameter of a cell, including those of the study's own set-up and of its bundles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// Queues of every vif, and of the uplink.
    pub queues: u16,
    /// Streams at once, of each guest or to each target.
    pub streams: usize,
    /// Streams of each guest, in each direction, that load the path during a measurement.
    pub load: usize,
    /// Guests that are measured.
    pub guests: u16,
    /// Hosts behind a guest that routes.
    pub targets: u16,
    /// CPUs of each guest; all if `None`.
    pub cpus: Option<usize>,
    /// The CPUs of each guest as a fraction of the host's.
    pub guest_cpus: GuestCpus,
    /// Threads of the backend; one a CPU if `None`.
    pub workers: Option<u16>,
    /// MTU of every link, in bytes.
    pub mtu: u16,
    /// The direction of the data.
    pub direction: Direction,
    /// Which end sends.
    pub sender: Sender,
    /// What guests on a wire exchange traffic with.
    pub peers: Peers,
    /// What makes the load.
    pub tool: Tool,
    /// Limit of a sender's unanswered pages, if it waits for responses.
    pub unanswered: Option<u16>,
    /// Which offloads are on.
    pub offloads: Offloads,
    /// What guests are attached to.
    pub attached: Attached,
    /// What drives the interfaces of a guest that routes.
    pub driver: Driver,
    /// How often the number of its queues changes during a run.
    pub queue_changes: u16,
    /// The encapsulation between the targets and the guest.
    pub encapsulation: Encapsulation,
    /// How streams are placed on queues.
    pub placement: Placement,
    /// Where threads run.
    pub layout: Layout,
    /// How the backend places queues on its workers.
    pub policy: Policy,
    /// The rate of a line of the wire; unlimited if `None`, as between guests.
    pub line_bps: Option<u64>,
    /// How many lines the wire has, each with that rate.
    pub lines: u16,
    /// The delay that a relay adds between the ends, in each direction.
    pub delay: Duration,
    /// Bytes of the sockets' buffers; the kernel's choice if `None`.
    pub window: Option<u64>,
    /// Bytes of a write; the tool's choice if `None`.
    pub buffer: Option<u64>,
    /// Settings of both kernels, as in `settings` of the study.
    pub settings: BTreeMap<String, String>,
}

impl Setup {
    /// Parses the parameters of a cell of a study.
    ///
    /// # Errors
    /// The first parameter or value that is invalid.
    pub fn of(study: &Study, cell: &Cell) -> Result<Setup, String> {
        let all = study.setup(cell);
        let is_known = |name: &&String| PARAMETERS.iter().any(|one| one.name == name.as_str());
        if let Some(name) = all.0.keys().find(|name| !is_known(name)) {
            return Err(format!("there is no parameter `{name}`"));
        }
        let settings = |name: &str| study.settings.get(name).cloned();
        let peers = word(&all, "peers")?.unwrap_or(Peers::Uplink);
        Ok(Setup {
            queues: count(&all, "queues")?.unwrap_or(1),
            streams: count(&all, "streams")?.unwrap_or(1),
            load: count(&all, "load")?.unwrap_or(0),
            guests: count(&all, "guests")?.unwrap_or(1),
            targets: count(&all, "targets")?.unwrap_or(1),
            cpus: count(&all, "cpus")?.filter(|cpus| *cpus > 0),
            guest_cpus: word(&all, "guest-cpus")?.unwrap_or(GuestCpus::All),
            workers: count(&all, "workers")?,
            mtu: count(&all, "mtu")?.unwrap_or(MTU_DEFAULT),
            direction: word(&all, "direction")?.unwrap_or(Direction::Transmit),
            sender: word(&all, "sender")?.unwrap_or(Sender::Guest),
            peers,
            tool: word(&all, "tool")?.unwrap_or(Tool::Iperf3),
            unanswered: count(&all, "unanswered")?,
            offloads: word(&all, "offloads")?.unwrap_or(Offloads::All),
            attached: word(&all, "switch")?.unwrap_or(Attached::Switch),
            driver: word(&all, "driver")?.unwrap_or(Driver::Netfront),
            queue_changes: count(&all, "queue-changes")?.unwrap_or(0),
            encapsulation: word(&all, "encapsulation")?.unwrap_or(Encapsulation::None),
            placement: word(&all, "placement")?.unwrap_or(Placement::Random),
            layout: word(&all, "layout")?.unwrap_or(Layout::Free),
            policy: word(&all, "policy")?.unwrap_or(Policy::Balanced),
            line_bps: parsed(&all, "line", rate)?.flatten().filter(|_| peers == Peers::Uplink),
            lines: count(&all, "lines")?.unwrap_or(1),
            delay: Duration::from_millis(count(&all, "delay")?.unwrap_or(0)),
            window: parsed(&all, "window", bytes)?,
            buffer: parsed(&all, "buffer", bytes)?,
            settings: parsed(&all, "tcp", settings)?.unwrap_or_default(),
        })
    }
}

/// `none` is a wire without a rate limit.
fn rate(text: &str) -> Option<Option<u64>> {
    if text == "none" { Some(None) } else { bits_per_second(text).map(Some) }
}

fn count<N: TryFrom<u64>>(all: &Cell, name: &str) -> Result<Option<N>, String> {
    let Some(value) = all.get(name) else { return Ok(None) };
    let number = all.number(name).and_then(|number| N::try_from(number).ok());
    number.map(Some).ok_or_else(|| format!("{name} = {value}: expected a count"))
}

fn word<W: Word>(all: &Cell, name: &str) -> Result<Option<W>, String> {
    parsed(all, name, W::find)
}

fn parsed<T>(
    all: &Cell,
    name: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, String> {
    let Some(value) = all.get(name) else { return Ok(None) };
    let found = all.text(name).and_then(parse);
    found.map(Some).ok_or_else(|| format!("{name} = {value} is not a valid value"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::{ids, shipped};

    #[test]
    fn every_cell_of_every_shipped_study_means_something() {
        for id in ids() {
            let study = shipped(id).expect("it is shipped");
            for (_, cell) in study.matrix() {
                Setup::of(&study, &cell).expect(id);
            }
        }
    }

    #[test]
    fn what_is_unknown_is_an_error_and_never_a_default() {
        let study = shipped("transmit").expect("it is shipped");
        let cell = study.cell_of_label("q4.s8").expect("a cell");
        let setup = Setup::of(&study, &cell).expect("it is one");
        assert_eq!((setup.queues, setup.streams), (4, 8));
        for (name, value) in [
            ("direction", "sideways"),
            ("sender", "wire"),
            ("peers", "hosts"),
            ("tool", "iperf4"),
            ("unanswered", "few"),
            ("offloads", "some"),
            ("switch", "vpp"),
            ("encapsulation", "geneve"),
            ("driver", "e1000"),
            ("placement", "lucky"),
            ("layout", "pairs"),
            ("policy", "fair"),
            ("line", "fast"),
            ("lines", "two"),
            ("window", "large"),
            ("buffer", "0"),
            ("tcp", "cubic-ish"),
            ("queues", "many"),
            ("delay", "long"),
            ("load", "some"),
            ("guest-cpus", "some"),
            ("quues", "4"),
        ] {
            let error = Setup::of(&study, &cell.with(name, value)).expect_err(name);
            assert!(error.contains(name), "{error}");
        }
        assert!(Setup::of(&study, &cell.with("mtu", 70_000)).is_err());
        assert!(Setup::of(&study, &cell.with("tool", 3)).is_err());
    }
}

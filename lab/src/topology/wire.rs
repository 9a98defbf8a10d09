//! The wire, and the other host at its end.
//!
//! Without a rate or a delay, the namespace with the device is the other host. With a rate, the
//! device is a port of a bridge, and a veth pair to another namespace is shaped in both directions,
//! so that the queue in front of the wire is downstream of everything that is measured. A wire of
//! two lines is shaped as a bond that selects a line by ports: each stream has one of them. With a
//! delay, a relay takes the place of the pair.

use std::time::Duration;

use ringway_net::LinkSetting;

use super::{Blueprint, Delaying, End, Lines, Topology, far_address, give_address, relay};
use ringway_rig::child::PartError;
use ringway_rig::launcher::Launcher;
use ringway_rig::namespace::{Namespace, configure};
use ringway_rig::veth;

const PATIENCE: Duration = Duration::from_secs(60);
/// The bridge's port to the wire.
pub(super) const PORT: &str = "line0";
/// Bytes that a line may send in one burst: more than the largest GSO frame.
const BURST_MIN: u64 = 256 << 10;

/// The other host, behind a device in the namespace of `pid`.
pub(crate) fn behind(
    launcher: &Launcher,
    blueprint: &Blueprint,
    pid: u32,
    device: &str,
    topology: &mut Topology,
) -> Result<End, PartError> {
    if blueprint.line_bps.is_none() && blueprint.delay.is_zero() {
        give_address(pid, device, far_address(0))?;
        return Ok(End::new(pid, far_address(0), device));
    }
    veth::add_bridge(pid)?;
    configure(pid, |net| net.set(device, &[LinkSetting::Master(veth::BRIDGE), LinkSetting::Up]))?;
    from_bridge(launcher, blueprint, pid, topology)
}

/// The other host, behind a port of the bridge in the namespace of `pid`.
pub(crate) fn from_bridge(
    launcher: &Launcher,
    blueprint: &Blueprint,
    pid: u32,
    topology: &mut Topology,
) -> Result<End, PartError> {
    let other = Namespace::new(launcher)?;
    if blueprint.delay.is_zero() {
        veth::connect(pid, PORT, other.pid())?;
    } else {
        let ends = [(pid, PORT), (other.pid(), veth::DEVICE)];
        let relay = relay::start(launcher, relay::RELAY, ends, blueprint.delay)?;
        configure(pid, |net| net.set(PORT, &[LinkSetting::Master(veth::BRIDGE)]))?;
        topology.delaying = Some(Delaying { _relay: Some(relay), ends });
    }
    give_address(other.pid(), veth::DEVICE, far_address(0))?;
    if let Some(lines) = blueprint.lines() {
        shape(launcher, pid, PORT, lines)?;
        shape(launcher, other.pid(), veth::DEVICE, lines)?;
    }
    let end = End::new(other.pid(), far_address(0), veth::DEVICE);
    topology.namespaces.push(other);
    Ok(end)
}

/// A bridge at the other end of a line, for many hosts; without a rate it is the bridge in the
/// namespace of `pid` itself. Returns its namespace.
pub(crate) fn to_bridge(
    launcher: &Launcher,
    blueprint: &Blueprint,
    pid: u32,
    namespaces: &mut Vec<Namespace>,
) -> Result<u32, PartError> {
    let Some(lines) = blueprint.lines() else { return Ok(pid) };
    let other = Namespace::new(launcher)?;
    veth::add_bridge(other.pid())?;
    veth::connect_as(pid, PORT, other.pid(), PORT)?;
    configure(other.pid(), |net| net.set(PORT, &[LinkSetting::Master(veth::BRIDGE)]))?;
    shape(launcher, pid, PORT, lines)?;
    shape(launcher, other.pid(), PORT, lines)?;
    let other_pid = other.pid();
    namespaces.push(other);
    Ok(other_pid)
}

impl Lines {
    /// The words of each command of `tc` that shapes a device so.
    fn commands(self, device: &str) -> Vec<Vec<String>> {
        // Two milliseconds at this rate, because a timer may be late.
        let burst = (self.bps / 8 / 500).max(BURST_MIN);
        let rate = format!("tbf rate {}bit burst {burst} latency 10ms", self.bps);
        let mut all = Vec::new();
        if self.count == 1 {
            all.push(format!("qdisc replace dev {device} root {rate}"));
        } else {
            // What has no ports, such as ARP, goes over the first line.
            all.push(format!("qdisc replace dev {device} root handle 1: htb default 1"));
            for line in 1..=self.count {
                // Never the limit: that is the line's own discipline.
                let ample = self.bps.saturating_mul(10);
                all.push(format!(
                    "class add dev {device} parent 1: classid 1:{line} htb rate {ample}bit \
                     burst {burst} cburst {burst} quantum {BURST_MIN}"
                ));
                all.push(format!("qdisc add dev {device} parent 1:{line} {rate}"));
            }
            let odd = "protocol ip u32 match ip sport 1 0x0001 flowid 1:2";
            all.push(format!("filter add dev {device} parent 1: {odd}"));
        }
        let words = |text: &String| text.split(' ').map(str::to_owned).collect();
        all.iter().map(words).collect()
    }
}

/// Limits the rate at which a device sends.
fn shape(launcher: &Launcher, pid: u32, device: &str, lines: Lines) -> Result<(), PartError> {
    lines.commands(device).iter().try_for_each(|words| {
        let mut command = launcher.command_in(pid, "tc");
        command.args(words);
        launcher.start("tc", command)?.output(PATIENCE).map(drop)
    })
}

/// Checks that this kernel and `tc` can shape, in a namespace where that disturbs nothing.
pub(crate) fn try_shaping(launcher: &Launcher, lines: Lines) -> Result<(), PartError> {
    let place = Namespace::new(launcher)?;
    shape(launcher, place.pid(), "lo", lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_lines_have_a_rate_each_and_streams_are_divided_by_port() {
        let of = |count| {
            let words = Lines { count, bps: 10_000_000_000 }.commands("line0");
            words.into_iter().map(|words| words.join(" ")).collect::<Vec<_>>()
        };
        let rate = "tbf rate 10000000000bit burst 2500000 latency 10ms";
        assert_eq!(of(1), [format!("qdisc replace dev line0 root {rate}")]);
        let two = of(2);
        for line in [1, 2] {
            let own = format!("qdisc add dev line0 parent 1:{line} {rate}");
            assert!(two.contains(&own), "{two:?}");
        }
        assert!(two.iter().any(|one| one.ends_with("match ip sport 1 0x0001 flowid 1:2")));
    }
}

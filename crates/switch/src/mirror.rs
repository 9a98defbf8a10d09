//! Mirrors: copies of some ports' frames for another port.
//!
//! An output is reserved, as in Open vSwitch: it receives no floods, learns no address and sends
//! nothing. So there is no loop, and a guest that receives others' frames cannot reply in their
//! name. The uplink, which carries all other frames to the host, cannot be one. Frames that the
//! switch refuses are not copied: those refused for the work that they request would reach the
//! output. Copies are dropped rather than hold up a frame. With a process for each tenant, the
//! switch process has no mirror: its output would bring all tenants' frames into one's process.
//!
//! The control plane sets them; workers read bit sets without waiting, and only while there is a
//! mirror. A change is not atomic: for a moment, a mirror may still have its previous ports.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::PortId;
use crate::domain::PortSet;

/// Mirrors of one switch: each takes at most one copy of a frame.
pub const MIRRORS_MAX: usize = 4;

/// A mirror, as the control plane configures it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorConfig {
    /// The port that gets the copies, and nothing else.
    pub output: PortId,
    /// Ports whose incoming frames it gets.
    pub ingress: Vec<PortId>,
    /// Ports whose outgoing frames it gets.
    pub egress: Vec<PortId>,
}

/// All mirrors of a switch.
#[derive(Debug)]
pub struct Mirrors {
    mirrors: [Mirror; MIRRORS_MAX],
    ports_max: u16,
    is_active: AtomicBool,
}

/// A mirror, as workers see it.
#[derive(Debug)]
pub struct Mirror {
    /// [`NO_PORT`], or a port number.
    output: AtomicU32,
    ingress: PortSet,
    egress: PortSet,
}

impl Mirrors {
    pub(crate) fn new(ports_max: u16) -> Mirrors {
        let ports = || PortSet::new(ports_max);
        Mirrors {
            mirrors: std::array::from_fn(|_| Mirror {
                output: AtomicU32::new(NO_PORT),
                ingress: ports(),
                egress: ports(),
            }),
            ports_max,
            is_active: AtomicBool::new(false),
        }
    }

    /// Whether there is a mirror.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.is_active.load(Relaxed)
    }

    /// The mirrors that have an output.
    pub fn active(&self) -> impl Iterator<Item = (PortId, &Mirror)> {
        self.mirrors.iter().filter_map(|mirror| {
            let output = u16::try_from(mirror.output.load(Relaxed)).ok()?;
            Some((PortId(output), mirror))
        })
    }

    /// Replaces all mirrors; only the first [`MIRRORS_MAX`] are used. Frames of an output are not
    /// copied.
    pub fn set(&self, configs: &[MirrorConfig]) {
        let is_output = |port: PortId| configs.iter().any(|config| config.output == port);
        for (index, mirror) in self.mirrors.iter().enumerate() {
            let config = configs.get(index);
            let output = config.map_or(NO_PORT, |config| config.output.0.into());
            // Frames of the new ports must not be copied to the old output.
            if mirror.output.load(Relaxed) != output {
                mirror.output.store(NO_PORT, Relaxed);
            }
            for port in (0..self.ports_max).map(PortId) {
                let is_in = |list: fn(&MirrorConfig) -> &Vec<PortId>| {
                    !is_output(port) && config.is_some_and(|config| list(config).contains(&port))
                };
                mirror.ingress.set(port, is_in(|config| &config.ingress));
                mirror.egress.set(port, is_in(|config| &config.egress));
            }
            mirror.output.store(output, Relaxed);
        }
        self.is_active.store(!configs.is_empty(), Relaxed);
    }

    /// Removes a port that is gone: its number may soon be used for another.
    pub(crate) fn forget(&self, port: PortId) {
        for mirror in &self.mirrors {
            if mirror.output.load(Relaxed) == u32::from(port.0) {
                mirror.output.store(NO_PORT, Relaxed);
            }
            mirror.ingress.set(port, false);
            mirror.egress.set(port, false);
        }
    }
}

impl Mirror {
    /// Whether it gets frames that enter by a port.
    pub fn has_ingress(&self, port: PortId) -> bool {
        self.ingress.has(port)
    }

    /// Whether it gets frames that leave by a port.
    pub fn has_egress(&self, port: PortId) -> bool {
        self.egress.has(port)
    }
}

/// More than any port.
const NO_PORT: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_is_never_mirrored_and_the_number_of_mirrors_is_limited() {
        let mirrors = Mirrors::new(16);
        assert!(!mirrors.is_active());
        let all: Vec<PortId> = (0..16).map(PortId).collect();
        let config = |output| MirrorConfig {
            output: PortId(output),
            ingress: all.clone(),
            egress: vec![PortId(1)],
        };
        mirrors.set(&(5..12).map(config).collect::<Vec<_>>());
        let outputs: Vec<PortId> = mirrors.active().map(|(output, _)| output).collect();
        assert_eq!(outputs, [5, 6, 7, 8].map(PortId));
        for (_, mirror) in mirrors.active() {
            assert!(mirror.has_ingress(PortId(4)) && mirror.has_egress(PortId(1)));
            assert!(!mirror.has_ingress(PortId(5)) && !mirror.has_ingress(PortId(11)));
            assert!(!mirror.has_egress(PortId(4)));
        }
        mirrors.set(&[config(5)]);
        assert_eq!(mirrors.active().count(), 1);
        // A new port with the number of one that is gone is not mirrored.
        mirrors.forget(PortId(4));
        assert!(!mirrors.active().any(|(_, mirror)| mirror.has_ingress(PortId(4))));
        mirrors.forget(PortId(5));
        assert_eq!(mirrors.active().count(), 0);
        mirrors.set(&[]);
        assert!(!mirrors.is_active() && mirrors.active().next().is_none());
    }
}

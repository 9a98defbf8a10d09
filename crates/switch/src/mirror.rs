//! Mirrors: which ports' frames are copied to which other port.
//!
//! The control plane sets them; workers read sets of bits without waiting, and only while there is
//! a mirror at all. A change is not seen at one moment: for the frames of a moment a mirror may
//! have the ports of before.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::PortId;
use crate::domain::PortSet;

/// Mirrors of one switch: each takes a copy of a frame at most.
pub const MIRRORS_MAX: usize = 4;

/// A mirror, as the control plane has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorConfig {
    /// The port that gets the copies, and nothing else.
    pub output: PortId,
    /// Ports of which it gets what enters.
    pub ingress: Vec<PortId>,
    /// Ports of which it gets what leaves.
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
    /// [`NO_PORT`], or the number of one.
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

    /// Whether there is one.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.is_active.load(Relaxed)
    }

    /// Those that have an output.
    pub fn active(&self) -> impl Iterator<Item = (PortId, &Mirror)> {
        self.mirrors.iter().filter_map(|mirror| {
            let output = u16::try_from(mirror.output.load(Relaxed)).ok()?;
            Some((PortId(output), mirror))
        })
    }

    /// Replaces all mirrors; of more than [`MIRRORS_MAX`] the first. An output is copied to no
    /// other.
    pub fn set(&self, configs: &[MirrorConfig]) {
        let is_output = |port: PortId| configs.iter().any(|config| config.output == port);
        for (index, mirror) in self.mirrors.iter().enumerate() {
            let config = configs.get(index);
            let output = config.map_or(NO_PORT, |config| config.output.0.into());
            // Its ports are not to be copied to the output of before.
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

    /// Takes a port out that has gone: its number may be another's soon.
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
    /// Whether it gets what enters by a port.
    pub fn has_ingress(&self, port: PortId) -> bool {
        self.ingress.has(port)
    }

    /// Whether it gets what leaves by a port.
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
    fn an_output_is_copied_to_no_mirror_and_there_are_so_many() {
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
        // What takes the number of a port that has gone is copied to no mirror.
        mirrors.forget(PortId(4));
        assert!(!mirrors.active().any(|(_, mirror)| mirror.has_ingress(PortId(4))));
        mirrors.forget(PortId(5));
        assert_eq!(mirrors.active().count(), 0);
        mirrors.set(&[]);
        assert!(!mirrors.is_active() && mirrors.active().next().is_none());
    }
}

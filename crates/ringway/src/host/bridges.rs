//! Linux bridges of the host.

use anyhow::{Context, Result};
use ringway_net::{LinkSetting, Netlink};

use crate::description::Bridge;

/// Bridges that are ours. Dropping them removes them.
pub(crate) struct Bridges {
    made: Vec<String>,
}

impl Bridges {
    /// Creates all bridges, or none.
    pub(crate) fn make(bridges: &[Bridge]) -> Result<Bridges> {
        let mut ours = Bridges { made: Vec::new() };
        bridges.iter().try_for_each(|bridge| ours.add(bridge))?;
        Ok(ours)
    }

    /// Creates those that a running host did not have. One that cannot be is logged: what is on it
    /// waits for it.
    pub(super) fn add_new(&mut self, bridges: &[Bridge]) {
        let is_new = |bridge: &&Bridge| !self.made.contains(&bridge.name.0);
        for bridge in bridges.iter().filter(is_new).collect::<Vec<_>>() {
            if let Err(error) = self.add(bridge) {
                tracing::warn!("{error:#}");
            }
        }
    }

    fn add(&mut self, bridge: &Bridge) -> Result<()> {
        let name = &bridge.name.0;
        let mut netlink = Netlink::open()?;
        netlink.add_bridge(name).with_context(|| {
            format!(
                "[[bridge]] {name}: an interface of this host has this name; choose another one"
            )
        })?;
        self.made.push(name.clone());
        netlink.set(name, &[LinkSetting::Up])?;
        for cidr in &bridge.addresses {
            netlink
                .add_address(name, cidr.address, cidr.prefix_len)
                .with_context(|| format!("[[bridge]] {name}: address {cidr}"))?;
        }
        Ok(())
    }
}

impl Drop for Bridges {
    fn drop(&mut self) {
        for name in &self.made {
            let removed = Netlink::open().and_then(|mut netlink| netlink.delete(name));
            if let Err(error) = removed {
                tracing::warn!("cannot remove bridge {name}: {error}");
            }
        }
    }
}

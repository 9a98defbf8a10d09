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
        for bridge in bridges {
            let name = &bridge.name.0;
            let mut netlink = Netlink::open()?;
            netlink.add_bridge(name).with_context(|| {
                format!(
                    "[[bridge]] {name}: an interface of this host has this name; choose another \
                     one"
                )
            })?;
            ours.made.push(name.clone());
            netlink.set(name, &[LinkSetting::Up])?;
            for cidr in &bridge.addresses {
                netlink
                    .add_address(name, cidr.address, cidr.prefix_len)
                    .with_context(|| format!("[[bridge]] {name}: address {cidr}"))?;
            }
        }
        Ok(ours)
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

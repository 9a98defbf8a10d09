//! What the kernel offers: a veth pair for each end, and a Linux bridge between them.

use anyhow::Result;
use ringway_net::LinkSetting;

use super::namespaces::Namespace;
use super::{OpenPath, Path};

const BRIDGE: &str = "br0";

/// veth and a bridge, with the offloads the kernel chooses, which are all.
pub(crate) struct VethBridge;

struct Open {
    ends: [Namespace; 2],
    _switch: Namespace,
}

impl Path for VethBridge {
    fn name(&self) -> &'static str {
        "veth+bridge"
    }

    fn open(&self) -> Result<Box<dyn OpenPath>> {
        let ends = [Namespace::new()?, Namespace::new()?];
        let switch = Namespace::new()?;
        switch.configure(|net| {
            net.add_bridge(BRIDGE)?;
            net.set(BRIDGE, &[LinkSetting::Up])
        })?;
        for (end, namespace) in ends.iter().enumerate() {
            let (inside, outside) = (format!("eth{end}"), format!("port{end}"));
            let pid = namespace.pid();
            switch.configure(|net| {
                net.add_veth(&outside, &inside)?;
                net.set(&inside, &[LinkSetting::NetnsOf(pid)])?;
                net.set(&outside, &[LinkSetting::Master(BRIDGE)])?;
                net.set(&outside, &[LinkSetting::Up])
            })?;
            namespace.address(&inside, end)?;
        }
        Ok(Box::new(Open { ends, _switch: switch }))
    }
}

impl OpenPath for Open {
    fn pid(&self, end: usize) -> u32 {
        self.ends[end].pid()
    }
}

//! When a vif has its port.

use ringway_datapath::words;
use serde::{Deserialize, Serialize};

use crate::bridge::shortened;

/// When a vif has its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bind {
    /// While its guest is connected: two hosts do not claim it while the guest moves.
    #[default]
    Connected,
    /// As long as it has a network device, as with Xen's script `vif-openvswitch`.
    Plugged,
}

words! {
    Bind { Connected = "connected", Plugged = "plugged" }
    else |text| format!("{:?}: expected connected or plugged", shortened(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_two_and_others_are_refused() {
        for bind in [Bind::Connected, Bind::Plugged] {
            assert_eq!(bind.to_string().parse(), Ok(bind));
        }
        for bad in ["", "Plugged", &"x".repeat(4000)] {
            let refusal = bad.parse::<Bind>().expect_err(bad);
            assert!(refusal.contains("connected or plugged") && refusal.len() < 100, "{refusal}");
        }
    }
}

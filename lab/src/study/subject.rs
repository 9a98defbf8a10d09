//! What is measured: ringway, and the baselines through the same machine.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Subject {
    /// ringway.
    #[serde(rename = "ringway")]
    Ringway,
    /// The kernel alone: a pair of veth devices and a bridge.
    #[serde(rename = "baseline-veth-bridge")]
    VethBridge,
    /// The minimum that a process in user space can do: copy frames between two TAP devices.
    #[serde(rename = "baseline-tap-relay")]
    TapRelay,
    /// This machine as it is, at the near end of a path to another machine.
    #[serde(rename = "machine")]
    Machine,
}

impl Subject {
    /// All of them.
    pub const ALL: [Subject; 4] =
        [Subject::Ringway, Subject::VethBridge, Subject::TapRelay, Subject::Machine];

    /// As records spell it.
    pub fn id(self) -> &'static str {
        match self {
            Subject::Ringway => "ringway",
            Subject::VethBridge => "baseline-veth-bridge",
            Subject::TapRelay => "baseline-tap-relay",
            Subject::Machine => "machine",
        }
    }

    /// As figures spell it.
    pub fn title(self) -> &'static str {
        match self {
            Subject::Ringway => "ringway",
            Subject::VethBridge => "veth + bridge",
            Subject::TapRelay => "bare TAP relay",
            Subject::Machine => "this machine",
        }
    }

    /// Whether it is measured for comparison only.
    pub fn is_baseline(self) -> bool {
        matches!(self, Subject::VethBridge | Subject::TapRelay)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

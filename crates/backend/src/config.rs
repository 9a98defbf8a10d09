//! The configuration of a backend, given at its start.

use ringway_control::{Recipient, RunDir};
use ringway_host::{Defaults, HostConfig, Uplink, UplinkRules};
use ringway_host_shell::VhostVif;
use ringway_worker::WorkersConfig;
use serde_json::Value;

/// A backend's settings.
#[derive(Debug, Clone)]
pub struct BackendConfig {
    /// The directory of its control socket.
    pub dir: RunDir,
    /// Identifies network devices of this backend, whichever of its processes makes them. A backend
    /// with another run directory may serve another XenStore, where the same names mean other vifs.
    pub owner: String,
    /// Its threads.
    pub workers: WorkersConfig,
    /// What concerns all vifs.
    pub host: HostConfig,
    /// Parses a `[[vhost]]` passed on by the opener, or returns why it cannot be served.
    pub read_vhost: fn(Value) -> Result<VhostVif, String>,
    /// Parses what the opener passes on of a description that was read again beside its vifs, or
    /// returns why it cannot.
    pub read_common: fn(Value) -> Result<Common, String>,
    /// The uplink from the switch to the host.
    pub uplink: Option<Uplink>,
    /// Notified when the backend serves, and that it is alive.
    pub reports_to: Recipient,
}

/// What a description says of the switch and its uplink, as far as it may change while they serve.
#[derive(Debug, Clone)]
pub struct Common {
    /// What applies to vifs that have nothing of their own.
    pub defaults: Defaults,
    /// What goes through the uplink, if there is one.
    pub uplink: Option<UplinkRules>,
}

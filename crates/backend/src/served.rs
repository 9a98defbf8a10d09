//! What a vif has beside its handshake.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_datapath::{Completion, OffloadCaps, QueueCounters};
use ringway_hypervisor::Hypervisor;
use ringway_switch::PortId;
use ringway_worker::Credit;
use ringway_xenbus::{BadKeys, Keys, Offer, Rate, Vif};

use crate::device::{VifDevice, vif_name};
use crate::log::{LeftOut, LogAllowance};
use crate::rules::Rules;
use crate::services::Hosting;

/// What a vif has beside its handshake.
pub(crate) struct Served {
    pub(crate) vif: Vif,
    pub(crate) offer: Offer,
    /// What its guest may send, and the guest's address.
    pub(crate) rules: Rules,
    /// If the vif is not on the switch.
    pub(crate) device: Option<VifDevice>,
    /// When what its guest transmits is completed.
    pub(crate) completion: Completion,
    /// What the guest may transmit, as the toolstack has it.
    pub(crate) rate: Result<Option<Rate>, BadKeys>,
    /// The same as a budget. It outlives connections, or each would bring a new one.
    pub(crate) credit: Option<Arc<Credit>>,
    /// While queues are attached.
    pub(crate) connection: Option<Connection>,
    pub(crate) log: LogAllowance,
}

/// What is attached while a guest is connected.
pub(crate) struct Connection {
    pub(crate) port: PortId,
    /// Of the vif's network device, if it has one.
    pub(crate) device_port: Option<PortId>,
    pub(crate) queues: Vec<Arc<QueueCounters>>,
    pub(crate) caps: OffloadCaps,
}

impl Served {
    /// Whether something that the guest did may be logged, and how much was left out before.
    pub(crate) fn may_log(&mut self) -> Option<LeftOut> {
        self.log.line(Instant::now())
    }

    /// Limits what the guest may transmit as the toolstack wants it. A rate that cannot be read is
    /// no limit, as for Linux' backend.
    pub(crate) fn set_rate<H: Hypervisor>(&mut self, keys: &Keys, host: &mut Hosting<H>) {
        let rate = keys.rate();
        if self.rate == rate {
            return;
        }
        let limit = rate.as_ref().ok().copied().flatten();
        self.credit = limit.map(|Rate { bytes, interval_us }| {
            Arc::new(Credit::new(bytes, Duration::from_micros(interval_us), Instant::now()))
        });
        let vif = vif_name(self.vif);
        match &rate {
            Ok(rate) => tracing::info!(vif, ?rate, "limit of what the guest transmits"),
            Err(bad) => tracing::warn!(vif, "{bad}: transmits without a limit"),
        }
        self.rate = rate;
        if let Some(connection) = &self.connection {
            host.workers.limit(connection.port, self.credit.as_ref());
        }
    }
}

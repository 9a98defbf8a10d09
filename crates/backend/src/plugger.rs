//! The plugger: the process that adds and removes ports of Open vSwitch.

use std::io;
use std::time::Instant;

use ringway_control::{PluggerEvent, PluggerOrder, Received};
use ringway_host::{Event, PortOrder};
use ringway_hypervisor::Hypervisor;

use crate::Backend;

/// Messages that are taken in a turn.
const EVENTS_MAX: usize = 16; // not a limit: a batch, the rest follows

impl<H: Hypervisor> Backend<H> {
    /// Takes the plugger's messages, and gives it the next order.
    pub(crate) fn serve_plugger(&mut self) -> io::Result<()> {
        let Some(plugger) = self.plugger.clone() else { return Ok(()) };
        for _ in 0..EVENTS_MAX {
            match plugger.receive()? {
                Received::Nothing => break,
                Received::End => {
                    return Err(io::Error::other("the process that asks ovs-vsctl has ended"));
                }
                Received::Message(PluggerEvent::Found { vifs }, _) => {
                    self.on(Event::PortsFound(vifs))?;
                }
                Received::Message(PluggerEvent::Done { outcome }, _) => {
                    self.on(Event::PortDone(outcome))?;
                }
            }
        }
        let Some(order) = self.host.shared.ovs.next_order(Instant::now()) else { return Ok(()) };
        let vif = order.vif().path();
        let order = match order {
            PortOrder::Join { wanted, is_new, .. } => PluggerOrder::Join { vif, wanted, is_new },
            PortOrder::Leave { .. } => PluggerOrder::Leave { vif },
        };
        // There is room: it has taken the last one.
        plugger.send(&order, &[])
    }
}

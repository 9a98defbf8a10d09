//! The plugger: the process that adds and removes ports of Open vSwitch.

use std::io;
use std::time::Instant;

use ringway_control::{PluggerEvent, PluggerOrder, PluggerRequest, Received};
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
            let event = match plugger.receive()? {
                Received::Nothing => break,
                // One that is killed has a successor, which has the same link.
                Received::End => {
                    return Err(io::Error::other("the process that asks ovs-vsctl has ended"));
                }
                Received::Message(event, _) => event,
            };
            match event {
                PluggerEvent::Begun => self.on(Event::PluggerBegun)?,
                PluggerEvent::Datapath { found } => self.on(Event::DatapathFound(found))?,
                PluggerEvent::Found { vifs } => self.on(Event::PortsFound(vifs))?,
                PluggerEvent::Done { number, outcome } if number == self.port_orders => {
                    self.on(Event::PortDone(outcome))?;
                }
                // The order was given again since.
                PluggerEvent::Done { .. } => {}
            }
        }
        // There is room: it has taken the last ones, or has begun since and forgotten them.
        if let Some(PortOrder { vif, wanted }) = self.host.shared.ovs.next_order(Instant::now()) {
            self.port_orders += 1;
            let order = PluggerOrder { number: self.port_orders, vif: vif.path(), wanted };
            plugger.send(&PluggerRequest::Order(order), &[])?;
        }
        let question = self.host.shared.datapaths.next_question();
        let question = question.map(|bridge| PluggerRequest::Datapath { bridge });
        question.map_or(Ok(()), |question| plugger.send(&question, &[]))
    }
}

//! The guest's orders of which multicast frames it wants: requests of the tx ring without a packet.

use std::sync::Arc;

use ringway_datapath::{DropReason, MacAddr, MulticastFilter};
use ringway_wire::netif::{EXTRA_TYPE_MCAST_ADD, EXTRA_TYPE_MCAST_DEL, ExtraInfo};

use crate::changes::Changes;

/// What all queues of a vif change of the multicast frames that its guest gets.
#[derive(Debug)]
pub struct MulticastControl {
    /// These frames.
    pub filter: Arc<MulticastFilter>,
    /// Has each batch of orders noted.
    pub changes: Arc<Changes>,
}

impl MulticastControl {
    /// Carries out an order.
    ///
    /// # Errors
    /// The reason for which it is refused, and counted.
    pub(crate) fn carry_out(&self, order: MulticastOrder) -> Result<(), DropReason> {
        match order {
            MulticastOrder::Add(address) => {
                self.filter.add(address).map_err(|_| DropReason::MulticastFull)
            }
            MulticastOrder::Remove(address) => {
                self.filter.remove(address);
                Ok(())
            }
        }
    }
}

/// What a guest orders by an extra.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MulticastOrder {
    /// It wants frames to this address.
    Add(MacAddr),
    /// It does not want them any more.
    Remove(MacAddr),
}

impl MulticastOrder {
    /// The order of an extra, if it is one.
    pub(crate) fn of(extra: &ExtraInfo) -> Option<MulticastOrder> {
        //= netif.h:multicast-order
        match extra.kind {
            EXTRA_TYPE_MCAST_ADD => Some(MulticastOrder::Add(MacAddr(extra.payload))),
            EXTRA_TYPE_MCAST_DEL => Some(MulticastOrder::Remove(MacAddr(extra.payload))),
            _ => None,
        }
    }
}

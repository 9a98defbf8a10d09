//! What all interfaces of a guest share.

use std::collections::VecDeque;

use ringway_hypervisor::Hypervisor;
use ringway_net::Netlink;
use ringway_net::ethtool::Ethtool;
use ringway_netfront::VifQueue;
use ringway_switch::PortId;
use ringway_tap::VifOrTap;
use ringway_worker::{Failure, Workers};
use ringway_xenstore::Client;

use crate::gro::Gro;
use crate::reserve::Reserve;

/// A queue of a vif or of a TAP device.
pub(crate) type AnyQueue<H> =
    VifOrTap<VifQueue<<H as Hypervisor>::Grants, <H as Hypervisor>::Event>>;

/// All of it.
pub(crate) struct Parts<H: Hypervisor> {
    pub(crate) store: Client,
    pub(crate) machinery: Machinery<H>,
}

/// What is needed to move frames, apart from XenStore.
pub(crate) struct Machinery<H: Hypervisor> {
    pub(crate) hypervisor: H,
    pub(crate) netlink: Netlink,
    pub(crate) ethtool: Option<Ethtool>,
    pub(crate) gro: Gro,
    pub(crate) workers: Workers<AnyQueue<H>>,
    /// Reports of workers that have not been handled yet.
    pub(crate) port_events: VecDeque<Failure<AnyQueue<H>>>,
    /// Room for the queues that are still to come.
    pub(crate) reserve: Reserve,
}

impl<H: Hypervisor> Machinery<H> {
    pub(crate) fn next_port_event(&mut self) -> Option<Failure<AnyQueue<H>>> {
        self.port_events.pop_front().or_else(|| self.workers.next_failure())
    }

    /// Takes the workers' reports about some ports, and leaves the rest.
    pub(crate) fn take_events_of(
        &mut self,
        is_it: impl Fn(PortId) -> bool,
    ) -> Vec<Failure<AnyQueue<H>>> {
        while let Some(event) = self.workers.next_failure() {
            self.port_events.push_back(event);
        }
        let all = std::mem::take(&mut self.port_events);
        let (taken, left): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|event| is_it(event.port_id));
        self.port_events = left.into();
        taken
    }
}

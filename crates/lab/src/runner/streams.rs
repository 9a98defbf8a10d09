//! Which streams a run has: their ends, their ports, and with those their queues.

use std::net::SocketAddr;

use ringway_datapath::headers::Transport;
use ringway_steering::{FlowTuple, QueueIndex};

use crate::placement::Ports;
use crate::record::Stream;
use crate::setup::Setup;
use crate::study::TopologyKind;
use crate::topology::{Attached, Blueprint, End, Topology};
use crate::word::{Direction, LOADER};
use ringway_rig::child::PartError;
use ringway_rig::tools::{Flow, Measured, Tool};

/// Ports of servers: each stream has its own, and the next run has others, as some tools refuse one
/// that had a connection a moment ago.
const PORT_FIRST: u16 = 5201;
/// From here on, a run begins with the first again.
const PORT_END: u16 = 15_000;

/// A stream with the queue that it falls on, where that is known.
pub(super) struct Placed {
    pub(super) flow: Flow,
    queue: Option<QueueIndex>,
}

/// What decides where streams fall: the same seed leads them to the same queues.
pub(super) struct Luck {
    seed: u64,
    source_ports: Ports,
    /// The next one of servers.
    server_port: u16,
}

impl Luck {
    pub(super) fn new(seed: u64) -> Luck {
        Luck { seed, source_ports: Ports::new(), server_port: PORT_FIRST }
    }

    /// The streams of a run, with source ports that put them where the placement wants them.
    pub(super) fn place(
        &mut self,
        topology: &Topology,
        blueprint: &Blueprint,
        setup: &Setup,
        repeat: u32,
    ) -> Result<Vec<Placed>, PartError> {
        let Setup { streams, placement, tool, .. } = *setup;
        let is_receiving = setup.direction == Direction::Receive;
        // What the kernel does with a TAP device's queues is not ours to know.
        let is_known = topology.host.is_some()
            && tool.has_source_ports()
            && blueprint.kind != TopologyKind::RouterBypass
            && setup.queue_changes == 0
            && (blueprint.attached == Attached::Switch || !is_receiving);
        let queues = if is_known { blueprint.queues } else { 1 };
        if self.server_port >= PORT_END {
            self.server_port = PORT_FIRST;
        }
        let mut placed = Vec::new();
        for (guest, (near, far)) in (0..).zip(topology.pairs()) {
            let ends = if is_receiving { [far, near] } else { [near, far] };
            // Every guest has luck of its own.
            let own = self.seed.wrapping_add(u64::from(guest).wrapping_mul(0x9e37_79b9));
            for queue in placement.queues(streams, queues, repeat, own) {
                let flow = self.flow(guest, ends, tool, queue, queues)?;
                placed.push(Placed { flow, queue: is_known.then_some(queue) });
            }
        }
        Ok(placed)
    }

    /// Streams that load the path in both directions, as many in each as the set-up says.
    pub(super) fn load(
        &mut self,
        topology: &Topology,
        setup: &Setup,
        repeat: u32,
    ) -> Result<Vec<Flow>, PartError> {
        let mut flows = Vec::new();
        for (guest, (near, far)) in (0..).zip(topology.pairs()) {
            for ends in [[near, far], [far, near]] {
                for queue in setup.placement.queues(setup.load, setup.queues, repeat, self.seed) {
                    flows.push(self.flow(guest, ends, LOADER, queue, setup.queues)?);
                }
            }
        }
        Ok(flows)
    }

    /// A stream from the first end to the second that falls on this one of so many queues.
    fn flow(
        &mut self,
        guest: u32,
        [sender, receiver]: [&End; 2],
        tool: Tool,
        queue: QueueIndex,
        queues: u16,
    ) -> Result<Flow, PartError> {
        let port = self.server_port;
        self.server_port = port
            .checked_add(1)
            .ok_or_else(|| PartError::Failed("there are more streams than ports".to_owned()))?;
        let template = FlowTuple {
            src: SocketAddr::new(sender.address.into(), 0),
            dst: SocketAddr::new(receiver.address.into(), tool.stream_port(port)),
            transport: Transport::Tcp,
        };
        let source_port = self
            .source_ports
            .take(template, queue, queues)
            .ok_or_else(|| PartError::Failed(format!("no port leads to queue {}", queue.0)))?;
        Ok(Flow {
            guest,
            sender: sender.pid,
            receiver: receiver.pid,
            address: receiver.address,
            source_port,
            port,
        })
    }
}

/// The streams as records have them.
pub(super) fn recorded(placed: &[Placed], measured: &Measured) -> Vec<Stream> {
    let with_bps = (0..).zip(placed).zip(&measured.bps);
    let stream = |((index, placed), bps): ((u32, &Placed), &Option<f64>)| Stream {
        index,
        guest: placed.flow.guest,
        source_port: placed.flow.source_port,
        queue: placed.queue.map(|queue| queue.0),
        bps: *bps,
    };
    with_bps.map(stream).collect()
}

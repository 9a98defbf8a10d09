//! The streams of a run: their ends and ports, and thereby their queues.

use std::net::SocketAddr;

use ringway_datapath::headers::Transport;
use ringway_steering::{FlowKey, FlowTuple, QueueIndex};

use crate::placement::Ports;
use crate::record::Stream;
use crate::setup::Setup;
use crate::study::TopologyKind;
use crate::topology::{Attached, Blueprint, End, Topology};
use crate::word::{Direction, LOADER, Placement};
use ringway_rig::child::PartError;
use ringway_rig::tools::{Flow, Measured, Tool};

/// Ports of servers: each stream has its own, and the next run uses others, because some tools
/// refuse a port that had a connection shortly before.
const PORT_FIRST: u16 = 5201;
/// From here on, a run starts at the first port again.
const PORT_END: u16 = 15_000;

/// A stream with its queue, if known.
pub(super) struct Placed {
    pub(super) flow: Flow,
    queue: Option<QueueIndex>,
}

/// The state that decides the placement of streams: the same seed gives the same queues.
pub(super) struct StreamPlacer {
    seed: u64,
    /// The key of flows of hosts on which streams are placed.
    pub(super) flow_key: FlowKey,
    source_ports: Ports,
    /// The next server port.
    server_port: u16,
}

impl StreamPlacer {
    pub(super) fn new(seed: u64) -> StreamPlacer {
        let mut random = fastrand::Rng::with_seed(seed);
        let flow_key = FlowKey::new([random.u64(..), random.u64(..)]);
        let source_ports = Ports::new(flow_key);
        StreamPlacer { seed, flow_key, source_ports, server_port: PORT_FIRST }
    }

    /// The streams of a run, with source ports that put them on the queues of the placement.
    pub(super) fn place(
        &mut self,
        topology: &Topology,
        blueprint: &Blueprint,
        setup: &Setup,
        repeat: u32,
    ) -> Result<Vec<Placed>, PartError> {
        let Setup { streams, placement, tool, .. } = *setup;
        let is_receiving = setup.direction == Direction::Receive;
        // How the kernel selects a TAP device's queue is unknown to us.
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
            // Every guest gets a placement of its own.
            let own = self.seed.wrapping_add(u64::from(guest).wrapping_mul(0x9e37_79b9));
            for queue in placement.queues(streams, queues, repeat, own) {
                let flow = self.flow(guest, ends, tool, queue, queues)?;
                // It begins there, and may move.
                let stays = is_known && placement != Placement::Balanced;
                placed.push(Placed { flow, queue: stays.then_some(queue) });
            }
        }
        Ok(placed)
    }

    /// Streams that load the path, as many in each direction as the set-up says.
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

    /// The streams of a run between this machine and its peer, in this order. The queues of real
    /// interfaces are unknown.
    pub(super) fn place_between(
        &mut self,
        ends: &[End; 2],
        setup: &Setup,
        direction: Direction,
    ) -> Result<Vec<Placed>, PartError> {
        if self.server_port >= PORT_END {
            self.server_port = PORT_FIRST;
        }
        let flows = self.between(ends, direction, setup.tool, setup.streams)?;
        Ok(flows.into_iter().map(|flow| Placed { flow, queue: None }).collect())
    }

    /// Streams that load the path to a peer in one direction.
    pub(super) fn load_between(
        &mut self,
        ends: &[End; 2],
        setup: &Setup,
        direction: Direction,
    ) -> Result<Vec<Flow>, PartError> {
        self.between(ends, direction, LOADER, setup.load)
    }

    fn between(
        &mut self,
        [near, far]: &[End; 2],
        direction: Direction,
        tool: Tool,
        count: usize,
    ) -> Result<Vec<Flow>, PartError> {
        let ends = if direction == Direction::Receive { [far, near] } else { [near, far] };
        (0..count).map(|_| self.flow(0, ends, tool, QueueIndex(0), 1)).collect()
    }

    /// A stream from the first end to the second that falls on a given queue.
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

/// The streams in the form of records.
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

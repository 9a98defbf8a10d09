//! Runs between this machine and its peer: each end's tools, and the counters of both machines.

use std::path::Path;
use std::time::{Duration, Instant};

use super::streams::{self, Placed, StreamPlacer};
use super::{Made, RunnerError, pause};
use crate::counters::Counted;
use crate::peer::Destination;
use crate::peer::remote::Remote;
use crate::peer::sample::Sample;
use crate::peer::{matrix, ssh};
use crate::plan::{Plan, Task};
use crate::preflight;
use crate::record::{Cpu, Ends, Peer};
use crate::setup::Setup;
use crate::study::Study;
use crate::topology::End;
use crate::word::{Direction, LOADER, Tool};
use ringway_control::Times;
use ringway_rig::child::PartError;
use ringway_rig::launcher::Launcher;
use ringway_rig::machine::Build;
use ringway_rig::tools::{Flow, Half, Load, Measured, Place, Role};

/// The port of the check that each end reaches the other. Streams have those above.
const PROBE_PORT: u16 = 5_200;
/// Seconds without a request after which the agent ends, beyond the time of a run.
const IDLE_SECONDS: f64 = 180.0;

/// The groups of streams of a run.
const MEASURED: u32 = 0;
const LOADS: [(u32, Direction); 2] = [(1, Direction::Transmit), (2, Direction::Receive)];

/// A peer in use. It is connected again for the run after one that failed.
pub(super) struct Session {
    to: Destination,
    build: Build,
    idle: Duration,
    remote: Option<Remote>,
    pub(super) peer: Peer,
    origin: Instant,
}

/// Both ends of some streams.
struct Group {
    id: u32,
    direction: Direction,
    near: Half,
}

impl Session {
    /// Connects to the peer, and checks both machines and the path between them.
    pub(super) fn open(
        launcher: &Launcher,
        to: &Destination,
        study: &Study,
        (build, dir): (&Build, &Path),
    ) -> Result<Session, RunnerError> {
        let program = to.ssh.first().map_or(ssh::PROGRAM, String::as_str);
        let missing = preflight::missing_beside_peer(study, dir, (program, ssh::PACKAGE));
        if !missing.is_empty() {
            return Err(RunnerError::Missing(missing));
        }
        let load = &study.load;
        let idle = Duration::try_from_secs_f64(load.seconds + load.warmup_seconds + IDLE_SECONDS);
        let idle = idle.unwrap_or(Duration::MAX);
        let mut remote = Remote::connect(launcher, to, build, idle)?;
        let (peer, missing) = remote.describe(launcher, &preflight::tools(study))?;
        if !missing.is_empty() {
            let on = |what: &String| format!("on {}: {what}", to.host);
            return Err(RunnerError::Missing(missing.iter().map(on).collect()));
        }
        let (to, build, remote) = (to.clone(), build.clone(), Some(remote));
        let mut session = Session { to, build, idle, remote, peer, origin: Instant::now() };
        session.try_path(study)?;
        Ok(session)
    }

    /// Checks that the ends which send reach the others.
    fn try_path(&mut self, study: &Study) -> Result<(), PartError> {
        let Some(remote) = &mut self.remote else { return Ok(()) };
        let setups = study.matrix().filter_map(|(_, cell)| Setup::of(study, &cell).ok());
        let needs: Vec<(bool, Direction)> =
            setups.map(|setup| (setup.load > 0, setup.direction)).collect();
        let needs = |way| needs.iter().any(|(is_both, own)| *is_both || *own == way);
        if needs(Direction::Transmit) {
            remote.try_to(&self.peer, PROBE_PORT)?;
        }
        if needs(Direction::Receive) {
            remote.try_from(&self.peer, PROBE_PORT)?;
        }
        Ok(())
    }

    /// Gives up the cells that the path as it is now cannot show, and says why.
    ///
    /// # Errors
    /// If no cell is left.
    pub(super) fn leave_out(&self, study: &Study, plan: &mut Plan<'_>) -> Result<(), RunnerError> {
        let mut reasons = Vec::new();
        let mut is_any = false;
        for (subject, cell) in study.matrix() {
            match matrix::fits_now(study, &cell, &self.peer) {
                Ok(()) => is_any = true,
                Err(why) => {
                    plan.give_up(subject, &cell);
                    if !reasons.contains(&why) {
                        reasons.push(why);
                    }
                }
            }
        }
        if !is_any {
            return Err(RunnerError::Missing(reasons));
        }
        reasons.iter().for_each(|why| eprintln!("NOTICE: {why}"));
        Ok(())
    }

    /// Ends the connection, and with it everything that runs on the peer.
    pub(super) fn discard(&mut self) {
        self.remote = None;
    }

    /// Makes one run.
    pub(super) fn measure(
        &mut self,
        launcher: &Launcher,
        study: &Study,
        luck: &mut StreamPlacer,
        task: &Task,
    ) -> Result<Made, PartError> {
        let setup = Setup::of(study, &task.cell).map_err(PartError::Failed)?;
        let remote = match &mut self.remote {
            Some(remote) => remote,
            none => none.insert(Remote::connect(launcher, &self.to, &self.build, self.idle)?),
        };
        let ends = [end(self.peer.near_interface.address), end(self.peer.interface.address)];
        let placed = luck.place_between(&ends, &setup, setup.direction)?;
        let mut loading = Vec::new();
        if setup.load > 0 {
            for (id, way) in LOADS {
                let flows = luck.load_between(&ends, &setup, way)?;
                let load = load(study, &setup, flows, super::LOAD_TAIL);
                loading.push(Group::start(launcher, remote, id, LOADER, way, &load)?);
            }
        }
        let flows = placed.iter().map(|one| one.flow.clone()).collect();
        let load = load(study, &setup, flows, 0.0);
        let (tool, way) = (setup.tool, setup.direction);
        let measured = Group::start(launcher, remote, MEASURED, tool, way, &load)?;
        let pids: Vec<u32> =
            loading.iter().chain([&measured]).flat_map(|group| group.near.pids()).collect();
        let (near, far) = (&self.peer.near_interface.name, &self.peer.interface.name);
        pause(launcher, study.load.warmup_seconds.max(tool.settling_seconds()))?;
        let before = [Sample::take(self.origin, &pids, near)?, remote.sample(far)?];
        pause(launcher, study.load.seconds)?;
        let after = [Sample::take(self.origin, &pids, near)?, remote.sample(far)?];
        let measured = measured.finish(remote)?;
        let loads: Result<Vec<Measured>, PartError> =
            loading.into_iter().map(|group| group.finish(remote)).collect();
        Ok(made(&placed, measured, loads?, &before, &after))
    }
}

impl Group {
    /// Starts both ends of some streams, the receiving one first.
    fn start(
        launcher: &Launcher,
        remote: &mut Remote,
        id: u32,
        tool: Tool,
        direction: Direction,
        load: &Load,
    ) -> Result<Group, PartError> {
        let near = |role| Half::start(tool, role, Place::Here, launcher, load);
        let near = match direction {
            Direction::Transmit => {
                remote.start(id, tool, Role::Receiver, load)?;
                near(Role::Sender)?
            }
            Direction::Receive => {
                let receivers = near(Role::Receiver)?;
                remote.start(id, tool, Role::Sender, load)?;
                receivers
            }
        };
        Ok(Group { id, direction, near })
    }

    /// Waits for the result of both ends, the sending one first.
    fn finish(self, remote: &mut Remote) -> Result<Measured, PartError> {
        let load = self.near.load();
        let (streams, seconds) = (load.flows.len(), load.warmup_seconds + load.seconds);
        match self.direction {
            Direction::Transmit => {
                let senders = self.near.finish()?;
                Measured::of(senders, remote.finish(self.id, streams, seconds)?)
            }
            Direction::Receive => {
                let senders = remote.finish(self.id, streams, seconds)?;
                Measured::of(senders, self.near.finish()?)
            }
        }
    }
}

/// An end without a namespace: its tools run in the network of their machine.
fn end(address: std::net::Ipv4Addr) -> End {
    End { pid: std::process::id(), address, interface: String::new() }
}

fn load(study: &Study, setup: &Setup, flows: Vec<Flow>, tail: f64) -> Load {
    Load {
        flows,
        seconds: study.load.seconds + tail,
        warmup_seconds: study.load.warmup_seconds,
        window: setup.window,
        buffer: setup.buffer,
    }
}

/// What a run gave, from the samples of this machine and of the peer, in this order.
fn made(
    placed: &[Placed],
    measured: Measured,
    loads: Vec<Measured>,
    before: &[Sample; 2],
    after: &[Sample; 2],
) -> Made {
    let [near, far] = [after[0].since(&before[0]), after[1].since(&before[1])];
    let tools = |end: &crate::record::EndUse| end.tools_user + end.tools_system;
    let counted = Counted {
        seconds: after[0].at_seconds - before[0].at_seconds,
        cpu: Cpu {
            host_softirq: Some(near.host_softirq),
            steal: Some(near.steal),
            ..Cpu::default()
        },
        cpu_seconds: tools(&near) + tools(&far),
        queues: vec![],
        response_times: Times::default(),
        disturbance: near.disturbance.clone(),
    };
    let streams = streams::recorded(placed, &measured);
    Made { streams, measured, loads, counted, ends: Some(Ends { near, far }), notes: vec![] }
}

//! The virtio vifs of a world: the description of the host has them, and their front-ends would
//! connect to sockets.

use std::path::PathBuf;

use ringway_backend::VhostVif;
use ringway_calls::BackendRequest;
use ringway_datapath::{OffloadCaps, PortRules};
use ringway_host::{CallReply, Event, Note, Notes as _, VirtioWanted};
use ringway_vhost::request::PROTOCOL_FEATURES;
use ringway_vhost_shell::Mode;
use ringway_wire::virtio::Features;
use ringway_xenbus::{Limit, VifLimits};

use crate::calls::ENDED;
use crate::canary::Canary;
use crate::flaw::{Checked, Flaw, Rule};
use crate::marks::Mark;
use crate::process::Process;
use crate::scenario::QUEUES_MAX;
use crate::socket::{Found, Opener};
use crate::world::{World, lost};

/// Limits of a virtio vif, with some values.
const LIMITS: [(&str, &str); 4] =
    [("weight", "1"), ("weight", "7"), ("broadcast-mbit", "40000"), ("flood-rate", "1000000")];

impl World {
    /// Makes the sockets, before the first backend starts.
    pub(crate) fn make_virtio(&mut self) {
        for number in 0..self.scenario.virtio {
            self.virtio.names.push(format!("vm{number}"));
            self.virtio.openers.push(Opener::new());
        }
    }

    /// A process of the backend begins with the vifs of the description.
    pub(crate) fn add_virtio(&mut self, process: &mut Process) {
        let World { plane, notes, virtio, scenario, settings, .. } = self;
        for (name, opener) in virtio.names.iter().zip(&mut virtio.openers) {
            if scenario.canary == Some(Canary::ForgottenLimits) {
                drop(notes.remove(&Note::Settings(name.clone())));
            }
            if notes.is_stale(&Note::Settings(name.clone())) {
                settings.forget(name);
            }
            let config = described(name.clone(), QUEUES_MAX);
            let source = opener.begin(scenario.canary);
            let added = process.add_virtio(&config, source, None, plane, notes);
            added.expect("nothing refuses it");
        }
    }

    /// Gives a turn to the opener of a virtio vif. Returns whether it did something.
    pub(crate) fn run_virtio(&mut self, number: usize) -> Checked<bool> {
        let World { plane, backend, notes, virtio, .. } = self;
        let Some((event, _)) = virtio.openers[number].turn(None) else { return Ok(false) };
        let name = &virtio.names[number];
        let Some(backend) = backend else { return Ok(true) };
        plane.journal.note(|| format!("the opener reports of {name}: {event:?}"));
        backend.tell(name, event, plane, notes).map_err(|error| lost(&error))?;
        Ok(true)
    }

    /// What an administrator does to a virtio vif.
    pub(crate) fn virtio_trouble(&mut self, number: usize) -> Checked {
        let disturbances = self.scenario.disturbances;
        match self.plane.choices.below(4) {
            0 => self.limit_virtio(number),
            1 if disturbances.have_links() || disturbances.have_deaths() => {
                self.change_socket(number);
                Ok(())
            }
            2 if disturbances.have_deaths() => {
                self.plane.kill_backend();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A socket is removed, something else is put there, or it is made again.
    fn change_socket(&mut self, number: usize) {
        let World { plane, virtio, .. } = self;
        let (found, mark) = plane.choices.pick(&[
            (Found::Socket, Mark::SocketReplaced),
            (Found::Nothing, Mark::SocketRemoved),
            (Found::OtherFile, Mark::SocketOfOtherKind),
        ]);
        plane.marks.hit(mark);
        plane.journal.note(|| format!("at the socket of virtio vif {number} is: {found:?}"));
        virtio.openers[number].found = found;
    }

    /// An administrator sets a limit of a virtio vif.
    fn limit_virtio(&mut self, number: usize) -> Checked {
        let name = self.virtio.names[number].clone();
        let (limit, value) = self.plane.choices.pick(&LIMITS);
        let key = Limit::named(limit).map_or("", |limit| limit.key);
        let request = BackendRequest::SetLimit {
            vif: name.clone(),
            limit: limit.to_owned(),
            value: value.to_owned(),
        };
        match self.ask(&request)? {
            Ok(CallReply::Done) => {
                self.plane.marks.hit(Mark::VirtioLimited);
                self.settings.set(&name, key, value);
                Ok(())
            }
            // It applies until the backend restarts.
            Err(reason) if reason.contains("lost when the backend restarts") => {
                self.settings.set(&name, key, value);
                Ok(())
            }
            Err(reason) if reason == ENDED => {
                self.settings.set(&name, key, value);
                Ok(())
            }
            reply => Err(Flaw::new(Rule::Calls, format!("{request:?}: {reply:?}"))),
        }
    }

    /// All virtio vifs leave, as when the description has them no more.
    pub(crate) fn remove_virtio(&mut self) -> Checked {
        let World { plane, backend, notes, virtio, .. } = self;
        for name in &virtio.names {
            if let Some(backend) = backend {
                let removed = backend.on(Event::Removed(name.clone()), plane, notes);
                removed.map_err(|error| lost(&error))?;
            }
        }
        virtio.openers.clear();
        self.check_virtio_release()
    }
}

/// What the description says of a vif.
fn described(name: String, queues: u16) -> VhostVif {
    let wanted = VirtioWanted {
        name: name.clone(),
        queues,
        offloads: OffloadCaps::ALL,
        bridge: None,
        features: Features(u64::MAX),
        protocol: PROTOCOL_FEATURES,
        mac: None,
        rules: PortRules::default(),
        limits: VifLimits::default(),
    };
    VhostVif { wanted, socket: PathBuf::from(name), mode: Mode::Client, max_memory: None }
}

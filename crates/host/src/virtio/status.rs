//! What users are shown of a virtio vif, or of a network namespace.

use ringway_calls::{NamespaceStatus, VifStatus, VirtioStatus};
use ringway_vhost::Backend;
use ringway_vhost::backend::{FEATURES, PROTOCOL_FEATURES};
use ringway_wire::vhost_user::protocol_names;
use ringway_wire::virtio::Features;

use super::VirtioVif;
use crate::session::{Session as _, SessionPlace};
use crate::world::World;

impl<W: World> VirtioVif<W> {
    /// Whether its guest is served.
    pub(crate) fn is_serving(&self) -> bool {
        self.session.is_serving()
    }

    /// Completes its status.
    pub(crate) fn describe(&self, status: VifStatus) -> VifStatus {
        let said = self.session.said();
        let state = match said {
            _ if self.is_serving() => "Connected",
            None => "Waiting",
            Some(_) => "Initialising",
        };
        let (error, error_kind) = match self.error() {
            Some((error, kind)) => (Some(error), Some(kind.to_owned())),
            None => (status.error, status.error_kind),
        };
        // Without a device, it waits for its bridge.
        let awaited = self.wanted.bridge.clone().filter(|_| self.state.device.is_none());
        let (kind, virtio, namespace) = match self.session.place() {
            SessionPlace::Socket { path, mode } => {
                ("virtio", Some(self.virtio_status(path, mode)), None)
            }
            SessionPlace::Namespace { path, device } => {
                ("namespace", None, Some(NamespaceStatus { path, device }))
            }
        };
        VifStatus {
            kind: kind.to_owned(),
            state: state.to_owned(),
            error,
            error_kind,
            attached_to: awaited.unwrap_or(status.attached_to),
            max_queues: said.map_or(self.wanted.queues, |said| said.offer().pairs),
            virtio,
            namespace,
            ..status
        }
    }

    fn virtio_status(&self, socket: String, mode: &str) -> VirtioStatus {
        let names = |features: Features| features.names().map(str::to_owned).collect();
        let said = self.session.said();
        let offered = said.map_or(Features::NONE, |said| said.offer().features());
        let features = said.and_then(Backend::features).unwrap_or(Features::NONE);
        let of_protocol = |set: u64| protocol_names(set).map(str::to_owned).collect();
        let protocol_offered = said.map_or(0, |said| said.offer().protocol());
        let protocol = said.map_or(0, Backend::protocol);
        let regions = said.map_or(&[][..], Backend::regions);
        VirtioStatus {
            socket,
            mode: mode.to_owned(),
            at_run_time: self.at_run_time,
            max_queues_next: self.wanted.queues,
            features: names(features),
            not_taken: names(offered.without(features)),
            not_offered: said.map_or(Vec::new(), |_| names(FEATURES.without(offered))),
            protocol: of_protocol(protocol),
            protocol_not_taken: of_protocol(protocol_offered & !protocol),
            protocol_not_offered: of_protocol(
                said.map_or(0, |_| PROTOCOL_FEATURES) & !protocol_offered,
            ),
            memory_mib: regions.iter().map(|region| region.size).sum::<u64>() >> 20,
            memory_sealed: !self.session.may_lose_memory(),
        }
    }

    /// Why nothing is served, if so, and the kind of that.
    fn error(&self) -> Option<(String, &'static str)> {
        let unattached = || self.why_unattached().map(str::to_owned);
        if let Some(fault) = self.quarantined.clone().or_else(unattached) {
            return Some((fault, VifStatus::FAULT));
        }
        let Some(error) = self.session.error() else {
            let unshared = self.guest.unshared(&self.session.blank_pairs())?;
            return Some((unshared, VifStatus::FAULT));
        };
        let is_absence = self.session.lacks_guest();
        Some((error, if is_absence { VifStatus::NO_GUEST } else { VifStatus::FAULT }))
    }
}

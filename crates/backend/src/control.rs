//! Calls of the command line: the host carries them out, and this process adds its own facts.

use std::time::{Duration, Instant, SystemTime};

use ringway_control::{
    BackendRequest, BackendStatus, Call, Reply, VifStatus, VirtioStatus, WorkerStatus,
};
use ringway_datapath::Mirrored;
use ringway_host::{Around, CallReply, NotDone, Shared, VifDevice, VifState, VirtioVif};
use ringway_hypervisor::Hypervisor;
use ringway_vhost::backend::{FEATURES, PROTOCOL_FEATURES};
use ringway_vhost_shell::{Mode, State};
use ringway_wire::vhost_user::protocol_names;
use ringway_wire::virtio::Features;
use ringway_xenbus::MIRROR_KEY;
use ringway_xenstore::Lost;

use crate::Backend;
use crate::capture::stream_pcapng;
use crate::kernel::HostKernel;
use crate::machinery::{HostingOf, Machinery};
use crate::uplink::UplinkPort;
use crate::vhost::VhostVif;

impl<H: Hypervisor> Backend<H> {
    pub(crate) fn serve_call(&mut self, call: Call<BackendRequest>) -> Result<(), Lost> {
        let reply = match self.carry_out(&call.request) {
            Ok(CallReply::Done) => Reply::ok(&()),
            Ok(CallReply::Status(status)) => Reply::ok(&BackendStatus {
                pid: std::process::id(),
                policy: self.config.workers.policy.to_string(),
                workers: worker_statuses(&self.machinery),
                ..*status
            }),
            Ok(CallReply::Capture(capture, vif, snap_len)) => {
                Reply::stream(move |stream| stream_pcapng(&capture, &vif, snap_len, stream))
            }
            Err(NotDone::Refused(reason)) => Reply::error(&reason),
            Err(NotDone::Lost(lost)) => return Err(lost),
        };
        call.reply(reply);
        Ok(())
    }

    fn carry_out(&mut self, request: &BackendRequest) -> Result<CallReply, NotDone> {
        let is_for_tests =
            matches!(request, BackendRequest::Panic { .. } | BackendRequest::Stall { .. });
        // These work only if the environment declares a test.
        if is_for_tests && std::env::var_os("RINGWAY_TEST_PANICS").is_none() {
            return Err("this process is not under test".to_owned().into());
        }
        let is_status = matches!(request, BackendRequest::Status);
        let has_devices = || self.all_states().any(|state| state.device.is_some());
        // What is so, not what was configured: an administrator may move devices.
        let has_places = is_status && has_devices();
        let links = if has_places { self.machinery.devices.links() } else { Vec::new() };
        let place_of = |device: &VifDevice<HostKernel>| match device {
            VifDevice::Kept(device) => device.place(&links),
            // Who keeps it knows where it is.
            VifDevice::Passed(device) => (device.attached_to.clone(), false),
        };
        let Backend { host, store, machinery, vhosts, uplink, .. } = self;
        let mut virtio = Vec::<&mut dyn VirtioVif<_>>::with_capacity(vhosts.len());
        for vhost in vhosts {
            virtio.push(vhost);
        }
        let around = Around {
            virtio,
            uplink: uplink.as_ref().map(UplinkPort::describe),
            place_of: &place_of,
            wall: SystemTime::now(),
        };
        host.call(request, around, Instant::now(), &mut machinery.parts(store))
    }
}

impl<H: Hypervisor> VirtioVif<Machinery<H>> for VhostVif<H> {
    fn state(&self) -> &VifState<Machinery<H>> {
        &self.state
    }

    fn describe(&self, status: VifStatus) -> VifStatus {
        let names = |features: Features| features.names().map(str::to_owned).collect();
        let session = self.end.session();
        let offered = session.map_or(Features::NONE, |session| session.offer().features());
        let features = session.and_then(ringway_vhost::Backend::features).unwrap_or(Features::NONE);
        let of_protocol = |set: u64| protocol_names(set).map(str::to_owned).collect();
        let protocol_offered = session.map_or(0, |session| session.offer().protocol());
        let protocol = session.map_or(0, ringway_vhost::Backend::protocol);
        let regions = session.map_or(&[][..], |session| session.regions());
        let state = match self.end.state() {
            State::Disconnected => "Waiting",
            State::Waiting(_) => "Initialising",
            State::Serving => "Connected",
        };
        let mode = match self.config.mode {
            Mode::Client => "client",
            Mode::Server => "server",
        };
        // Without a device, it waits for its bridge.
        let awaited = self.config.bridge.clone().filter(|_| self.state.device.is_none());
        VifStatus {
            kind: "virtio".to_owned(),
            state: state.to_owned(),
            error: self.error().or(status.error),
            attached_to: awaited.unwrap_or(status.attached_to),
            max_queues: session.map_or(self.config.queues, |session| session.offer().pairs),
            virtio: Some(VirtioStatus {
                socket: self.config.socket.display().to_string(),
                mode: mode.to_owned(),
                at_run_time: self.at_run_time,
                max_queues_next: self.config.queues,
                features: names(features),
                not_taken: names(offered.without(features)),
                not_offered: session.map_or(Vec::new(), |_| names(FEATURES.without(offered))),
                protocol: of_protocol(protocol),
                protocol_not_taken: of_protocol(protocol_offered & !protocol),
                protocol_not_offered: of_protocol(
                    session.map_or(0, |_| PROTOCOL_FEATURES) & !protocol_offered,
                ),
                memory_mib: regions.iter().map(|region| region.size).sum::<u64>() >> 20,
                memory_sealed: !self.may_lose_memory(),
            }),
            ..status
        }
    }

    fn set(
        &mut self,
        key: &str,
        value: &str,
        hosting: &mut HostingOf<'_, H>,
    ) -> Result<(), String> {
        if key != MIRROR_KEY {
            return self.set_limit(key, value, hosting);
        }
        let set = self.set_mirror(Mirrored::parse_list(value)?, value, hosting);
        set.map_err(|reason| format!("{}: {reason}", self.state.name))
    }

    fn check_quarantine(&mut self, shared: &Shared) {
        self.check_quarantine(shared);
    }
}

pub(crate) fn worker_statuses<H: Hypervisor>(machinery: &Machinery<H>) -> Vec<WorkerStatus> {
    let workers = &machinery.workers;
    let placements = workers.placements();
    let status = |(index, busy): (usize, Duration)| WorkerStatus {
        index,
        queues: placements.iter().filter(|placed| placed.worker == index).count(),
        busy_ns: u64::try_from(busy.as_nanos()).unwrap_or(u64::MAX),
    };
    workers.busy().enumerate().map(status).collect()
}

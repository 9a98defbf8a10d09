//! A process, with what is around it.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ringway_backend::{BackendConfig, Common, Sockets};
use ringway_control::{
    BackendRequest, BackendStatus, Link, ProcessReport, Received, Recipient, ReplyLimits, RunDir,
    open_with_limits,
};
use ringway_datapath::{MacAddr, OffloadCaps};
use ringway_host::{Defaults, HostConfig, VirtioWanted};
use ringway_host_shell::{VhostVif, VifPlace};
use ringway_switch::{FloodLimit, StormLimits, SwitchConfig};
use ringway_sys::poll::wait_readable;
use ringway_vhost_shell::Mode;
use ringway_vif_shell::device;
use ringway_worker::{Policy, Polling, WorkersConfig};
use ringway_xenbus::{Device, Vif};
use ringway_xenstore::{Client, DomId, Quota, Server};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;

/// Longer than any step takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a process begins with.
pub(crate) struct Begun {
    pub(crate) config: BackendConfig,
    pub(crate) sockets: Sockets,
    pub(crate) store: Client,
    /// Ends it when it becomes readable.
    pub(crate) stop: UnixStream,
}

/// A process, as a thread of this one.
pub(crate) struct Running {
    dir: TempDir,
    /// The toolstack's connection.
    store: Client,
    stop: UnixStream,
    thread: JoinHandle<io::Result<()>>,
}

impl Running {
    /// Starts one that reports to this recipient.
    pub(crate) fn start(
        reports_to: Recipient,
        run: impl FnOnce(Begun) -> io::Result<()> + Send + 'static,
    ) -> Running {
        let dir = tempfile::tempdir().expect("a directory");
        let server = Server::new(Quota::default()).expect("descriptors");
        let xenstore = server.handle();
        thread::spawn(move || server.run());
        let [store, own] = [(), ()].map(|()| xenstore.connect(DomId(0)).expect("it serves"));
        let (stop, stopped) = UnixStream::pair().expect("descriptors");
        let run_dir = RunDir::new(dir.path());
        let thread = thread::spawn(move || {
            let sockets = Sockets::without_netlink(&run_dir)?;
            let config = config(run_dir, reports_to);
            run(Begun { config, sockets, store: Client::from_stream(own), stop: stopped })
        });
        Running { dir, store: Client::from_stream(store), stop, thread }
    }

    /// A toolstack makes a vif of Xen without a device.
    pub(crate) fn make(&mut self, vif: Vif) {
        let made = Device::new(vif, MacAddr([2, 0, 0, 0, 0, 1]));
        self.store.transaction(|tx| device::make(tx, &made)).expect("domain 0 may");
    }

    /// It removes one.
    pub(crate) fn remove(&mut self, vif: Vif) {
        self.store.remove(&vif.backend_dir()).expect("domain 0 may");
    }

    /// Calls the process, as the command line does.
    pub(crate) fn call<T: DeserializeOwned>(&self, request: &BackendRequest) -> Result<T, String> {
        let limits = ReplyLimits { time: PATIENCE, bytes: 1 << 20 };
        let reply = open_with_limits(&RunDir::new(self.dir.path()).backend(), request, limits);
        reply.map(|(value, _)| value).map_err(|error| error.to_string())
    }

    pub(crate) fn status(&self) -> BackendStatus {
        self.call(&BackendRequest::Status).expect("it replies")
    }

    /// Asks it to end. What follows is up to it.
    pub(crate) fn stop(self) -> JoinHandle<io::Result<()>> {
        drop(self.stop);
        self.thread
    }

    /// How it ends by itself.
    pub(crate) fn wait(self) -> io::Result<()> {
        self.thread.join().expect("it does not panic")
    }
}

/// Both ends of a link.
pub(crate) fn link() -> (Link, Link) {
    let (ours, theirs) = Link::pair().expect("descriptors");
    (ours, Link::new(theirs))
}

/// A supervisor's end of a link, and what reports by the other one.
pub(crate) fn supervisor() -> (Link, Recipient) {
    let (ours, theirs) = link();
    (ours, Recipient::of_supervisor(Arc::new(theirs)))
}

/// The next message of the process.
pub(crate) fn next<T: DeserializeOwned>(link: &Link) -> T {
    assert!(wait_readable(link, Some(PATIENCE)).expect("it can be polled"), "it says nothing");
    match link.receive().expect("one that is known") {
        Received::Message(message, _) => message,
        Received::Nothing | Received::End => panic!("the process has ended"),
    }
}

/// Its next report, apart from those that it is alive.
pub(crate) fn report(link: &Link) -> ProcessReport {
    loop {
        match next(link) {
            ProcessReport::Alive => {}
            report => return report,
        }
    }
}

/// The report that it has so many vifs, and that none is connected.
pub(crate) fn vifs(count: usize) -> ProcessReport {
    ProcessReport::Vifs { count, connected: 0 }
}

fn config(dir: RunDir, reports_to: Recipient) -> BackendConfig {
    BackendConfig {
        owner: dir.path().display().to_string(),
        dir,
        workers: WorkersConfig {
            workers: 1,
            policy: Policy::Static,
            cpus: Vec::new(),
            polling: Polling::default(),
            frame_memory: 64 << 20,
            flow_key: "00000000000000010000000000000002".parse().expect("a key"),
            name: "test".to_owned(),
        },
        host: HostConfig {
            max_queues: 2,
            balances_flows: false,
            split_event_channels: false,
            offloads: OffloadCaps::ALL,
            locking: None,
            switch: SwitchConfig::unlimited(64, 8, 1),
            mtu: 1500,
        },
        read_vhost,
        read_common,
        uplink: None,
        reports_to,
    }
}

/// A vif that is only a name.
fn read_vhost(section: Value) -> Result<VhostVif, String> {
    let name = serde_json::from_value(section).map_err(|_| "it has no name")?;
    let wanted = VirtioWanted {
        name,
        queues: 1,
        offloads: OffloadCaps::ALL,
        bridge: None,
        iface_id: None,
        vm_uuid: None,
        bind: Default::default(),
        features: Default::default(),
        protocol: 0,
        mac: None,
        rules: Default::default(),
        limits: Default::default(),
        others: Vec::new(),
    };
    let place = VifPlace::Socket { path: "/run/test".into(), mode: Mode::Client };
    Ok(VhostVif { wanted, place, max_memory: None })
}

/// What applies to all vifs, of which only the queues of vifs of Xen are said.
fn read_common(common: Value) -> Result<Common, String> {
    let queues_max = serde_json::from_value(common).map_err(|_| "there are no queues")?;
    let defaults = Defaults {
        flood: FloodLimit::NONE,
        storm: StormLimits::NONE,
        locking: None,
        addresses_max: 64,
        queues_max,
    };
    Ok(Common { defaults, uplink: None })
}

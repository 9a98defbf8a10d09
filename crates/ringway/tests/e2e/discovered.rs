//! A guest whose description has no vifs: a toolstack creates and removes them while it runs.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread::JoinHandle;

use ringway_control::{GuestRequest, GuestVifStatus, RunDir};
use ringway_e2e::host::{Host, SOON, describe, text_of};
use ringway_e2e::shared_turn;
use ringway_emu::{EmuHypervisor, NewDomain, Role};
use ringway_frontend::{FrontendConfig, Interface, Sockets};
use ringway_hypervisor::Hypervisor;
use ringway_steering::FlowKey;
use ringway_sys::namespace;
use ringway_vif_shell::device;
use ringway_wire::DomId;
use ringway_worker::{Policy, Polling, WorkersConfig};
use ringway_xenbus::{Device, Vif};
use ringway_xenstore::{Client, Permissions, Rights, domain_path};

const HOST: DomId = DomId(0);
const NAME: &str = "found";
const QUEUES: u16 = 2;
/// Pages of a queue: two rings and 512 buffers.
const QUEUE_BYTES: u64 = 514 * 4096;

/// A guest in the network namespace of the test, and the toolstack beside it.
pub(crate) struct Guest<'a> {
    host: &'a Host,
    store: Client,
    /// The domain outlives the processes of its frontend, as on Xen.
    hypervisor: EmuHypervisor,
    frontend: Option<Frontend>,
}

/// One run of a frontend.
struct Frontend {
    thread: JoinHandle<io::Result<()>>,
    /// Dropping this ends it in order.
    stop: UnixStream,
    /// Its connection to XenStore, without which it ends at once and closes nothing.
    store: UnixStream,
}

impl<'a> Guest<'a> {
    /// Without permission to create a network namespace, prints why and returns `None`.
    fn new(host: &'a Host, memory_bytes: u64) -> Option<Guest<'a>> {
        let mut guest = Guest::paused(host, memory_bytes)?;
        guest.start();
        Some(guest)
    }

    /// A domain in which nothing runs yet.
    pub(crate) fn paused(host: &'a Host, memory_bytes: u64) -> Option<Guest<'a>> {
        if let Err(error) = namespace::unshare_network() {
            use std::io::Write;
            let _ = writeln!(io::stderr(), "SKIPPED: {error}");
            return None;
        }
        let toolstack =
            EmuHypervisor::connect(&host.dir(), HOST).expect("any user may be domain 0");
        let new = NewDomain { domid: None, memory_bytes, role: Role::Guest };
        let domid = toolstack.create_domain(new).expect("domain 0 may");
        let mut store = host.store();
        let home = domain_path(domid);
        let readable = Permissions::new(HOST, Rights::None).with(domid, Rights::Read);
        store.mkdir(&home).expect("made");
        store.set_permissions(&home, &readable).expect("set");
        store.mkdir(&format!("{home}/error")).expect("made");
        let own = Permissions::new(domid, Rights::None);
        store.set_permissions(&format!("{home}/error"), &own).expect("set");
        let hypervisor = EmuHypervisor::connect(&host.dir(), domid).expect("it is free");
        Some(Guest { host, store, hypervisor, frontend: None })
    }

    pub(crate) fn start(&mut self) {
        let dir = RunDir::new(self.host.dir());
        let socket = dir.xenstore_of(self.hypervisor.domid().0);
        let stream =
            self.host.wait("the guest's XenStore", SOON, |_| UnixStream::connect(&socket).ok());
        let store = stream.try_clone().expect("a descriptor");
        let (stop, stopped) = UnixStream::pair().expect("descriptors");
        let config = FrontendConfig {
            name: NAME.to_owned(),
            workers: WorkersConfig {
                workers: 1,
                policy: Policy::default(),
                cpus: Vec::new(),
                polling: Polling::default(),
                frame_memory: 64 << 20,
                flow_key: FlowKey::new([1, 2]),
                name: NAME.to_owned(),
            },
            device_prefix: "eth".to_owned(),
            interfaces: [].into(),
            others: Interface { queues: Some(QUEUES), ..Interface::default() },
        };
        let hypervisor = self.hypervisor.clone();
        let sockets = Sockets::open(&dir.guest(NAME)).expect("sockets can be made");
        let store_of_it = Client::from_stream(stream);
        let run = move || ringway_frontend::run(hypervisor, store_of_it, config, sockets, stopped);
        let thread = std::thread::spawn(run);
        self.frontend = Some(Frontend { thread, stop, store });
    }

    /// Ends the frontend in order.
    pub(crate) fn stop(&mut self) {
        let Some(frontend) = self.frontend.take() else { return };
        drop(frontend.stop);
        frontend.thread.join().expect("no panic").expect("it ends in order");
    }

    /// Ends it as by a kill: its grants stay, and no notification is sent.
    fn crash(&mut self) {
        let Some(frontend) = self.frontend.take() else { return };
        frontend.store.shutdown(Shutdown::Both).expect("connected");
        frontend.thread.join().expect("no panic").expect_err("it cannot continue without a store");
    }

    pub(crate) fn vif(&self, handle: u32) -> Vif {
        Vif { backend: HOST, frontend: self.hypervisor.domid(), handle }
    }

    /// Creates a vif as `xl network-attach` does, with some of the guest's keys changed.
    fn attach(&mut self, handle: u32, changes: &[(&str, &str)]) {
        let vif = self.vif(handle);
        let mac = format!("00:16:3e:77:00:{handle:02x}");
        let mac = ringway_datapath::MacAddr::parse(&mac).expect("an address");
        let described = Device { mtu: 1400, ..Device::new(vif, mac) };
        let made = self.store.transaction(|tx| {
            device::make(tx, &described)?;
            changes.iter().try_for_each(|(key, value)| {
                tx.write(&format!("{}/{key}", vif.frontend_dir()), value)
            })
        });
        made.expect("domain 0 may");
    }

    /// Removes a vif as `xl network-detach` does.
    fn detach(&mut self, handle: u32) {
        let vif = self.vif(handle);
        let removal = Device::removal_changes();
        device::change(&mut self.store, &vif.backend_dir(), &removal).expect("domain 0 may");
        self.host.wait("the backend to close", SOON, |host| {
            host.node(&vif.backend_state()).is_none_or(|state| state == "6").then_some(())
        });
        for dir in [vif.frontend_dir(), vif.backend_dir()] {
            self.store.remove(&dir).expect("domain 0 may");
        }
        self.wait_until_gone(handle);
    }

    /// Waits until a vif has left, and then its device.
    pub(crate) fn wait_until_gone(&self, handle: u32) {
        self.wait_until(handle, "to be gone", Option::is_none);
        self.host.wait("its device to go", SOON, |_| (!has_link(handle)).then_some(()));
    }

    fn status(&self, handle: u32) -> Option<GuestVifStatus> {
        self.host.guest(NAME)?.vifs.into_iter().find(|vif| vif.handle == handle)
    }

    fn wait_until(
        &self,
        handle: u32,
        what: &str,
        is_so: impl Fn(&Option<GuestVifStatus>) -> bool,
    ) -> Option<GuestVifStatus> {
        self.host.wait(&format!("vif {handle} {what}"), SOON, |host| {
            host.guest(NAME).map(|_| self.status(handle)).filter(&is_so)
        })
    }

    /// Waits until a vif is connected, and returns its number of queues.
    pub(crate) fn connected(&self, handle: u32) -> usize {
        let is_so = |vif: &Option<GuestVifStatus>| {
            let vif = vif.as_ref().filter(|vif| vif.state == "Connected" && vif.error.is_none());
            vif.is_some_and(|vif| !vif.queues.is_empty())
        };
        let vif = self.wait_until(handle, "to connect", is_so).expect("it is there");
        let node = self.vif(handle).backend_state();
        self.host.wait("its backend", SOON, |host| host.node(&node).filter(|state| state == "4"));
        assert_eq!(vif.interface, format!("eth{handle}"));
        vif.queues.len()
    }

    /// Waits until a vif has failed, and returns the reason.
    pub(crate) fn failed(&self, handle: u32) -> String {
        let has_error =
            |vif: &Option<GuestVifStatus>| vif.as_ref().is_some_and(|vif| vif.error.is_some());
        let vif = self.wait_until(handle, "to fail", has_error).expect("it is there");
        let node = self.vif(handle).frontend_error();
        let reason = self.host.wait("its error node", SOON, |host| host.node(&node));
        assert_eq!(vif.error.as_ref(), Some(&reason));
        reason
    }

    /// Gives a device an address, and pings another guest from it.
    fn ping(&self, handle: u32) {
        let device = format!("eth{handle}");
        ip(&["addr", "add", "10.77.0.9/24", "dev", &device]);
        let mut ping = Command::new("ping");
        ping.args(["-n", "-c", "2", "-i", "0.05", "-w", "30", "10.77.0.1"]);
        text_of(ping.output().expect("ping"), &self.host.log());
        ip(&["addr", "del", "10.77.0.9/24", "dev", &device]);
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        if let Some(frontend) = self.frontend.take() {
            drop(frontend.stop);
            let _ = frontend.thread.join();
        }
    }
}

pub(crate) fn ip(arguments: &[&str]) -> String {
    let output = Command::new("ip").args(arguments).output().expect("iproute2");
    text_of(output, &format!("ip {arguments:?}"))
}

fn has_link(handle: u32) -> bool {
    ip(&["-o", "link"]).contains(&format!(" eth{handle}:"))
}

fn start() -> Host {
    Host::start(&describe(&format!("max-queues = {QUEUES}"), &[("a", "", "")]))
}

#[test]
fn vifs_can_be_added_and_removed_and_share_the_available_grants() {
    let Some(_turn) = shared_turn(&["ping", "ip", "xenstore-read"]) else { return };
    let host = start();
    // Room for three queues, and most of a fourth.
    let Some(mut guest) = Guest::new(&host, (QUEUE_BYTES * 7 / 2) & !0xfff) else { return };
    let status = host.wait("the guest", SOON, |host| host.guest(NAME));
    assert!(status.vifs.is_empty());

    guest.attach(0, &[]);
    assert_eq!(guest.connected(0), 2);
    let link = ip(&["link", "show", "eth0"]);
    assert!(link.contains("00:16:3e:77:00:00") && link.contains("mtu 1400"), "{link}");
    guest.ping(0);

    guest.attach(1, &[]);
    assert_eq!(guest.connected(1), 1, "as many as there was room for");
    guest.ping(1);

    guest.attach(2, &[]);
    let reason = guest.failed(2);
    assert!(reason.contains("memory"), "{reason}");
    guest.ping(0);

    guest.detach(0);
    guest.ping(1);
    let again = GuestRequest::SetQueues { handle: 2, queues: 1 };
    let socket = RunDir::new(host.dir()).guest(NAME);
    ringway_control::send_request::<_, ()>(&socket, &again).expect("it is known");
    assert_eq!(guest.connected(2), 1);
    assert_eq!(host.node(&guest.vif(2).frontend_error()), None, "the error is gone");

    guest.attach(0, &[]);
    assert_eq!(guest.connected(0), 1);
    guest.ping(0);
    for handle in 0..3 {
        guest.detach(handle);
    }
    guest.stop();
}

#[test]
fn after_a_frontend_ends_or_crashes_the_next_one_connects() {
    let Some(_turn) = shared_turn(&["ping", "ip", "xenstore-read"]) else { return };
    let host = start();
    let Some(mut guest) = Guest::new(&host, 64 << 20) else { return };
    guest.attach(0, &[]);
    guest.connected(0);
    guest.ping(0);
    let state = guest.vif(0).frontend_state();
    for _ in 0..2 {
        guest.stop();
        assert_eq!(host.node(&state).as_deref(), Some("6"));
        guest.start();
        assert_eq!(guest.connected(0), usize::from(QUEUES));
        guest.ping(0);
        guest.crash();
        assert_eq!(host.node(&state).as_deref(), Some("4"));
        guest.start();
        assert_eq!(guest.connected(0), usize::from(QUEUES));
        guest.ping(0);
    }
}

#[test]
fn a_fault_of_one_vif_is_reported_and_affects_no_other() {
    let Some(_turn) = shared_turn(&["ping", "ip", "xenstore-read"]) else { return };
    let host = start();
    let Some(mut guest) = Guest::new(&host, 64 << 20) else { return };
    guest.attach(0, &[]);
    guest.connected(0);
    ip(&["link", "add", "eth2", "type", "bridge"]);
    for (handle, key, value, part) in [
        (1, "mac", "01:16:3e:00:00:01", "mac is \"01:16:3e:00:00:01\", expected"),
        (2, "mtu", "1500", "eth2"),
        (3, "mtu", "65522", "mtu is \"65522\", expected an MTU from 68 to 65521"),
        (4, "backend", "/local/domain/0/backend/vif/1/0", "backend is \"/local/domain/0"),
        (5, "backend-id", "dom0", "backend-id is \"dom0\", expected"),
    ] {
        guest.attach(handle, &[(key, value)]);
        let reason = guest.failed(handle);
        assert!(reason.contains(part), "{reason}");
        guest.ping(0);
    }
    // Once corrected, they work.
    guest.detach(1);
    guest.attach(1, &[]);
    guest.connected(1);
    // A deleted device is created again.
    ip(&["link", "del", "eth0"]);
    guest.wait_until(0, "to come back", |vif| {
        has_link(0) && vif.as_ref().is_some_and(|vif| vif.state == "Connected")
    });
    guest.connected(0);
    guest.ping(0);
}

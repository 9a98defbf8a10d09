//! The life of a vif under the toolstacks of Qubes and of XCP-ng. The test acts as these: it writes
//! their keys in their order, waits for the same states, and calls scripts as they do.
//! docs/qubes.md and docs/xcp-ng.md have the sources.

use std::process::{Command, Output};

use ringway_e2e::host::{Host, SOON, describe, text_of};
use ringway_e2e::shared_turn;
use ringway_wire::DomId;
use ringway_xenbus::Vif;
use ringway_xenstore::{Permissions, Rights};

use crate::discovered::{self, Guest};
use crate::toolstack::{ip, ip_ok, wait_state};

const PROGRAMS: [&str; 5] = ["nsenter", "ip", "ping", "xenstore-read", "xenstore-rm"];
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/toolstacks");
/// What an administrator of XCP-ng configures udev to call.
const UDEV_HELPER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/xenopsd-vif");
const MEMORY: u64 = 64 << 20;
const MAC: &str = "00:16:3e:5e:6c:07";

/// A domain's vif, as the toolstack sees it.
struct Plug<'a> {
    host: &'a Host,
    vif: Vif,
}

type Entry<'a> = (&'a str, String);

/// What either toolstack writes for a frontend. `own` is a key that only one of them has: 0.
fn front<'a>(vif: Vif, own: &'a str, mtu: &str) -> Vec<Entry<'a>> {
    vec![
        ("backend", vif.backend_dir()),
        ("backend-id", vif.backend.to_string()),
        ("state", "1".to_owned()),
        ("handle", vif.handle.to_string()),
        ("mac", MAC.to_owned()),
        (own, "0".to_owned()),
        ("mtu", mtu.to_owned()),
    ]
}

impl Plug<'_> {
    fn device(&self) -> String {
        format!("vif{}.{}", self.vif.frontend, self.vif.handle)
    }

    /// Runs a program in the backend's namespace.
    fn run(&self, environment: &[(&str, &str)], command: &[&str]) -> Output {
        let mut enter = Command::new("nsenter");
        enter.args(["--target", &self.host.pid_of("backend").to_string(), "--net"]);
        if !rustix::process::geteuid().is_root() {
            enter.args(["--user", "--preserve-credentials"]);
        }
        enter.args(command).env("XENSTORED_PATH", self.host.dir().join("xenstored.sock"));
        enter.envs(environment.iter().copied()).output().expect("util-linux")
    }

    fn has_device(&self) -> bool {
        ip(self.host, &format!("link show {}", self.device())).is_some()
    }

    fn wait_device(&self, is_there: bool) {
        let what = format!("{} to {}", self.device(), if is_there { "come" } else { "go" });
        self.host.wait(&what, SOON, |_| (self.has_device() == is_there).then_some(()));
    }

    /// Creates both directories in one transaction, the frontend's first, and the nodes of `before`
    /// and `after`.
    fn make(
        &self,
        before: &[(String, String)],
        front: &[Entry<'_>],
        back: &[Entry<'_>],
        after: &[(String, String)],
    ) {
        let Vif { backend, frontend, .. } = self.vif;
        let ends = [
            (self.vif.frontend_dir(), frontend, backend, front),
            (self.vif.backend_dir(), backend, frontend, back),
        ];
        let made = self.host.store().transaction(|tx| {
            for (path, value) in before {
                tx.write(path, value)?;
            }
            for (dir, owner, reader, entries) in &ends {
                tx.remove(dir)?;
                tx.mkdir(dir)?;
                let readable = Permissions::new(*owner, Rights::None).with(*reader, Rights::Read);
                tx.set_permissions(dir, &readable)?;
                for (key, value) in *entries {
                    tx.write(&format!("{dir}/{key}"), value)?;
                }
            }
            after.iter().try_for_each(|(path, value)| tx.write(path, value))
        });
        made.expect("domain 0 may");
    }

    fn write(&self, path: &str, value: &str) {
        self.host.store().write(path, value).expect("domain 0 may");
    }

    fn remove(&self, path: &str) {
        self.host.store().remove(path).expect("domain 0 may");
    }

    /// What both libxl and xenopsd write to remove a vif.
    fn ask_to_go(&self) {
        let (online, state) = (self.vif.online(), self.vif.backend_state());
        let asked = self.host.store().transaction(|tx| {
            tx.write(&online, "0")?;
            match tx.read(&state)?.as_deref() {
                None | Some("6") => Ok(()),
                _ => tx.write(&state, "5"),
            }
        });
        asked.expect("domain 0 may");
    }

    /// Nothing remains of a removed vif, in XenStore or outside.
    fn assert_gone(&self) {
        self.wait_device(false);
        let name = self.device();
        self.host
            .wait("the vif to be forgotten", SOON, |host| host.vif(&name).is_none().then_some(()));
        let [for_tools, _] = self.vif.backend_errors();
        for path in [self.vif.backend_dir(), self.vif.frontend_dir(), for_tools] {
            assert_eq!(self.host.node(&path), None, "{path}");
        }
    }
}

fn start() -> Host {
    Host::start(&describe("max-queues = 2", &[]))
}

fn ping_from_guest(host: &Host, address: &str) {
    let mut ping = Command::new("ping");
    ping.args(["-n", "-c", "3", "-i", "0.05", "-w", "30", address]);
    text_of(ping.output().expect("ping"), &host.log());
}

/// Destroys a domain after its vifs were removed, as both toolstacks do.
fn destroy(guest: Guest<'_>, host: &Host, domid: DomId) {
    drop(guest);
    host.store().remove(&format!("/local/domain/{domid}")).expect("domain 0 may");
}

/// A qube's vif: libvirt and libxl in domain 0, `xl devd` and Qubes' script in the net qube.
struct Qube<'a>(Plug<'a>);

const GATEWAY: &str = "10.138.13.5";
const QUBE: [&str; 2] = ["10.137.0.20", "fd09:24ef:4179::a89:14"];

impl<'a> Qube<'a> {
    /// What libxl writes for the interface that Qubes describes to libvirt.
    fn make(host: &'a Host, guest: &Guest<'a>) -> Qube<'a> {
        let vif = guest.vif(0);
        let plug = Plug { host, vif };
        let libxl = format!("/libxl/{}/device/vif/{}", vif.frontend, vif.handle);
        let text = str::to_owned;
        let before = [
            (format!("{libxl}/frontend"), vif.frontend_dir()),
            (format!("{libxl}/backend"), vif.backend_dir()),
        ];
        let front = front(vif, "trusted", "1500");
        let back = vec![
            ("frontend", vif.frontend_dir()),
            ("frontend-id", vif.frontend.to_string()),
            ("online", text("1")),
            ("state", text("1")),
            ("script", text("/etc/xen/scripts/vif-route-qubes")),
            ("mac", text(MAC)),
            ("ip", QUBE.join(" ")),
            // libxl's default; Qubes does not set it.
            ("bridge", text("xenbr0")),
            ("handle", vif.handle.to_string()),
            ("type", text("vif")),
            ("hotplug-status", text("")),
        ];
        let copy = back[1..].iter().map(|(key, value)| (format!("{libxl}/{key}"), value.clone()));
        plug.make(&before, &front, &back, &copy.collect::<Vec<_>>());
        Qube(plug)
    }

    fn script(&self, command: &str) -> Output {
        let path = self.0.vif.backend_dir();
        let environment = [
            ("script", "/etc/xen/scripts/vif-route-qubes"),
            ("XENBUS_TYPE", "vif"),
            ("XENBUS_PATH", &path),
            ("XENBUS_BASE_PATH", "backend"),
            ("netdev", ""),
            ("vif", &self.0.device()),
            ("GATEWAY", GATEWAY),
        ];
        let script = format!("{SCRIPTS}/vif-route-qubes");
        self.0.run(&environment, &[&script, command, "type_if=vif"])
    }

    /// `xl devd` calls the script while the backend waits for the guest.
    fn online(&self) -> Output {
        wait_state(self.0.host, self.0.vif, "2");
        assert!(self.0.has_device(), "a script finds its device");
        self.script("online")
    }

    /// Removes the vif: domain 0 asks, the net qube cleans up its part and domain 0 the rest. With
    /// `force` (`xl destroy`, a qube that is shut down) the frontend's directory goes first.
    fn detach(&self, force: bool) {
        let Plug { host, vif } = self.0;
        if force {
            self.0.remove(&vif.frontend_dir());
        }
        self.0.ask_to_go();
        wait_state(host, vif, "6");
        let offline = self.script("offline");
        assert!(offline.status.success(), "{offline:?}");
        self.0.remove(&vif.backend_dir());
        if !force {
            self.0.remove(&vif.frontend_dir());
        }
        self.0.remove(&format!("/libxl/{}/device/vif/{}", vif.frontend, vif.handle));
        self.0.assert_gone();
    }
}

/// What Qubes' `setup-ip` does in a qube.
fn set_up_qube() {
    let host_end = "fe:ff:ff:ff:ff:ff";
    for arguments in [
        &["addr", "replace", "10.137.0.20/32", "dev", "eth0"][..],
        &["neigh", "replace", "to", GATEWAY, "dev", "eth0", "lladdr", host_end, "nud", "permanent"],
        &["link", "set", "dev", "eth0", "group", "1", "up"],
        &["route", "replace", "to", "unicast", GATEWAY, "dev", "eth0", "scope", "link"],
        &["route", "replace", "to", "unicast", "default", "via", GATEWAY, "dev", "eth0", "onlink"],
    ] {
        discovered::ip(arguments);
    }
}

/// Creates a vif for a qube, with traffic both ways.
fn plugged_qube<'a>(host: &'a Host, guest: &Guest<'a>) -> Qube<'a> {
    let qube = Qube::make(host, guest);
    let online = qube.online();
    assert!(online.status.success(), "{online:?}\n{}", host.log());
    wait_state(host, qube.0.vif, "4");
    assert_eq!(guest.connected(0), 2);
    set_up_qube();
    ping_from_guest(host, GATEWAY);
    let back = qube.0.run(&[], &["ping", "-n", "-c", "2", "-i", "0.05", "-w", "30", QUBE[0]]);
    text_of(back, &host.log());
    let link = ip_ok(host, &format!("-d link show {}", qube.0.device()));
    for part in ["group 2", "fe:ff:ff:ff:ff:ff"] {
        assert!(link.contains(part), "{part}: {link}");
    }
    assert!(!link.contains("master"), "the bridge is not for a script that routes: {link}");
    qube
}

#[test]
fn qubes_plugs_unplugs_and_restarts_a_qube() {
    let Some(_turn) = shared_turn(&PROGRAMS) else { return };
    let host = start();
    let Some(mut guest) = Guest::paused(&host, MEMORY) else { return };
    let vif = guest.vif(0);
    let qube = Qube::make(&host, &guest);
    assert!(qube.online().status.success(), "{}", host.log());
    assert_eq!(host.node(&vif.backend_state()).as_deref(), Some("2"), "the qube is paused");
    qube.detach(true);
    guest.start();
    // `qvm-prefs QUBE netvm`, to nothing and back, twice.
    for _ in 0..2 {
        let qube = plugged_qube(&host, &guest);
        qube.detach(false);
        guest.wait_until_gone(0);
    }
    // A reboot creates another domain with the same vif (`on_reboot` is `destroy`).
    let qube = plugged_qube(&host, &guest);
    guest.stop();
    qube.detach(true);
    destroy(guest, &host, vif.frontend);
    let Some(mut guest) = Guest::paused(&host, MEMORY) else { return };
    guest.start();
    assert_ne!(guest.vif(0).frontend, vif.frontend);
    plugged_qube(&host, &guest).detach(false);
    guest.stop();
}

#[test]
fn qubes_gets_the_error_of_its_script() {
    let Some(_turn) = shared_turn(&PROGRAMS) else { return };
    let host = start();
    let Some(mut guest) = Guest::paused(&host, MEMORY) else { return };
    // A route that was left behind: the script cannot add its own.
    let stale = format!("{} dev lo metric {}", QUBE[0], 32752 - guest.vif(0).frontend.0);
    ip_ok(&host, "link set lo up");
    ip_ok(&host, &format!("route add {stale}"));
    let qube = Qube::make(&host, &guest);
    guest.start();
    assert!(!qube.online().status.success());
    let vif = qube.0.vif;
    let reason = host.wait("the reason", SOON, |host| host.node(&vif.backend_errors()[0]));
    for part in ["hotplug script", "ip route add 10.137.0.20"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    wait_state(&host, vif, "6");
    qube.detach(true);
    guest.wait_until_gone(0);
    ip_ok(&host, &format!("route del {stale}"));
    // This does not affect the next vif.
    plugged_qube(&host, &guest).detach(false);
    guest.stop();
}

/// A vif of XCP-ng: xenopsd in domain 0, and udev, which calls the script.
struct Vm<'a> {
    plug: Plug<'a>,
    uuid: String,
}

const NETWORKS: [(&str, &str, &str); 2] =
    [("xapi0", "10.78.0.1/24", "10.78.0"), ("xapi1", "10.79.0.1/24", "10.79.0")];

impl<'a> Vm<'a> {
    /// What xenopsd writes for a vif on a network of this host.
    fn make(host: &'a Host, guest: &Guest<'a>, bridge: &str) -> Vm<'a> {
        let vif = guest.vif(0);
        let uuid = format!("5f2c0d6a-0000-4000-8000-{:012}", vif.frontend.0);
        let vm = Vm { plug: Plug { host, vif }, uuid };
        let text = str::to_owned;
        // Made with the domain.
        vm.plug.write(&format!("/local/domain/{}/vm", vif.frontend), &format!("/vm/{}", vm.uuid));
        vm.plug.write(&format!("/vm/{}/uuid", vm.uuid), &vm.uuid);
        let front = front(vif, "disconnect", "1400");
        let back = vec![
            ("frontend", vif.frontend_dir()),
            ("frontend-id", vif.frontend.to_string()),
            ("online", text("1")),
            ("state", text("1")),
            ("script", text("/usr/libexec/xenopsd/vif")),
            ("mac", text(MAC)),
            ("handle", vif.handle.to_string()),
            // 1 Gbit/s.
            ("rate", text("6400000,50000")),
        ];
        let read_only = format!("/xenops/domain/{}/device/vif/{}", vif.frontend, vif.handle);
        let before = [(format!("{read_only}/backend"), vif.backend_dir())];
        let extra = format!("/local/domain/{}/xenserver/device/vif/{}", vif.frontend, vif.handle);
        let settings = [("mac", MAC), ("error-code", "0"), ("error-msg", ""), ("enabled", "0")];
        let settings = settings
            .iter()
            .map(|(key, value)| (format!("{extra}/static-ip-setting/{key}"), text(value)));
        let private = [
            ("backend-kind", "vif"),
            ("backend-id", "0"),
            ("vif-id", "0"),
            ("vif-uuid", "7d1b3c1e-0000-4000-8000-000000000001"),
            ("network-uuid", "7d1b3c1e-0000-4000-8000-000000000002"),
            ("locking-mode", "unlocked"),
            ("setup-vif-rules", "/usr/libexec/xenopsd/setup-vif-rules"),
            ("xenopsd-backend", "classic"),
            ("mac", MAC),
            ("trunks", ""),
            ("MTU", "1400"),
            ("bridge", bridge),
            ("bridge-MAC", "fe:ff:ff:ff:ff:ff"),
            ("rate", "125000"),
            ("timeslice", "50000"),
        ];
        let private = private.iter().map(|(key, value)| (vm.private(key), text(value)));
        let after: Vec<_> = private.chain(settings).collect();
        vm.plug.make(&before, &front, &back, &after);
        vm
    }

    /// A key for xenopsd and its script only.
    fn private(&self, key: &str) -> String {
        format!("/xapi/{}/private/vif/{}/{key}", self.uuid, self.plug.vif.handle)
    }

    /// What the script reports.
    fn hotplug(&self) -> String {
        let Vif { frontend, handle, .. } = self.plug.vif;
        format!("/xapi/{}/hotplug/{frontend}/vif/{handle}/hotplug", self.uuid)
    }

    /// udev's event for the network device replaces that of the kernel's backend for the vif.
    fn udev(&self, action: &str) -> Output {
        let device = self.plug.device();
        let environment = [("ACTION", action), ("INTERFACE", &device), ("SUBSYSTEM", "net")];
        self.plug.run(&environment, &[UDEV_HELPER, &format!("{SCRIPTS}/vif-xenopsd")])
    }

    /// What xenopsd waits for after it created a vif, or the reason for a failure.
    fn plugged(&self) -> Result<(), String> {
        self.plug.wait_device(true);
        self.udev("add");
        let error = format!("{}/hotplug-error", self.plug.vif.backend_dir());
        self.plug.host.wait("the script's word", SOON, |host| {
            let failed = host.node(&error).map(Err);
            failed.or_else(|| host.node(&self.hotplug()).map(|_| Ok(())))
        })
    }

    /// The backend releases the device before xenopsd removes its directory: xenopsd waits for
    /// that.
    fn wait_unplugged(&self) {
        self.plug.wait_device(false);
        self.udev("remove");
        assert_eq!(self.plug.host.node(&self.hotplug()), None);
    }

    fn unplug(&self) {
        let Plug { host, vif } = self.plug;
        self.plug.ask_to_go();
        host.wait("the frontend to close", SOON, |host| {
            host.node(&vif.frontend_state()).is_none_or(|state| state == "6").then_some(())
        });
        self.plug.remove(&vif.frontend_dir());
        self.remove_read_only();
        self.wait_unplugged();
        self.remove_rest();
    }

    /// `vif-unplug --force`, a VM that is shut down or restarted.
    fn unplug_by_force(&self) {
        let vif = self.plug.vif;
        self.plug.write(&vif.online(), "0");
        self.plug.remove(&vif.frontend_dir());
        self.remove_read_only();
        if self.plug.host.node(&self.hotplug()).is_some() {
            self.wait_unplugged();
        }
        self.remove_rest();
    }

    fn remove_read_only(&self) {
        let Vif { frontend, handle, .. } = self.plug.vif;
        self.plug.remove(&format!("/xenops/domain/{frontend}/device/vif/{handle}"));
    }

    fn remove_rest(&self) {
        let Vif { backend, frontend, handle } = self.plug.vif;
        for path in [
            self.plug.vif.backend_dir(),
            format!("/local/domain/{backend}/error/backend/vif/{frontend}"),
            format!("/local/domain/{frontend}/error/device/vif/{handle}"),
            format!("/xapi/{}", self.uuid),
            format!("/local/domain/{frontend}/xenserver/device/vif/{handle}"),
        ] {
            self.plug.remove(&path);
        }
        self.plug.assert_gone();
    }

    fn ping(&self, network: usize) {
        let (_, _, prefix) = NETWORKS[network];
        discovered::ip(&["addr", "add", &format!("{prefix}.9/24"), "dev", "eth0"]);
        ping_from_guest(self.plug.host, &format!("{prefix}.1"));
        discovered::ip(&["addr", "del", &format!("{prefix}.9/24"), "dev", "eth0"]);
    }
}

fn make_networks(host: &Host) {
    for (bridge, address, _) in NETWORKS {
        ip_ok(host, &format!("link add {bridge} type bridge"));
        ip_ok(host, &format!("addr add {address} dev {bridge}"));
        ip_ok(host, &format!("link set {bridge} up"));
    }
}

fn plugged_vm<'a>(host: &'a Host, guest: &Guest<'a>) -> Vm<'a> {
    let vm = Vm::make(host, guest, "xapi0");
    assert_eq!(vm.plugged(), Ok(()), "{}", host.log());
    wait_state(host, vm.plug.vif, "4");
    assert_eq!(guest.connected(0), 2);
    vm.ping(0);
    let link = ip_ok(host, &format!("link show {}", vm.plug.device()));
    for part in ["master xapi0", "mtu 1400", "NOARP"] {
        assert!(link.contains(part), "{part}: {link}");
    }
    vm
}

#[test]
fn xcp_ng_plugs_moves_unplugs_and_restarts_a_vm() {
    let Some(_turn) = shared_turn(&PROGRAMS) else { return };
    let host = start();
    make_networks(&host);
    let Some(mut guest) = Guest::paused(&host, MEMORY) else { return };
    guest.start();
    let vif = guest.vif(0);
    for _ in 0..2 {
        let vm = plugged_vm(&host, &guest);
        // The backend does not lock the vif, and the guest's cable is plugged in again.
        vm.plug.remove(&vm.private("locking-mode"));
        vm.plug.write(&vm.private("locking-mode"), "locked");
        vm.plug.write(&vm.private("ipv4-allowed"), "10.78.0.9");
        vm.plug.write(&vm.private("ipv6-allowed"), "");
        let disconnect = format!("{}/disconnect", vif.frontend_dir());
        vm.plug.write(&disconnect, "1");
        vm.plug.write(&disconnect, "0");
        vm.ping(0);
        // To another network; xenopsd itself notifies its script.
        vm.plug.write(&vm.private("bridge"), "xapi1");
        let (path, script) = (
            format!("backend/vif/{}/{}", vif.frontend, vif.handle),
            format!("{SCRIPTS}/vif-xenopsd"),
        );
        let moved = vm.plug.run(&[("XENBUS_PATH", &path)], &[&script, "move", "type_if=vif"]);
        assert!(moved.status.success(), "{moved:?}");
        vm.ping(1);
        vm.unplug();
        guest.wait_until_gone(0);
    }
    // A reboot creates another domain.
    let vm = plugged_vm(&host, &guest);
    guest.stop();
    vm.unplug_by_force();
    destroy(guest, &host, vif.frontend);
    let Some(mut guest) = Guest::paused(&host, MEMORY) else { return };
    guest.start();
    assert_ne!(guest.vif(0).frontend, vif.frontend);
    // xenopsd removes the device of a running guest.
    plugged_vm(&host, &guest).unplug_by_force();
    guest.wait_until_gone(0);
    plugged_vm(&host, &guest).unplug();
    guest.stop();
}

#[test]
fn xcp_ng_gets_the_error_of_its_script() {
    let Some(_turn) = shared_turn(&PROGRAMS) else { return };
    let host = start();
    make_networks(&host);
    let Some(mut guest) = Guest::paused(&host, MEMORY) else { return };
    guest.start();
    let vm = Vm::make(&host, &guest, "xapi7");
    let reason = vm.plugged().expect_err("there is no such bridge");
    assert!(reason.contains("xapi7"), "{reason}");
    // The script has not reported `error` to the backend, which continues to wait.
    assert_ne!(host.node(&vm.plug.vif.backend_state()).as_deref(), Some("4"));
    vm.unplug_by_force();
    guest.wait_until_gone(0);
    plugged_vm(&host, &guest).unplug();
    guest.stop();
}

//! Guests of stock libvirt, defined as in docs/virtio.md. `virt-qemu-run` runs them without a
//! daemon, and keeps all its files in the test's directory.

use std::fs;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ringway_e2e::host::{Host, Running, describe, wait_for};
use ringway_e2e::machine::{ADDRESS, EchoConnection, Image, KERNEL_OPTIONS, Machine, QEMU};
use ringway_e2e::virtio_guest::{kill_backend, wait_for_queues};

const RUNNER: &str = "virt-qemu-run";
/// Without its log daemon, and without profiles of AppArmor.
const SETTINGS: &str = "stdio_handler = \"file\"\nsecurity_driver = \"none\"\n";
/// libvirt runs without privileges, as for `qemu:///session`. Its user is one that each Debian has,
/// because libvirt 11 crashes if the user has no name. QEMU ends with this namespace.
const NAMESPACE: [&str; 7] = [
    "--user",
    "--map-user=65534",
    "--map-group=65534",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
];
/// How long libvirt may take to start QEMU; it first asks each QEMU what that can do.
const START_PATIENCE: Duration = Duration::from_secs(300);
/// Its address in the definition.
const MAC: &str = "52:54:00:77:00:09";

/// The definition of a machine with an end of the socket `net`.
///
/// With other kinds of interrupts than `vectors=0`, QEMU 7.2 crashes without KVM. Without `acpi`,
/// its Linux finds no interrupt for the device.
fn definition(image: &Image, dir: &Path, source: &str) -> String {
    let (image, dir) = (image.place().display(), dir.display());
    format!(
        "<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
           <name>vm1</name>
           <memory unit='MiB'>512</memory>
           <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
           <vcpu>4</vcpu>
           <os>
             <type arch='x86_64' machine='q35'>hvm</type>
             <kernel>{image}/vmlinux</kernel>
             <initrd>{image}/guest.cpio</initrd>
             <cmdline>{KERNEL_OPTIONS} guest.address={ADDRESS}/24</cmdline>
           </os>
           <features><acpi/></features>
           <on_reboot>destroy</on_reboot>
           <devices>
             <interface type='vhostuser'>
               <mac address='{MAC}'/>
               {source}
               <model type='virtio'/>
               <driver queues='4'/>
             </interface>
             <serial type='file'><source path='{dir}/console'/></serial>
             <serial type='unix'><source mode='bind' path='{dir}/shell'/></serial>
             <controller type='usb' model='none'/>
             <memballoon model='none'/>
           </devices>
           <qemu:override><qemu:device alias='net0'><qemu:frontend>
             <qemu:property name='vectors' type='unsigned' value='0'/>
           </qemu:frontend></qemu:device></qemu:override>
         </domain>"
    )
}

/// Starts a machine in [`NAMESPACE`].
fn start(image: &Image, dir: &Path, source: &str) -> Machine {
    let root = dir.join("libvirt");
    fs::create_dir_all(root.join("etc")).expect("made");
    fs::write(root.join("etc/qemu.conf"), SETTINGS).expect("written");
    let file = dir.join("vm1.xml");
    fs::write(&file, definition(image, dir, source)).expect("written");
    let log = fs::File::create(dir.join("libvirt-log")).expect("created");
    let mut command = Command::new("unshare");
    // The shell reaps QEMUs that libvirt starts to query them; libvirt would wait for them.
    let runs = ["sh", "-c", "\"$@\"; exit 1", "sh", RUNNER, "--root"];
    command.args(NAMESPACE).args(runs).arg(&root).arg(file);
    for variable in ["XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"] {
        command.env_remove(variable);
    }
    command.env("HOME", dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let mut process = Running::start(&mut command);
    let shell = wait_for("the shell of the machine", START_PATIENCE, || {
        if let Ok(Some(status)) = process.0.try_wait() {
            let log = |file: &str| fs::read_to_string(dir.join(file)).unwrap_or_default();
            panic!("{RUNNER}: {status}\n{}{}", log("libvirt-log"), log("libvirt/log/qemu/vm1.log"));
        }
        UnixStream::connect(dir.join("shell")).ok()
    });
    let output = shell.try_clone().expect("a descriptor");
    Machine::with_shell(process, shell, output, dir.join("console"))
}

/// The doctor's words on the machine, from the file that libvirt keeps while it runs, at the place
/// where its daemon would keep it.
fn diagnosis(host: &Host, dir: &Path) -> String {
    let script = "mount -t tmpfs run /run && mkdir -p /run/libvirt/qemu && \
                  cp \"$1\" /run/libvirt/qemu && \
                  \"$2\" doctor --check d14 --interval 1";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount"]);
    command.args(["sh", "-c", script, "sh"]);
    command.arg(dir.join("libvirt/run/qemu/vm1.xml")).arg(env!("CARGO_BIN_EXE_ringway"));
    let output = command.env("RINGWAY_DIR", host.dir()).output().expect("util-linux");
    // Its exit status reports findings.
    assert!(matches!(output.status.code(), Some(0 | 3 | 5)), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_machine_of_libvirt_has_all_queues_and_outlives_killed_backends() {
    let Some(_turn) = ringway_e2e::shared_turn(&[RUNNER, QEMU, "socat", "unshare"]) else { return };
    let mut probe = Command::new("unshare");
    if !ringway_e2e::quiet(probe.args(NAMESPACE).arg("true")).is_ok_and(|status| status.success()) {
        let _ = writeln!(io::stderr(), "SKIPPED: no namespace of users and processes can be made");
        return;
    }
    let Some(image) = Image::make() else { return };
    // Each boots a machine.
    let count = if ringway_e2e::is_nightly() { 2 } else { 1 };
    let modes =
        [("client", "server", ""), ("server", "client", "<reconnect enabled='yes' timeout='1'/>")];
    for (mode, of_libvirt, more) in modes.into_iter().take(count) {
        let place = tempfile::tempdir().expect("a directory");
        let dir = place.path();
        let socket = dir.join("net").display().to_string();
        let host = Host::start(
            &(describe("max-queues = 4", &[("a", "", "queues = 4")])
                + &format!(
                    "[[vhost]]\nname = \"vm1\"\nsocket = \"{socket}\"\nqueues = 4\n\
                     mode = \"{mode}\"\nmac = \"{MAC}\"\n"
                )),
        );
        let source = format!("<source type='unix' path='{socket}' mode='{of_libvirt}'>{more}");
        let mut machine = start(&image, dir, &(source + "</source>"));
        machine.booted();
        wait_for_queues(&host, 4);
        let channels = machine.run("ethtool -l eth0");
        assert_eq!(channels.matches("Combined:\t4").count(), 2, "{channels}");
        let echo = EchoConnection::start(&host, "a");
        echo.expect_progress(&host, mode);
        for _ in 0..2 {
            kill_backend(&host);
            echo.expect_progress(&host, "after the backend was killed");
            wait_for_queues(&host, 4);
        }
        // With one CPU there is nothing to diagnose.
        let has_cpus = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
        let finding = "machine vm1 has 4 CPUs, asks for 4 queues";
        let said = diagnosis(&host, dir);
        assert!(!said.contains(finding), "{said}");
        machine.run("ethtool -L eth0 combined 2");
        wait_for_queues(&host, 2);
        let said = diagnosis(&host, dir);
        assert!(said.contains(finding) || !has_cpus, "{said}");
        echo.expect_progress(&host, "two queues");
    }
}

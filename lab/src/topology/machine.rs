//! A virtual machine that routes, with Linux's own virtio driver and a real `ethtool -L`.
//!
//! QEMU runs without KVM, so its figures show behaviour and not speed. It boots a kernel and an
//! initramfs whose shell, at the second serial port, runs one command per line and prints its
//! status; `tests/virtio/image` makes both.

use std::path::Path;
use std::time::{Duration, Instant};

use ringway_rig::child::{Child, PartError};
use ringway_rig::host::RunningHost;
use ringway_rig::launcher::Launcher;

use super::Blueprint;
use super::addresses::{INNER, INNER_PREFIX_LEN, OUTER, OUTER_PREFIX_LEN};
use super::node::{INNER_DEVICE, OUTER_DEVICE, SETTINGS, VIFS};

/// The emulator, and the package that contains it.
pub(crate) const PROGRAM: (&str, &str) = ("qemu-system-x86_64", "qemu-system-x86");
/// The files that it boots.
pub(crate) const IMAGE_FILES: [&str; 2] = ["vmlinux", "guest.cpio"];
const MEMORY_MB: u32 = 192;
/// A boot takes ten seconds on an idle machine.
const BOOT_PATIENCE: Duration = Duration::from_secs(120);
const PATIENCE: Duration = Duration::from_secs(30);
/// Seconds after which it ends by itself, even if the lab is gone.
const LIFETIME_SECONDS: u32 = 7200;
/// Pause between two checks of the queues that a backend serves.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A running virtual machine. Dropping it ends it.
#[derive(Debug)]
pub struct Machine {
    process: Child,
}

impl Machine {
    /// Boots it with its two interfaces connected to the sockets of [`VIFS`] in a directory.
    pub(super) fn start(
        launcher: &Launcher,
        blueprint: &Blueprint,
        dir: &Path,
    ) -> Result<Machine, PartError> {
        let image = blueprint.image.as_deref().ok_or_else(|| {
            PartError::Failed("there is no machine image: give one with --machine".to_owned())
        })?;
        wait_for_sockets(dir)?;
        let queues = blueprint.queues_max();
        let mut command = launcher.command(PROGRAM.0);
        command.args(["-accel", "tcg", "-display", "none", "-nodefaults", "-no-reboot"]);
        command.args(["-smp", &cpus(blueprint).to_string(), "-m", &MEMORY_MB.to_string()]);
        command.args(["-machine", "q35,memory-backend=m", "-object"]);
        command.arg(format!("memory-backend-memfd,id=m,size={MEMORY_MB}M,share=on"));
        command.arg("-kernel").arg(image.join(IMAGE_FILES[0]));
        command.arg("-initrd").arg(image.join(IMAGE_FILES[1]));
        command.arg("-append").arg(format!(
            "console=ttyS0 quiet panic=-1 cryptomgr.notests \
             guest.address={OUTER}/{OUTER_PREFIX_LEN} guest.seconds={LIFETIME_SECONDS}"
        ));
        command.args(["-serial", "null", "-serial", "stdio"]);
        for name in VIFS {
            let socket = dir.join(name);
            command.arg("-chardev").arg(format!("socket,id={name},path={}", socket.display()));
            let netdev = format!("vhost-user,id=net-{name},chardev={name},queues={queues}");
            command.args(["-netdev", &netdev]);
            // `vectors=0`: with MSI-X interrupts, QEMU 7.2 crashes without KVM.
            let device = format!("virtio-net-pci,netdev=net-{name},mq=on,vectors=0,romfile=");
            command.args(["-device", &device]);
        }
        let mut machine = Machine { process: launcher.start(PROGRAM.0, command)? };
        machine.status(BOOT_PATIENCE, "up")?;
        machine.run(&format!("ip address add {INNER}/{INNER_PREFIX_LEN} dev {INNER_DEVICE}"))?;
        for device in [OUTER_DEVICE, INNER_DEVICE] {
            machine.run(&format!("ip link set {device} mtu {} up", blueprint.mtu))?;
        }
        for (name, value) in SETTINGS {
            machine.run(&format!("echo {value} > /proc/sys/{}", name.replace('.', "/")))?;
        }
        Ok(machine)
    }

    /// The process that emulates it.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Changes the number of queues of both interfaces with `ethtool -L`, and waits until the
    /// backend serves as many.
    ///
    /// # Errors
    /// If either interface does not change.
    pub fn set_queues(&mut self, count: u16, host: &RunningHost) -> Result<(), PartError> {
        for device in [OUTER_DEVICE, INNER_DEVICE] {
            self.run(&format!("ethtool -L {device} combined {count}"))?;
        }
        wait_for_queues(host, count)
    }

    fn run(&mut self, command: &str) -> Result<(), PartError> {
        self.process.say(command)?;
        self.status(PATIENCE, "0").map_err(|error| PartError::Failed(format!("{command}: {error}")))
    }

    /// Waits for a status, and fails if it is not the expected one.
    fn status(&mut self, patience: Duration, expected: &str) -> Result<(), PartError> {
        let status = self.process.wait_for(patience, |line| {
            line.trim_end().strip_prefix("status ").map(str::to_owned)
        })?;
        if status == expected {
            return Ok(());
        }
        Err(PartError::Failed(format!("the machine says status {status}, expected {expected}")))
    }
}

/// CPUs of a machine, whatever the host has: as many as a guest of the study, and at least two, so
/// that the number of queues that Linux uses can change.
fn cpus(blueprint: &Blueprint) -> usize {
    blueprint.cpus.unwrap_or(0).max(2)
}

/// Waits until a backend listens, as QEMU dials once.
fn wait_for_sockets(dir: &Path) -> Result<(), PartError> {
    let deadline = Instant::now() + PATIENCE;
    while !VIFS.iter().all(|name| dir.join(name).exists()) {
        if Instant::now() >= deadline {
            return Err(PartError::Failed(
                "the backend created no sockets for a router".to_owned(),
            ));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Waits until the backend serves `count` queues of both interfaces of a router.
pub(super) fn wait_for_queues(host: &RunningHost, count: u16) -> Result<(), PartError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let vifs = host.backend()?.vifs;
        let of = |name: &str| {
            let vif = vifs.iter().find(|vif| vif.name == name);
            vif.map_or(0, |vif| vif.queues.len())
        };
        let served = VIFS.map(of);
        if served == [usize::from(count); 2] {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let why = vifs.iter().find_map(|vif| vif.error.clone()).unwrap_or_default();
            return Err(PartError::Failed(format!(
                "the backend serves {served:?} queues of the router, expected {count} of each \
                 interface: {why}"
            )));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::Setup;
    use crate::study::{Subject, shipped};

    #[test]
    fn the_published_node_has_its_eight_cpus() {
        let study = shipped("network-node").expect("it is shipped");
        let cell = study.cell_of_label("t6.q8.ethtool").expect("a cell");
        let setup = Setup::of(&study, &cell).expect("it means something");
        let blueprint = Blueprint::of(study.topology.kind, Subject::Ringway, &setup);
        assert_eq!(cpus(&blueprint.expect("it can be built")), 8);
        assert_eq!(cpus(&Blueprint::pair(Subject::Ringway)), 2);
    }
}

//! A virtual machine for one test: Debian's kernel under QEMU, emulated, with a shell at its serial
//! port and an echo server on TCP port 7. `tests/virtio` makes its boot image.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::host::{Host, Running, SOON, wait_for, wait_or};
use crate::program;

/// The program of a machine.
pub const QEMU: &str = "qemu-system-x86_64";
/// Options of the guest's kernel. On a busy machine, Linux gets none of the timer's interrupts
/// within the time in which it tests the timer. Its tests of its own ciphers, at each boot, show
/// nothing here, and once did not end under emulation.
pub const KERNEL_OPTIONS: &str = "console=ttyS0 quiet panic=-1 no_timer_check cryptomgr.notests";
/// The address of a machine.
pub const ADDRESS: &str = "10.77.0.9";
/// How long a boot may take; on an idle machine it takes ten seconds.
const BOOT_PATIENCE: Duration = Duration::from_secs(300);
/// After how long a kernel that calls itself stuck is booted once more.
const STUCK_PATIENCE: Duration = Duration::from_secs(120);
/// What Linux writes to its console about a CPU that does not leave the kernel.
const STUCK: &str = "soft lockup";
/// How long making the image may take, with a download of a kernel.
const IMAGE_PATIENCE: Duration = Duration::from_secs(600);
/// Bytes that are sent before waiting for their echo.
const WINDOW: usize = 64 << 10;

/// The folder with the kernel and initramfs that a machine boots.
pub struct Image(PathBuf);

impl Image {
    /// Makes it, or returns why it cannot be made here.
    pub fn make() -> Option<Image> {
        let program = program("ringway");
        let target = program.ancestors().nth(2).expect("a target directory");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/virtio/image");
        let mut command = Command::new(script);
        command.env("CARGO_TARGET_DIR", target).stdin(Stdio::null()).stdout(Stdio::null());
        // A file, which has room for all that it says.
        let log = tempfile::NamedTempFile::new().expect("a file can be made");
        let said = || std::fs::read_to_string(log.path()).unwrap_or_default();
        let mut making = Running::start(command.stderr(log.reopen().expect("it is there")));
        let status = wait_or(
            IMAGE_PATIENCE,
            || making.0.try_wait().expect("our child"),
            || format!("tests/virtio/image has not ended in {IMAGE_PATIENCE:?}: {}", said()),
        );
        if status.success() {
            return Some(Image(target.join("virtio")));
        }
        assert_eq!(status.code(), Some(77), "tests/virtio/image: {}", said());
        let _ = write!(std::io::stderr(), "SKIPPED: {}", said());
        None
    }
}

impl Image {
    /// The folder.
    pub fn place(&self) -> &Path {
        &self.0
    }
}

/// A machine with up to four queues. Dropping it ends it.
pub struct Machine {
    process: Running,
    commands: Box<dyn Write>,
    lines: Receiver<String>,
    console: PathBuf,
    /// Starts it once more. None if its boot is over or was not begun here.
    again: Option<Command>,
}

impl Machine {
    /// Starts a machine with `chardev` as its end of the socket.
    pub fn start(image: &Image, dir: &Path, chardev: &str) -> Machine {
        Machine::start_with(image, dir, chardev, &[])
    }

    /// Starts a machine with `chardev` as its end of the socket, and with further arguments of
    /// QEMU.
    pub fn start_with(image: &Image, dir: &Path, chardev: &str, more: &[&str]) -> Machine {
        let console = dir.join("console");
        let file = |name: &str| image.0.join(name).display().to_string();
        let serial = format!("file:{}", console.display());
        let kernel = format!("{KERNEL_OPTIONS} guest.address={ADDRESS}/24");
        let mut command = Command::new(QEMU);
        command.args(["-accel", "tcg", "-display", "none", "-nodefaults", "-no-reboot"]);
        // Without mergeable buffers, Linux posts 70 KiB for each slot of a receive queue.
        command.args(["-smp", "2", "-m", "512", "-machine", "q35,memory-backend=m"]);
        command.args(["-object", "memory-backend-memfd,id=m,size=512M,share=on"]);
        command.args(["-kernel", &file("vmlinux"), "-initrd", &file("guest.cpio")]);
        command.args(["-append", &kernel, "-serial", &serial, "-serial", "stdio"]);
        command.args(["-chardev", chardev, "-netdev", "vhost-user,id=n,chardev=c,queues=4"]);
        // With other kinds of interrupts, QEMU 7.2 crashes without KVM.
        command.args(["-device", "virtio-net-pci,netdev=n,mq=on,vectors=0,romfile="]);
        command.args(more);
        let log = File::create(Machine::log(dir)).expect("created");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        Machine::boot(command, console)
    }

    fn boot(mut command: Command, console: PathBuf) -> Machine {
        let mut process = Running::start(&mut command);
        let commands = process.0.stdin.take().expect("it was piped");
        let output = process.0.stdout.take().expect("it was piped");
        let machine = Machine::with_shell(process, commands, output, console);
        Machine { again: Some(command), ..machine }
    }

    /// A machine that a process runs, with the two directions of its shell.
    pub fn with_shell(
        process: Running,
        commands: impl Write + 'static,
        output: impl Read + Send + 'static,
        console: PathBuf,
    ) -> Machine {
        let (sender, lines) = channel();
        // Ends with the machine.
        thread::spawn(move || {
            let mut lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.try_for_each(|line| sender.send(line))
        });
        Machine { process, commands: Box::new(commands), lines, console, again: None }
    }

    /// The file with what QEMU of a machine in this directory reports.
    pub fn log(dir: &Path) -> PathBuf {
        dir.join("qemu-log")
    }

    /// Waits until it has booted. A kernel that is stuck in its own boot, before any of our code
    /// has run in it, shows a fault of the emulation: it is started once more.
    pub fn booted(&mut self) {
        self.booted_within(STUCK_PATIENCE);
    }

    fn booted_within(&mut self, patience: Duration) {
        let again = self.again.take();
        let (_, status) = match (self.status_within(patience), again) {
            (Ok(status), _) => status,
            (Err(_), Some(command)) if self.console().contains(STUCK) => {
                let note = "note: the guest's kernel was stuck in its boot and is started again\n";
                let _ = std::io::stderr().write_all(note.as_bytes());
                let _ = self.process.0.kill();
                let _ = self.process.0.wait();
                *self = Machine::boot(command, self.console.clone());
                self.status(BOOT_PATIENCE)
            }
            (Err(_), _) => self.status(BOOT_PATIENCE),
        };
        assert_eq!(status, "up", "{}", self.console());
    }

    /// Runs a command, which must succeed, and returns its output.
    pub fn run(&mut self, command: &str) -> String {
        writeln!(self.commands, "{command}").expect("the machine runs");
        let (text, status) = self.status(6 * SOON);
        assert_eq!(status, "0", "{command}: {text}");
        text
    }

    /// The output up to the exit status, and the status.
    fn status(&mut self, limit: Duration) -> (String, String) {
        self.status_within(limit).unwrap_or_else(|text| {
            panic!("no status within {limit:?}: {text}\nconsole:\n{}", self.console())
        })
    }

    /// As [`Machine::status`], or the output so far if the limit is reached.
    fn status_within(&mut self, limit: Duration) -> Result<(String, String), String> {
        // waits: this limit only ends a test that hangs.
        let deadline = Instant::now() + limit;
        let mut text = String::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // waits: this limit only ends a test that hangs.
            let Ok(line) = self.lines.recv_timeout(left) else { return Err(text) };
            match line.trim_end().strip_prefix("status ") {
                Some(status) => return Ok((text, status.to_owned())),
                None => text += &(line + "\n"),
            }
        }
    }

    fn console(&self) -> String {
        std::fs::read_to_string(&self.console).unwrap_or_default()
    }

    /// Kills it.
    pub fn kill(mut self) {
        self.process.0.kill().expect("the machine runs");
    }
}

/// One TCP connection from a guest to the echo of a machine, whose echoed bytes are compared with
/// those sent. Dropping it ends it.
pub struct EchoConnection {
    _process: Running,
    echoed: Arc<AtomicU64>,
    complaint: Receiver<String>,
}

impl EchoConnection {
    /// Connects to the echo of a machine.
    pub fn start(host: &Host, guest: &str) -> EchoConnection {
        EchoConnection::start_with(host, guest, ADDRESS)
    }

    /// Connects to the echo at an address.
    pub fn start_with(host: &Host, guest: &str, address: &str) -> EchoConnection {
        // The echo may not listen yet.
        let echo = format!("TCP:{address}:7,retry=3000,interval=0.1");
        let mut command = host.in_guest(guest, &["socat", "-", &echo]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Running::start(&mut command);
        let mut to = process.0.stdin.take().expect("it was piped");
        let mut from = process.0.stdout.take().expect("it was piped");
        let echoed = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&echoed);
        let (sender, complaint) = channel();
        thread::spawn(move || {
            let mut back = vec![0; WINDOW];
            for seed in 0.. {
                let sent = numbers(seed);
                let exchanged = to.write_all(&sent).and_then(|()| from.read_exact(&mut back));
                let complaint = match exchanged {
                    Ok(()) if sent == back => {
                        count.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    Ok(()) => format!("window {seed} came back changed"),
                    Err(error) => format!("the connection ended in window {seed}: {error}"),
                };
                // No reader is left if the test is over.
                let _ = sender.send(complaint);
                return;
            }
        });
        EchoConnection { _process: process, echoed, complaint }
    }

    /// Waits until it has sent some more windows.
    pub fn expect_progress(&self, host: &Host, what: &str) {
        wait_for_windows(host, what, &self.echoed, || self.complaint.try_recv().ok());
    }
}

/// Waits until some more windows are counted, unless there is a complaint.
pub(crate) fn wait_for_windows(
    host: &Host,
    what: &str,
    count: &AtomicU64,
    complaint: impl Fn() -> Option<String>,
) {
    let before = count.load(Ordering::Relaxed);
    host.wait(what, 6 * SOON, |_| {
        if let Some(complaint) = complaint() {
            panic!("{what}: {complaint}");
        }
        (count.load(Ordering::Relaxed) >= before + 8).then_some(())
    });
}

/// Bytes that differ from window to window and within one.
pub(crate) fn numbers(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; WINDOW];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Waits until a file exists.
pub fn wait_for_file(path: &Path) {
    wait_for(&path.display().to_string(), SOON, || path.exists().then_some(()));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell in place of QEMU: its first boot is stuck, and each later one succeeds.
    const STUCK_ONCE: &str = "
        [ ! -e begun ] || { echo status up; read -r _; echo status 0; exit; }
        touch begun
        echo 'watchdog: BUG: soft lockup - CPU#0 stuck for 48s!' > console
        exec cat";

    #[test]
    fn a_kernel_that_is_stuck_in_its_boot_is_started_once_more() {
        let place = tempfile::tempdir().expect("a directory can be made");
        let console = place.path().join("console");
        let mut command = Command::new("sh");
        command.args(["-c", STUCK_ONCE]).current_dir(place.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut machine = Machine::boot(command, console);
        wait_for("the first boot", SOON, || machine.console().contains(STUCK).then_some(()));
        machine.booted_within(Duration::ZERO);
        assert_eq!(machine.run("true"), "");
    }
}

//! Counts the packets that the kernel drops, by reason, with its trace point `skb:kfree_skb`. The
//! trace instance is ours alone and is removed with us, however we end.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::watch::Watch;
use crate::parse::drops::{FILE, Reason};

/// The usual mount point of trace buffers.
const MOUNTED: &str = "/sys/kernel/tracing";
const EVENT: &str = "events/skb/kfree_skb/enable";
/// Prefix of our instances' names; a PID follows.
const NAME: &str = "ringway-doctor-";
/// Buffer size per CPU; events that do not fit are counted as lost.
const BUFFER_KIB: &str = "512";
/// The longest time to watch, and the most events to read: more would add nothing.
const TIME_MAX: Duration = Duration::from_secs(10);
const EVENTS_MAX: u64 = 200_000;
/// Most pairs of reason and place to count, and to write; the most frequent ones are written.
const REASONS_MAX: usize = 1024;
const WRITTEN_MAX: usize = 64;
/// Most bytes of a read, and of a line.
const CHUNK: usize = 64 << 10;
/// Pause between two checks for more events.
const NAP: Duration = Duration::from_millis(20);
/// Waits until its standard input ends, which happens when we do, then removes the instance if it
/// still exists. It retries, because the kernel may close our files a moment later.
const CLEANUP_SCRIPT: &str = "cat > /dev/null; for i in 1 2 3 4 5 6 7 8 9; do \
     [ -d \"$1\" ] || exit; rmdir \"$1\" && exit; sleep 0.2; done";

/// Watches drops from now on, for at most [`TIME_MAX`].
pub(super) fn start() -> Watch {
    Watch::start(FILE, watch)
}

fn watch(is_over: &AtomicBool) -> io::Result<String> {
    let instance = Instance::new()?;
    instance.write("buffer_size_kb", BUFFER_KIB)?;
    let mut pipe = instance.pipe()?;
    instance.write(EVENT, "1")?;
    let begun = Instant::now();
    let mut seen = Seen::default();
    while !is_over.load(Ordering::Relaxed) && begun.elapsed() < TIME_MAX && !seen.is_full() {
        seen.read(&mut pipe)?;
        thread::sleep(NAP);
    }
    instance.write(EVENT, "0")?;
    let seconds = begun.elapsed().as_secs_f64();
    seen.read(&mut pipe)?;
    // An instance whose buffer is open cannot be removed.
    drop(pipe);
    Ok(seen.file(seconds))
}

/// A folder below `instances`, and the process that removes it if we cannot.
struct Instance {
    path: PathBuf,
    warden: Option<Child>,
    /// Keeps the mount of the path alive.
    _tracing: Tracing,
}

impl Instance {
    fn new() -> io::Result<Instance> {
        let tracing = Tracing::open()?;
        let instances = tracing.path.join("instances");
        remove_left(&instances);
        let name = format!("{NAME}{}", std::process::id());
        // Started before there is anything to remove. A process group of its own: Ctrl-C does not
        // end it.
        let mut warden = Command::new("sh")
            .args(["-c", CLEANUP_SCRIPT, "sh", &name])
            .current_dir(&instances)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let path = instances.join(&name);
        if let Err(error) = fs::create_dir(&path) {
            // An existing instance is not ours to remove.
            let _ = warden.kill().and_then(|()| warden.wait());
            let why = format!("create {name} in the instances of tracefs: {error}");
            return Err(io::Error::new(error.kind(), why));
        }
        Ok(Instance { path, warden: Some(warden), _tracing: tracing })
    }

    fn write(&self, file: &str, value: &str) -> io::Result<()> {
        fs::write(self.path.join(file), value).map_err(|error| about(file, &error))
    }

    fn pipe(&self) -> io::Result<File> {
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
        let mut options = OpenOptions::new();
        let pipe = options.read(true).custom_flags(flags).open(self.path.join("trace_pipe"));
        pipe.map_err(|error| about("trace_pipe", &error))
    }
}

fn about(file: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{file} of an instance of tracefs: {error}"))
}

impl Drop for Instance {
    fn drop(&mut self) {
        // If not, the warden tries again.
        let _ = fs::remove_dir(&self.path);
        if let Some(mut warden) = self.warden.take() {
            drop(warden.stdin.take());
            let _ = warden.wait();
        }
    }
}

/// Removes instances of a doctor that was killed together with its warden.
fn remove_left(instances: &Path) {
    for name in super::names(instances) {
        let process = name.strip_prefix(NAME).filter(|process| process.parse::<u32>().is_ok());
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            // The kernel refuses this while any process reads it, in any PID namespace.
            let _ = fs::remove_dir(instances.join(name));
        }
    }
}

/// The trace buffers of the kernel, mounted for this process only: it does not matter whether and
/// where else they are mounted, and nothing must be unmounted.
struct Tracing {
    path: PathBuf,
    _mount: Option<OwnedFd>,
}

impl Tracing {
    fn open() -> io::Result<Tracing> {
        match mounted_for_us() {
            Ok(mount) => {
                let path = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
                Ok(Tracing { path, _mount: Some(mount) })
            }
            // Before Linux 5.2, or without permission to mount.
            Err(_) if Path::new(MOUNTED).join("instances").is_dir() => {
                Ok(Tracing { path: PathBuf::from(MOUNTED), _mount: None })
            }
            Err(error) => {
                let why = match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
                    Some(rustix::io::Errno::PERM) => "only root may read tracefs".to_owned(),
                    Some(rustix::io::Errno::NODEV) => "this kernel has no tracefs".to_owned(),
                    _ => format!("tracefs: {error}"),
                };
                Err(io::Error::new(error.kind(), why))
            }
        }
    }
}

fn mounted_for_us() -> io::Result<OwnedFd> {
    let tracefs = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&tracefs)?;
    Ok(fsmount(&tracefs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

/// What was read so far.
#[derive(Debug, Default)]
struct Seen {
    events: u64,
    lost: u64,
    reasons: BTreeMap<Reason, u64>,
    /// The beginning of a line.
    rest: Vec<u8>,
}

impl Seen {
    fn is_full(&self) -> bool {
        self.events >= EVENTS_MAX
    }

    /// Reads all that is available now.
    fn read(&mut self, pipe: &mut File) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK];
        while !self.is_full() {
            let length = match pipe.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(about("trace_pipe", &error)),
            };
            self.rest.extend_from_slice(chunk.get(..length).unwrap_or_default());
            let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            let lines: Vec<u8> = self.rest.drain(..end).collect();
            String::from_utf8_lossy(&lines).lines().for_each(|line| self.take(line));
            if self.rest.len() > CHUNK {
                self.rest.clear();
            }
        }
        Ok(())
    }

    fn take(&mut self, line: &str) {
        if let Some(reason) = Reason::of_event(line) {
            self.events += 1;
            if self.reasons.len() < REASONS_MAX || self.reasons.contains_key(&reason) {
                *self.reasons.entry(reason).or_default() += 1;
            } else {
                self.lost += 1;
            }
        } else if let Some((_, rest)) = line.split_once("[LOST ") {
            let lost = rest.split(' ').next().and_then(|word| word.parse::<u64>().ok());
            self.lost = self.lost.saturating_add(lost.unwrap_or(0));
        }
    }

    fn file(&self, seconds: f64) -> String {
        let mut all: Vec<(&Reason, &u64)> = self.reasons.iter().collect();
        all.sort_by(|a, b| b.1.cmp(a.1));
        let left: u64 = all.iter().skip(WRITTEN_MAX).map(|(_, count)| **count).sum();
        all.truncate(WRITTEN_MAX);
        let lost = self.lost.saturating_add(left);
        let head = format!("{FILE}: {} seconds={seconds:.3} lost={lost}\n", all.len());
        all.iter().fold(head, |text, (reason, count)| text + &format!("{count} {reason}\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Text;
    use crate::parse::Counters;
    use crate::parse::drops::Drops;

    #[test]
    fn events_are_counted_by_reason_and_place() {
        let mut seen = Seen::default();
        let event = |reason: &str, place: &str| {
            format!(
                "  ping-1 [000] b.s1. 7.1: kfree_skb: skbaddr=0 rx_sk=0 protocol=2048 \
                 location={place}+0x3f reason: {reason}"
            )
        };
        for line in [
            event("IP_RPFILTER", "ip_route_input_slow"),
            event("IP_RPFILTER", "ip_route_input_slow"),
            event("NO_SOCKET", "udp_rcv"),
            "CPU:0 [LOST 12 EVENTS]".to_owned(),
            "# tracer: nop".to_owned(),
        ] {
            seen.take(&line);
        }
        let read = Drops::parse(&Text::new(FILE, seen.file(2.0))).expect("sound");
        assert_eq!((read.lost, read.all.len()), (12, 2));
        assert_eq!((read.all[0].count, read.all[0].reason.name.as_str()), (2, "IP_RPFILTER"));
    }

    #[test]
    fn reasons_and_places_are_bounded() {
        let mut seen = Seen::default();
        for place in 0..2 * REASONS_MAX {
            seen.take(&format!("x-1 [0] 1.0: kfree_skb: location={place} reason: X"));
        }
        assert_eq!(seen.reasons.len(), REASONS_MAX);
        let read = Drops::parse(&Text::new(FILE, seen.file(1.0))).expect("sound");
        let written: u64 = read.all.iter().map(|one| one.count).sum();
        assert_eq!(written + read.lost, seen.events);
    }

    #[test]
    fn a_drop_is_seen_with_its_reason_and_nothing_is_left() {
        let name = format!("{NAME}{}", std::process::id());
        let is_watching = || {
            let enabled = Tracing::open().and_then(|tracing| {
                fs::read_to_string(tracing.path.join("instances").join(&name).join(EVENT))
            });
            enabled.is_ok_and(|value| value.trim() == "1")
        };
        let watch = start();
        while !is_watching() && !watch.thread.is_finished() {
            thread::yield_now();
        }
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        // No one listens on the port of a socket that is closed.
        let closed = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(closed.local_addr().expect("an address")).expect("there is a route");
        drop(closed);
        socket.send(b"x").expect("the device lo is up");
        // The message about the drop comes behind it.
        socket.recv(&mut [0]).expect_err("no one replies");
        let (_, text) = watch.finish();
        match text {
            Err(error) => println!("SKIPPED: drops: {error}"),
            Ok(text) => {
                let drops = Drops::parse(&Text::new(FILE, text.clone())).expect("sound");
                let is_it = |one: &crate::parse::drops::Drop| one.reason.name == "NO_SOCKET";
                let knows_reasons = !drops.all.iter().all(|one| one.reason.name == "-");
                assert!(!knows_reasons || drops.all.iter().any(is_it), "{text}");
                let tracing = Tracing::open().expect("it was there");
                assert!(!tracing.path.join("instances").join(name).exists());
            }
        }
    }
}

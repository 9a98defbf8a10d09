//! What a confined process is refused and what it can still do, tested with the real kernel.
//!
//! Each case is a process: this program again, which confines itself and then makes one attempt.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use nix::kmod::ModuleInitFlags;
use nix::sched::CloneFlags;
use ringway_confine::{BACKEND_DEVICES, BROKER_DEVICES, Confinement, FileRules, Role};
use ringway_sys::tun::{QueueMode, TunFile};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{AtFlags, Gid, MemfdFlags, Mode, OFlags, Uid};
use rustix::mount::MountFlags;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, socket};
use rustix::process::{DumpableBehavior, getppid, set_dumpable_behavior, test_kill_process};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Set in the process of a case: its name, and the directory that it keeps.
const CASE: &str = "RINGWAY_CONFINE_CASE";
const DIR: &str = "RINGWAY_CONFINE_DIR";
/// The name of the directory of its own files.
const OWN: &str = "own";
/// The output of a case once it is confined.
const CONFINED: &str = "confined\n";
/// `SIGSYS`, which ends a process that makes a call that is not on the list.
const SIGSYS: i32 = 31;
/// The time after which what should have come has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// The name of a case, and what it does in the directory with its sockets and with [`OWN`].
type Case = (&'static str, fn(&Path));

/// Attempts that end the process.
const FATAL: [Case; 24] = [
    ("execve", |_| ignore(Command::new("/bin/true").exec())),
    ("fork", |_| ignore(Command::new("/bin/true").spawn())),
    ("ptrace", |_| ignore(nix::sys::ptrace::traceme())),
    ("mount", |_| ignore(rustix::mount::mount("none", "/mnt", "tmpfs", mount_flags(), None))),
    ("unshare", |_| ignore(nix::sched::unshare(CloneFlags::CLONE_NEWUSER))),
    ("setns", |_| ignore(nix::sched::setns(io::stdin(), CloneFlags::CLONE_NEWNET))),
    ("chroot", |_| ignore(nix::unistd::chroot("/"))),
    ("a kernel module", |_| {
        ignore(nix::kmod::finit_module(io::stdin(), c"", ModuleInitFlags::empty()));
    }),
    ("an internet socket", |_| ignore(UdpSocket::bind("127.0.0.1:0"))),
    ("a packet socket", |_| ignore(socket(AddressFamily::PACKET, SocketType::RAW, None))),
    ("netlink", |_| {
        ignore(socket(AddressFamily::NETLINK, SocketType::RAW, None));
    }),
    ("a connection to another service", |dir| {
        ignore(UnixStream::connect(dir.parent().expect("a place").join("other.sock")));
    }),
    ("connecting a socket that is open", |dir| {
        let address = SocketAddrUnix::new(dir.join("control.sock")).expect("short");
        ignore(rustix::net::connect(&prepared().unconnected, &address));
    }),
    ("a message to another service", |dir| {
        ignore(prepared().datagrams.send_to(b"x", dir.join("other.sock")));
    }),
    ("a length", |_| ignore(rustix::fs::ftruncate(&prepared().netlink, 0))),
    ("another option of a socket", |_| {
        ignore(rustix::net::sockopt::set_socket_reuseaddr(&prepared().netlink, true));
    }),
    ("another ioctl", |_| ignore(rustix::io::ioctl_fionread(io::stdin()))),
    ("another process", |_| ignore(getppid().map(test_kill_process))),
    ("a core dump", |_| ignore(set_dumpable_behavior(DumpableBehavior::Dumpable))),
    ("a link", |dir| ignore(std::os::unix::fs::symlink("/etc/passwd", dir.join("link")))),
    ("a mode", |dir| ignore(fs::set_permissions(dir, fs::Permissions::from_mode(0o777)))),
    ("a set-uid program", |dir| {
        ignore(File::options().mode(0o4755).write(true).create_new(true).open(dir.join("program")));
    }),
    ("a capability", |_| ignore(rustix::thread::capabilities(None))),
    ("execve in a later thread", |_| {
        ignore(thread::spawn(|| Command::new("/bin/true").exec()).join());
    }),
];

/// What works.
const FINE: [Case; 8] = [
    ("threads", |_| {
        let threads = (0..8).map(|number| {
            thread::Builder::new().name(format!("worker{number}")).spawn(|| {
                // waits: it is one of the calls that must work
                thread::sleep(Duration::from_millis(1));
                vec![0_u8; 4 << 20].len()
            })
        });
        let threads: Vec<_> = threads.collect();
        for thread in threads {
            assert_eq!(thread.expect("started").join().expect("ended"), 4 << 20);
        }
    }),
    ("a thread that panics", |_| {
        // Readers of the test's output search for panics.
        std::panic::set_hook(Box::new(|_| {}));
        thread::spawn(|| panic!("as intended")).join().expect_err("it has panicked");
    }),
    ("what the kernel says of its own threads, later ones included", |_| {
        let read = || fs::read_to_string("/proc/thread-self/schedstat");
        let is_there = |text: io::Result<String>| !text.expect("read").is_empty();
        assert!(is_there(read()));
        assert!(is_there(thread::spawn(read).join().expect("no panic")));
    }),
    ("events", |_| drop(eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor"))),
    ("connections that come in", |dir| {
        let prepared = prepared();
        (&prepared.client).write_all(b"x").expect("written");
        let (mut served, _) = prepared.listener.accept().expect("accepted");
        served.set_read_timeout(Some(PATIENCE)).expect("set");
        served.read_exact(&mut [0]).expect("read");
        fs::remove_file(dir.join("control.sock")).expect("removed");
    }),
    ("messages to the service manager", |_| {
        assert_eq!(prepared().datagrams.send(b"READY=1").expect("sent"), 7);
    }),
    ("routing messages", |_| {
        let netlink = &prepared().netlink;
        rustix::net::send(netlink, &LIST_LINKS, SendFlags::empty()).expect("sent");
        let mut reply = [0; 4096];
        let (len, _) = rustix::net::recv(netlink, &mut reply, RecvFlags::empty()).expect("one");
        assert!(len > LIST_LINKS.len());
    }),
    ("files in the directory of its own", |dir| {
        let path = dir.join(OWN).join("file");
        fs::write(&path, "text").expect("written");
        assert_eq!(fs::read(&path).expect("read"), b"text");
        fs::remove_file(&path).expect("removed");
    }),
];

/// Attempts that end the broker.
const BROKER_FATAL: [Case; 2] = [
    ("broker: a connection", |dir| ignore(UnixStream::connect(dir.join("control.sock")))),
    ("broker: a datagram", |_| ignore(UnixDatagram::unbound())),
];

/// Attempts that work for the broker.
const BROKER_FINE: [Case; 2] = [
    ("broker: sockets where those of its domains are", |dir| {
        let path = dir.join("domain.sock");
        drop(UnixListener::bind(&path).expect("bound"));
        fs::remove_file(&path).expect("removed");
        let (mut ours, mut theirs) = UnixStream::pair().expect("a pair");
        ours.write_all(b"x").expect("written");
        theirs.read_exact(&mut [0]).expect("read");
    }),
    ("broker: memory of domains", |_| {
        let memory = rustix::fs::memfd_create("memory", MemfdFlags::CLOEXEC).expect("made");
        rustix::fs::ftruncate(&memory, 4096).expect("there is room");
    }),
];

/// Attempts that end the opener.
const OPENER_FATAL: [Case; 2] = [
    ("opener: a socket for another user", |dir| {
        ignore(give(dir, Some(prepared().user), None));
    }),
    ("opener: an internet socket", |_| ignore(UdpSocket::bind("127.0.0.1:0"))),
];

/// Attempts that work for the opener.
const OPENER_FINE: [Case; 1] = [("opener: a socket for a group", |dir| {
    rustix::process::umask(rustix::process::umask(Mode::RWXO));
    give(dir, None, Some(prepared().group)).expect("its own group");
})];

/// Changes the owner of a socket in a directory, not by its path.
fn give(dir: &Path, user: Option<Uid>, group: Option<Gid>) -> rustix::io::Result<()> {
    let path = dir.join("control.sock");
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
    rustix::fs::chownat(&file, "", user, group, AtFlags::EMPTY_PATH)
}

/// `RTM_GETLINK` with `NLM_F_REQUEST` and `NLM_F_DUMP`.
const LIST_LINKS: [u8; 32] = {
    let mut message = [0; 32];
    (message[0], message[4], message[6], message[7]) = (32, 18, 0x01, 0x03);
    message
};

/// Descriptors that are open before the process is confined.
struct Prepared {
    listener: UnixListener,
    client: UnixStream,
    unconnected: OwnedFd,
    datagrams: UnixDatagram,
    _manager: UnixDatagram,
    netlink: OwnedFd,
    user: Uid,
    group: Gid,
}

static PREPARED: OnceLock<Prepared> = OnceLock::new();

fn prepare(dir: &Path) {
    let (control, manager) = (dir.join("control.sock"), dir.join("notify.sock"));
    let listener = UnixListener::bind(&control).expect("bound");
    let _manager = UnixDatagram::bind(&manager).expect("bound");
    let datagrams = UnixDatagram::unbound().expect("made");
    datagrams.connect(&manager).expect("connected");
    let prepared = Prepared {
        listener,
        client: UnixStream::connect(&control).expect("connected"),
        unconnected: socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("made"),
        datagrams,
        _manager,
        netlink: socket(AddressFamily::NETLINK, SocketType::RAW, None).expect("made"),
        user: rustix::process::getuid(),
        group: rustix::process::getgid(),
    };
    assert!(PREPARED.set(prepared).is_ok(), "once");
}

fn prepared() -> &'static Prepared {
    PREPARED.get().expect("it was made before the process was confined")
}

fn main() -> ExitCode {
    if let (Ok(case), Some(dir)) = (std::env::var(CASE), std::env::var_os(DIR)) {
        run_case(&case, &PathBuf::from(dir));
        return ExitCode::SUCCESS;
    }
    let mut tally = Tally::default();
    for (case, _) in FATAL.into_iter().chain(BROKER_FATAL).chain(OPENER_FATAL) {
        tally.note(&format!("{case} ends the process"), ended_by_sigsys(case));
    }
    for (case, _) in FINE.into_iter().chain(BROKER_FINE).chain(OPENER_FINE) {
        tally.note(&format!("{case} still work"), ended_well(case));
    }
    tally.note("other files cannot be opened", ended_well("other files"));
    tally.note("a TAP device can still be made", ended_well("a TAP device"));
    tally.note("a process of root becomes another user", ended_well("a user of its own"));
    tally.note("one that stays root has its files again", ended_well("root again"));
    tally.note("a kernel without Landlock restricts the rest", ended_well("no Landlock"));
    tally.note("no capability but one is left in any thread", is_reduced());
    tally.note("a process with threads is refused", ended_well("too late"));
    tally.close()
}

/// The case itself, in its own process.
fn run_case(case: &str, dir: &Path) {
    if case == "too late" {
        let other = thread::spawn(thread::park);
        let refusal = Confinement::of(Role::Vifs).apply().expect_err("there are two threads");
        assert!(refusal.to_string().contains("2 threads"), "{refusal}");
        other.thread().unpark();
        return other.join().expect("ended");
    }
    // Devices are made in a network of its own, where that is allowed, as other tests compare those
    // of the machine.
    ignore(nix::sched::unshare(CloneFlags::CLONE_NEWNET));
    let had_tap = case == "a TAP device" && can_make_tap();
    if case == "no Landlock" {
        forget_landlock();
    }
    prepare(dir);
    let own = dir.join(OWN);
    fs::create_dir(&own).expect("made");
    fs::write(dir.join("state"), "").expect("written");
    fs::write(own.join("earlier"), "text").expect("written");
    std::env::set_current_dir(&own).expect("made");
    if case == "root again" && rustix::process::geteuid().is_root() {
        // As a process of another user has left it.
        for path in [&own, &own.join("earlier")] {
            ignore(std::os::unix::fs::chown(path, Some(1 << 30), Some(1 << 30)));
        }
    }
    let was_root = rustix::process::geteuid().is_root();
    let confinement = confinement_of(case, &own, dir);
    let rules = confinement.apply().expect("confined");
    print!("{CONFINED}");
    io::stdout().flush().expect("it has a reader");
    match case {
        "other files" => other_files(dir, rules),
        "a user of its own" => own_user(was_root),
        "root again" => {
            assert_eq!(fs::read("earlier").expect("its own file"), b"text");
            fs::write("earlier", "more").expect("its own file");
            fs::write("file", "text").expect("its own directory");
        }
        "a TAP device" if had_tap => assert!(can_make_tap(), "there was one before"),
        "a TAP device" => println!("SKIPPED: no TAP device can be made here, confined or not"),
        "no Landlock" => {
            assert_eq!(rules, FileRules::Missing);
            File::open("/etc/passwd").expect("nothing forbids it");
        }
        "waits" => {
            let reader = thread::spawn(|| io::stdin().read(&mut [0]).expect("readable"));
            reader.join().expect("ended");
        }
        case => {
            let own = FATAL.iter().chain(&FINE);
            let of_others = BROKER_FATAL.iter().chain(&BROKER_FINE).chain(&OPENER_FATAL);
            let known = own.chain(of_others).chain(&OPENER_FINE).find(|(name, _)| *name == case);
            known.expect("a case").1(dir);
        }
    }
}

/// How the process of a case is confined, with this directory of its own.
fn confinement_of<'a>(case: &str, own: &'a Path, dir: &'a Path) -> Confinement<'a> {
    let vifs = Confinement {
        files: Some(own),
        sockets: Some(dir),
        devices: BACKEND_DEVICES,
        ..Confinement::of(Role::Vifs)
    };
    match case.split_once(':') {
        _ if case == "a user of its own" => Confinement { user_of: Some(own), ..vifs },
        Some(("broker", _)) => {
            Confinement { files: None, devices: BROKER_DEVICES, role: Role::Broker, ..vifs }
        }
        Some(("opener", _)) => {
            Confinement { sockets: None, devices: &[], role: Role::Opener, ..vifs }
        }
        _ => vifs,
    }
}

fn other_files(dir: &Path, rules: FileRules) {
    if rules == FileRules::Missing {
        println!("SKIPPED: this kernel has no Landlock, so files are not restricted");
        return;
    }
    for path in ["/etc/passwd", "/proc/self/status"] {
        let kind = File::open(path).map(drop).map_err(|error| error.kind());
        assert_eq!(kind, Err(io::ErrorKind::PermissionDenied), "{path}");
    }
    // Other processes trust what is beside its directory: one that exists, and a new one.
    for path in [Path::new("/var/ringway-test"), &dir.join("state"), &dir.join("other")] {
        let written = fs::write(path, "text").map_err(|error| error.kind());
        assert_eq!(written, Err(io::ErrorKind::PermissionDenied), "{}", path.display());
    }
}

/// The process of root is another user, can still change its files, and has the capability that it
/// keeps.
fn own_user(was_root: bool) {
    let missing = File::open("file").expect_err("it was not written yet");
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    fs::write("file", "text").expect("its own directory");
    let found = fs::metadata("file").expect("written");
    if !was_root || found.uid() == 0 {
        println!("SKIPPED: another user: only root of a system with many users becomes one");
        return;
    }
    assert_eq!(found.uid(), found.gid());
    assert_eq!(fs::read("earlier").expect("its own file"), b"text");
    assert!(can_make_tap(), "it keeps the capability");
}

fn can_make_tap() -> bool {
    TunFile::open("ringway%d", QueueMode::Single).is_ok()
}

/// Makes this kernel look as if it had no Landlock, to this process.
fn forget_landlock() {
    let rules = [(libc::SYS_landlock_create_ruleset, Vec::new())].into();
    let missing = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into().expect("known");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, missing, arch).expect("sound");
    let program: BpfProgram = filter.try_into().expect("it compiles");
    seccompiler::apply_filter(&program).expect("taken");
}

fn ended_by_sigsys(case: &str) -> Result<(), String> {
    let (dir, mut child) = start(case);
    wait_until_confined(&mut child)?;
    let status = child.wait().map_err(|error| error.to_string())?;
    drop(dir);
    match status.signal() {
        Some(SIGSYS) => Ok(()),
        _ => Err(format!("expected an end by SIGSYS, and not {status}")),
    }
}

fn ended_well(case: &str) -> Result<(), String> {
    let (dir, child) = start(case);
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    drop(dir);
    let text = String::from_utf8_lossy(&output.stdout);
    let skipped: String = text.lines().filter(|line| line.starts_with("SKIPPED")).collect();
    if !skipped.is_empty() {
        println!("{skipped}");
    }
    if output.status.success() { Ok(()) } else { Err(output.status.to_string()) }
}

/// Checks the kernel's data on a confined process and on a thread that it started afterwards.
fn is_reduced() -> Result<(), String> {
    let (dir, mut child) = start("waits");
    wait_until_confined(&mut child)?;
    let tasks = PathBuf::from(format!("/proc/{}/task", child.id()));
    let texts = loop {
        let paths = fs::read_dir(&tasks).map_err(|error| error.to_string())?.flatten();
        let texts: Vec<String> =
            paths.filter_map(|task| fs::read_to_string(task.path().join("status")).ok()).collect();
        if texts.len() == 2 {
            break texts;
        }
        thread::yield_now();
    };
    drop(child.stdin.take());
    let status = child.wait().map_err(|error| error.to_string())?;
    drop(dir);
    let net_admin = "0000000000001000";
    let had = field(&fs::read_to_string("/proc/self/status").expect("ours"), "CapEff");
    let is_full = had != "0".repeat(16);
    let kept = if is_full { net_admin.to_owned() } else { had };
    for text in &texts {
        for (name, expected) in [
            ("CapInh", "0".repeat(16)),
            ("CapPrm", kept.clone()),
            ("CapEff", kept.clone()),
            ("CapAmb", "0".repeat(16)),
            ("NoNewPrivs", "1".to_owned()),
            ("Seccomp", "2".to_owned()),
        ] {
            let found = field(text, name);
            if found != expected {
                return Err(format!("{name} is {found}, expected {expected}"));
            }
        }
        if is_full && field(text, "CapBnd") != net_admin {
            return Err(format!("CapBnd is {}", field(text, "CapBnd")));
        }
    }
    if status.success() { Ok(()) } else { Err(status.to_string()) }
}

fn field(status: &str, name: &str) -> String {
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| *key == name).map(|(_, value)| value.trim().to_owned()).expect("a field")
}

fn start(case: &str) -> (tempfile::TempDir, Child) {
    let dir = tempfile::tempdir().expect("a directory");
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.env(CASE, case).env(DIR, dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    (dir, command.spawn().expect("started"))
}

/// Waits, so that a process that ends too early is not mistaken for one that was refused something.
fn wait_until_confined(child: &mut Child) -> Result<(), String> {
    let mut said = [0; CONFINED.len()];
    let stdout = child.stdout.as_mut().expect("a pipe");
    stdout.read_exact(&mut said).map_err(|error| format!("it was not confined: {error}"))?;
    if said == CONFINED.as_bytes() { Ok(()) } else { Err("it said something else".to_owned()) }
}

/// No attempt of a case is expected to return.
fn ignore<T>(_outcome: T) {}

fn mount_flags() -> MountFlags {
    MountFlags::empty()
}

/// The lines that test programs end with.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
}

impl Tally {
    fn note(&mut self, name: &str, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => {
                println!("test {name} ... ok");
                self.passed += 1;
            }
            Err(reason) => {
                println!("test {name} ... FAILED: {reason}");
                self.failed += 1;
            }
        }
    }

    fn close(&self) -> ExitCode {
        let word = if self.failed == 0 { "ok" } else { "FAILED" };
        println!("test result: {word}. {} passed; {} failed", self.passed, self.failed);
        if self.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

//! The process and its threads: cores, limits, names, CPU time, and dying with a parent.

use std::ffi::c_void;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal, getppid, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::linux::explain;

/// The version of the running kernel, major and minor; (0, 0) if it has an unusual name.
pub fn kernel_version() -> (u32, u32) {
    version_of(&rustix::system::uname().release().to_string_lossy())
}

fn version_of(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|char: char| !char.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (0, 0),
    }
}

/// The CPUs that the calling thread may run on, ascending. All of them are online.
///
/// # Errors
/// On a machine with more than 1024 CPUs.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None).map_err(|error| explain(error, "list allowed CPUs"))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Binds the calling thread to one CPU.
///
/// # Errors
/// If the CPU is not online or not allowed.
pub fn pin_current_thread(cpu: usize) -> io::Result<()> {
    let what = || format!("pin a thread to CPU {cpu}");
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what()));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| explain(error, what()))
}

/// Whether the calling thread, when it is woken, waits for the thread that runs on its CPU instead
/// of taking its place (`SCHED_BATCH`, sched(7)).
///
/// # Errors
/// If the thread has a policy of real time that it may not leave.
pub fn wait_for_running_threads(does_wait: bool) -> io::Result<()> {
    let policy = if does_wait { libc::SCHED_BATCH } else { libc::SCHED_OTHER };
    let parameters = libc::sched_param { sched_priority: 0 };
    // The wrapper of musl does nothing and reports that there is no such call.
    //
    // SAFETY: 0 is the calling thread, and the kernel reads the parameters, which outlive the call.
    match unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The process at the other end of a Unix socket: the one that connected or listened. `None` if it
/// is outside the PID namespace of this process. The kernel keeps its number from then on
/// (`SO_PEERCRED`, unix(7)).
///
/// # Errors
/// If this is not a socket.
pub fn peer_of(socket: impl AsFd) -> io::Result<Option<u32>> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    let socket = socket.as_fd().as_raw_fd();
    // The wrapper in rustix 1.1 has a type that cannot be 0 for the process, but the kernel reports
    // 0 if the process is not visible.
    //
    // SAFETY: the descriptor is open, and `peer` has `len` bytes, of which any content is valid.
    let failed = unsafe {
        libc::getsockopt(socket, level, name, (&raw mut peer).cast::<c_void>(), &raw mut len)
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u32::try_from(peer.pid).ok().filter(|process| *process != 0))
}

/// Has the kernel kill this process when the thread that started it ends. `parent` is the process
/// id of that parent.
///
/// Entering a user namespace or running a set-user-id program clears the request.
///
/// # Errors
/// If the parent is already gone: it may have ended before the request, so the caller must end,
/// too.
pub fn die_with_parent(parent: u32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let now = getppid().map(|parent| parent.as_raw_nonzero().get());
    if now != i32::try_from(parent).ok() {
        return Err(io::Error::other(format!("parent process {parent} has ended")));
    }
    Ok(())
}

/// Raises the limit of open files as far as an ordinary user may, and returns it. Each queue needs
/// a few descriptors, and the usual limit of 1024 is a leftover of select(2).
///
/// # Errors
/// What setrlimit(2) reports.
pub fn raise_open_files_limit() -> io::Result<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
            .map_err(|error| explain(error, "raise the limit of open files"))?;
    }
    Ok(maximum.unwrap_or(u64::MAX))
}

/// CPU time that a process has used, in all its threads, with the resolution of a clock tick
/// (usually 10 ms).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuTime {
    /// In the program itself.
    pub user: Duration,
    /// In the kernel on its behalf.
    pub system: Duration,
}

/// The CPU time that a process has used so far.
///
/// # Errors
/// If there is no such process.
pub fn cpu_time(pid: u32) -> io::Result<CpuTime> {
    let file = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&file).map_err(|error| explain(error, &file))?;
    parse_cpu_time(&stat, rustix::param::clock_ticks_per_second()).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{file}: not as in proc_pid_stat(5)"))
    })
}

fn parse_cpu_time(stat: &str, ticks_per_second: u64) -> Option<CpuTime> {
    // The second field is the program's name in parentheses, which may contain anything.
    let (_, rest) = stat.rsplit_once(')')?;
    // `rest` begins with field 3; user time is field 14, system time 15.
    let mut times = rest.split_ascii_whitespace().skip(14 - 3).map(str::parse::<u64>);
    let mut next = || {
        let ticks = u128::from(times.next()?.ok()?);
        let nanos = (ticks * 1_000_000_000).checked_div(u128::from(ticks_per_second))?;
        Some(Duration::from_nanos(u64::try_from(nanos).ok()?))
    };
    Some(CpuTime { user: next()?, system: next()? })
}

/// What the scheduler has counted for a thread, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SchedulerTime {
    /// On a CPU.
    pub cpu: Duration,
    /// Ready to run, but waiting for a CPU.
    pub delayed: Duration,
}

impl SchedulerTime {
    /// Parses a thread's `schedstat` file, per `Documentation/scheduler/sched-stats.rst`; `None` if
    /// it is not like that.
    pub fn parse(schedstat: &str) -> Option<SchedulerTime> {
        let mut times = schedstat.split_ascii_whitespace().map(str::parse::<u64>);
        let mut next = || Some(Duration::from_nanos(times.next()?.ok()?));
        Some(SchedulerTime { cpu: next()?, delayed: next()? })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    #[test]
    fn a_kernel_has_a_version_whatever_follows_it() {
        for (release, version) in
            [("6.18.0", (6, 18)), ("5.10-rt", (5, 10)), ("6.1.0-37-amd64", (6, 1)), ("odd", (0, 0))]
        {
            assert_eq!(version_of(release), version);
        }
        assert!(kernel_version() > (4, 0));
    }

    #[test]
    fn a_program_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "42 (a) R (b) S 1 1 1 0 -1 4194560 9 0 0 0 250 75 0 0 20 0 1 0 100 0 0";
        let time = parse_cpu_time(stat, 100).expect("well formed");
        let expected =
            CpuTime { user: Duration::from_millis(2500), system: Duration::from_millis(750) };
        assert_eq!(time, expected);
    }

    #[test]
    fn a_truncated_stat_line_is_an_error() {
        for stat in ["", "42 (cat", "42 (cat) S 1 1", "42 (cat) S 1 1 1 0 -1 0 9 0 0 0 x y"] {
            assert_eq!(parse_cpu_time(stat, 100), None);
        }
        assert_eq!(parse_cpu_time("1 (a) S 1 1 1 0 -1 0 9 0 0 0 1 1", 0), None);
    }

    #[test]
    fn the_scheduler_counts_time_on_a_cpu_first_and_delays_second() {
        let [cpu, delayed] = [1_500_000, 250].map(Duration::from_nanos);
        assert_eq!(SchedulerTime::parse("1500000 250 7\n"), Some(SchedulerTime { cpu, delayed }));
        for schedstat in ["", "\n", "1500", "x 250 7", "1500 x 7", "-1 250 7"] {
            assert_eq!(SchedulerTime::parse(schedstat), None, "{schedstat:?}");
        }
    }

    #[test]
    fn cpu_time_is_readable_for_this_process_but_not_for_a_missing_one() {
        assert!(cpu_time(std::process::id()).is_ok());
        assert!(cpu_time(u32::MAX).is_err());
    }

    #[test]
    fn a_pinned_thread_is_allowed_that_cpu_only() {
        let cpu = *allowed_cpus().expect("listed").last().expect("we run on one");
        let pinned = thread::spawn(move || {
            pin_current_thread(cpu)?;
            allowed_cpus()
        });
        assert_eq!(pinned.join().expect("no panic").expect("pinned"), [cpu]);
        assert!(pin_current_thread(usize::MAX).is_err());
    }

    #[test]
    fn the_peer_of_a_socket_is_known() {
        let (here, _there) = UnixStream::pair().expect("a pair");
        assert_eq!(peer_of(&here).expect("a socket"), Some(std::process::id()));
        assert!(peer_of(File::open("/dev/null").expect("it is there")).is_err());
    }

    #[test]
    fn a_parent_with_another_id_counts_as_gone() {
        assert!(die_with_parent(u32::MAX).is_err());
        // The request is in effect nevertheless; a test runner should not keep it.
        rustix::process::set_parent_process_death_signal(None).expect("withdrawn");
    }

    #[test]
    fn the_limit_of_open_files_is_raised_to_the_maximum() {
        let limit = raise_open_files_limit().expect("lowering and raising is allowed");
        assert_eq!(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), limit);
    }
}

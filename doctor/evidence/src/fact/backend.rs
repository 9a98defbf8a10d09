//! The threads that serve guests' interfaces, and the load of these and of the host's CPUs.

use super::kind::{HostKind, Kind};
use super::reader::{Basis, Span};
use super::thread_names::{is_vhost, is_vif_name};
use super::{Fact, Reader, float, share};
use crate::parse::Counters;
use crate::parse::cpu::CpuTimes;
use crate::parse::domains::{VcpuTimes, Xentop};
use crate::parse::threads::{Thread, Threads};
use crate::{Gap, Piece, Quote};

/// Ticks per second in `/proc`: `USER_HZ`, the same on every architecture that Linux supports
/// today.
const TICKS_PER_SECOND: f64 = 100.0;
/// The share of a CPU from which a thread, or whatever else runs on it, counts as full: sampling
/// loses the rest.
pub const FULL: f64 = 0.95;

/// A thread of a backend and its load.
#[derive(Debug, Clone, PartialEq)]
pub struct BackendThread {
    /// Its name and ID.
    pub thread: Thread,
    /// What it serves.
    pub of: Served,
    /// CPUs that it used, 0 to 1.
    pub busy: f64,
    /// Its CPU time, to quote.
    pub quote: Quote,
}

/// What a backend's thread serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Served {
    /// A fixed group of vifs: `netback/N` of Linux before 3.12.
    Group,
    /// A queue of this vif, or all of it.
    Vif(String),
    /// A TAP device or a queue of one: `vhost-PID`.
    Vhost,
}

/// The threads of kernel backends. Workers of ringway are left out: one that polls is always full.
#[derive(Debug)]
pub struct BackendThreads {
    /// The samples that the rates come from.
    pub basis: Basis,
    /// The busiest first.
    pub threads: Vec<BackendThread>,
}

impl Fact for BackendThreads {
    const PIECES: &'static [Piece] =
        &[Piece::Threads(&["vif", "netback/", "vhost-", "napi/", "ringway"])];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let span: Span<Threads> = at.span("threads")?;
        let mut threads = Vec::new();
        for (id, thread) in &span.after.threads {
            let Some(of) = served(&thread.name) else { continue };
            let before = span.before.threads.get(id).map(|thread| thread.ticks);
            let Some(before) = span.past(before.as_ref()) else { continue };
            let ticks = thread.ticks.saturating_sub(before);
            let busy = float(ticks) / TICKS_PER_SECOND / span.seconds;
            let quote = thread.quote(ticks, span.seconds);
            threads.push(BackendThread { thread: thread.clone(), of, busy, quote });
        }
        threads.sort_by(|a, b| b.busy.total_cmp(&a.busy));
        Ok(BackendThreads { basis: span.basis, threads })
    }
}

/// CPUs that are online.
#[derive(Debug, Clone, Copy)]
pub struct OnlineCpus(pub u64);

impl Fact for OnlineCpus {
    const PIECES: &'static [Piece] = &[Piece::Counters("proc/stat")];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let cpus = CpuTimes::parse(&at.latest("proc/stat")?)?.cpus.len();
        Ok(OnlineCpus(u64::try_from(cpus).unwrap_or(u64::MAX)))
    }
}

/// A CPU that is never idle, by this kernel's own count, and the line that shows it. Time of
/// low-priority programs does not count as work, because they yield to all others: beside a
/// compiler at `nice 19` one connection had 95 Mbit/s, and eight 191.
#[derive(Debug)]
pub struct FullCpu(pub Option<(usize, Quote)>);

impl Fact for FullCpu {
    const PIECES: &'static [Piece] = &[Piece::Counters("proc/stat")];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let span: Span<CpuTimes> = at.span("proc/stat")?;
        for (cpu, after) in &span.after.cpus {
            let Some(before) = span.past(span.before.cpus.get(cpu)) else { continue };
            let spent = after.since(&before);
            let free = spent.idle.saturating_add(spent.nice);
            if spent.total > 0 && 1.0 - share(free, spent.total) >= FULL {
                return Ok(FullCpu(Some((*cpu, span.text.quote(spent.line)))));
            }
        }
        Ok(FullCpu(None))
    }
}

/// CPUs that this host used, as counted by their owner: the hypervisor for domain 0, the kernel
/// elsewhere.
#[derive(Debug)]
pub struct BusyCpus {
    /// How many.
    pub count: f64,
    /// The line that shows it.
    pub quote: Quote,
}

impl Fact for BusyCpus {
    const PIECES: &'static [Piece] = &[
        Piece::All(HostKind::PIECES),
        Piece::Counters("proc/stat"),
        Piece::Sampled(VCPUS),
        Piece::Sampled(XENTOP),
    ];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let (count, quote) = if at.fact::<HostKind>()?.kind == Kind::XenDom0 {
            match of_xl(at) {
                Err(Gap::Missing { .. }) => of_xentop(at)?,
                other => other?,
            }
        } else {
            of_kernel(at)?
        };
        Ok(BusyCpus { count, quote })
    }
}

const VCPUS: &[&str] = &["xl", "vcpu-list"];
const XENTOP: &[&str] = &["xentop", "-b", "-f", "-i", "1"];

fn of_kernel(at: &Reader) -> Result<(f64, Quote), Gap> {
    let span: Span<CpuTimes> = at.span("proc/stat")?;
    let mut busy = 0.0;
    let mut worst = (0.0, 1);
    for (cpu, after) in &span.after.cpus {
        let Some(before) = span.past(span.before.cpus.get(cpu)) else { continue };
        let spent = after.since(&before);
        let used = 1.0 - share(spent.idle.saturating_add(spent.steal), spent.total.max(1));
        busy += used;
        if used > worst.0 {
            worst = (used, spent.line);
        }
    }
    Ok((busy, span.text.quote(worst.1)))
}

fn of_xl(at: &Reader) -> Result<(f64, Quote), Gap> {
    let span: Span<VcpuTimes> = at.command_span(VCPUS)?;
    let vcpus = |times: &VcpuTimes| times.vcpus.range((0, 0)..=(0, u32::MAX)).count();
    let is_same = span.basis == Basis::SinceBoot || vcpus(&span.before) == vcpus(&span.after);
    let Some(first) = span.after.vcpus.get(&(0, 0)).filter(|_| is_same) else {
        return Err(span.text.unreadable(None, "expected domain 0 as in the first sample"));
    };
    let seconds = span.after.of_domain(0) - span.before.of_domain(0);
    let said = format!(
        "{} VCPUs of domain 0 ran for {seconds:.1} s in {:.1} s",
        vcpus(&span.after),
        span.seconds
    );
    Ok((seconds / span.seconds, Quote { text: said, ..span.text.quote(first.line) }))
}

fn of_xentop(at: &Reader) -> Result<(f64, Quote), Gap> {
    let span: Span<Xentop> = at.command_span(XENTOP)?;
    let of = |xentop: &Xentop| xentop.seconds.get("Domain-0").copied();
    let before = span.past(of(&span.before).as_ref());
    let (Some((after, line)), Some((before, _))) = (of(&span.after), before) else {
        return Err(span.text.unreadable(None, "expected a line with Domain-0"));
    };
    let seconds = float(after.saturating_sub(before));
    Ok((seconds / span.seconds, span.text.quote(line)))
}

fn served(name: &str) -> Option<Served> {
    if name.starts_with("netback/") {
        return Some(Served::Group);
    }
    if is_vhost(name) {
        return Some(Served::Vhost);
    }
    // A NAPI thread, or the thread that passes frames to a guest or releases grants.
    let name = name.strip_prefix("napi/").unwrap_or(name);
    let vif = name.split('-').next().unwrap_or_default();
    is_vif_name(vif).then(|| Served::Vif(vif.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_backends_are_known_by_their_names() {
        let vif = |name: &str| Some(Served::Vif(name.to_owned()));
        assert_eq!(served("vif1.0-q0-guest"), vif("vif1.0"));
        assert_eq!(served("vif12.3-dealloc"), vif("vif12.3"));
        assert_eq!(served("napi/vif1.0-81"), vif("vif1.0"));
        assert_eq!(served("netback/3"), Some(Served::Group));
        assert_eq!(served("vhost-1234"), Some(Served::Vhost));
        for name in ["vifx", "ringway", "ksoftirqd/0", "CPU 0/KVM", "vhost-events", "vhost-", ""] {
            assert_eq!(served(name), None, "{name}");
        }
    }
}

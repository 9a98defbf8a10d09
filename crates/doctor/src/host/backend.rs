//! The threads that serve guests' interfaces, and how full they and their host are.

use super::nics::is_vif;
use super::thread_names::is_vhost;
use super::{Basis, Host, Kind, Span, float, share};
use crate::evidence::{Gap, Quote};
use crate::parse::cpu::CpuTimes;
use crate::parse::domains::{VcpuTimes, Xentop};
use crate::parse::threads::{Thread, Threads};

/// Ticks of a second in `/proc`: `USER_HZ`, the same on all that Linux runs on today.
const TICKS_PER_SECOND: f64 = 100.0;
/// The share of a CPU from which a thread, or who else runs on one, is full: the rest is what
/// sampling loses.
pub const FULL: f64 = 0.95;

/// A thread of a backend and what it did.
#[derive(Debug, Clone, PartialEq)]
pub struct BackendThread {
    /// Its name and number.
    pub thread: Thread,
    /// Whose it is.
    pub of: Served,
    /// CPUs that it used, 0 to 1.
    pub busy: f64,
    /// What it spent, to quote.
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

impl Host {
    /// The threads of kernel backends, the busiest first, and between which samples. Workers of
    /// ringway are left out: one that polls is always full.
    pub fn backend_threads(&self) -> Result<(Basis, Vec<BackendThread>), Gap> {
        let span: Span<Threads> = self.span("threads")?;
        let mut found = Vec::new();
        for (id, thread) in &span.after.threads {
            let Some(of) = served(&thread.name) else { continue };
            let before = span.before.threads.get(id).map(|thread| thread.ticks);
            let Some(before) = span.past(before.as_ref()) else { continue };
            let ticks = thread.ticks.saturating_sub(before);
            let busy = float(ticks) / TICKS_PER_SECOND / span.seconds;
            let quote = thread.quote(ticks, span.seconds);
            found.push(BackendThread { thread: thread.clone(), of, busy, quote });
        }
        found.sort_by(|a, b| b.busy.total_cmp(&a.busy));
        Ok((span.basis, found))
    }

    /// CPUs that this host used, as who gives them counts: the hypervisor for domain 0, the
    /// kernel elsewhere.
    pub fn busy_cpus(&self) -> Result<(f64, Quote), Gap> {
        if self.kind().kind != Kind::XenDom0 {
            return self.busy_cpus_of_kernel();
        }
        match self.busy_cpus_of_xl() {
            Err(Gap::Missing { .. }) => self.busy_cpus_of_xentop(),
            other => other,
        }
    }

    /// A CPU that does nothing but work, by this kernel's own count. Programs of low priority keep
    /// nobody from it: beside a compiler at `nice 19` one connection had 95 Mbit/s, and eight 191.
    pub fn full_cpu(&self) -> Result<Option<(usize, Quote)>, Gap> {
        let span: Span<CpuTimes> = self.span("proc/stat")?;
        for (cpu, after) in &span.after.cpus {
            let Some(before) = span.past(span.before.cpus.get(cpu)) else { continue };
            let spent = after.since(&before);
            let free = spent.idle.saturating_add(spent.nice);
            if spent.total > 0 && 1.0 - share(free, spent.total) >= FULL {
                return Ok(Some((*cpu, span.text.quote(spent.line))));
            }
        }
        Ok(None)
    }

    fn busy_cpus_of_kernel(&self) -> Result<(f64, Quote), Gap> {
        let span: Span<CpuTimes> = self.span("proc/stat")?;
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

    fn busy_cpus_of_xl(&self) -> Result<(f64, Quote), Gap> {
        let span: Span<VcpuTimes> = self.command_span(&["xl", "vcpu-list"])?;
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

    fn busy_cpus_of_xentop(&self) -> Result<(f64, Quote), Gap> {
        let span: Span<Xentop> = self.command_span(&["xentop", "-b", "-f", "-i", "1"])?;
        let of = |xentop: &Xentop| xentop.seconds.get("Domain-0").copied();
        let before = span.past(of(&span.before).as_ref());
        let (Some((after, line)), Some((before, _))) = (of(&span.after), before) else {
            return Err(span.text.unreadable(None, "expected a line with Domain-0"));
        };
        let seconds = float(after.saturating_sub(before));
        Ok((seconds / span.seconds, span.text.quote(line)))
    }
}

fn served(name: &str) -> Option<Served> {
    if name.starts_with("netback/") {
        return Some(Served::Group);
    }
    if is_vhost(name) {
        return Some(Served::Vhost);
    }
    // A NAPI thread, or the thread that gives frames to a guest or takes grants back.
    let name = name.strip_prefix("napi/").unwrap_or(name);
    let vif = name.split('-').next().unwrap_or_default();
    is_vif(vif).then(|| Served::Vif(vif.to_owned()))
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

//! Who does the work: CPUs, interrupts, threads.

pub(super) mod backend_cpus;
pub(super) mod backlog;
pub(super) mod crowded_interrupts;
pub(super) mod crowded_out;
pub(super) mod crowded_softirqs;
pub(super) mod full_backend_thread;
pub(super) mod full_guest_cpu;
pub(super) mod hypercalls;
pub(super) mod irqbalance;
pub(super) mod placement;
pub(super) mod power_saving;
pub(super) mod pressure;
pub(super) mod stolen_time;
pub(super) mod throttled;

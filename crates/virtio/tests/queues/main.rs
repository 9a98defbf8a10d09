//! Both halves of virtqueues: against a model and each other, in every order of a few steps,
//! against hostile peers, and in every order of memory accesses.

mod exhaustive;
mod ground;
mod hostile;
mod inflight;
mod inflight_packed;
mod model;
mod oracle;
mod resume;
mod wakeups;

//! The halves of a ring: against a model, against hostile peers, and against each other.

mod exhaustive;
mod hostile;
mod interruption;
mod model;
mod page;
mod wakeups;

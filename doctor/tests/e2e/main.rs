//! The doctor, from its command line: on hosts and guests that are made for it, which it examines
//! and repairs.

mod applied;
mod everywhere;
mod gathered;
mod knobs;
mod narrow;
mod persisted;
mod reported;
mod reverted;
#[path = "../saved/mod.rs"]
mod saved;
mod watched;

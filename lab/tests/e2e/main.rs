//! The lab, from its command line.

mod peer;
mod studies;

//! The verbs of the command line, one file each.

pub(crate) mod backend;
pub(crate) mod broker;
pub(crate) mod guest;
pub(crate) mod run;

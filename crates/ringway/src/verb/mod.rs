//! The verbs of the command line, one file each.

pub(crate) mod attacher;
pub(crate) mod backend;
pub(crate) mod broker;
pub(crate) mod capture;
pub(crate) mod companion;
pub(crate) mod demo;
pub(crate) mod guest;
pub(crate) mod opener;
pub(crate) mod plugger;
pub(crate) mod run;
pub(crate) mod stop;
pub(crate) mod top;
mod vhost_guest;
pub(crate) mod vif;
pub(crate) mod xenstore;

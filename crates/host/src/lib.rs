//! The control plane of a backend: which vifs are served, and how.
//!
//! It has no descriptor, clock, thread or file. What it decides, the process around it carries out;
//! time is an argument. So `ringway-backend` runs it on a real host, and a seed can.

mod limited;
mod log;
mod negotiated;
mod notes;
mod occupants;
mod quarantine;
mod round_robin;
mod rules;
mod settings;

pub use limited::{Limited, flood_limit, storm_limits, unlimited};
pub use log::{LeftOut, LogAllowance};
pub use negotiated::Floor;
pub use notes::{Note, Notes};
pub use occupants::Occupants;
pub use quarantine::{Charged, PANICS_MAX, QUARANTINE_DURATION, Quarantine, panic_line, vif_name};
pub use round_robin::{RoundRobin, VifEvents};
pub use rules::Rules;
pub use settings::Settings;

//! The shell around the control plane: what `ringway-host` decides about, as Linux has it.
//!
//! [`HostKernel`] is the kernel with its links and TAP devices, [`NoteFiles`] are the notes for the
//! next process, and [`VifSession`] has the socket, the memory and the rings of a virtio guest, or
//! the device of a network namespace, which an [`Attacher`] has made in another process. These are
//! parts of a [`World`](ringway_host::World), of which `ringway-backend` has the engines and the
//! loop, and a simulation has others around the sessions of virtio guests. [`DeviceKeeper`] and
//! [`Tenancy`] are the ends of what a supervisor passes to the process of a tenant.

mod attacher;
mod capture;
mod device_keeper;
mod kernel;
mod namespace;
mod notes;
mod session;
mod tenancy;
mod vif_session;

pub use attacher::{Attacher, delete_in_namespaces};
pub use capture::{PcapngFile, stream_pcapng};
pub use device_keeper::DeviceKeeper;
pub use kernel::{HostKernel, HostTap};
pub use notes::{NoteFiles, end_process};
pub use session::{SessionEvent, VhostSession, VhostVif, VifPlace};
pub use tenancy::{Orders, Passed, Tenancy, for_tenant};
pub use vif_session::VifSession;

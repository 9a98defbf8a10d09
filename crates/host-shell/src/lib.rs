//! The shell around the control plane: what `ringway-host` decides about, as Linux has it.
//!
//! [`HostKernel`] is the kernel with its links and TAP devices, [`NoteFiles`] are the notes for the
//! next process, and [`VhostSession`] has the socket, the memory and the rings of a virtio guest.
//! They are parts of a [`World`](ringway_host::World). Its engines, its hypervisor and the loop
//! that gives everything its turns belong to `ringway-backend`; a simulation has others around the
//! same sessions.

mod capture;
mod device_keeper;
mod kernel;
mod notes;
mod session;

pub use capture::{PcapngFile, stream_pcapng};
pub use device_keeper::DeviceKeeper;
pub use kernel::{HostKernel, HostTap};
pub use notes::{NoteFiles, end_process};
pub use session::{SessionEvent, VhostSession, VhostVif};

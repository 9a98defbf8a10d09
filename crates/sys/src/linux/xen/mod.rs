//! The devices with which Linux gives a program access to Xen's grants and event channels.
//!
//! Structures and numbers are those of `xen/evtchn.h`, `xen/gntdev.h` and `xen/gntalloc.h` among
//! the kernel's headers for user space. The error of opening a missing device names the remedy.

pub mod evtchn;
pub mod gntalloc;
pub mod gntdev;

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::opcode::from_components;
use rustix::ioctl::{Direction, Ioctl, IoctlOutput, Opcode, ioctl};

use crate::linux::explain;

/// Opens a Xen device; `module` is the kernel module that provides it.
fn open(path: &str, module: &str, flags: OFlags) -> io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | flags, Mode::empty()).map_err(|error| {
        let remedy = match error {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => {
                format!("not found: run `modprobe {module}`; without Xen there is no such device")
            }
            Errno::ACCESS | Errno::PERM => {
                "not permitted: run as root, or as a user with access to the node".to_owned()
            }
            _ => "open".to_owned(),
        };
        explain(error, format_args!("{path}: {remedy}"))
    })
}

/// The number of a request that is declared with a `T`. These devices use `_IOC_NONE` although
/// there is an argument.
const fn opcode<T>(group: u8, number: u8) -> Opcode {
    from_components(Direction::None, group, number, size_of::<T>())
}

/// A request whose argument is one structure, which the kernel may change.
struct Request<'a, const OPCODE: Opcode, T>(&'a mut T);

// SAFETY: the pointer is to a live `T` that nothing else refers to meanwhile; the caller of
// `request` promises that the driver takes a `T` for this opcode.
unsafe impl<const OPCODE: Opcode, T> Ioctl for Request<'_, OPCODE, T> {
    type Output = IoctlOutput;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut *self.0).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<IoctlOutput> {
        Ok(out)
    }
}

/// Makes a request and returns the driver's number.
///
/// # Safety
/// `fd` is a device for which `OPCODE` reads and writes a `T` at most, and whatever the `T` points
/// to is valid for it.
unsafe fn request<const OPCODE: Opcode, T>(
    fd: impl AsFd,
    argument: &mut T,
) -> rustix::io::Result<IoctlOutput> {
    // SAFETY: the caller promises it.
    unsafe { ioctl(fd, Request::<OPCODE, T>(argument)) }
}

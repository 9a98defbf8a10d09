//! Sessions of both ends, without sockets.

mod both_ends;
mod device;
mod faults;
mod qemu;

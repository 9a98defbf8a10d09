//! Sessions of both ends, without sockets.

mod both_ends;
mod device;
mod edges;
mod faults;
mod qemu;

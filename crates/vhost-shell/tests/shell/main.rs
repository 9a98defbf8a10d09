//! Ends over real sockets: with our front-end, with a hostile one, and with QEMU.

mod device;
mod guest;
mod opener;
mod oracle;
mod qemu;
mod sockets;

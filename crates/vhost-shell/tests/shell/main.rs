//! Ends over real sockets: with a front-end of ours, with a hostile one, and with QEMU.

mod device;
mod opener;
mod oracle;
mod qemu;
mod sockets;

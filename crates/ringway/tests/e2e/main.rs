//! The program itself, from its command line: hosts, guests, real traffic, and what happens when
//! any of them is killed. Which turn a test takes: [`ringway_e2e`].

mod backend;
mod confinement;
mod demo;
mod descriptions;
mod devices;
mod discovered;
mod dpdk;
mod first_steps;
mod guests;
mod hostile;
#[cfg(target_arch = "x86_64")]
mod injected;
mod isolated;
mod libvirt;
mod lifetime;
mod limits;
mod migration;
mod mirrors;
mod multicast;
mod namespaces;
mod old_kernel;
mod openvswitch;
mod panics;
mod paths;
mod permitted;
mod portless;
mod refusals;
mod reload;
mod rogues;
mod rules;
mod segment;
mod service;
mod services;
mod shared_sockets;
mod staging;
mod store;
mod toolstack;
mod toolstacks;
mod unanswered;
mod vhost;
mod virtio;
mod virtio_vifs;

//! The addresses of a guest that routes, and of the networks on both of its sides.

use std::net::Ipv4Addr;

/// The router's address on the sender's side.
pub(super) const OUTER: Ipv4Addr = Ipv4Addr::new(198, 18, 255, 1);
/// The router's address on the targets' side; with tunnels, the address inside them.
pub(super) const INNER: Ipv4Addr = Ipv4Addr::new(198, 19, 127, 1);
/// The router's outer address for tunnels.
pub(super) const TUNNEL: Ipv4Addr = Ipv4Addr::new(198, 19, 255, 1);
/// The sender's address on the targets' side, if it bypasses the router.
pub(super) const BYPASS: Ipv4Addr = Ipv4Addr::new(198, 19, 127, 2);
/// The sender's outer address for tunnels.
pub(super) const BYPASS_TUNNEL: Ipv4Addr = Ipv4Addr::new(198, 19, 255, 2);
pub(super) const OUTER_PREFIX_LEN: u8 = 16;
/// Targets have one half of their network, and the outer addresses of tunnels the other.
pub(super) const INNER_PREFIX_LEN: u8 = 17;

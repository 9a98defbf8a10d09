//! What a wire leaves for TCP's payload.

/// Ethernet's header, check sequence, preamble and gap between frames, in bytes.
const ETHERNET: f64 = 14.0 + 4.0 + 8.0 + 12.0;
/// Headers of IPv4 and TCP, with timestamps.
const TCP_IP: f64 = 20.0 + 20.0 + 12.0;
/// What VXLAN puts around a frame: the inner Ethernet header, VXLAN, UDP, IPv4.
const VXLAN: f64 = 14.0 + 8.0 + 8.0 + 20.0;
/// What GRE with an Ethernet payload puts around a frame: inner header, GRE, IPv4.
const GRE: f64 = 14.0 + 4.0 + 20.0;

/// What surrounds the frames of a wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tunnel {
    /// Nothing.
    None,
    /// VXLAN over IPv4.
    Vxlan,
    /// GRE over IPv4, with Ethernet inside.
    Gre,
}

impl Tunnel {
    /// The bytes that it adds to each frame.
    pub fn overhead(self) -> f64 {
        match self {
            Tunnel::None => 0.0,
            Tunnel::Vxlan => VXLAN,
            Tunnel::Gre => GRE,
        }
    }
}

/// A wire, and what of it carries payload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// In bit/s.
    pub bps: f64,
    /// The MTU of the wire in bytes. Packets inside a tunnel are smaller by its overhead.
    pub mtu: f64,
    /// What surrounds each frame.
    pub tunnel: Tunnel,
    /// Acknowledgements for each segment that share its direction, because one wire carries both
    /// sides of a router: 0, or 0.5 with one for every other segment.
    pub acks: f64,
}

impl Line {
    /// A wire with plain frames, and with acknowledgements on its other direction.
    pub fn plain(bps: f64, mtu: f64) -> Line {
        Line { bps, mtu, tunnel: Tunnel::None, acks: 0.0 }
    }

    /// The most payload of TCP in bit/s; 0 if no segment fits.
    pub fn payload_bps(&self) -> f64 {
        let around = ETHERNET + self.tunnel.overhead();
        let inner_mtu = self.mtu - self.tunnel.overhead();
        let payload = (inner_mtu - TCP_IP).max(0.0);
        // Those of the router's other side, which has no tunnel.
        let acks = self.acks * (TCP_IP + ETHERNET);
        self.bps * payload / (inner_mtu + around + acks)
    }
}

/// The most that a flow carries with so many bytes unacknowledged, in bit/s.
pub fn window_bps(bytes: f64, round_trip: f64) -> f64 {
    bytes * 8.0 / round_trip
}

/// Bytes in flight that fill a path: bandwidth times delay.
pub fn window_bytes(bps: f64, round_trip: f64) -> f64 {
    bps * round_trip / 8.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn framing_leaves_what_is_published_and_computed() {
        let payload = |gbit: f64, mtu: f64| Line::plain(gbit * 1e9, mtu).payload_bps() / 1e9;
        assert!((payload(10.0, 1500.0) - 9.415).abs() < 0.001);
        assert!((payload(10.0, 9000.0) - 9.90).abs() < 0.005);
        assert!((payload(1.0, 1500.0) - 0.9415).abs() < 0.0001);
        let node = Line { tunnel: Tunnel::Vxlan, acks: 0.5, ..Line::plain(10e9, 1500.0) };
        assert!((node.payload_bps() / 1e9 - 8.83).abs() < 0.005, "{}", node.payload_bps());
        let quiet = Line { acks: 0.0, ..node };
        // 1450 bytes of packet inside 1500, and 38 of Ethernet around.
        assert!((quiet.payload_bps() / 1e9 - 9.0897).abs() < 0.001, "{}", quiet.payload_bps());
        assert!(Line::plain(1e9, 40.0).payload_bps().abs() < 1e-9);
    }

    #[test]
    fn a_window_bounds_a_flow() {
        assert!((window_bps(1448.0, 180e-6) / 1e6 - 64.4).abs() < 0.1);
        assert!((window_bytes(10e9, 0.1) - 125e6).abs() < 1.0);
    }
}

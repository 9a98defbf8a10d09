//! Places of fields in the headers of a packet, in bytes from the start of their header, and flags.

/// Length of an IPv4 packet with its header (RFC 791).
pub(crate) const IPV4_LEN_OFFSET: usize = 2;
/// IPv4 identification, which tells the fragments of one packet from those of another.
pub(crate) const IPV4_ID_OFFSET: usize = 4;
/// IPv4 flags; [`IPV4_DF`] is in this byte.
pub(crate) const IPV4_FLAGS_OFFSET: usize = 6;
/// "Do not fragment": without it, identifications have a meaning and must count up.
pub(crate) const IPV4_DF: u8 = 0x40;
/// IPv4 checksum of the header.
pub(crate) const IPV4_CHECKSUM_OFFSET: usize = 10;
/// Length of what follows an IPv6 header (RFC 8200).
pub(crate) const IPV6_LEN_OFFSET: usize = 4;
/// Length of a UDP datagram with its header (RFC 768).
pub(crate) const UDP_LEN_OFFSET: usize = 4;
/// TCP sequence number of the first byte of data (RFC 9293).
pub(crate) const TCP_SEQUENCE_OFFSET: usize = 4;
/// TCP flags.
pub(crate) const TCP_FLAGS_OFFSET: usize = 13;
pub(crate) const TCP_FIN: u8 = 0x01;
pub(crate) const TCP_PSH: u8 = 0x08;
pub(crate) const TCP_ACK: u8 = 0x10;
pub(crate) const TCP_ECE: u8 = 0x40;
pub(crate) const TCP_CWR: u8 = 0x80;

//! The Ethernet address of an uplink or of a network namespace whose description names none: always
//! the same one, however often its network device is made, because others on the network remember
//! it.

use std::fs;

use ringway_control::RunDir;
use ringway_datapath::MacAddr;

/// Identifies an installation of the machine, and lasts: machine-id(5).
const MACHINE: &str = "/etc/machine-id";
/// Identifies the machine until it boots again.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// The address for what has this name, of the host with this run directory, on this machine.
pub(crate) fn own_mac(name: &str, dir: &RunDir) -> MacAddr {
    let machine = fs::read_to_string(MACHINE).ok().filter(|id| !id.trim().is_empty());
    let machine = machine.or_else(|| fs::read_to_string(BOOT).ok()).unwrap_or_default();
    derive([machine.trim(), name, &dir.path().display().to_string()])
}

/// A locally administered unicast address.
fn derive(parts: [&str; 3]) -> MacAddr {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    // FNV-1a, which never changes, unlike the hash of the standard library; then the finalizer of
    // MurmurHash3, so that each bit depends on all of the text.
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    let [_, _, first, rest @ ..] = (hash ^ (hash >> 33)).to_be_bytes();
    let mut address = [(first & 0xfc) | 0x02, 0, 0, 0, 0, 0];
    address[1..].copy_from_slice(&rest);
    MacAddr(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_same_each_time_and_differs_by_machine_name_and_directory() {
        let base = ["0123456789abcdef0123456789abcdef", "ringway0", "/run/ringway/default"];
        let mac = derive(base);
        // Others remember it over upgrades.
        assert_eq!(mac.to_string(), "02:e4:ad:de:f7:ae");
        for (part, other) in [(0, "1123456789abcdef0123456789abcdef"), (1, "up0"), (2, "/run/x")] {
            let mut parts = base;
            parts[part] = other;
            let other = derive(parts);
            assert_ne!(other, mac);
            assert_eq!(other.0[0] & 3, 2, "local and of one station: {other}");
        }
    }
}

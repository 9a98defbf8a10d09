//! Ethernet addresses.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// An Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// Every station.
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// True for a group of stations, including broadcast: never a valid source.
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// The most addresses in a list.
    pub const LIST_MAX: usize = 64;

    /// Addresses of stations with commas or spaces between them.
    ///
    /// # Errors
    /// The text that is no address of a station, or that there are more than
    /// [`MacAddr::LIST_MAX`].
    pub fn parse_list(text: &str) -> Result<Vec<MacAddr>, String> {
        let items = text.split([',', ' ']).filter(|item| !item.is_empty());
        let station = |item: &str| {
            let mac = MacAddr::parse(item);
            let mac = mac.filter(|mac| !mac.is_multicast() && *mac != MacAddr([0; 6]));
            mac.ok_or_else(|| {
                let item: String = item.escape_debug().take(40).collect();
                format!("`{item}` is not the Ethernet address of a station")
            })
        };
        let macs: Vec<MacAddr> =
            items.take(MacAddr::LIST_MAX + 1).map(station).collect::<Result<_, _>>()?;
        match macs.len() <= MacAddr::LIST_MAX {
            true => Ok(macs),
            false => Err(format!("has more than {} addresses", MacAddr::LIST_MAX)),
        }
    }

    /// Reads `00:16:3e:00:00:02`.
    pub fn parse(text: &str) -> Option<MacAddr> {
        let mut parts = text.split(':');
        let mut bytes = [0; 6];
        for byte in &mut bytes {
            let part = parts.next()?;
            let is_hex = part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
            *byte = u8::from_str_radix(part, 16).ok().filter(|_| is_hex)?;
        }
        parts.next().is_none().then_some(MacAddr(bytes))
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_as_they_are_printed() {
        let mac = MacAddr([0, 0x16, 0x3e, 0, 0xab, 2]);
        assert_eq!(mac.to_string(), "00:16:3e:00:ab:02");
        assert_eq!(MacAddr::parse("00:16:3E:00:AB:02"), Some(mac));
        for bad in
            ["", "00:16:3e:00:ab", "00:16:3e:00:ab:02:03", "0:16:3e:00:ab:02", "+0:16:3e:00:ab:02"]
        {
            assert_eq!(MacAddr::parse(bad), None, "{bad:?}");
        }
    }
}

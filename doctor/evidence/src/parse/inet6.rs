//! `/proc/net/if_inet6`: the IPv6 addresses of a network namespace.

use std::net::Ipv6Addr;

use super::Counters;
use crate::{Gap, Text};

/// The kernel's `IFA_F_DADFAILED`.
const DUPLICATE: u8 = 0x08;

/// All of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inet6 {
    /// In the order of the file.
    pub all: Vec<Own>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Own {
    /// The address.
    pub address: Ipv6Addr,
    /// Its interface.
    pub nic: String,
    /// Whether duplicate address detection found another host with it, so that it is not used.
    pub is_duplicate: bool,
    /// Its line.
    pub line: usize,
}

impl Counters for Inet6 {
    fn parse(text: &Text) -> Result<Inet6, Gap> {
        let own = |(line, row): (usize, &str)| {
            let words: Vec<&str> = row.split_whitespace().collect();
            let [address, _, _, _, flags, nic] = words.as_slice() else {
                return Err(text.unreadable(Some(line), "expected six columns"));
            };
            let bits = |digits: &str, len: usize| {
                let is_hex = digits.len() == len && digits.bytes().all(|it| it.is_ascii_hexdigit());
                is_hex.then(|| u128::from_str_radix(digits, 16).ok()).flatten()
            };
            let address = bits(address, 32)
                .ok_or_else(|| text.unreadable(Some(line), "expected an address"))?;
            let flags = bits(flags, 2)
                .and_then(|flags| u8::try_from(flags).ok())
                .ok_or_else(|| text.unreadable(Some(line), "expected flags"))?;
            Ok(Own {
                address: address.into(),
                nic: (*nic).to_owned(),
                is_duplicate: flags & DUPLICATE != 0,
                line,
            })
        };
        text.lines().map(own).collect::<Result<_, _>>().map(|all| Inet6 { all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_address_is_marked_and_torn_lines_are_refused() {
        let parse = |text: &str| Inet6::parse(&Text::new("/proc/net/if_inet6", text));
        let text = "00000000000000000000000000000001 01 80 10 80       lo\n\
                    fe8000000000000000e0f9fffe000002 02 40 20 c8     eth0\n";
        let all = parse(text).expect("sound").all;
        assert!(!all[0].is_duplicate && all[1].is_duplicate);
        assert_eq!(all[1].address.to_string(), "fe80::e0:f9ff:fe00:2");
        assert_eq!((all[1].nic.as_str(), all[1].line), ("eth0", 2));
        for torn in [
            "fe80 01 80 10 80 lo\n",
            "00000000000000000000000000000001 01 80 10 lo\n",
            "00000000000000000000000000000001 01 80 10 8 lo\n",
            "00000000000000000000000000000001 01 80 10 +8 lo\n",
        ] {
            assert!(parse(torn).is_err(), "{torn}");
        }
    }
}

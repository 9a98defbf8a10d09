//! How much a guest may transmit.

/// A limit of what a guest may transmit (`rate`): so many bytes in each interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Bytes of frames; at least 1.
    pub bytes: u64,
    /// Length of an interval, in microseconds; at least 1.
    pub interval_us: u64,
}

impl Rate {
    /// Reads `bytes,microseconds`. `Some(None)` is no limit, which a 0 in either place means;
    /// `None` is no rate at all.
    ///
    /// Linux takes 0 microseconds for no limit, too. Of 0 bytes it lets nothing through, which is
    /// nobody's wish for a vif, and no toolstack writes it.
    pub(crate) fn parse(text: &str) -> Option<Option<Rate>> {
        let (bytes, interval_us) = text.split_once(',')?;
        let (bytes, interval_us) = (number(bytes)?, number(interval_us)?);
        let is_limit = bytes > 0 && interval_us > 0;
        Some(is_limit.then_some(Rate { bytes, interval_us }))
    }
}

/// Digits only: what Rust would take beyond them, no toolstack writes.
fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_two_numbers_and_nothing_else() {
        let rate = Rate { bytes: 6250, interval_us: 50_000 };
        assert_eq!(Rate::parse("6250,50000"), Some(Some(rate)));
        let most = Rate { bytes: u64::MAX, interval_us: u64::MAX };
        assert_eq!(Rate::parse(&format!("{0},{0}", u64::MAX)), Some(Some(most)));
        for unlimited in ["0,0", "0,50000", "6250,0"] {
            assert_eq!(Rate::parse(unlimited), Some(None), "{unlimited}");
        }
        for bad in [
            "",
            ",",
            "6250",
            "6250,",
            ",50000",
            "-1,50000",
            "6250,-1",
            "+1,1",
            "6250, 50000",
            "6250,50000,",
            "6250,50000\n",
            "0x10,1",
            "18446744073709551616,1",
            "1Mb/s",
        ] {
            assert_eq!(Rate::parse(bad), None, "{bad:?}");
        }
    }
}

//! What one end of a vif can receive.

use alloc::borrow::ToOwned;

use ringway_datapath::OffloadCaps;

use crate::keys::{
    Absent, BadKeys, FEATURE_GSO_TCPV4, FEATURE_GSO_TCPV6, FEATURE_IPV6_CSUM_OFFLOAD,
    FEATURE_NO_CSUM_OFFLOAD, FEATURE_SG, KeyChange, Keys,
};

/// The offload keys of one end: what this end can *receive*, and what the other end may therefore
/// send. The keys are the same for both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// `feature-sg`: packets of several slots. Absent means no.
    pub scatter_gather: bool,
    /// The opposite of `feature-no-csum-offload`: blank checksums over IPv4. Absent means *yes*.
    pub checksum_v4: bool,
    /// `feature-ipv6-csum-offload`: blank checksums over IPv6. Absent means no.
    pub checksum_v6: bool,
    /// `feature-gso-tcpv4`. Absent means no.
    pub gso_v4: bool,
    /// `feature-gso-tcpv6`. Absent means no.
    pub gso_v6: bool,
}

impl Features {
    /// Reads the keys of one end.
    ///
    /// # Errors
    /// [`BadKeys::Unreadable`] for a value that is no number.
    pub fn read(keys: &Keys) -> Result<Features, BadKeys> {
        Ok(Features {
            scatter_gather: keys.flag(FEATURE_SG, Absent::False)?,
            checksum_v4: !keys.flag(FEATURE_NO_CSUM_OFFLOAD, Absent::False)?,
            checksum_v6: keys.flag(FEATURE_IPV6_CSUM_OFFLOAD, Absent::False)?,
            gso_v4: keys.flag(FEATURE_GSO_TCPV4, Absent::False)?,
            gso_v6: keys.flag(FEATURE_GSO_TCPV6, Absent::False)?,
        })
    }

    /// The offloads that may be used in effect. A packet to be segmented takes several slots and
    /// has a blank checksum, so it requires both of those features, too.
    pub fn caps(self) -> OffloadCaps {
        OffloadCaps {
            scatter_gather: self.scatter_gather,
            checksum_v4: self.checksum_v4,
            checksum_v6: self.checksum_v6,
            gso_v4: self.gso_v4 && self.scatter_gather && self.checksum_v4,
            gso_v6: self.gso_v6 && self.scatter_gather && self.checksum_v6,
            // netif has no key for it.
            uso_v4: false,
            uso_v6: false,
        }
    }

    /// All keys, including those with default values, so that none of an earlier connection
    /// remains. Like stock ends, this leaves out `feature-no-csum-offload` if it does not apply.
    pub(crate) fn changes(self) -> impl Iterator<Item = KeyChange> {
        let checksum_v4 = match self.checksum_v4 {
            true => KeyChange::Remove(FEATURE_NO_CSUM_OFFLOAD.to_owned()),
            false => KeyChange::flag(FEATURE_NO_CSUM_OFFLOAD, true),
        };
        [
            checksum_v4,
            KeyChange::flag(FEATURE_SG, self.scatter_gather),
            KeyChange::flag(FEATURE_IPV6_CSUM_OFFLOAD, self.checksum_v6),
            KeyChange::flag(FEATURE_GSO_TCPV4, self.gso_v4),
            KeyChange::flag(FEATURE_GSO_TCPV6, self.gso_v6),
        ]
        .into_iter()
    }
}

impl From<OffloadCaps> for Features {
    fn from(caps: OffloadCaps) -> Features {
        Features {
            scatter_gather: caps.scatter_gather,
            checksum_v4: caps.checksum_v4,
            checksum_v6: caps.checksum_v6,
            gso_v4: caps.gso_v4,
            gso_v6: caps.gso_v6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[(&str, &str)]) -> Result<Features, BadKeys> {
        let values = values.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Features::read(&Keys::new("/d", values))
    }

    #[test]
    fn absent_keys_mean_only_ipv4_checksums() {
        let features = read(&[]).expect("no key is wrong");
        assert_eq!(features.caps(), OffloadCaps { checksum_v4: true, ..OffloadCaps::NONE });
        let features = read(&[("feature-no-csum-offload", "1")]).expect("no key is wrong");
        assert_eq!(features.caps(), OffloadCaps::NONE);
    }

    #[test]
    fn segmentation_needs_scatter_gather_and_a_blank_checksum() {
        let gso = [("feature-gso-tcpv4", "1"), ("feature-gso-tcpv6", "1")];
        let caps = read(&gso).expect("no key is wrong").caps();
        assert!(!caps.gso_v4 && !caps.gso_v6);
        let with_sg = [gso.as_slice(), &[("feature-sg", "1")]].concat();
        let caps = read(&with_sg).expect("no key is wrong").caps();
        assert!(caps.gso_v4 && !caps.gso_v6);
    }

    #[test]
    fn a_value_that_is_not_a_number_is_refused_with_its_path() {
        let error = read(&[("feature-sg", "yes\n")]).expect_err("it is no number");
        assert_eq!(
            error.to_string(),
            "/d/feature-sg is \"yes\\n\", expected a number from 0 to 4294967295"
        );
    }
}

//! VLANs: their numbers, the VLAN of a frame, and the contents of its tag.

use crate::headers::{TPID_CUSTOMER, TPID_SERVICE, chunk};

/// The number of a VLAN, 1 to 4094.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vid(u16);

impl Vid {
    /// The VLAN with this number; `None` for 0 and 4095, which IEEE 802.1Q reserves (table 9-2).
    pub fn new(number: u16) -> Option<Vid> {
        (1..=4094).contains(&number).then_some(Vid(number))
    }

    /// Its number.
    pub fn get(self) -> u16 {
        self.0
    }
}

/// The VLAN that a frame belongs to on its way through a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FrameVlan {
    /// None: the switch carries the frame unchanged.
    #[default]
    None,
    /// This one, and the frame has no tag.
    Untagged(Vid),
    /// This one, as the frame's tag says.
    Tagged(Vid),
    /// The frame's port is in no VLAN that it could belong to.
    Foreign,
}

impl FrameVlan {
    /// Its number, if the frame belongs to one.
    #[inline]
    pub fn vid(self) -> Option<Vid> {
        match self {
            FrameVlan::Untagged(vid) | FrameVlan::Tagged(vid) => Some(vid),
            FrameVlan::None | FrameVlan::Foreign => None,
        }
    }
}

/// The contents of a frame's outermost tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    /// No tag at all.
    None,
    /// A priority without a VLAN (VLAN 0).
    Priority,
    /// A VLAN.
    Vlan(Vid),
    /// A provider's tag (IEEE 802.1ad), or one that is cut off or reserved.
    Other,
}

impl Tag {
    /// Reads the tag of a frame.
    #[inline]
    pub fn of(frame: &[u8]) -> Tag {
        let Some([e0, e1]) = chunk(frame, TAG_AT) else { return Tag::Other };
        match u16::from_be_bytes([e0, e1]) {
            TPID_CUSTOMER => {}
            TPID_SERVICE => return Tag::Other,
            _ => return Tag::None,
        }
        // At least an EtherType follows the tag.
        let Some([high, low, _, _]) = chunk(frame, TAG_AT + 2) else { return Tag::Other };
        match u16::from_be_bytes([high, low]) & 0x0fff {
            0 => Tag::Priority,
            number => Vid::new(number).map_or(Tag::Other, Tag::Vlan),
        }
    }
}

/// Offset of a tag: after both addresses.
pub(crate) const TAG_AT: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    fn vid(number: u16) -> Vid {
        Vid::new(number).expect("a VLAN")
    }

    #[test]
    fn tags_are_parsed() {
        let tag = |bytes: &[u8]| Tag::of(&[&[0; 12], bytes].concat());
        assert_eq!(tag(&[0x81, 0, 0xe0, 7, 8, 0]), Tag::Vlan(vid(7)));
        assert_eq!(tag(&[0x81, 0, 0xe0, 0, 8, 0]), Tag::Priority);
        assert_eq!(tag(&[0x81, 0, 0x0f, 0xff, 8, 0]), Tag::Other);
        assert_eq!(tag(&[0x81, 0, 0, 7, 8]), Tag::Other);
        assert_eq!(tag(&[0x88, 0xa8, 0, 7, 8, 0]), Tag::Other);
        assert_eq!(tag(&[0x08]), Tag::Other);
        assert_eq!(Vid::new(0).or(Vid::new(4095)), None);
    }
}

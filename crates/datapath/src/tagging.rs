//! Inserts and removes the VLAN tag of a frame.
//!
//! The offsets of an [`Offload`](crate::Offload) are found in the frame's own headers when it
//! leaves, so inserting or removing a tag does not affect the pending work.

use crate::headers::{TPID_CUSTOMER, VLAN_TAG_LEN};
use crate::vlan::TAG_AT;
use crate::{DropReason, Frame, FramePool, Vid};

/// Removes the outermost tag of a frame, which must have one in its buffer.
pub fn remove_tag(frame: &mut Frame) {
    let bytes = frame.bytes_mut();
    if bytes.len() >= TAG_AT + VLAN_TAG_LEN {
        bytes.copy_within(TAG_AT + VLAN_TAG_LEN.., TAG_AT);
        frame.shorten_head(VLAN_TAG_LEN);
    }
}

/// Inserts a tag into a frame.
///
/// # Errors
/// The frame is back in `pool`: [`DropReason::TooLong`] if it would become longer than any buffer,
/// [`DropReason::NoBuffer`] if the pool has no buffer for it, or why its end cannot be read.
pub fn insert_tag(mut frame: Frame, vid: Vid, pool: &mut FramePool) -> Result<Frame, DropReason> {
    if let Err(reason) = pool.complete(&mut frame) {
        pool.recycle(frame);
        return Err(reason);
    }
    let len = frame.len();
    if len + VLAN_TAG_LEN > frame.capacity() {
        let reason = match len + VLAN_TAG_LEN > pool.frame_len_max() {
            true => DropReason::TooLong,
            false => DropReason::NoBuffer,
        };
        let Some(mut longer) = pool.take(len + VLAN_TAG_LEN) else {
            pool.recycle(frame);
            return Err(reason);
        };
        longer.set_len(len);
        longer.bytes_mut().copy_from_slice(frame.bytes());
        longer.offload = frame.offload;
        longer.flow = frame.flow;
        longer.vlan = frame.vlan;
        pool.recycle(core::mem::replace(&mut frame, longer));
    }
    frame.set_len(len + VLAN_TAG_LEN);
    let bytes = frame.bytes_mut();
    bytes.copy_within(TAG_AT..len, TAG_AT + VLAN_TAG_LEN);
    bytes[TAG_AT..TAG_AT + 2].copy_from_slice(&TPID_CUSTOMER.to_be_bytes());
    bytes[TAG_AT + 2..TAG_AT + VLAN_TAG_LEN].copy_from_slice(&vid.get().to_be_bytes());
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vlan::Tag;
    use crate::{PoolBudget, SMALL_LEN};

    fn vid(number: u16) -> Vid {
        Vid::new(number).expect("a VLAN")
    }

    #[test]
    fn inserting_and_removing_a_tag_restores_the_frame() {
        let mut pool = FramePool::new(PoolBudget::new(1 << 20));
        for len in [14, 60, SMALL_LEN - 4, SMALL_LEN - 3, SMALL_LEN, 9000, 65_535] {
            let mut frame = pool.take(len).expect("there is memory");
            for (index, byte) in frame.bytes_mut().iter_mut().enumerate() {
                *byte = u8::try_from(index % 251).expect("small");
            }
            frame.bytes_mut()[12..14].copy_from_slice(&[0x08, 0]);
            let before = frame.bytes().to_vec();
            assert_eq!(Tag::of(&before), Tag::None);
            let mut tagged = insert_tag(frame, vid(4094), &mut pool).expect("there is memory");
            assert_eq!(Tag::of(tagged.bytes()), Tag::Vlan(vid(4094)));
            assert_eq!((tagged.len(), &tagged.bytes()[..12]), (len + 4, &before[..12]));
            assert_eq!(&tagged.bytes()[16..], &before[12..]);
            remove_tag(&mut tagged);
            assert_eq!(tagged.bytes(), before);
            pool.recycle(tagged);
        }
    }

    #[test]
    fn a_frame_too_long_for_a_tag_is_dropped() {
        let mut pool = FramePool::new(PoolBudget::new(1 << 20));
        let longest = pool.take(pool.frame_len_max()).expect("there is memory");
        let refused = insert_tag(longest, vid(1), &mut pool).expect_err("too long");
        assert_eq!(refused, DropReason::TooLong);
        let budget = PoolBudget::new(SMALL_LEN);
        let mut pool = FramePool::new(budget.clone());
        let full = pool.take(SMALL_LEN).expect("there is memory");
        let refused = insert_tag(full, vid(1), &mut pool).expect_err("no memory");
        assert_eq!(refused, DropReason::NoBuffer);
        drop(pool);
        assert_eq!(budget.bytes_left(), SMALL_LEN, "the frame is back");
    }
}

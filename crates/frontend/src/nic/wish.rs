//! How a user wishes that a vif is hashed, checked against its queues.

use ringway_netfront::HashWish;
use ringway_steering::toeplitz::{HASH_TYPES_KNOWN, KEY_LEN_MAX, MAPPING_LEN_MAX};

/// A wish for a hash over all that can be hashed, of a vif with so many queues, or with none now.
pub(super) fn wish(key: &[u8], mapping: &[u16], queues: usize) -> Result<HashWish, String> {
    if let Some(queue) = absent_queue(mapping, queues).filter(|_| queues > 0) {
        return Err(format!("the mapping has queue {queue}, expected less than {queues}"));
    }
    let too_long = |what, len, max| format!("{what} has {len} entries, expected at most {max}");
    Ok(HashWish {
        key: key.try_into().map_err(|_| too_long("the key", key.len(), KEY_LEN_MAX))?,
        types: HASH_TYPES_KNOWN,
        mapping: mapping
            .try_into()
            .map_err(|_| too_long("the mapping", mapping.len(), MAPPING_LEN_MAX))?,
    })
}

/// A queue of the mapping that a vif with so many queues does not have.
pub(super) fn absent_queue(mapping: &[u16], queues: usize) -> Option<u16> {
    mapping.iter().copied().find(|queue| usize::from(*queue) >= queues)
}

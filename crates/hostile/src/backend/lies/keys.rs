//! Lies by keys of the backend's directory.

use anyhow::Result;

use crate::backend::liar::{Key, Liar};

/// The longest value that stores of a domain take.
const LONG: [u8; 2000] = [b'9'; 2000];

/// Makes an offer with these keys to a frontend that starts again, and gives it time: it may
/// connect or stay away.
fn offer_with(liar: &mut Liar<'_>, changes: &[Key<'_>]) -> Result<()> {
    liar.offer(changes)?;
    liar.restart_frontend();
    liar.settle()
}

pub(crate) fn queues_absurd(liar: &mut Liar<'_>) -> Result<()> {
    let values: [&[u8]; 9] =
        [b"0", b"65536", b"4294967295", b"4294967296", b"-1", b"many", b"", b"\xff\xfe", &LONG];
    values.iter().try_for_each(|value| offer_with(liar, &[("multi-queue-max-queues", Some(value))]))
}

pub(crate) fn features_half(liar: &mut Liar<'_>) -> Result<()> {
    let keys = [
        "feature-rx-copy",
        "feature-sg",
        "feature-gso-tcpv4",
        "feature-split-event-channels",
        "feature-ctrl-ring",
    ];
    let values: [Option<&[u8]>; 5] = [None, Some(b""), Some(b"yes"), Some(b"\xff"), Some(&LONG)];
    for (key, value) in keys.into_iter().flat_map(|key| values.map(|value| (key, value))) {
        offer_with(liar, &[(key, value)])?;
    }
    Ok(())
}

/// All of them, after the frontend has read them.
pub(crate) fn changed_after_connect(liar: &mut Liar<'_>) -> Result<()> {
    for value in [Some(b"4294967295".as_slice()), Some(b"\xff\xfe"), Some(&LONG), None] {
        liar.connect(&[])?;
        let keys = ["feature-rx-copy", "feature-ctrl-ring", "multi-queue-max-queues", "carrier"];
        liar.write(&keys.map(|key| (key, value)))?;
        liar.settle()?;
    }
    Ok(())
}

pub(crate) fn carrier_flaps(liar: &mut Liar<'_>) -> Result<()> {
    liar.connect(&[])?;
    for turn in 0..200 {
        let value: &[u8] = if turn % 2 == 0 { b"0" } else { b"1" };
        liar.write(&[("carrier", Some(value))])?;
    }
    liar.settle()
}

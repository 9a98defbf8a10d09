//! The handshake: invalid keys, states in any order, and ends at any moment.

use anyhow::Result;

use crate::guest::{VIF, state};
use crate::stage::Stage;

pub(crate) fn keys_absurd(stage: &mut Stage) -> Result<()> {
    for (key, value) in [
        ("tx-ring-ref", Some("4000000")),
        ("tx-ring-ref", Some("many")),
        ("tx-ring-ref", None),
        ("rx-ring-ref", Some("99999999999")),
        ("rx-ring-ref", Some("-1")),
        ("event-channel", Some("99")),
        ("event-channel", Some("")),
        ("event-channel", None),
        ("request-rx-copy", Some("0")),
    ] {
        stage.expect_refusal(1, &[(key, value)])?;
    }
    for count in ["0", "1000", "-1", "two", "4294967297"] {
        stage.expect_refusal(1, &[("multi-queue-num-queues", Some(count))])?;
    }
    stage.expect_refusal(2, &[("queue-1/tx-ring-ref", None)])?;
    stage.expect_refusal(2, &[("queue-0/event-channel", Some("x"))])
}

/// Long values, and bytes that are not UTF-8.
pub(crate) fn keys_long(stage: &mut Stage) -> Result<()> {
    // Xen's daemon accepts 2,048 bytes by default (`quota-entry-size`).
    let long = "9".repeat(2000);
    stage.expect_refusal(1, &[("tx-ring-ref", Some(&long))])?;
    stage.expect_refusal(1, &[("multi-queue-num-queues", Some(&long))])?;
    stage.guest.start_over()?;
    stage.guest.store.write(&format!("{VIF}/feature-sg"), [0xff, 0xfe, 0, 0x80])?;
    stage.guest.store.write(&format!("{VIF}/state"), [0xff; 2000])?;
    stage.guest.set_state(state::INITIALISING)
}

/// Two queues that name the same ring, or the same event channel.
pub(crate) fn queues_share_a_ring(stage: &mut Stage) -> Result<()> {
    for key in ["tx-ring-ref", "event-channel"] {
        stage.guest.start_over()?;
        if stage.guest.queues_max()? < 2 {
            stage.account.skipped = Some("the backend offers one queue only".to_owned());
            return Ok(());
        }
        stage.guest.make_queues(2, 4)?;
        let first = &stage.guest.queues[0];
        let value = match key {
            "tx-ring-ref" => first.ring_refs()[0].to_string(),
            _ => first.port().to_string(),
        };
        stage.guest.say(&[(&format!("queue-1/{key}"), Some(&value))])?;
        stage.guest.wait_for_backend(&[state::CONNECTED, state::CLOSING, state::CLOSED])?;
    }
    Ok(())
}

/// Keys that change after they were read.
pub(crate) fn keys_after_connect(stage: &mut Stage) -> Result<()> {
    stage.guest.connect(1, 8)?;
    let keys = [
        ("tx-ring-ref", "4294967295"),
        ("event-channel", "x"),
        ("feature-sg", ""),
        ("multi-queue-num-queues", "9"),
        ("mac", "ff:ff:ff:ff:ff:ff"),
        ("request-rx-copy", "0"),
        ("feature-rx-notify", "no"),
        ("backend", "/local/domain/0/backend/vif/1/0"),
        ("backend-id", "1"),
    ];
    while !stage.is_over() {
        for (key, value) in keys {
            // Some of them belong to the toolstack, if it protects them.
            let _ = stage.guest.store.write(&format!("{VIF}/{key}"), value);
        }
        stage.count("writes", u64::try_from(keys.len()).unwrap_or(0));
        stage.guest.store.write(&format!("{VIF}/state"), state::CONNECTED)?;
    }
    Ok(())
}

/// Removes its keys while they are in use: one by one, and then its whole directory.
pub(crate) fn keys_removed(stage: &mut Stage) -> Result<()> {
    while !stage.is_over() {
        stage.guest.connect(2, 4)?;
        for key in stage.guest.store.directory(VIF)? {
            // A guest cannot remove the keys that the toolstack protects.
            if !["backend", "backend-id", "handle", "mac", "mtu"].contains(&key.as_str()) {
                let _ = stage.guest.store.remove(&format!("{VIF}/{key}"));
            }
        }
        stage.guest.set_state(state::CONNECTED)?;
        stage.count("connections", 1);
    }
    Ok(())
}

/// States in any order, as fast as the store takes them.
pub(crate) fn states_random(stage: &mut Stage) -> Result<()> {
    let states = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "", "-1", "4294967296", "x\n"];
    stage.guest.start_over()?;
    stage.guest.publish(1, 4, &[])?;
    while !stage.is_over() {
        for _ in 0..100 {
            let state = states[stage.random.usize(0..states.len())];
            stage.guest.store.write(&format!("{VIF}/state"), state)?;
        }
        stage.count("writes", 100);
    }
    Ok(())
}

/// Connects and disconnects repeatedly, as fast as the backend follows.
pub(crate) fn reconnect_storm(stage: &mut Stage) -> Result<()> {
    while !stage.is_over() {
        stage.guest.connect(8, 4)?;
        stage.count("connections", 1);
    }
    Ok(())
}

/// Ends at some step of the handshake. The next of these guests ends at the next step.
pub(crate) fn death_in_handshake(stage: &mut Stage) -> Result<()> {
    let step = stage.random.usize(0..7);
    if step == 0 {
        return Ok(());
    }
    stage.guest.start_over()?;
    match step {
        1 => {}
        2 => stage.guest.store.write(&format!("{VIF}/request-rx-copy"), "1")?,
        3 => stage.guest.publish(2, 4, &[])?,
        _ => {
            stage.guest.connect(2, 16)?;
            let queue = stage.queue()?;
            for _ in 0..if step > 4 { 200 } else { 0 } {
                let request = queue.request(0, 0, 60, 0);
                queue.push_tx(request);
            }
            queue.publish_tx();
            if step == 6 {
                stage.guest.set_state(state::CLOSING)?;
            }
        }
    }
    Ok(())
}

//! XenStore: events, transactions, quotas and long paths.

use anyhow::Result;
use ringway_wire::xenstore::Op;

use crate::guest::{VIF, state};
use crate::stage::Stage;

/// Writes below a node that the backend watches; each write is an event for the backend.
pub(crate) fn store_storm(stage: &mut Stage) -> Result<()> {
    let node = stage.guest.vif.frontend_state();
    let mut name = 0_u64;
    let Some(mut pipeline) = stage.guest.store_access.pipeline()? else {
        while !stage.is_over() {
            let path = format!("{node}/x{name}");
            stage.guest.store.write(&path, "")?;
            stage.guest.store.remove(&path)?;
            name += 1;
        }
        stage.count("names", name);
        return Ok(());
    };
    while !stage.is_over() {
        for _ in 0..100 {
            let path = format!("{node}/x{name}\0").into_bytes();
            pipeline.send(Op::Write, &path)?;
            pipeline.send(Op::Rm, &path)?;
            name += 1;
        }
    }
    pipeline.finish()?;
    stage.count("names", name);
    Ok(())
}

/// As many nodes as the quota allows in its own directory, with keys that change all the time:
/// every transaction that reads them meets a conflict.
pub(crate) fn transactions_conflict(stage: &mut Stage) -> Result<()> {
    let mut made = 0;
    for number in 0..900 {
        let path = format!("{VIF}/queue-{}/k{number}", number % 30);
        if stage.guest.store.write(&path, "").is_err() {
            break;
        }
        made += 1;
    }
    stage.count("nodes", made);
    let mut writes = 0;
    while !stage.is_over() {
        for state in [state::INITIALISING, state::CONNECTED] {
            stage.guest.store.write(&format!("{VIF}/state"), state)?;
            for _ in 0..20 {
                stage.guest.store.write(&format!("{VIF}/queue-0/k0"), state)?;
                stage.guest.store.write(&format!("{VIF}/feature-sg"), state)?;
                writes += 2;
            }
        }
    }
    stage.count("writes", writes);
    // Otherwise the quota would leave the next acts no node.
    for queue in 0..30 {
        stage.guest.store.remove(&format!("{VIF}/queue-{queue}"))?;
    }
    Ok(())
}

/// Paths of the maximum depth, in transactions of the maximum size.
pub(crate) fn paths_deep(stage: &mut Stage) -> Result<()> {
    let mut commits = 0;
    let mut refused = 0;
    let home = format!("/local/domain/{}/data/hostile", stage.guest.vif.frontend);
    while !stage.is_over() {
        let depth = [900, 400, 100, 30][stage.random.usize(0..4)];
        let deep = format!("{home}{}", "/d".repeat(depth));
        let written = stage.guest.store.attempt(|tx| {
            (0..1000).try_for_each(|number| tx.write(&format!("{deep}/{}", number % 50), ""))
        });
        match written {
            Ok(()) => commits += 1,
            Err(_) => refused += 1,
        }
        let _ = stage.guest.store.remove(&home);
    }
    stage.count("commits", commits);
    stage.count("refusals", refused);
    Ok(())
}

/// As many watches as the quota allows, on nodes that it changes all the time, without reading the
/// events.
pub(crate) fn events_unread(stage: &mut Stage) -> Result<()> {
    let home = format!("/local/domain/{}/data/hostile", stage.guest.vif.frontend);
    let mut deaf = Vec::new();
    for _ in 0..4 {
        let mut client = stage.guest.store_access.client()?;
        let watches = (0..128).take_while(|n| client.watch(&home, &format!("t{n}")).is_ok());
        let count = u64::try_from(watches.count()).unwrap_or(0);
        stage.count("watches", count);
        deaf.push(client);
    }
    let mut writes = 0;
    while !stage.is_over() {
        for number in 0..50 {
            stage.guest.store.write(&format!("{home}/n{number}"), "x")?;
        }
        writes += 50;
    }
    stage.count("writes", writes);
    drop(deaf);
    Ok(())
}

/// Transactions that never end, over as many connections as allowed.
pub(crate) fn transactions_open(stage: &mut Stage) -> Result<()> {
    let home = format!("/local/domain/{}/data/hostile", stage.guest.vif.frontend);
    for number in 0..900 {
        if stage.guest.store.write(&format!("{home}/n{number}"), [b'x'; 1000]).is_err() {
            break;
        }
    }
    let mut open = Vec::new();
    while !stage.is_over() {
        let Some(mut pipeline) = stage.guest.store_access.pipeline()? else {
            stage.account.skipped = Some("the kernel ends what a program leaves open".to_owned());
            return Ok(());
        };
        for _ in 0..64 {
            if pipeline.send(Op::TransactionStart, b"\0").is_err() {
                break;
            }
            stage.count("transactions", 1);
        }
        open.push(pipeline);
        if open.len() > 32 {
            open.clear();
        }
    }
    Ok(())
}

/// As many connections as it gets; each is used once and kept.
pub(crate) fn store_connections(stage: &mut Stage) -> Result<()> {
    let mut kept = Vec::new();
    while !stage.is_over() {
        match stage.guest.store_access.client() {
            Ok(mut client) => {
                if client.read(&format!("{VIF}/state")).is_ok() && kept.len() < 512 {
                    kept.push(client);
                }
            }
            Err(_) => stage.count("refusals", 1),
        }
        stage.count("connections", 1);
    }
    Ok(())
}

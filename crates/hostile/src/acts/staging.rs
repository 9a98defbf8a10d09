//! Staging grants: lists of pages that the backend maps for good, and the pages themselves.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use ringway_hypervisor::Access;
use ringway_wire::PAGE_SIZE;
use ringway_wire::netif::{
    CTRL_STATUS_SUCCESS, CTRL_TYPE_ADD_GREF_MAPPING as ADD, CTRL_TYPE_DEL_GREF_MAPPING as DEL,
    CTRL_TYPE_GET_GREF_MAPPING_SIZE as GET_SIZE, GREFS_PER_LIST, GrefEntry,
};
use zerocopy::IntoBytes;

use crate::control_ring::ControlRing;
use crate::stage::Stage;

/// Pages of a list here.
const PAGES: usize = 32;

/// Connects with one queue and so many buffers. Returns false, and says so in the account, if the
/// backend maps none of them.
fn connect(stage: &mut Stage, buffers: usize) -> Result<bool> {
    if !stage.connect_with_control(1, buffers)? {
        return Ok(false);
    }
    let (status, _) = ask(stage.control()?, GET_SIZE, [0; 3])?;
    if status != CTRL_STATUS_SUCCESS {
        stage.account.skipped = Some("the backend keeps no pages mapped".to_owned());
    }
    Ok(status == CTRL_STATUS_SUCCESS)
}

/// Sends one message; returns the status and the data of its response.
fn ask(control: &mut ControlRing, kind: u16, data: [u32; 3]) -> Result<(u32, u32)> {
    control.push((kind, data));
    control.publish();
    let responses = control.responses()?;
    let response = responses.last().context("a message without a response")?;
    Ok((response.status, response.data))
}

/// The buffers of the only queue, as a list.
fn entries(stage: &mut Stage, count: usize) -> Result<Vec<GrefEntry>> {
    let queue = stage.queue()?;
    let entry = |buffer| GrefEntry { gref: queue.gref(buffer), flags: 0, status: 0xffff };
    Ok((0..count).map(entry).collect())
}

fn count_of(list: &[GrefEntry]) -> u32 {
    u32::try_from(list.len()).unwrap_or(u32::MAX)
}

/// Writes a list, and sends its message.
fn send(control: &mut ControlRing, kind: u16, list: &[GrefEntry]) -> Result<(u32, u32)> {
    control.page(0).copy_from(0, list.as_bytes());
    let data = [0, control.gref(0), count_of(list)];
    ask(control, kind, data)
}

/// Lists that no backend may map, among good ones: none of their pages may be mapped.
pub(crate) fn lists_odd(stage: &mut Stage) -> Result<()> {
    if !connect(stage, PAGES)? {
        return Ok(());
    }
    let backend = stage.guest.vif.backend;
    let read_only = stage.guest.machine.share(backend, 1, Access::ReadOnly).context("a page")?;
    let read_only = read_only.grefs[0].0;
    let good = entries(stage, PAGES)?;
    let bad = [
        GrefEntry { gref: 4_000_000, ..good[0] },
        GrefEntry { gref: u32::MAX, ..good[0] },
        GrefEntry { gref: read_only, ..good[0] },
        GrefEntry { flags: 2, ..good[0] },
        good[PAGES - 1],
    ];
    let mut lists = 0;
    while !stage.is_over() {
        let place = stage.random.usize(0..PAGES - 1);
        let control = stage.control()?;
        let list = control.gref(0);
        for bad in bad {
            let mut entries = good.clone();
            entries[place] = bad;
            let (status, _) = send(control, ADD, &entries)?;
            ensure!(status != CTRL_STATUS_SUCCESS, "a list with {bad:?} was mapped");
        }
        for data in [
            [0, list, 513],
            [0, list, 1 << 16],
            [0, list, u32::MAX],
            [1 << 8, list, 1],
            [u32::MAX, list, 1],
            [0, 4_000_000, 1],
        ] {
            for kind in [ADD, DEL] {
                let (status, _) = ask(control, kind, data)?;
                ensure!(status != CTRL_STATUS_SUCCESS, "message {kind} with {data:?} was accepted");
            }
        }
        let added = [send(control, ADD, &good)?, send(control, ADD, &good)?];
        ensure!(added[0].0 == CTRL_STATUS_SUCCESS, "a good list: {added:?}");
        ensure!(added[1].0 != CTRL_STATUS_SUCCESS, "the same list again: {added:?}");
        let ended = [send(control, DEL, &good)?, send(control, DEL, &good)?];
        let expected = [count_of(&good), 0].map(|count| (CTRL_STATUS_SUCCESS, count));
        ensure!(ended == expected, "{ended:?}, expected {expected:?}");
        lists += 1;
    }
    stage.count("lists", lists);
    Ok(())
}

/// Lists and frames that change while the backend reads them, in pages that come and go.
pub(crate) fn racing_writes(stage: &mut Stage) -> Result<()> {
    let victim = stage.victim()?;
    if !connect(stage, PAGES)? {
        return Ok(());
    }
    let list = entries(stage, PAGES)?;
    let queue = stage.queue()?;
    (0..PAGES).for_each(|buffer| queue.post(buffer));
    queue.publish_rx();
    while !stage.is_over() {
        let mut random = stage.random.fork();
        let is_over = AtomicBool::new(false);
        let buffers = stage.queue()?.buffers.pages.clone();
        let page = stage.control()?.page(0);
        page.copy_from(0, list.as_bytes());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // Headers of a frame, and an entry of the list.
                    let frame = random.usize(0..PAGES) * PAGE_SIZE;
                    buffers.store(
                        frame + 4 * random.usize(0..16),
                        random.u32(..),
                        Ordering::Relaxed,
                    );
                    let entry = list[random.usize(0..PAGES)].gref;
                    let entry = if random.u8(0..8) == 0 { random.u32(..) } else { entry };
                    page.store(8 * random.usize(0..PAGES), entry, Ordering::Relaxed);
                }
            });
            let exchanged = (0..20).try_for_each(|_| exchange(stage));
            is_over.store(true, Ordering::Relaxed);
            exchanged
        })?;
        stage.count("lists", 40);
        stage.introduce(victim)?;
    }
    Ok(())
}

/// Has pages mapped and unmapped, whatever they are, while frames come and go by them.
fn exchange(stage: &mut Stage) -> Result<()> {
    let data = [0, stage.control()?.gref(0), u32::try_from(PAGES).unwrap_or(0)];
    let control = stage.control()?;
    control.push((ADD, data));
    control.push((DEL, data));
    control.publish();
    let queue = stage.queue()?;
    for buffer in 0..queue.tx_room().min(PAGES) {
        let request = queue.request(buffer, 0, 200, 0);
        queue.push_tx(request);
    }
    queue.publish_tx();
    let received = queue.take_rx().len();
    (0..received).for_each(|buffer| queue.post(buffer));
    queue.publish_rx();
    stage.control()?.responses().map(drop)
}

/// The longest list, mapped and unmapped as fast as it can.
pub(crate) fn flood(stage: &mut Stage) -> Result<()> {
    if !connect(stage, GREFS_PER_LIST)? {
        return Ok(());
    }
    let list = entries(stage, GREFS_PER_LIST)?;
    let mut lists = 0;
    while !stage.is_over() {
        let control = stage.control()?;
        for kind in [ADD, DEL] {
            let (status, _) = send(control, kind, &list)?;
            ensure!(status == CTRL_STATUS_SUCCESS, "message {kind} for a good list: {status}");
        }
        lists += 2;
    }
    stage.count("lists", lists);
    Ok(())
}

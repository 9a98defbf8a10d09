//! Lies over the control ring: responses to messages about the hash, and about pages that the
//! backend maps.

use anyhow::Result;
use ringway_wire::netif::{CTRL_STATUS_SUCCESS, CtrlRequest, CtrlResponse};

use crate::backend::liar::Liar;
use crate::backend::lies::sent::JUMPS;

/// Connects, and responds to a message by these rules, until the frontend asks no more; at most so
/// often. Returns false if the frontend has no control ring.
fn respond(
    liar: &mut Liar<'_>,
    times: u32,
    response: impl Fn(CtrlRequest) -> Vec<CtrlResponse>,
) -> Result<bool> {
    liar.connect(&[])?;
    for nth in 0..times {
        let Some(request) = liar.asked() else {
            // A frontend may ask less than ours.
            liar.account.skipped.take_if(|_| nth > 0);
            return Ok(nth > 0);
        };
        let Some(control) = &mut liar.control else { break };
        response(request).into_iter().for_each(|response| control.push(response));
        control.publish();
        liar.pause();
    }
    Ok(true)
}

/// What our frontend asks with two queues: five messages about the hash, and two about the pages of
/// each queue.
const MESSAGES: u32 = 9;

fn success(CtrlRequest { id, kind, .. }: CtrlRequest) -> CtrlResponse {
    CtrlResponse { id, kind, status: CTRL_STATUS_SUCCESS, data: 0 }
}

pub(crate) fn producer_jump(liar: &mut Liar<'_>) -> Result<()> {
    for jump in [2].into_iter().chain(JUMPS) {
        liar.connect(&[])?;
        if liar.asked().is_none() {
            return Ok(());
        }
        if let Some(control) = &mut liar.control {
            control.produced = jump;
            control.publish();
        }
        liar.expect_to_leave()?;
    }
    Ok(())
}

pub(crate) fn ids_unknown(liar: &mut Liar<'_>) -> Result<()> {
    for (id, kind) in [(1, 0), (u16::MAX, 0), (0, 1), (0, u16::MAX)] {
        let wrong = |request: CtrlRequest| {
            let right = success(request);
            let (id, kind) = (right.id.wrapping_add(id), right.kind.wrapping_add(kind));
            vec![CtrlResponse { id, kind, ..right }]
        };
        if !respond(liar, 1, wrong)? {
            return Ok(());
        }
        liar.expect_to_leave()?;
    }
    Ok(())
}

pub(crate) fn twice(liar: &mut Liar<'_>) -> Result<()> {
    if respond(liar, 1, |request| vec![success(request); 2])? {
        liar.expect_to_leave()?;
    }
    Ok(())
}

pub(crate) fn statuses_odd(liar: &mut Liar<'_>) -> Result<()> {
    for status in [1, 2, 3, 4, 1 << 31, u32::MAX] {
        let refuse = |request| vec![CtrlResponse { status, ..success(request) }];
        if !respond(liar, 1, refuse)? {
            return Ok(());
        }
        liar.settle()?;
    }
    Ok(())
}

pub(crate) fn data_absurd(liar: &mut Liar<'_>) -> Result<()> {
    if respond(liar, MESSAGES, |request| vec![CtrlResponse { data: u32::MAX, ..success(request) }])?
    {
        liar.settle()?;
    }
    Ok(())
}

pub(crate) fn silence(liar: &mut Liar<'_>) -> Result<()> {
    liar.connect(&[])?;
    if liar.asked().is_some() {
        liar.settle()?;
    }
    Ok(())
}

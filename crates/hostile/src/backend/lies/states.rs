//! Lies by states, and by what a backend does not do.

use anyhow::Result;
use ringway_xenbus::XenbusState;

use crate::backend::liar::Liar;

/// States that follow `Connected` in no handshake, and what is no state.
const ODD: [&[u8]; 9] =
    [b"0", b"1", b"3", b"7", b"8", b"9", b"4294967296", b"\xff\xfe", b"Connected"];

pub(crate) fn jump(liar: &mut Liar<'_>) -> Result<()> {
    for state in ODD {
        liar.connect(&[])?;
        liar.set_state(state)?;
        liar.settle()?;
    }
    Ok(())
}

pub(crate) fn closed_in_handshake(liar: &mut Liar<'_>) -> Result<()> {
    for state in [XenbusState::Closing, XenbusState::Closed, XenbusState::Unknown] {
        for pauses in 0..6 {
            liar.offer(&[])?;
            (0..pauses).for_each(|_| liar.pause());
            liar.set_state(state.value())?;
            liar.settle()?;
        }
    }
    Ok(())
}

pub(crate) fn connected_at_once(liar: &mut Liar<'_>) -> Result<()> {
    liar.offer(&[])?;
    liar.set_state(XenbusState::Connected.value())?;
    liar.settle()
}

pub(crate) fn never_connects(liar: &mut Liar<'_>) -> Result<()> {
    liar.offer(&[])?;
    liar.settle()
}

/// It says that it is connected, and has neither mapped a ring nor bound to a port.
pub(crate) fn never_attaches(liar: &mut Liar<'_>) -> Result<()> {
    liar.offer(&[])?;
    liar.wait_for_frontend(&[XenbusState::Initialised, XenbusState::Connected])?;
    liar.set_state(XenbusState::Connected.value())?;
    liar.settle()
}

pub(crate) fn flap(liar: &mut Liar<'_>) -> Result<()> {
    liar.connect(&[])?;
    for _ in 0..400 {
        let state = liar.random.u8(0..10).to_string();
        liar.set_state(state)?;
        if liar.random.bool() {
            liar.pause();
        }
    }
    liar.settle()
}

/// Pages that are mapped cannot be used again: a backend that keeps those of each connection would
/// take all of the frontend's memory.
pub(crate) fn pages_kept(liar: &mut Liar<'_>) -> Result<()> {
    for _ in 0..KEPT {
        liar.offer(&[])?;
        liar.wait_for_frontend(&[XenbusState::Connected, XenbusState::Closing])?;
        if liar.frontend_state()? == XenbusState::Closing {
            liar.expect_to_leave()?;
            break;
        }
        liar.attach()?;
        liar.set_state(XenbusState::Connected.value())?;
        (0..3).for_each(|_| liar.pause());
        liar.keep_pages()?;
    }
    Ok(())
}

/// Connections whose pages it keeps: far more than a frontend can lose by accident.
const KEPT: u32 = 20;

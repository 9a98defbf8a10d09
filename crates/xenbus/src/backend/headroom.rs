//! How a frontend that is served changes its headroom: it goes to `Reconfiguring`, waits until the
//! backend is `Reconfigured`, and goes back to `Connected`, as the backend does then.
//!
//! Linux' frontend writes its key behind that state, and does not wait if the backend is
//! `Reconfigured` already, as Linux' backend stays. It runs its program from when the wait is over
//! until that of another change is, and that program takes every frame to be behind its headroom. A
//! frame with headroom that no program needs says so by its extra, and does no harm. So, while
//! either state says that a change is not over, frames have the most of what they had, of what the
//! key says and of what Linux' frontend is about to write. They get less only when both ends are
//! `Connected` and the key is read after that: whatever the frontend does then, it waits.

use alloc::string::{String, ToString};

use super::{Action, Handshake, Phase};
use crate::keys::{Keys, XDP_HEADROOM};
use crate::state::XenbusState::{Connected, Reconfigured, Reconfiguring};

/// The headroom that Linux' frontend asks for (`XDP_PACKET_HEADROOM`), in bytes.
const LINUX_HEADROOM: u16 = 256;

impl Handshake {
    /// Has the frontend's headroom read.
    pub(super) fn read_headroom(&mut self) {
        self.actions.push(Action::ReadHeadroom);
    }

    /// Handles what was read of it.
    pub(super) fn headroom_read(&mut self, keys: &Keys) {
        let state = keys.state();
        // An event of any other state follows.
        let is_expected = matches!(state, Connected | Reconfiguring);
        let Phase::Serving(config) = &self.phase else { return };
        if !is_expected {
            return;
        }
        let before = config.headroom;
        self.peer = state;
        self.has_reconfigured |= state == Reconfiguring;
        let headroom = self.headroom_of(keys, before);
        self.report_bad_headroom();
        self.set_headroom(headroom);
        match (state, self.own) {
            (Reconfiguring, Reconfigured) => {}
            //= netif.h:xdp-headroom
            (Reconfiguring, _) => self.set_state(Reconfigured),
            (_, own) => {
                self.connect();
                if own == Reconfigured && self.own == Connected {
                    self.read_headroom();
                }
            }
        }
    }

    /// The bytes to leave free for a frontend with these keys, which had as many `before`.
    pub(super) fn headroom_of(&mut self, keys: &Keys, before: u16) -> u16 {
        if !self.xdp_headroom {
            // The key was meant for a backend that has offered it.
            return 0;
        }
        let wanted = keys.headroom();
        self.bad_headroom.found = wanted.as_ref().err().map(ToString::to_string);
        let wanted = wanted.unwrap_or(0);
        if keys.state() != Reconfiguring && self.own != Reconfigured {
            return wanted;
        }
        let coming = if keys.has(XDP_HEADROOM) { LINUX_HEADROOM } else { 0 };
        wanted.max(before).max(coming)
    }

    fn set_headroom(&mut self, headroom: u16) {
        let Phase::Serving(config) = &mut self.phase else { return };
        if config.headroom != headroom {
            config.headroom = headroom;
            self.actions.push(Action::SetHeadroom(headroom));
        }
    }

    /// Reports once why a frontend that is served does not get the headroom that it asks for.
    pub(super) fn report_bad_headroom(&mut self) {
        let BadHeadroom { found, reported } = &mut self.bad_headroom;
        if found == reported {
            return;
        }
        reported.clone_from(found);
        self.actions.push(match found {
            Some(reason) => Action::ReportError(reason.clone()),
            None => Action::ClearError,
        });
    }
}

/// What is wrong with the headroom that a frontend asks for, if something is.
#[derive(Debug, Clone, Default)]
pub(super) struct BadHeadroom {
    /// According to the keys that were read last.
    found: Option<String>,
    /// As it was reported.
    reported: Option<String>,
}

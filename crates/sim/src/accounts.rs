//! Balances the frames that were sent against those that arrived or were dropped.

use crate::flaw::{Checked, Rule, ensure};
use crate::guest::Guest;
use crate::plane::DataPlane;
use crate::traffic::{Flow, Lost};
use crate::workers::Workers;

/// The balance at the last rest.
///
/// It proves that no frame is lost unless its drop is counted, and that no drop is counted twice if
/// no frame was flooded. Frames of a guest whose connection has ended since then may be lost
/// uncounted: of their flows, only order and content are checked.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// Every guest was connected and known to the switch.
    was_calm: bool,
    /// The frames that had announced guests.
    announced: u64,
}

impl Accounts {
    /// The losses, and the drops meanwhile.
    fn compare(plane: &DataPlane) -> (Lost, u64) {
        let flows = plane.flows.iter().filter(|flow| plane.is_steady(flow));
        let lost = flows.map(Flow::lost).fold(Lost::default(), Lost::and);
        let dropped = plane.workers.as_ref().map_or(0, Workers::dropped);
        (lost, dropped.saturating_sub(plane.dropped_before))
    }

    /// Compares losses with drops.
    pub(crate) fn check(&self, plane: &DataPlane, rule: Rule) -> Checked {
        let (lost, dropped) = Accounts::compare(plane);
        ensure(lost.least <= dropped, rule, || {
            let flows = plane.flows.iter().map(|flow| (flow.number, flow.lost().least));
            let flows: Vec<(u16, u64)> = flows.filter(|(_, lost)| *lost > 0).collect();
            let lost = lost.least;
            format!(
                "{lost} frames have not arrived, by flow {flows:?}; {dropped} drops are counted"
            )
        })?;
        let is_calm = self.was_calm
            && plane.guests.iter().all(|guest| !guest.is_disturbed)
            && plane.devices.iter().all(|device| !device.is_disturbed());
        // The frames that announce guests belong to no flow, and each port may drop them.
        let ports = u64::try_from(plane.guests.len() + plane.devices.len()).unwrap_or(u64::MAX);
        let announced = announced(plane).saturating_sub(self.announced) * ports;
        ensure(!is_calm || dropped <= lost.most + announced, rule, || {
            let most = lost.most;
            format!("{dropped} drops are counted for at most {most} lost pieces and {announced}")
        })
    }

    /// The balance begins again.
    pub(crate) fn close(&mut self, plane: &DataPlane, is_calm: bool) {
        (self.was_calm, self.announced) = (is_calm, announced(plane));
    }
}

fn announced(plane: &DataPlane) -> u64 {
    plane.guests.iter().map(Guest::announcing_frames).sum()
}

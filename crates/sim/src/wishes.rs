//! What guests set over their control rings.

use ringway_netfront::{HashWish, Progress};

use crate::flaw::{Checked, Rule, ensure};
use crate::marks::Mark;
use crate::plane::DataPlane;
use crate::scenario::choose_wish;
use crate::toolstack::vif_of;
use crate::world::World;

impl World {
    /// At rest, each guest with a control ring has its wish, whichever process has carried it out.
    pub(crate) fn check_wishes(&mut self) -> Checked {
        for guest in 0..self.drivers.len() {
            while self.repeat_wish(guest)? {
                // The message may meet a planned fault.
                self.reconnect_closed()?;
            }
            let it = &self.plane.guests[guest];
            let (Some(wish), Some(nic)) = (&it.wish, it.nics.first()) else { continue };
            let vif = vif_of(it.domid);
            let served = self.backend.as_ref().and_then(|backend| backend.host.vif(vif));
            let Some(served) = served.filter(|_| it.is_wish_known && it.is_up) else { continue };
            let progress = nic.progress();
            ensure(progress == Some(Progress::Done), Rule::WakeUps, || {
                format!("guest {guest} waits for responses to its messages: {progress:?}")
            })?;
            let (set, expected) = (served.state.hashing().to_string(), text(wish));
            ensure(set == expected, Rule::Settings, || {
                format!("guest {guest} has set {expected:?}, and the backend has {set:?}")
            })?;
            self.plane.marks.hit(Mark::Hashed);
            if served.state.staged_pages() > 0 {
                self.plane.marks.hit(Mark::Staged);
            }
        }
        Ok(())
    }

    /// A message that a killed backend has not responded to is refused by the next one, as is one
    /// whose page the machine does not copy: the guest sends all again. Returns whether it does.
    fn repeat_wish(&mut self, guest: usize) -> Checked<bool> {
        let nic = self.plane.guests[guest].nics.first();
        if !nic.is_some_and(|nic| matches!(nic.progress(), Some(Progress::Refused(_)))) {
            return Ok(false);
        }
        self.plane.marks.hit(Mark::WishRepeated);
        self.plane.wish(guest).map(|()| true)
    }

    /// A guest wishes to receive in another way.
    pub(crate) fn change_wish(&mut self, guest: usize) -> Checked {
        let wish = choose_wish(&mut self.plane.choices);
        self.plane.journal.note(|| format!("guest {guest} wishes {}", text(&wish)));
        let it = &mut self.plane.guests[guest];
        it.wish = Some(wish);
        if it.is_up { self.plane.wish(guest) } else { Ok(()) }
    }
}

impl DataPlane {
    /// Lets a guest send its wish.
    fn wish(&mut self, guest: usize) -> Checked {
        let it = &mut self.guests[guest];
        let (Some(wish), Some(nic)) = (&it.wish, it.nics.first_mut()) else { return Ok(()) };
        nic.is_awake = true;
        let wished = nic.xen().map_or(Ok(()), |queue| queue.wish(wish.clone()));
        self.unless_down(guest, wished)
    }
}

/// A wish, as the text of what the backend has to know.
fn text(wish: &HashWish) -> String {
    let key: String = wish.key.iter().map(|octet| format!("{octet:02x}")).collect();
    let mapping: Vec<String> = wish.mapping.iter().map(ToString::to_string).collect();
    format!("1 {} key={key} mapping={}", wish.types, mapping.join(","))
}

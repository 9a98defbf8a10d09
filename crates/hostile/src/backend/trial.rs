//! Tells ringway's own frontend a lie, in a machine within this process, and judges what it has
//! cost: whether the frontend lost its other vif, memory, or its mind.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Context, Result};
use ringway_datapath::MacAddr;
use ringway_loopback::{Holdings, Limits, Loopback, LoopbackDomain};
use ringway_vif_shell::device;
use ringway_wire::DomId;
use ringway_xenbus::{Device, Vif};
use ringway_xenstore::{LocalStore, Lost, Quota};
use serde::Serialize;

use crate::backend::Liar;
use crate::backend::catalogue::Lie;
use crate::backend::place::{Ground, Meanwhile};
use crate::backend::subject::Subject;
use crate::scenario::Own;
use crate::stage::Account;

const GUEST: DomId = DomId(7);
const HONEST: DomId = DomId(0);
const HOSTILE: DomId = DomId(5);
/// The honest backend's vif.
const OTHER: usize = 1;
/// Turns of the frontend for a step of the handshake.
const TURNS_MAX: u32 = 1000; // not a limit: it needs a few
/// Pages of a frontend of two queues and a control ring, for as many connections as a backend may
/// spoil by keeping their pages mapped.
const PAGES_KEPT_MAX: usize = 4 * (2 * 514 + 2); // not a limit: what a verdict allows

/// What a lie has cost.
#[derive(Debug, Clone, Serialize)]
pub struct Verdict {
    /// Its name.
    pub lie: &'static str,
    /// What the backend has seen of the frontend.
    pub account: Account,
    /// What the frontend gave as its reasons to leave.
    pub reasons: Vec<String>,
    /// What should not have happened.
    pub broken: Vec<String>,
}

/// Tells a lie.
pub fn tell(lie: &Lie) -> Verdict {
    let verdict = catch_unwind(AssertUnwindSafe(|| Trial::new()?.judge(lie)));
    let failed = |why: String| Verdict {
        lie: lie.name,
        account: Account::default(),
        reasons: Vec::new(),
        broken: vec![why],
    };
    match verdict {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(error)) => failed(format!("{error:#}")),
        Err(_) => failed("the frontend has panicked".to_owned()),
    }
}

/// A machine, and a frontend in it that has two vifs.
struct Trial {
    machine: Loopback,
    backends: [LoopbackDomain; 2],
    store: LocalStore,
    vifs: [Vif; 2],
    subject: RefCell<Subject>,
    /// XenStore has failed the frontend, which ends its process.
    lost: RefCell<Option<Lost>>,
}

impl Trial {
    fn new() -> Result<Trial> {
        let machine = Loopback::new();
        let create = |domid| machine.create_domain(domid, Limits::default());
        let (guest, backends) = (create(GUEST)?, [create(HOSTILE)?, create(HONEST)?]);
        let store = LocalStore::new(Quota::PRIVILEGED);
        store.introduce(GUEST);
        store.introduce(HOSTILE);
        let vifs = [(HOSTILE, 0), (HONEST, 1)].map(|(backend, handle)| Vif {
            backend,
            frontend: GUEST,
            handle,
        });
        let mut toolstack = store.connect(HONEST).context("a session")?;
        for vif in vifs {
            let made = Device::new(vif, MacAddr([0, 0x16, 0x3e, 0, 0, 7]));
            toolstack.transaction(|tx| device::make(tx, &made))?;
        }
        let subject = RefCell::new(Subject::new(&guest, &store, &vifs)?);
        Ok(Trial { machine, backends, store, vifs, subject, lost: RefCell::new(None) })
    }

    /// A backend of this vif.
    fn backend(&self, handle: usize) -> Result<Liar<'_>> {
        let (hypervisor, vif) = (self.backends[handle].clone(), self.vifs[handle]);
        let store = self.store.connect(vif.backend).context("a session")?;
        let meanwhile = Box::new(|how| self.let_work(how));
        let ground = Ground { hypervisor, store, meanwhile, patience: TURNS_MAX };
        Ok(Liar::new(Box::new(ground), vif, 1))
    }

    fn let_work(&self, how: Meanwhile) {
        if let Err(lost) = self.subject.borrow_mut().work(how) {
            *self.lost.borrow_mut() = Some(lost);
        }
    }

    fn judge(&self, lie: &Lie) -> Result<Verdict> {
        let mut honest = self.backend(OTHER)?;
        honest.connect(&[]).context("an honest backend")?;
        let mut liar = self.backend(0)?;
        let mut broken = Vec::new();
        if let Err(error) = (lie.act)(&mut liar) {
            broken.push(format!("{error:#}"));
        }
        broken.extend(of_own(lie, &liar.account));
        let received = self.subject.borrow().card(OTHER).received;
        for _ in 0..5 {
            honest.serve().context("the other vif")?;
            honest.pause();
        }
        broken.extend(self.of_other(received));
        let account = std::mem::take(&mut liar.account);
        drop((liar, honest));
        let mut subject = self.subject.borrow_mut();
        subject.leave()?;
        broken.extend(self.of_memory(&subject));
        let reasons = subject.card(0).reasons.clone();
        if lie.own == Own::Closed && account.skipped.is_none() && reasons.is_empty() {
            broken.push("the frontend does not say why it left".to_owned());
        }
        broken.extend(self.lost.borrow().as_ref().map(ToString::to_string));
        Ok(Verdict { lie: lie.name, account, reasons, broken })
    }

    /// What the lie has cost the other vif, which had received so many frames.
    fn of_other(&self, received: usize) -> Option<String> {
        let subject = self.subject.borrow();
        let other = subject.card(OTHER);
        let is_served = other.connections == 1 && other.reasons.is_empty();
        if !is_served {
            return Some(format!("the other vif was disconnected: {:?}", other.reasons));
        }
        (other.received == received).then(|| "the other vif receives no frames".to_owned())
    }

    /// What the frontend has of others' memory, and lacks of its own, when all is over.
    fn of_memory(&self, subject: &Subject) -> Vec<String> {
        let mut broken = Vec::new();
        let strange = subject.card(0).strange + subject.card(OTHER).strange;
        if strange > 0 {
            broken.push(format!("{strange} frames have bytes that their backend has not sent"));
        }
        let held = self.machine.holdings_of(GUEST);
        let kept = held.pages_kept;
        // A run is kept whole for each of its pages that is in use.
        let rest = Holdings { pages: held.pages - kept, pages_kept: 0, grants: 0, ..held };
        if kept > PAGES_KEPT_MAX || rest != Holdings::default() {
            broken.push(format!("the frontend still holds {held:?}"));
        }
        broken
    }
}

/// What is wrong with what became of the lie's own vif.
pub(crate) fn of_own(lie: &Lie, account: &Account) -> Option<String> {
    let is_good = match lie.own {
        Own::Any => true,
        Own::Closed => !account.closed.is_empty() && !account.is_served,
        Own::Served => account.closed.is_empty() && account.is_served,
    };
    (!is_good && account.skipped.is_none())
        .then(|| format!("its vif is to be {:?}, and is: {account:?}", lie.own))
}

#[cfg(test)]
mod tests {
    use anyhow::Result;

    use super::*;
    use crate::backend::catalogue::ALL;

    #[test]
    fn our_frontend_loses_at_most_the_vif_of_a_backend_that_lies() {
        let mut broken = Vec::new();
        for lie in ALL {
            println!("{}", lie.name);
            let verdict = tell(lie);
            assert!(verdict.account.skipped.is_none(), "{verdict:?}");
            broken.extend(verdict.broken.iter().map(|why| format!("{}: {why}", lie.name)));
        }
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }

    /// The verdict on something that a backend does, if the frontend had to leave.
    fn broken_by(act: fn(&mut Liar<'_>) -> Result<()>, own: Own) -> String {
        tell(&Lie { name: "canary", what: "", source: "", act, own }).broken.join("; ")
    }

    #[test]
    fn the_verdict_can_fail() {
        let honest = |liar: &mut Liar<'_>| {
            liar.connect(&[])?;
            liar.settle()
        };
        assert_eq!(broken_by(honest, Own::Served), "");
        let stays = broken_by(honest, Own::Closed);
        assert!(stays.contains("to be Closed") && stays.contains("does not say why"), "{stays}");
        let leaves =
            broken_by(|liar| liar.connect(&[]).and_then(|()| liar.set_state("6")), Own::Served);
        assert!(leaves.contains("to be Served"), "{leaves}");
        assert_eq!(
            broken_by(|_| panic!("as a frontend might"), Own::Any),
            "the frontend has panicked"
        );
        // What the toolstack's rights would allow to the backend of another vif.
        let others = broken_by(
            |liar| {
                liar.vif = Vif { backend: HONEST, handle: 1, ..liar.vif };
                liar.connect(&[])
            },
            Own::Any,
        );
        assert!(!others.is_empty(), "{others}");
    }
}

//! The messages by which a guest has pages mapped for good, and unmapped again.
//!
//! A list of pages is read once, by value, and judged before anything is mapped. Each call maps or
//! unmaps a few pages only, because each may be a system call, in place of frames of the guest: so
//! these messages cost other guests no more than frames do.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;

use ringway_datapath::QueueDown;
use ringway_hypervisor::{Access, ForeignMemory, GrantStatus};
use ringway_wire::netif::{
    CTRL_STATUS_INVALID_PARAMETER, CTRL_STATUS_SUCCESS, CTRL_TYPE_ADD_GREF_MAPPING,
    CTRL_TYPE_GET_GREF_MAPPING_SIZE, CtrlRequest, CtrlResponse, GREF_READONLY, GREFS_PER_LIST,
    GrefEntry,
};
use ringway_wire::{DomId, GrantRef};
use zerocopy::IntoBytes;

use crate::message_page;
use crate::staging::{Registry, STAGED_PAGES_MAX, StagedPage, StagedPages, Staging};

/// Pages that are mapped or unmapped in one call.
const PAGES_PER_CALL: usize = 8;

/// What of a message was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// All, and this is its response.
    Done(CtrlResponse),
    /// Another call goes on.
    GoesOn,
}

/// Carries these messages out, one at a time.
pub(crate) struct Mapper {
    staging: Staging,
    job: Job,
}

/// What a message still has to do.
enum Job {
    Nothing,
    /// To map what is wanted, beside what is mapped already, and to add all of it to these pages.
    Map {
        wanted: Vec<Wanted>,
        mapped: Vec<Mapped>,
        to: Arc<StagedPages>,
        request: CtrlRequest,
    },
    /// To unmap pages that no queue uses any more.
    Unmap {
        pages: Vec<StagedPage>,
        response: CtrlResponse,
    },
}

type Wanted = (GrantRef, Access);
type Mapped = (GrantRef, Access, StagedPage);

impl Mapper {
    pub(crate) fn new(staging: Staging) -> Mapper {
        Mapper { staging, job: Job::Nothing }
    }

    /// Whether a message is not carried out in full yet.
    pub(crate) fn is_busy(&self) -> bool {
        !matches!(self.job, Job::Nothing)
    }

    /// Begins to carry out a message of one of the three types; there is no other that goes on.
    pub(crate) fn begin<M: ForeignMemory>(
        &mut self,
        request: CtrlRequest,
        peer: DomId,
        memory: &mut M,
    ) -> Result<Step, QueueDown> {
        let [queue, list, count] = request.data;
        let index = usize::try_from(queue).unwrap_or(usize::MAX);
        let refused = Ok(Step::Done(refusal(request)));
        //= netif.h:gref-mapping-size
        let Some(pages) = self.staging.queues.get(index).map(Arc::clone) else { return refused };
        if request.kind == CTRL_TYPE_GET_GREF_MAPPING_SIZE {
            return Ok(Step::Done(success(request, STAGED_PAGES_MAX)));
        }
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > GREFS_PER_LIST {
            return refused;
        }
        let mut entries = vec![GrefEntry::default(); count];
        let list = (peer, GrantRef(list));
        if message_page::read(memory, list, entries.as_mut_bytes())? != GrantStatus::Okay {
            return refused;
        }
        if request.kind == CTRL_TYPE_ADD_GREF_MAPPING {
            let Some(wanted) = wanted(&entries, &pages.registry()) else { return refused };
            self.job = Job::Map { wanted, mapped: Vec::new(), to: pages, request };
            return Ok(self.go_on(peer, memory));
        }
        let leaving = judge_leaving(&mut entries, &pages.registry());
        // Before anything is unmapped: a guest that has not permitted this loses nothing.
        if message_page::write(memory, list, entries.as_bytes())? != GrantStatus::Okay {
            return refused;
        }
        let response = success(request, leaving.len());
        let pages = pages.registry().take_out(|gref| leaving.contains(&gref));
        self.job = Job::Unmap { pages, response };
        Ok(self.go_on(peer, memory))
    }

    /// Goes on with a message.
    pub(crate) fn go_on<M: ForeignMemory>(&mut self, peer: DomId, memory: &mut M) -> Step {
        let (job, step) = match mem::replace(&mut self.job, Job::Nothing) {
            Job::Map { wanted, mapped, to, request } => {
                self.map((wanted, mapped), to, request, (peer, memory))
            }
            Job::Unmap { pages, response } => unmap(pages, response),
            Job::Nothing => (Job::Nothing, Step::GoesOn),
        };
        self.job = job;
        step
    }

    //= netif.h:gref-add
    fn map<M: ForeignMemory>(
        &self,
        (mut wanted, mut mapped): (Vec<Wanted>, Vec<Mapped>),
        to: Arc<StagedPages>,
        request: CtrlRequest,
        (peer, memory): (DomId, &mut M),
    ) -> (Job, Step) {
        for _ in 0..PAGES_PER_CALL {
            let Some((gref, access)) = wanted.pop() else { break };
            let page = StagedPage::map(memory, (peer, gref, access), &self.staging.budget);
            let Some(page) = page else {
                let pages = mapped.into_iter().map(|(_, _, page)| page).collect();
                return unmap(pages, refusal(request));
            };
            mapped.push((gref, access, page));
        }
        if !wanted.is_empty() {
            return (Job::Map { wanted, mapped, to, request }, Step::GoesOn);
        }
        to.registry().add(mapped);
        (Job::Nothing, Step::Done(success(request, 0)))
    }
}

fn unmap(mut pages: Vec<StagedPage>, response: CtrlResponse) -> (Job, Step) {
    pages.truncate(pages.len().saturating_sub(PAGES_PER_CALL));
    match pages.is_empty() {
        true => (Job::Nothing, Step::Done(response)),
        false => (Job::Unmap { pages, response }, Step::GoesOn),
    }
}

/// The pages of a list to map; `None` if it cannot be carried out in full.
fn wanted<P>(entries: &[GrefEntry], registry: &Registry<P>) -> Option<Vec<Wanted>> {
    let mut seen = BTreeSet::new();
    let room = STAGED_PAGES_MAX.saturating_sub(registry.len());
    let access_of = |entry: &GrefEntry| match entry.flags {
        0 => Some(Access::ReadWrite),
        GREF_READONLY => Some(Access::ReadOnly),
        _ => None,
    };
    let wanted = entries.iter().map(|entry| {
        let gref = GrantRef(entry.gref);
        let is_new = !registry.has(gref) && seen.insert(gref);
        access_of(entry).filter(|_| is_new).map(|access| (gref, access))
    });
    wanted.collect::<Option<Vec<_>>>().filter(|wanted| wanted.len() <= room)
}

/// The pages of a list that are mapped. Gives each entry its status.
//= netif.h:gref-del
fn judge_leaving<P>(entries: &mut [GrefEntry], registry: &Registry<P>) -> BTreeSet<GrantRef> {
    let mut leaving = BTreeSet::new();
    for entry in entries {
        let gref = GrantRef(entry.gref);
        let is_leaving = registry.has(gref) && leaving.insert(gref);
        let status = if is_leaving { CTRL_STATUS_SUCCESS } else { CTRL_STATUS_INVALID_PARAMETER };
        entry.status = u16::try_from(status).expect("statuses are small");
    }
    leaving
}

fn success(request: CtrlRequest, data: usize) -> CtrlResponse {
    let CtrlRequest { id, kind, .. } = request;
    let data = u32::try_from(data).expect("a queue has few pages");
    CtrlResponse { id, kind, status: CTRL_STATUS_SUCCESS, data }
}

fn refusal(request: CtrlRequest) -> CtrlResponse {
    let CtrlRequest { id, kind, .. } = request;
    CtrlResponse { id, kind, status: CTRL_STATUS_INVALID_PARAMETER, data: 0 }
}

#[cfg(test)]
mod tests;

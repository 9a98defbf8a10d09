//! A domain's own memory and grants.

use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringway_hypervisor::{Access, GrantTable, GrantedPages, StillInUse};
use ringway_sys::SharedPages;
use ringway_wire::grant::RESERVED_ENTRIES;
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

use crate::connection::Connection;
use crate::table::{ENTRIES, Table};

/// A handle to the domain's memory and grant table, which all handles share. It is for connecting
/// and disconnecting: the data path uses pages that were granted before.
#[derive(Debug, Clone)]
pub struct EmuGrants {
    own: Arc<Mutex<OwnMemory>>,
    /// Keeps the domain alive.
    _domain: Arc<Connection>,
}

/// A run of pages of our own that can be granted.
#[derive(Debug, Clone)]
pub struct OwnPages {
    /// The memory.
    pub pages: SharedPages,
    /// The frame number of the first page; the others follow it.
    pub first_frame: u32,
}

#[derive(Debug)]
pub(crate) struct OwnMemory {
    frames: Frames,
    table: Table,
    references: References,
}

impl EmuGrants {
    pub(crate) fn new(own: Arc<Mutex<OwnMemory>>, domain: Arc<Connection>) -> EmuGrants {
        EmuGrants { own, _domain: domain }
    }

    fn own(&self) -> MutexGuard<'_, OwnMemory> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Access to the table beyond what the port needs, as a hostile guest uses it.
impl EmuGrants {
    /// Takes `count` consecutive zeroed pages.
    ///
    /// # Errors
    /// Of kind `OutOfMemory` when the domain has no more.
    pub fn alloc_pages(&mut self, count: usize) -> io::Result<OwnPages> {
        self.own().frames.alloc(count)
    }

    /// Frees pages. None of them may still be granted.
    pub fn free_pages(&mut self, pages: &OwnPages) {
        self.own().frames.free(pages);
    }

    /// Lets `peer` use one frame.
    ///
    /// # Errors
    /// Of kind `OutOfMemory` when the table is full.
    pub fn grant(&mut self, peer: DomId, frame: u32, access: Access) -> io::Result<GrantRef> {
        let mut own = self.own();
        if !own.frames.has(frame) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let gref = own.references.take().ok_or(ErrorKind::OutOfMemory)?;
        own.table.permit(gref, peer, frame, access);
        Ok(gref)
    }

    /// Ends a grant, atomically with the check that no peer uses it. Does nothing if there is no
    /// such grant.
    ///
    /// # Errors
    /// [`StillInUse`] if the peer has it mapped or is copying: the page must not be used again.
    pub fn end_access(&mut self, gref: GrantRef) -> Result<(), StillInUse> {
        let mut own = self.own();
        if own.references.is_taken(gref) {
            own.table.revoke(gref)?;
            own.references.put_back(gref);
        }
        Ok(())
    }
}

impl GrantTable for EmuGrants {
    fn share(&mut self, peer: DomId, count: usize, access: Access) -> io::Result<GrantedPages> {
        let OwnPages { pages, first_frame } = self.alloc_pages(count)?;
        let mut granted = GrantedPages { pages, grefs: Vec::new(), id: first_frame.into() };
        for frame in (first_frame..).take(count) {
            match self.grant(peer, frame, access) {
                Ok(gref) => granted.grefs.push(gref),
                Err(error) => {
                    // These grants were never published, so no peer can be using them.
                    let _ = self.end(granted);
                    return Err(error);
                }
            }
        }
        Ok(granted)
    }

    /// A run with a page in use is never reused.
    fn end(&mut self, granted: GrantedPages) -> Result<(), StillInUse> {
        let mut ended = Ok(());
        for &gref in &granted.grefs {
            ended = ended.and(self.end_access(gref));
        }
        if ended.is_ok() {
            let first_frame = u32::try_from(granted.id).expect("it was a frame's number");
            self.free_pages(&OwnPages { pages: granted.pages, first_frame });
        }
        ended
    }
}

impl OwnMemory {
    pub(crate) fn new(memory: SharedPages, table: Table) -> OwnMemory {
        let frames = Frames { is_taken: vec![false; memory.len() / PAGE_SIZE], memory, search: 0 };
        OwnMemory { frames, table, references: References::new() }
    }
}

/// First-fit allocation of runs of frames.
#[derive(Debug)]
struct Frames {
    memory: SharedPages,
    is_taken: Vec<bool>,
    /// No frame below this one is free.
    search: usize,
}

impl Frames {
    fn alloc(&mut self, count: usize) -> io::Result<OwnPages> {
        let count = Some(count).filter(|count| *count > 0).ok_or(ErrorKind::InvalidInput)?;
        let first = self.find(count).ok_or_else(|| self.out_of_memory(count))?;
        let first_frame = u32::try_from(first).map_err(|_| ErrorKind::OutOfMemory)?;
        self.is_taken[first..first + count].fill(true);
        if first == self.search {
            self.search = first + count;
        }
        let pages = self.memory.slice(first * PAGE_SIZE..(first + count) * PAGE_SIZE);
        for page in 0..count {
            pages.copy_from(page * PAGE_SIZE, &[0; PAGE_SIZE]);
        }
        Ok(OwnPages { pages, first_frame })
    }

    fn out_of_memory(&self, count: usize) -> io::Error {
        let all = self.is_taken.len();
        let free = self.is_taken.iter().filter(|is_taken| !**is_taken).count();
        let what = format!(
            "no {count} free pages in a row; {free} of the domain's {all} are free: \
             give it more memory"
        );
        io::Error::new(ErrorKind::OutOfMemory, what)
    }

    fn find(&self, count: usize) -> Option<usize> {
        let mut first = self.search;
        for (frame, is_taken) in self.is_taken.iter().enumerate().skip(self.search) {
            if *is_taken {
                first = frame + 1;
            } else if frame + 1 - first == count {
                return Some(first);
            }
        }
        None
    }

    fn free(&mut self, pages: &OwnPages) {
        let first = usize::try_from(pages.first_frame).expect("a frame number fits a usize");
        let run = &mut self.is_taken[first..first + pages.pages.len() / PAGE_SIZE];
        debug_assert!(run.iter().all(|is_taken| *is_taken), "pages are freed once");
        run.fill(false);
        self.search = self.search.min(first);
    }

    fn has(&self, frame: u32) -> bool {
        usize::try_from(frame).is_ok_and(|frame| frame < self.is_taken.len())
    }
}

/// The free entries of the grant table.
#[derive(Debug)]
struct References {
    is_taken: Vec<bool>,
    free: Vec<u32>,
}

impl References {
    fn new() -> References {
        let free = (RESERVED_ENTRIES..ENTRIES).rev().collect();
        References { is_taken: (0..ENTRIES).map(|_| false).collect(), free }
    }

    fn take(&mut self) -> Option<GrantRef> {
        let gref = GrantRef(self.free.pop()?);
        self.mark(gref, true);
        Some(gref)
    }

    fn is_taken(&self, gref: GrantRef) -> bool {
        let index = usize::try_from(gref.0).ok();
        index.and_then(|index| self.is_taken.get(index)).is_some_and(|is_taken| *is_taken)
    }

    fn put_back(&mut self, gref: GrantRef) {
        self.mark(gref, false);
        self.free.push(gref.0);
    }

    fn mark(&mut self, gref: GrantRef, is_taken: bool) {
        let index = usize::try_from(gref.0).ok();
        if let Some(entry) = index.and_then(|index| self.is_taken.get_mut(index)) {
            *entry = is_taken;
        }
    }
}

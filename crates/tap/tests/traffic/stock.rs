//! Pages of this process, in the place of pages that a peer may read.

use std::any::Any;
use std::sync::Arc;
use std::task::Waker;

use ringway_datapath::{Body, Pages, Receipts, STOCK_LEN, Stock};
use ringway_sys::SharedPages;

const COUNT: usize = 4;

#[derive(Debug)]
struct TestPages(SharedPages);

impl Pages for TestPages {
    fn copy_to(&self, at: usize, into: &mut [u8]) {
        self.0.copy_to(at, into);
    }

    fn memory(&self) -> &dyn Any {
        &self.0
    }
}

#[derive(Debug)]
pub(crate) struct TestStock {
    pages: Arc<dyn Pages>,
    receipts: Receipts,
}

impl TestStock {
    pub(crate) fn new() -> TestStock {
        let pages = SharedPages::zeroed(COUNT * STOCK_LEN).expect("there is memory");
        let receipts = Receipts::new(COUNT, Waker::noop());
        TestStock { pages: Arc::new(TestPages(pages)), receipts }
    }
}

impl Stock for TestStock {
    fn take(&mut self) -> Option<Body> {
        let number = (0..COUNT).find(|number| !self.receipts.is_held(*number))?;
        let mut body = Body::new(Arc::clone(&self.pages), self.receipts.issue(number));
        body.push(number * STOCK_LEN, STOCK_LEN).then_some(body)
    }
}

//! A ring page as two domains see it: one memory, several handles.

use std::sync::atomic::Ordering;

use ringway_ring::{Control, Layout, Rx, Tx};
use ringway_sys::SharedPages;
use ringway_wire::PAGE_SIZE;
use ringway_wire::netif::{
    CtrlRequest, CtrlResponse, RxRequest, RxResponse, TxRequest, TxResponse,
};

/// `N` handles of one page.
pub(crate) fn handles<const N: usize>() -> [SharedPages; N] {
    let page = SharedPages::zeroed(PAGE_SIZE).expect("there is memory");
    [(); N].map(|()| page.clone())
}

/// Sets one of the four indices, as a hostile peer may.
pub(crate) fn set(page: &SharedPages, index: usize, value: u32) {
    page.store(index, value, Ordering::SeqCst);
}

/// Entries that differ by the index they were made for.
pub(crate) trait Numbered:
    Layout<Request: PartialEq + std::fmt::Debug, Response: PartialEq>
{
    fn request(number: u32) -> Self::Request;
    fn response(number: u32) -> Self::Response;
}

fn low(number: u32) -> u16 {
    u16::try_from(number & 0xffff).expect("16 bits are left")
}

impl Numbered for Tx {
    fn request(number: u32) -> TxRequest {
        let (id, size) = (low(number), low(number >> 7));
        TxRequest { gref: !number, offset: low(number >> 3), flags: low(number >> 5), id, size }
    }

    fn response(number: u32) -> TxResponse {
        TxResponse { id: low(!number), status: -1 }
    }
}

impl Numbered for Rx {
    fn request(number: u32) -> RxRequest {
        RxRequest { id: low(number), pad: 0, gref: !number }
    }

    fn response(number: u32) -> RxResponse {
        RxResponse { id: low(!number), offset: low(number >> 3), flags: 7, status: -2 }
    }
}

impl Numbered for Control {
    fn request(number: u32) -> CtrlRequest {
        CtrlRequest { id: low(number), kind: low(number >> 3), data: [!number, number, 7] }
    }

    fn response(number: u32) -> CtrlResponse {
        CtrlResponse { id: low(!number), kind: low(number >> 3), status: 3, data: number }
    }
}

//! Every sequence of up to three frames into every small number of posted pages, one of which may
//! be read-only, for a guest with each set of features, against a model.

use ringway_datapath::{
    Checksum, DropReason, Frame, Gso, GsoKind, Offload, OffloadCaps, Pending, PortQueue,
};
use ringway_hypervisor::Access;
use ringway_netback::FrontendFeatures;
use ringway_wire::netif::{
    NETIF_RSP_ERROR, NETRXF_CSUM_BLANK, NETRXF_DATA_VALIDATED, NETRXF_EXTRA_INFO, NETRXF_MORE_DATA,
};

use crate::frames::pattern;
use crate::guest::Bench;

const PAGE_SIZE: usize = 4096;
/// The last places of the ring, and the first.
const START: u32 = u32::MAX - 2;
/// Enough pages for the rest of any sequence to leave.
const PAGES_ENOUGH: u16 = 16;

/// A frame, by its length and whether it has pending segmentation: one, two or three pages, and as
/// many slots or one more.
#[derive(Debug, Clone, Copy)]
struct Shape {
    len: usize,
    is_segmented: bool,
}

const SHAPES: [Shape; 5] = [
    Shape { len: 60, is_segmented: false },
    Shape { len: PAGE_SIZE, is_segmented: false },
    Shape { len: PAGE_SIZE + 1, is_segmented: false },
    Shape { len: 100, is_segmented: true },
    Shape { len: 2 * PAGE_SIZE + 1, is_segmented: true },
];

impl Shape {
    fn pages(self) -> usize {
        self.len.div_ceil(PAGE_SIZE)
    }

    fn slots(self) -> usize {
        self.pages() + usize::from(self.is_segmented)
    }

    fn offload(self) -> Offload {
        let gso = self.is_segmented.then_some(Gso { kind: GsoKind::TcpV4, size: 1448 });
        let checksum = if self.is_segmented { Checksum::Blank } else { Checksum::Unverified };
        Offload { checksum, gso }
    }

    /// Flags and status of each response, or None for the extra, if the pages can be written.
    fn responses(self) -> Vec<Option<(u16, i16)>> {
        let mut responses: Vec<_> = (0..self.pages())
            .map(|page| {
                let len = (self.len - page * PAGE_SIZE).min(PAGE_SIZE);
                let more = if page + 1 < self.pages() { NETRXF_MORE_DATA } else { 0 };
                Some((more, i16::try_from(len).expect("a page is small")))
            })
            .collect();
        if self.is_segmented {
            let first = responses[0].as_mut().expect("the first slot holds data");
            first.0 |= NETRXF_CSUM_BLANK | NETRXF_DATA_VALIDATED | NETRXF_EXTRA_INFO;
            responses.insert(1, None);
        }
        responses
    }
}

/// The expected result of one call with waiting frames.
#[derive(Debug, Default)]
struct Expected {
    responses: Vec<Option<(u16, i16)>>,
    dropped: u64,
    waiting: usize,
}

impl Expected {
    fn of(shapes: &[Shape], posted: usize, features: FrontendFeatures) -> Expected {
        let mut expected = Expected::default();
        for (index, shape) in shapes.iter().enumerate() {
            let has_room = expected.responses.len() + shape.slots() <= posted;
            let is_allowed = shape.pages() == 1 || features.caps.scatter_gather;
            match (is_allowed, has_room) {
                (false, _) => expected.dropped += 1,
                (true, true) => expected.responses.extend(shape.responses()),
                (true, false) => {
                    expected.waiting = shapes.len() - index;
                    break;
                }
            }
        }
        expected
    }
}

fn all_features() -> impl Iterator<Item = FrontendFeatures> {
    [OffloadCaps::ALL, OffloadCaps { scatter_gather: false, ..OffloadCaps::ALL }]
        .into_iter()
        .flat_map(|caps| [true, false].map(|rx_notify| FrontendFeatures { caps, rx_notify }))
}

fn sequences() -> impl Iterator<Item = Vec<Shape>> {
    (1..=3).flat_map(|len: u32| {
        (0..SHAPES.len().pow(len)).map(move |number| {
            let places = (0..len).map(|place| number / SHAPES.len().pow(place) % SHAPES.len());
            places.map(|shape| SHAPES[shape]).collect()
        })
    })
}

struct Examiner {
    bench: Bench,
    read_only: Option<u16>,
    posted: u16,
    completed: u16,
}

impl Examiner {
    fn post(&mut self, count: u16) {
        for id in self.posted..self.posted + count {
            let is_read_only = self.read_only == Some(id);
            let access = if is_read_only { Access::ReadOnly } else { Access::ReadWrite };
            let gref = self.bench.page(0, &[], access);
            self.bench.post_grants(&[(id, gref)]);
        }
        self.posted += count;
    }

    /// The responses of one call are in the slots of the oldest requests, one for each.
    fn compare(&mut self, expected: &Expected) {
        let responses = self.bench.rx_responses();
        assert_eq!(responses.len(), expected.responses.len());
        for (response, expected) in responses.iter().zip(&expected.responses) {
            if let Some((flags, status)) = *expected {
                let is_read_only = self.read_only == Some(self.completed);
                let status = if is_read_only { NETIF_RSP_ERROR } else { status };
                //= netif.h:rx-same-slot
                assert_eq!((response.id, response.offset), (self.completed, 0));
                assert_eq!((response.flags, response.status), (flags, status));
            }
            self.completed += 1;
        }
    }

    fn examine(&mut self, shapes: &[Shape], posted: u16, features: FrontendFeatures) {
        self.post(posted);
        let frames: Vec<Frame> = shapes
            .iter()
            .map(|shape| self.bench.frame(&pattern(1, shape.len), shape.offload()))
            .collect();
        let mut waiting = self.bench.egress(frames);
        let expected = Expected::of(shapes, posted.into(), features);
        assert_eq!(waiting.len(), expected.waiting);
        let reasons = [DropReason::TooLong, DropReason::QueueFull];
        let dropped: u64 = reasons.map(|reason| self.bench.dropped(reason)).iter().sum();
        assert_eq!(dropped, expected.dropped);
        self.compare(&expected);
        let rest = &shapes[shapes.len() - expected.waiting..];
        if let Some(next) = rest.first() {
            self.wait_for(next.slots());
        }
        self.post(PAGES_ENOUGH);
        self.bench.back.egress(&mut waiting, &mut self.bench.pool).expect("no fault");
        assert!(waiting.is_empty());
        self.compare(&Expected::of(rest, usize::from(PAGES_ENOUGH + posted), features));
    }

    /// Only the page that makes room for the next frame wakes the queue, not an earlier one.
    fn wait_for(&mut self, slots: usize) {
        while usize::from(self.posted - self.completed) < slots {
            assert_eq!(self.bench.back.arm().expect("no fault"), Pending::Nothing);
            self.post(1);
        }
        assert_eq!(self.bench.back.arm().expect("no fault"), Pending::Work);
    }
}

#[test]
#[cfg_attr(miri, ignore = "too many sequences for Miri")]
fn short_sequences_of_frames_fill_posted_pages_by_the_rules() {
    for features in all_features() {
        for read_only in [None, Some(0), Some(1), Some(2)] {
            for (shapes, posted) in sequences().flat_map(|s| (0..=5).map(move |n| (s.clone(), n))) {
                let bench = Bench::with(START, features);
                let mut examiner = Examiner { bench, read_only, posted: 0, completed: 0 };
                examiner.examine(&shapes, posted, features);
            }
        }
    }
}

//! Control messages as stock frontends send them, as hostile ones do, and at random against a
//! model.

use std::net::SocketAddr;

use ringway_datapath::headers::Transport;
use ringway_steering::control::{HashControl, TEXT_LEN_MAX, Unreadable};
use ringway_steering::toeplitz::{HASH_TYPES_KNOWN, HashType, MAPPING_LEN_MAX};
use ringway_steering::{FlowTuple, QueueIndex};
use ringway_wire::GrantRef;
use ringway_wire::netif::{
    CTRL_STATUS_BUFFER_OVERFLOW as OVERFLOW, CTRL_STATUS_INVALID_PARAMETER as INVALID,
    CTRL_STATUS_NOT_SUPPORTED as NOT_SUPPORTED, CTRL_STATUS_SUCCESS as SUCCESS,
    CTRL_TYPE_GET_HASH_FLAGS as GET_FLAGS, CTRL_TYPE_GET_HASH_MAPPING_SIZE as GET_MAPPING_SIZE,
    CTRL_TYPE_SET_HASH_ALGORITHM as SET_ALGORITHM, CTRL_TYPE_SET_HASH_FLAGS as SET_FLAGS,
    CTRL_TYPE_SET_HASH_KEY as SET_KEY, CTRL_TYPE_SET_HASH_MAPPING as SET_MAPPING,
    CTRL_TYPE_SET_HASH_MAPPING_SIZE as SET_MAPPING_SIZE, CtrlRequest, CtrlResponse,
};

/// The key of the published verification suite for receive-side scaling.
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];
/// A flow of that suite, with the hash of its addresses and ports.
const FLOW: (&str, &str, u32) = ("66.9.149.187:2794", "161.142.100.80:1766", 0x51cc_c178);
const TOEPLITZ: u32 = 1;
const QUEUES: u16 = 4;
/// The page that a frontend names, and one that it did not grant.
const PAGE: u32 = 8;
const NOT_GRANTED: u32 = 9;

/// A frontend with a page, and its backend.
#[derive(Default)]
struct Bench {
    control: HashControl,
    page: Vec<u8>,
    next_id: u16,
    /// How often the page was read.
    reads: usize,
}

impl Bench {
    fn toeplitz() -> Bench {
        let mut bench = Bench::default();
        assert_eq!(bench.send(SET_ALGORITHM, [TOEPLITZ, 0, 0]), (SUCCESS, 0));
        bench
    }

    /// Sends a message; returns the status and the data of the response.
    fn send(&mut self, kind: u16, data: [u32; 3]) -> (u32, u32) {
        self.next_id = self.next_id.wrapping_add(0x7001);
        let request = CtrlRequest { id: self.next_id, kind, data };
        let Bench { control, page, reads, .. } = self;
        let response = control.handle(request, QUEUES, |gref, into| {
            *reads += 1;
            assert!(!into.is_empty() && into.len() <= 4096, "a read is within a page");
            if gref != GrantRef(PAGE) {
                return Err(Unreadable);
            }
            into.fill(0xff);
            into.iter_mut().zip(&*page).for_each(|(to, from)| *to = *from);
            Ok(())
        });
        //= netif.h:ctrl-response
        let CtrlResponse { id, kind: echoed, status, data } = response;
        assert_eq!((id, echoed), (request.id, kind));
        (status, data)
    }

    fn send_key(&mut self, key: &[u8]) -> (u32, u32) {
        self.page = key.to_vec();
        self.send(SET_KEY, [PAGE, len(key), 0])
    }

    fn send_mapping(&mut self, offset: u32, entries: &[u32]) -> (u32, u32) {
        self.page = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
        self.send(SET_MAPPING, [PAGE, len(entries), offset])
    }

    fn hash(&self, transport: Transport) -> Option<(u32, HashType)> {
        let (src, dst, _) = FLOW;
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let tuple = FlowTuple { src: address(src), dst: address(dst), transport };
        self.control.steering().expect("an algorithm is selected").tuple_hash(&tuple)
    }

    /// The queues of these hashes.
    fn queues(&self, hashes: impl IntoIterator<Item = u32>, queues: u16) -> Vec<u16> {
        let steering = self.control.steering().expect("an algorithm is selected");
        let queue = |hash| {
            let QueueIndex(queue) = steering.queue_of(Some(hash), queues);
            queue
        };
        hashes.into_iter().map(queue).collect()
    }
}

fn len<T>(of: &[T]) -> u32 {
    u32::try_from(of.len()).expect("it is short")
}

/// What the driver asks at its start, and sends when RSS is switched on (`win-xenvif`).
#[test]
fn the_messages_of_the_windows_driver_steer_by_its_key_and_mapping() {
    let mut bench = Bench::default();
    assert_eq!(bench.send(SET_ALGORITHM, [0, 0, 0]), (SUCCESS, 0), "unspecified, at first");
    assert!(bench.control.steering().is_none());

    assert_eq!(bench.send(SET_ALGORITHM, [TOEPLITZ, 0, 0]), (SUCCESS, 0));
    assert_eq!(bench.send(GET_FLAGS, [0; 3]), (SUCCESS, HASH_TYPES_KNOWN));
    assert_eq!(bench.send(GET_MAPPING_SIZE, [0; 3]), (SUCCESS, 128));
    let mapping: Vec<u32> = (0..128).map(|entry| entry % 4).collect();
    assert_eq!(bench.send(SET_MAPPING_SIZE, [128, 0, 0]), (SUCCESS, 0));
    assert_eq!(bench.send_mapping(0, &mapping), (SUCCESS, 0));
    assert_eq!(bench.send_key(&KEY), (SUCCESS, 0));
    assert_eq!(bench.send(SET_FLAGS, [HASH_TYPES_KNOWN, 0, 0]), (SUCCESS, 0));

    let (.., hash) = FLOW;
    //= netif.h:hash-input
    assert_eq!(bench.hash(Transport::Tcp), Some((hash, HashType::Ipv4Tcp)));
    assert_eq!(bench.queues([hash], QUEUES), [u16::try_from(hash % 128 % 4).expect("small")]);
}

/// When RSS is switched off, the driver sends a mapping of one entry and no types.
#[test]
fn the_messages_of_the_windows_driver_without_rss_steer_all_to_the_first_queue() {
    let mut bench = Bench::default();
    assert_eq!(bench.send(SET_ALGORITHM, [TOEPLITZ, 0, 0]), (SUCCESS, 0));
    assert_eq!(bench.send(SET_MAPPING_SIZE, [1, 0, 0]), (SUCCESS, 0));
    assert_eq!(bench.send_mapping(0, &[0]), (SUCCESS, 0));
    assert_eq!(bench.send_key(&[0; 40]), (SUCCESS, 0));
    assert_eq!(bench.send(SET_FLAGS, [0, 0, 0]), (SUCCESS, 0));
    assert_eq!(bench.hash(Transport::Tcp), None);
    assert_eq!(bench.queues([1, 2, 3], QUEUES), [0, 0, 0]);
}

#[test]
fn an_algorithm_is_selected_first_and_only_a_known_one() {
    //= netif.h:hash-algorithm
    //= netif.h:hash-flags
    let mut bench = Bench::default();
    assert_eq!(bench.send(GET_FLAGS, [0; 3]), (NOT_SUPPORTED, 0));
    assert_eq!(bench.send(SET_FLAGS, [1, 0, 0]), (INVALID, 0));
    for unknown in [2, 255, 256, 257, u32::MAX] {
        assert_eq!(bench.send(SET_ALGORITHM, [unknown, 0, 0]), (INVALID, 0));
        assert!(bench.control.steering().is_none());
    }
    assert_eq!(bench.send(SET_ALGORITHM, [TOEPLITZ, 0, 0]), (SUCCESS, 0));
    for unknown in [0x10, 0x8000_0001, u32::MAX] {
        assert_eq!(bench.send(SET_FLAGS, [unknown, 0, 0]), (INVALID, 0));
    }
    assert_eq!(bench.send(SET_ALGORITHM, [257, 0, 0]), (INVALID, 0));
    assert!(bench.control.steering().is_some(), "what is refused changes nothing");
}

#[test]
fn unknown_messages_are_not_supported() {
    //= netif.h:ctrl-response
    let mut bench = Bench::toeplitz();
    for kind in [0, 8, 9, 10, 11, 0x100, 0x0107, u16::MAX] {
        assert_eq!(bench.send(kind, [PAGE, 1, 0]), (NOT_SUPPORTED, 0), "{kind}");
    }
    assert_eq!(bench.reads, 0);
}

#[test]
fn a_key_replaces_all_of_the_one_before() {
    //= netif.h:hash-key
    let mut bench = Bench::toeplitz();
    assert_eq!(bench.send(SET_FLAGS, [HASH_TYPES_KNOWN, 0, 0]), (SUCCESS, 0));
    assert_eq!(bench.send_key(&KEY), (SUCCESS, 0));
    let whole = bench.hash(Transport::Tcp);
    assert_eq!(bench.send_key(&KEY[..8]), (SUCCESS, 0));
    let mut padded = [0; 40];
    padded[..8].copy_from_slice(&KEY[..8]);
    let short = bench.hash(Transport::Tcp);
    assert_eq!(bench.send_key(&padded), (SUCCESS, 0));
    assert!(short == bench.hash(Transport::Tcp) && short != whole);

    let reads = bench.reads;
    assert_eq!(bench.send(SET_KEY, [NOT_GRANTED, 0, 0]), (SUCCESS, 0), "no page is needed");
    assert_eq!(bench.reads, reads);
    assert_eq!(bench.hash(Transport::Tcp), Some((0, HashType::Ipv4Tcp)));
}

#[test]
fn a_key_that_is_too_long_or_cannot_be_read_is_refused() {
    //= netif.h:hash-key
    let mut bench = Bench::toeplitz();
    assert_eq!(bench.send(SET_FLAGS, [HASH_TYPES_KNOWN, 0, 0]), (SUCCESS, 0));
    assert_eq!(bench.send_key(&KEY), (SUCCESS, 0));
    let (before, reads) = (bench.hash(Transport::Tcp), bench.reads);
    for len in [41, 4096, 4097, 1 << 16, 1 << 31, u32::MAX] {
        assert_eq!(bench.send(SET_KEY, [PAGE, len, 0]), (OVERFLOW, 0), "{len}");
    }
    assert_eq!(bench.reads, reads, "nothing is read for them");
    assert_eq!(bench.send(SET_KEY, [NOT_GRANTED, 40, 0]), (INVALID, 0));
    assert_eq!(bench.hash(Transport::Tcp), before);
}

#[test]
fn a_new_mapping_is_all_zeros_and_none_is_the_remainder() {
    //= netif.h:hash-mapping-size
    let mut bench = Bench::toeplitz();
    assert_eq!(bench.queues(0..6, QUEUES), [0, 1, 2, 3, 0, 1]);
    assert_eq!(bench.send(SET_MAPPING_SIZE, [3, 0, 0]), (SUCCESS, 0));
    assert_eq!(bench.send_mapping(0, &[3, 2, 1]), (SUCCESS, 0));
    assert_eq!(bench.queues(0..6, QUEUES), [3, 2, 1, 3, 2, 1]);
    assert_eq!(bench.send(SET_MAPPING_SIZE, [3, 0, 0]), (SUCCESS, 0));
    assert_eq!(bench.queues(0..6, QUEUES), [0; 6]);
    assert_eq!(bench.send(SET_MAPPING_SIZE, [0, 0, 0]), (SUCCESS, 0));
    assert_eq!(bench.queues(0..6, QUEUES), [0, 1, 2, 3, 0, 1]);
    for len in [129, 4096, 1 << 31, u32::MAX] {
        assert_eq!(bench.send(SET_MAPPING_SIZE, [len, 0, 0]), (INVALID, 0), "{len}");
    }
}

#[test]
fn parts_of_a_mapping_are_set_and_nothing_outside_it() {
    //= netif.h:hash-mapping
    let mut bench = Bench::toeplitz();
    assert_eq!(bench.send_mapping(0, &[0]), (INVALID, 0), "there is no mapping yet");
    assert_eq!(bench.send(SET_MAPPING_SIZE, [8, 0, 0]), (SUCCESS, 0));
    assert_eq!(bench.send_mapping(6, &[1, 2]), (SUCCESS, 0));
    assert_eq!(bench.send_mapping(0, &[3]), (SUCCESS, 0));
    assert_eq!(bench.send(SET_MAPPING, [NOT_GRANTED, 0, 8]), (SUCCESS, 0), "of no entries");
    let expected = [3, 0, 0, 0, 0, 0, 1, 2];
    assert_eq!(bench.queues(0..8, QUEUES), expected);

    let reads = bench.reads;
    // XSA-270: the sum of offset and count overflows.
    for (count, offset, status) in [
        (1, 8, INVALID),
        (2, 7, INVALID),
        (9, 0, INVALID),
        (0, 9, INVALID),
        (128, 0, INVALID),
        (1, u32::MAX, INVALID),
        (8, u32::MAX - 7, INVALID),
        (129, 0, OVERFLOW),
        (1024, 0, OVERFLOW),
        (1025, 0, OVERFLOW),
        (1 << 30, 0, OVERFLOW),
        (u32::MAX, 1, OVERFLOW),
        (u32::MAX, u32::MAX, OVERFLOW),
    ] {
        let response = bench.send(SET_MAPPING, [PAGE, count, offset]);
        assert_eq!(response, (status, 0), "{count} at {offset}");
    }
    assert_eq!(bench.reads, reads, "nothing is read for them");
    assert_eq!(bench.send(SET_MAPPING, [NOT_GRANTED, 8, 0]), (INVALID, 0));
    for queue in [u32::from(QUEUES), 0x1_0000, u32::MAX] {
        assert_eq!(bench.send_mapping(0, &[1, queue]), (INVALID, 0), "{queue}");
    }
    assert_eq!(bench.queues(0..8, QUEUES), expected, "what is refused changes nothing");
}

#[test]
fn a_mapping_leads_to_no_queue_that_a_reconnected_frontend_lacks() {
    //= netif.h:hash-mapping
    let mut bench = Bench::toeplitz();
    assert_eq!(bench.send(SET_MAPPING_SIZE, [4, 0, 0]), (SUCCESS, 0));
    assert_eq!(bench.send_mapping(0, &[0, 1, 2, 3]), (SUCCESS, 0));
    for queues in 1..QUEUES {
        assert!(bench.queues(0..8, queues).iter().all(|queue| *queue < queues));
    }
    assert_eq!(bench.queues(0..4, QUEUES), [0, 1, 2, 3], "it is kept");
}

/// A frontend's settings, each as its last successful message left it.
#[derive(Debug, Default)]
struct Model {
    is_on: bool,
    types: u32,
    mapping: Vec<u32>,
}

impl Model {
    fn expect(&mut self, kind: u16, data: [u32; 3], is_readable: bool, entry: u32) -> u32 {
        let [first, count, offset] = data;
        match kind {
            SET_ALGORITHM if first > 1 => return INVALID,
            SET_ALGORITHM => self.is_on = first == TOEPLITZ,
            GET_FLAGS if !self.is_on => return NOT_SUPPORTED,
            SET_FLAGS if !self.is_on || first > 15 => return INVALID,
            SET_FLAGS => self.types = first,
            SET_KEY if count > 40 => return OVERFLOW,
            SET_KEY if count > 0 && !is_readable => return INVALID,
            SET_MAPPING_SIZE if first > 128 => return INVALID,
            SET_MAPPING_SIZE => self.mapping = vec![0; usize::try_from(first).expect("small")],
            SET_MAPPING if count > 128 => return OVERFLOW,
            SET_MAPPING => {
                let end = u64::from(offset) + u64::from(count);
                let is_inside = end <= u64::from(len(&self.mapping));
                let is_sound = is_readable && entry < u32::from(QUEUES);
                if !is_inside || (count > 0 && !is_sound) {
                    return INVALID;
                }
                let part = self.mapping.iter_mut().skip(usize::try_from(offset).expect("small"));
                part.take(usize::try_from(count).expect("small")).for_each(|to| *to = entry);
            }
            GET_FLAGS | GET_MAPPING_SIZE | SET_KEY => {}
            _ => return NOT_SUPPORTED,
        }
        SUCCESS
    }
}

#[test]
fn any_messages_have_the_statuses_of_the_model() {
    for seed in 0..if cfg!(miri) { 2 } else { 200 } {
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut bench, mut model) = (Bench::default(), Model::default());
        for _ in 0..200 {
            let kind = if random.u8(0..20) == 0 { random.u16(..) } else { random.u16(0..9) };
            let small = [0, 1, 2, 3, 8, 15, 16, 40, 41, 127, 128, 129, u32::MAX];
            let mut data = [0; 3].map(|_: u32| small[random.usize(..small.len())]);
            if matches!(kind, SET_KEY | SET_MAPPING) {
                data[0] = if random.u8(0..6) == 0 { NOT_GRANTED } else { PAGE };
            }
            let entry = random.u32(0..u32::from(QUEUES) + 1);
            bench.page = entry.to_le_bytes().repeat(MAPPING_LEN_MAX);
            let expected = model.expect(kind, data, data[0] == PAGE, entry);
            assert_eq!(bench.send(kind, data).0, expected, "{kind} {data:?} {model:?}");
            assert_eq!(bench.control.steering().is_some(), model.is_on);
            let Some(steering) = bench.control.steering() else { continue };
            assert_eq!(steering.types(), model.types);
            if !model.mapping.is_empty() {
                let mapped = bench.queues(0..len(&model.mapping), QUEUES);
                assert!(mapped.iter().map(|queue| u32::from(*queue)).eq(model.mapping.clone()));
            }
        }
    }
}

#[test]
fn settings_are_the_same_after_a_backend_has_read_their_text() {
    let mut bench = Bench::default();
    assert_eq!(bench.control.to_string(), "0 0 key= mapping=");
    bench.send(SET_ALGORITHM, [TOEPLITZ, 0, 0]);
    bench.page = KEY.to_vec();
    bench.send(SET_KEY, [PAGE, 40, 0]);
    bench.send(SET_MAPPING_SIZE, [u32::try_from(MAPPING_LEN_MAX).expect("small"), 0, 0]);
    bench.page = [3, 0, 2].map(u32::to_le_bytes).concat();
    bench.send(SET_MAPPING, [PAGE, 3, 125]);
    bench.send(SET_FLAGS, [HASH_TYPES_KNOWN, 0, 0]);
    let text = bench.control.to_string();
    assert!(text.len() < TEXT_LEN_MAX, "{text}");
    let read = HashControl::from_text(&format!("{text}\n\n")).expect("it is whole");
    assert_eq!(read.to_string(), text);
    let (before, after) = (bench.control.steering(), read.steering());
    let (before, after) = (before.expect("it is set"), after.expect("it is set"));
    let tuple = FlowTuple {
        src: FLOW.0.parse().expect("an address"),
        dst: FLOW.1.parse().expect("an address"),
        transport: Transport::Tcp,
    };
    assert_eq!(after.tuple_hash(&tuple), Some((FLOW.2, HashType::Ipv4Tcp)));
    for hash in 0..256 {
        assert_eq!(before.queue_of(Some(hash), QUEUES), after.queue_of(Some(hash), QUEUES));
        // The guest has come back with fewer.
        assert!(after.queue_of(Some(hash), 2) < QueueIndex(2));
    }
}

#[test]
fn a_damaged_text_is_refused() {
    let long = format!("1 15 key={} mapping=", "00".repeat(41));
    let large = format!("1 15 key= mapping={}", "0,".repeat(MAPPING_LEN_MAX + 1));
    for text in [
        "",
        "1",
        "2 0 key= mapping=",
        "1 16 key= mapping=",
        "1 15 key=6 mapping=",
        "1 15 key=6x mapping=",
        "1 15 key=\u{e9}\u{e9} mapping=",
        "1 15 key=6d",
        "1 15 key=6d mapping=1,x",
        "1 15 key=6d mapping=70000",
        "1 15 key=6d mapping=65535",
        "1 15 key=6d mapping=1 2",
        "1 15 mapping=1 key=6d",
        &long,
        &large,
    ] {
        assert!(HashControl::from_text(text).is_none(), "{text:?}");
    }
}

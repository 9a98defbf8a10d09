//! XenStore's tree: requests of several sessions, in any order. A guest can neither read nor change
//! nodes without the right to do so, nor exceed its quota, and every reply fits into a message.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ringway_fuzz::Input;
use ringway_wire::xenstore::{Op, XENSTORE_PAYLOAD_MAX};
use ringway_xenstore::{DomId, Errno, Quota, SessionId, Tree};

/// Created by domain 0, which grants no other domain a right on it.
const SECRET: &str = "/local/domain/0/secret";
const SECRET_VALUE: &[u8] = b"kept by domain 0";
/// The most steps of an input.
const STEPS_MAX: usize = 256;
const GUESTS: [DomId; 2] = [DomId(1), DomId(2)];
/// Useful paths, so that the fuzzer need not find them.
const PATHS: [&str; 10] = [
    SECRET,
    "/",
    "/local/domain/1",
    "/local/domain/1/device/vif/0/state",
    "/local/domain/2/device/vif/0/state",
    "device/vif/0/state",
    "data",
    "@introduceDomain",
    "@releaseDomain",
    "/local/domain/0/backend/vif/1/0/state",
];

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let mut tree = Tree::new(Quota::default());
    let host = tree.open(DomId(0)).expect("the first session");
    request(&mut tree, host, Op::Write, 0, &[SECRET.as_bytes(), b"\0", SECRET_VALUE].concat())
        .expect("domain 0 may write");
    for guest in GUESTS {
        tree.introduce(guest);
        let home = format!("/local/domain/{guest}");
        request(&mut tree, host, Op::Mkdir, 0, format!("{home}\0").as_bytes()).expect("made");
        let rights = format!("{home}\0n{guest}\0");
        request(&mut tree, host, Op::SetPerms, 0, rights.as_bytes()).expect("given");
    }
    let mut sessions: Vec<(SessionId, DomId)> = Vec::new();
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        match input.u8() % 16 {
            0 => {
                let guest = input.choose(&GUESTS);
                sessions.extend(tree.open(guest).map(|session| (session, guest)));
            }
            1 if !sessions.is_empty() => {
                let (session, _) = sessions.swap_remove(input.below(sessions.len()));
                tree.close(session);
            }
            2 => tree.release(input.choose(&GUESTS)),
            3 => tree.introduce(input.choose(&GUESTS)),
            4 => collect_events(&mut tree),
            _ if !sessions.is_empty() => {
                let (session, _) = input.choose(&sessions);
                guest_request(&mut tree, session, &mut input);
            }
            _ => {}
        }
        sessions.retain(|(session, _)| tree.is_open(*session));
    }
    collect_events(&mut tree);
    let secret = request(&mut tree, host, Op::Read, 0, format!("{SECRET}\0").as_bytes());
    assert_eq!(secret.as_deref(), Ok(SECRET_VALUE), "a guest changed what domain 0 owns");
});

/// A request of a guest: of any type, with a payload that is often valid.
fn guest_request(tree: &mut Tree, session: SessionId, input: &mut Input<'_>) {
    let kind = if input.u8() < 240 { input.choose(Op::ALL).number() } else { input.u32() };
    let tx = u32::from(input.u8() % 4);
    let payload = if input.u8() < 200 {
        let path = input.choose(&PATHS);
        [path.as_bytes(), b"\0", input.text().as_bytes()].concat()
    } else {
        input.text().as_bytes().to_vec()
    };
    let reply = tree.request(session, kind, tx, &payload);
    if let Ok(reply) = reply {
        assert!(reply.len() <= XENSTORE_PAYLOAD_MAX, "a reply of {} bytes", reply.len());
        let is_read = kind == Op::Read.number() && payload.starts_with(SECRET.as_bytes());
        assert!(!is_read || reply != SECRET_VALUE, "a guest read what domain 0 keeps");
    }
}

fn request(
    tree: &mut Tree,
    session: SessionId,
    op: Op,
    tx: u32,
    payload: &[u8],
) -> Result<Vec<u8>, Errno> {
    tree.request(session, op.number(), tx, payload)
}

/// Takes all events, and checks that each has a path and a token.
fn collect_events(tree: &mut Tree) {
    while let Some(session) = tree.next_ready() {
        while let Some(event) = tree.next_event(session) {
            assert!(event.len() <= XENSTORE_PAYLOAD_MAX, "an event of {} bytes", event.len());
            assert_eq!(event.iter().filter(|byte| **byte == 0).count(), 2, "{event:?}");
        }
    }
}

//! The rules of the tree: permissions, watches, quotas, transactions.

use std::collections::BTreeMap;

use fastrand::Rng;
use ringway_wire::xenstore::Op;
use ringway_xenstore::{DomId, Errno, Quota, SessionId, Tree};

/// A tree, with requests in a readable form.
struct Store(Tree);

type Outcome = Result<String, Errno>;

impl Store {
    fn new(quota: Quota) -> Store {
        Store(Tree::new(quota))
    }

    fn open(&mut self, domain: u16) -> SessionId {
        self.0.open(DomId(domain)).expect("the domain has few sessions")
    }

    /// Sends strings, each terminated by a NUL, and shows the NULs of the reply as bars.
    fn ask(&mut self, by: SessionId, op: Op, tx: u32, strings: &[&str]) -> Outcome {
        let payload: String = strings.iter().map(|s| format!("{s}\0")).collect();
        let reply = self.0.request(by, op.number(), tx, payload.as_bytes())?;
        Ok(String::from_utf8(reply).expect("replies are text here").replace('\0', "|"))
    }

    fn write(&mut self, by: SessionId, tx: u32, path: &str, value: &str) -> Result<(), Errno> {
        let payload = format!("{path}\0{value}");
        self.0.request(by, Op::Write.number(), tx, payload.as_bytes()).map(drop)
    }

    fn read(&mut self, by: SessionId, tx: u32, path: &str) -> Outcome {
        self.ask(by, Op::Read, tx, &[path])
    }

    fn chmod(&mut self, by: SessionId, path: &str, entries: &[&str]) -> Result<(), Errno> {
        let strings: Vec<&str> = [path].iter().chain(entries).copied().collect();
        self.ask(by, Op::SetPerms, 0, &strings).map(drop)
    }

    fn watch(&mut self, by: SessionId, path: &str, token: &str) -> Result<(), Errno> {
        self.ask(by, Op::Watch, 0, &[path, token]).map(drop)
    }

    fn start(&mut self, by: SessionId) -> u32 {
        let id = self.ask(by, Op::TransactionStart, 0, &[""]).expect("a transaction starts");
        id.trim_end_matches('|').parse().expect("its id is a number")
    }

    fn commit(&mut self, by: SessionId, tx: u32) -> Result<(), Errno> {
        self.ask(by, Op::TransactionEnd, tx, &["T"]).map(drop)
    }

    fn events(&mut self, of: SessionId) -> Vec<String> {
        std::iter::from_fn(|| self.0.next_event(of))
            .map(|event| String::from_utf8(event).expect("events are text").replace('\0', "|"))
            .collect()
    }
}

/// Domain 0's session, and one for each of guests 1 and 2, which own their homes.
fn with_two_guests(quota: Quota) -> (Store, SessionId, SessionId, SessionId) {
    let mut store = Store::new(quota);
    let dom0 = store.open(0);
    for guest in [1, 2] {
        let home = format!("/local/domain/{guest}");
        store.write(dom0, 0, &home, "").expect("domain 0 may write");
        store.chmod(dom0, &home, &[&format!("n{guest}")]).expect("domain 0 may give away");
    }
    let (one, two) = (store.open(1), store.open(2));
    (store, dom0, one, two)
}

#[test]
fn a_guest_reads_and_writes_its_own_home_and_nothing_else() {
    let (mut store, dom0, one, two) = with_two_guests(Quota::default());
    assert_eq!(store.write(one, 0, "data/x", "5"), Ok(()));
    assert_eq!(store.read(one, 0, "/local/domain/1/data/x"), Ok("5".into()));
    assert_eq!(store.read(dom0, 0, "/local/domain/1/data/x"), Ok("5".into()));
    assert_eq!(store.read(two, 0, "/local/domain/1/data/x"), Err(Errno::Acces));
    assert_eq!(store.read(two, 0, "/local/domain/1/absent"), Err(Errno::Acces));
    assert_eq!(store.read(one, 0, "absent"), Err(Errno::Noent));
    assert_eq!(store.write(one, 0, "/local/domain/2/x", "5"), Err(Errno::Acces));
    assert_eq!(store.write(one, 0, "/tool", "5"), Err(Errno::Acces));
    assert_eq!(store.ask(one, Op::Directory, 0, &["/"]), Err(Errno::Acces));
    assert_eq!(store.ask(one, Op::GetPerms, 0, &["data/x"]), Ok("n1|".into()));
}

#[test]
fn a_permission_entry_gives_exactly_its_rights_and_children_inherit_it() {
    let (mut store, dom0, one, two) = with_two_guests(Quota::default());
    store.write(one, 0, "share", "a").expect("guest 1 owns its home");
    store.chmod(one, "share", &["n1", "r2"]).expect("guest 1 owns it");
    assert_eq!(store.read(two, 0, "/local/domain/1/share"), Ok("a".into()));
    assert_eq!(store.write(two, 0, "/local/domain/1/share", "b"), Err(Errno::Acces));
    store.write(one, 0, "share/inner", "c").expect("guest 1 owns it");
    assert_eq!(store.read(two, 0, "/local/domain/1/share/inner"), Ok("c".into()));
    store.chmod(one, "share", &["n1", "b2"]).expect("guest 1 owns it");
    store.write(two, 0, "/local/domain/1/share/by-two", "d").expect("guest 2 may write");
    let path = "/local/domain/1/share/by-two";
    assert_eq!(store.ask(two, Op::GetPerms, 0, &[path]), Ok("n2|b2|".into()));
    // Domain 0 transfers the ownership of the directory.
    store.write(dom0, 0, "/local/domain/1/share/by-zero", "").expect("domain 0 may write");
    let path = "/local/domain/1/share/by-zero";
    assert_eq!(store.ask(dom0, Op::GetPerms, 0, &[path]), Ok("n1|b2|".into()));
}

#[test]
fn only_the_owner_sets_permissions_and_only_domain_0_changes_the_owner() {
    let (mut store, dom0, one, two) = with_two_guests(Quota::default());
    store.write(one, 0, "x", "").expect("guest 1 owns its home");
    assert_eq!(store.chmod(one, "x", &["n2"]), Err(Errno::Perm));
    assert_eq!(store.chmod(one, "x", &["b1", "b2"]), Ok(()));
    assert_eq!(store.chmod(two, "/local/domain/1/x", &["n2"]), Err(Errno::Acces));
    assert_eq!(store.chmod(dom0, "/local/domain/1/x", &["n2"]), Ok(()));
    assert_eq!(store.chmod(one, "x", &["n1"]), Err(Errno::Acces));
    assert_eq!(store.chmod(two, "/local/domain/1/x", &["nonsense"]), Err(Errno::Inval));
}

#[test]
fn removal_takes_all_below_and_needs_at_least_the_directory() {
    let (mut store, dom0, ..) = with_two_guests(Quota::default());
    store.write(dom0, 0, "/a/b/c", "1").expect("domain 0 may write");
    assert_eq!(store.ask(dom0, Op::Rm, 0, &["/a/b"]), Ok("OK|".into()));
    assert_eq!(store.read(dom0, 0, "/a/b/c"), Err(Errno::Noent));
    assert_eq!(store.ask(dom0, Op::Rm, 0, &["/a/b"]), Ok("OK|".into()));
    assert_eq!(store.ask(dom0, Op::Rm, 0, &["/a/b/c"]), Err(Errno::Noent));
    assert_eq!(store.ask(dom0, Op::Rm, 0, &["/"]), Err(Errno::Inval));
    assert_eq!(store.ask(dom0, Op::Mkdir, 0, &["/a/d"]), Ok("OK|".into()));
    assert_eq!(store.ask(dom0, Op::Directory, 0, &["/a"]), Ok("d|".into()));
}

#[test]
fn a_watch_fires_when_set_and_on_every_change_below() {
    let (mut store, dom0, one, _) = with_two_guests(Quota::default());
    assert_eq!(store.watch(one, "device", "relative"), Ok(()));
    assert_eq!(store.watch(one, "/local/domain/1/device", "absolute"), Ok(()));
    assert_eq!(store.watch(one, "device", "relative"), Err(Errno::Exist));
    assert_eq!(store.events(one), ["device|relative|", "/local/domain/1/device|absolute|"]);
    store.write(dom0, 0, "/local/domain/1/device/vif/0/state", "4").expect("domain 0 may write");
    assert_eq!(
        store.events(one),
        ["device/vif/0/state|relative|", "/local/domain/1/device/vif/0/state|absolute|"]
    );
    assert_eq!(store.ask(one, Op::Unwatch, 0, &["device", "relative"]), Ok("OK|".into()));
    assert_eq!(store.ask(one, Op::Unwatch, 0, &["device", "relative"]), Err(Errno::Noent));
    store.ask(one, Op::ResetWatches, 0, &[""]).expect("watches can be reset");
    store.write(one, 0, "device", "x").expect("guest 1 owns its home");
    assert!(store.events(one).is_empty());
}

#[test]
fn a_watch_below_a_removed_directory_fires_with_its_own_path() {
    let (mut store, dom0, ..) = with_two_guests(Quota::default());
    store.write(dom0, 0, "/b/vif/1/0/state", "4").expect("domain 0 may write");
    store.watch(dom0, "/b/vif/1/0/state", "deep").expect("it can be set");
    store.watch(dom0, "/b/vif/1", "middle").expect("it can be set");
    store.watch(dom0, "/b", "above").expect("it can be set");
    store.events(dom0);
    store.ask(dom0, Op::Rm, 0, &["/b/vif"]).expect("it can be removed");
    let mut events = store.events(dom0);
    events.sort();
    assert_eq!(events, ["/b/vif/1/0/state|deep|", "/b/vif/1|middle|", "/b/vif|above|"]);
}

#[test]
fn a_guest_gets_events_only_for_nodes_it_may_read() {
    let (mut store, _, one, two) = with_two_guests(Quota::default());
    store.watch(two, "/local/domain/1", "spy").expect("anything can be watched");
    store.events(two);
    store.write(one, 0, "secret", "1").expect("guest 1 owns its home");
    assert!(store.events(two).is_empty());
    store.chmod(one, "secret", &["n1", "r2"]).expect("guest 1 owns it");
    store.write(one, 0, "secret", "2").expect("guest 1 owns it");
    assert_eq!(store.events(two), ["/local/domain/1/secret|spy|"]);
    // A domain that could read it learns that it no longer can, and that it was removed.
    store.chmod(one, "secret", &["n1"]).expect("guest 1 owns it");
    assert_eq!(store.events(two), ["/local/domain/1/secret|spy|"]);
    store.chmod(one, "secret", &["n1", "r2"]).expect("guest 1 owns it");
    store.events(two);
    store.ask(one, Op::Rm, 0, &["secret"]).expect("guest 1 owns it");
    assert_eq!(store.events(two), ["/local/domain/1/secret|spy|"]);
}

#[test]
fn special_watches_report_domains_and_removed_domains_leave_nothing_behind() {
    let (mut store, dom0, one, two) = with_two_guests(Quota::default());
    for (session, name) in [(dom0, "@introduceDomain"), (dom0, "@releaseDomain")] {
        store.watch(session, name, "t").expect("it can be set");
    }
    store.watch(two, "@releaseDomain", "t").expect("it can be set");
    store.write(two, 0, "shared", "").expect("guest 2 owns its home");
    store.chmod(two, "shared", &["n2", "b1"]).expect("guest 2 owns it");
    store.events(dom0);
    store.events(two);

    assert_eq!(store.ask(dom0, Op::Introduce, 0, &["1", "5", "6"]), Ok("OK|".into()));
    assert_eq!(store.events(dom0), ["@introduceDomain|t|"]);
    assert_eq!(store.ask(dom0, Op::IsDomainIntroduced, 0, &["1"]), Ok("T|".into()));
    assert_eq!(store.ask(one, Op::Introduce, 0, &["9", "5", "6"]), Err(Errno::Acces));
    assert_eq!(store.ask(dom0, Op::Release, 0, &["0"]), Err(Errno::Inval));
    assert_eq!(store.ask(dom0, Op::Release, 0, &["1"]), Ok("OK|".into()));
    assert_eq!(store.events(dom0), ["@releaseDomain|t|"]);
    assert!(store.events(two).is_empty(), "only those whom domain 0 allowed get events");
    assert!(!store.0.is_open(one));
    assert_eq!(store.ask(dom0, Op::IsDomainIntroduced, 0, &["1"]), Ok("F|".into()));
    assert_eq!(store.read(dom0, 0, "/local/domain/1"), Err(Errno::Noent));
    let permissions = store.ask(dom0, Op::GetPerms, 0, &["/local/domain/2/shared"]);
    assert_eq!(permissions, Ok("n2|".into()));

    assert_eq!(store.chmod(two, "@releaseDomain", &["n0", "r2"]), Err(Errno::Acces));
    store.chmod(dom0, "@releaseDomain", &["n0", "r2"]).expect("domain 0 may");
    store.0.introduce(DomId(3));
    store.0.release(DomId(3));
    assert_eq!(store.events(two), ["@releaseDomain|t|"]);
    assert_eq!(store.ask(two, Op::GetDomainPath, 0, &["3"]), Ok("/local/domain/3|".into()));
}

#[test]
fn each_quota_of_a_guest_is_enforced_and_domain_0_has_others() {
    let quota = Quota {
        nodes: 10,
        node_len: 256,
        permission_entries: 2,
        watches: 2,
        transactions: 2,
        transaction_nodes: 4,
        transaction_bytes: 200,
        events: 3,
        requests_per_second: 1000,
        connections: 2,
    };
    let (mut store, dom0, one, _) = with_two_guests(quota);
    for n in 0..9 {
        assert_eq!(store.write(one, 0, &format!("n{n}"), ""), Ok(()));
    }
    assert_eq!(store.write(one, 0, "n9", ""), Err(Errno::Nospc));
    assert_eq!(store.write(one, 0, "n0/deeper", ""), Err(Errno::Nospc));
    store.ask(one, Op::Rm, 0, &["n0"]).expect("guest 1 owns it");
    assert_eq!(store.write(one, 0, "n9", ""), Ok(()));
    assert_eq!(store.write(dom0, 0, "/local/domain/1/n10", ""), Ok(()));

    assert_eq!(store.write(one, 0, "n1", &"x".repeat(248)), Ok(()));
    assert_eq!(store.write(one, 0, "n1", &"x".repeat(249)), Err(Errno::Nospc));
    assert_eq!(store.chmod(one, "n2", &["n1", "r2", "r3"]), Err(Errno::Nospc));
    assert_eq!(store.watch(one, "a", "t"), Ok(()));
    assert_eq!(store.watch(one, "b", "t"), Ok(()));
    assert_eq!(store.watch(one, "c", "t"), Err(Errno::Nospc));

    let (first, second) = (store.start(one), store.start(one));
    assert_eq!(store.ask(one, Op::TransactionStart, 0, &[""]), Err(Errno::Nospc));
    assert_eq!(store.ask(one, Op::TransactionStart, first, &[""]), Err(Errno::Busy));
    for n in 1..5 {
        assert!(store.read(one, first, &format!("n{n}")).is_ok());
    }
    assert_eq!(store.read(one, first, "n5"), Err(Errno::Nospc));
    assert_eq!(store.write(one, second, "n1", &"x".repeat(150)), Ok(()));
    assert_eq!(store.write(one, second, "n1", &"x".repeat(20)), Err(Errno::Nospc));

    let another = store.open(1);
    assert_eq!(store.0.open(DomId(1)), None);
    store.0.close(another);
    assert!(store.0.open(DomId(1)).is_some());
}

#[test]
fn unread_events_are_merged_and_beyond_a_limit_one_replaces_all_of_a_watch() {
    let (mut store, dom0, one, _) = with_two_guests(Quota { events: 32, ..Quota::default() });
    store.write(dom0, 0, "/local/domain/1/d/quiet", "x").expect("domain 0 may write");
    store.watch(one, "/local/domain/1/d/quiet", "q").expect("it can be set");
    store.watch(one, "/local/domain/1", "t").expect("it can be set");
    assert_eq!(store.events(one).len(), 2, "each fires once when it is set");
    for _ in 0..100 {
        store.write(dom0, 0, "/local/domain/1/a", "x").expect("domain 0 may write");
        store.write(dom0, 0, "/local/domain/1/b", "x").expect("domain 0 may write");
    }
    for n in 0..1000 {
        store.write(dom0, 0, &format!("/local/domain/1/{n}"), "x").expect("domain 0 may write");
    }
    store.write(dom0, 0, "/local/domain/1/d/quiet", "y").expect("domain 0 may write");
    assert!(store.0.is_open(one));
    let events = store.events(one);
    let expected = ["/local/domain/1/a|t|", "/local/domain/1/b|t|", "/local/domain/1|t|"];
    assert_eq!(events[..3], expected);
    assert_eq!(events[3..], ["/local/domain/1/d/quiet|q|"], "another watch has room of its own");
    store.write(dom0, 0, "/local/domain/1/a", "z").expect("domain 0 may write");
    assert_eq!(store.events(one), ["/local/domain/1/a|t|"]);
}

#[test]
fn two_transactions_on_one_node_cannot_both_commit() {
    let (mut store, dom0, ..) = with_two_guests(Quota::default());
    store.write(dom0, 0, "/n", "1").expect("domain 0 may write");
    let (a, b) = (store.start(dom0), store.start(dom0));
    for tx in [a, b] {
        assert_eq!(store.read(dom0, tx, "/n"), Ok("1".into()));
        store.write(dom0, tx, "/n", &format!("by {tx}")).expect("domain 0 may write");
    }
    assert_eq!(store.read(dom0, 0, "/n"), Ok("1".into()), "nothing shows before the commit");
    assert_eq!(store.commit(dom0, b), Ok(()));
    assert_eq!(store.commit(dom0, a), Err(Errno::Again));
    assert_eq!(store.read(dom0, 0, "/n"), Ok(format!("by {b}")));
    assert_eq!(store.commit(dom0, a), Err(Errno::Noent), "it is over");
}

#[test]
fn disjoint_transactions_both_commit_and_fire_their_watches_then() {
    let (mut store, dom0, one, two) = with_two_guests(Quota::default());
    store.watch(dom0, "/local/domain", "t").expect("it can be set");
    store.events(dom0);
    let (a, b) = (store.start(one), store.start(two));
    store.write(one, a, "x/y", "1").expect("guest 1 owns its home");
    store.write(two, b, "x/y", "2").expect("guest 2 owns its home");
    assert!(store.events(dom0).is_empty());
    assert_eq!(store.commit(one, a), Ok(()));
    assert_eq!(store.commit(two, b), Ok(()));
    assert_eq!(store.events(dom0), ["/local/domain/1/x/y|t|", "/local/domain/2/x/y|t|"]);
    assert_eq!(store.read(two, a, "x"), Err(Errno::Noent), "ids belong to their session");
}

#[test]
fn creating_siblings_conflicts_because_both_change_their_directory() {
    let (mut store, dom0, ..) = with_two_guests(Quota::default());
    store.write(dom0, 0, "/d", "").expect("domain 0 may write");
    let tx = store.start(dom0);
    store.write(dom0, tx, "/d/a", "").expect("domain 0 may write");
    store.write(dom0, 0, "/d/b", "").expect("domain 0 may write");
    assert_eq!(store.commit(dom0, tx), Err(Errno::Again));
    // Learning that a node is missing also counts as reading.
    let tx = store.start(dom0);
    assert_eq!(store.read(dom0, tx, "/d/c"), Err(Errno::Noent));
    store.write(dom0, 0, "/d/c", "").expect("domain 0 may write");
    assert_eq!(store.commit(dom0, tx), Err(Errno::Again));
}

/// One open transaction, with its reads and writes so far.
struct Running {
    id: u32,
    steps: Vec<Step>,
}

enum Step {
    Saw(String, Option<String>),
    Wrote(String, String),
    Removed(String),
}

/// Commits are equivalent to transactions that ran one after the other: everything that a
/// transaction has read is what it would have read at the moment of its commit.
#[test]
fn committed_transactions_are_serializable() {
    let mut conflicts = 0;
    let mut commits = 0;
    for seed in 1..=200u64 {
        let mut random = Rng::with_seed(0x5eed_0400 + seed);
        let mut store = Store::new(Quota::default());
        let by = store.open(0);
        let mut model: BTreeMap<String, String> = BTreeMap::new();
        let mut running: Vec<Running> = Vec::new();
        for _ in 0..120 {
            if running.len() < 3 && random.usize(..3) == 0 {
                running.push(Running { id: store.start(by), steps: Vec::new() });
            }
            if running.is_empty() {
                continue;
            }
            let index = random.usize(..running.len());
            let path = format!("/d{}/n{}", random.usize(..3), random.usize(..2));
            let Running { id, steps } = &mut running[index];
            match random.usize(..5) {
                0 | 1 => {
                    let seen = store.read(by, *id, &path);
                    assert!(seen.is_ok() || seen == Err(Errno::Noent));
                    steps.push(Step::Saw(path, seen.ok()));
                }
                2 => {
                    let value = random.usize(..1000).to_string();
                    store.write(by, *id, &path, &value).expect("domain 0 may write");
                    steps.push(Step::Wrote(path, value));
                }
                3 => {
                    if store.ask(by, Op::Rm, *id, &[&path]).is_ok() {
                        steps.push(Step::Removed(path));
                    }
                }
                _ => {
                    let ended = running.swap_remove(index);
                    match store.commit(by, ended.id) {
                        Ok(()) => {
                            commits += 1;
                            replay(&mut model, ended.steps, seed);
                        }
                        Err(error) => {
                            assert_eq!(error, Errno::Again);
                            conflicts += 1;
                        }
                    }
                }
            }
        }
        for (path, value) in &model {
            assert_eq!(store.read(by, 0, path).as_ref(), Ok(value), "seed {seed}");
        }
    }
    assert!(commits > 100 && conflicts > 100, "{commits} commits, {conflicts} conflicts");
}

fn replay(model: &mut BTreeMap<String, String>, steps: Vec<Step>, seed: u64) {
    for step in steps {
        match step {
            Step::Saw(path, seen) => {
                assert_eq!(model.get(&path), seen.as_ref(), "seed {seed}: {path}");
            }
            Step::Wrote(path, value) => drop(model.insert(path, value)),
            Step::Removed(path) => drop(model.remove(&path)),
        }
    }
}

#[test]
fn random_requests_get_replies_and_quotas_hold() {
    let quota = Quota { nodes: 40, ..Quota::default() };
    let (mut store, dom0, one, two) = with_two_guests(quota);
    let mut random = Rng::with_seed(0x5eed_0400);
    let words = [
        "",
        "a",
        "b",
        "/",
        "/local/domain/1",
        "/local/domain/2/a",
        "a/b",
        "a/c/d",
        "@x",
        "@releaseDomain",
        "n1",
        "r2",
        "b1",
        "T",
        "F",
        "0",
        "1",
        "99999999999",
        "\u{fe}",
        "//",
    ];
    for _ in 0..30_000 {
        let by = [one, two][random.usize(..2)];
        let (kind, tx) = (random.u32(..26), random.u32(..4));
        let mut payload = Vec::new();
        for _ in 0..random.usize(..4) {
            payload.extend_from_slice(words[random.usize(..words.len())].as_bytes());
            payload.push(if random.usize(..20) == 0 { b'x' } else { 0 });
        }
        let _ = store.0.request(by, kind, tx, &payload);
        store.events(by);
    }
    // How many more nodes a guest can create shows how many it owns.
    store.ask(one, Op::ResetWatches, 0, &[""]).expect("transactions can be dropped");
    for guest in ["1", "2"] {
        let home = format!("/local/domain/{guest}");
        store.ask(dom0, Op::Rm, 0, &[&home]).expect("domain 0 may");
    }
    store.write(dom0, 0, "/local/domain/1", "").expect("domain 0 may write");
    store.chmod(dom0, "/local/domain/1", &["n1"]).expect("domain 0 may");
    for n in 0..39 {
        assert_eq!(store.write(one, 0, &format!("n{n}"), ""), Ok(()), "node {n}");
    }
    assert_eq!(store.write(one, 0, "one-more", ""), Err(Errno::Nospc));
}

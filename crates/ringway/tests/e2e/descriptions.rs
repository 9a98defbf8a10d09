//! Descriptions with faults: all are named, and a host that had a good one keeps serving it.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output};

use ringway_description::{Origin, Usage};
use ringway_e2e::host::{Host, SOON, names_in, pair, ringway};
use ringway_e2e::shared_turn;
use rustix::process::Signal;
use serde_json::Value;

fn check(config: &Path, more: &[&str]) -> Output {
    let mut run = ringway();
    run.args(["run", "--check"]).arg(config).args(more);
    run.output().expect("it can be started")
}

#[test]
fn a_check_names_every_fault_and_starts_nothing() {
    let place = tempfile::tempdir().expect("a directory");
    let config = place.path().join("host.toml");
    fs::write(&config, "[host]\nworkers = 0\nworker = 1\n[uplink]\nmtu = 9\n").expect("written");
    let output = check(&config, &[]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in ["line 2: host.workers: 0", "line 3: unknown field", "line 5: uplink.mtu: 9"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    fs::write(&config, pair()).expect("written");
    let sound = check(&config, &[]);
    let text = String::from_utf8_lossy(&sound.stdout).into_owned();
    assert!(sound.status.success() && sound.stderr.is_empty(), "{sound:?}");
    assert_eq!(text, format!("{}: no faults\n", config.display()));
    // What other options of a start would refuse.
    let xen = check(&config, &["--hypervisor", "xen"]);
    let text = String::from_utf8_lossy(&xen.stderr).into_owned();
    assert!(xen.status.code() == Some(1) && text.contains("a section [[guest]]"), "{text}");
    // What an earlier version had is accepted, and named.
    fs::write(&config, pair().replace("[host]\n", "[host]\ncompletion = \"sent\"\n"))
        .expect("written");
    let sent = check(&config, &["--completion", "sent"]);
    let text = String::from_utf8_lossy(&sent.stderr).into_owned();
    assert!(sent.status.success() && text.matches("has no effect any more").count() == 2, "{text}");
    assert!(text.contains("line 2: `completion`") && text.contains("`--completion`"), "{text}");
    // So is a CPU that this machine does not have, or not yet.
    fs::write(&config, pair().replace("[host]\n", "[host]\ncpus = [1023]\n")).expect("written");
    let pinned = check(&config, &[]);
    let text = String::from_utf8_lossy(&pinned.stderr).into_owned();
    assert!(pinned.status.success() && text.contains("pinned to CPU 1023"), "{text}");
    assert_eq!(names_in(place.path()), ["host.toml"]);
}

/// Reload checks by the options of a service, which an administrator may have added to.
#[test]
fn a_check_knows_the_options_of_the_host_that_runs_with_the_description() {
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path().to_str().expect("an ordinary path");
    let [config, other] = ["host.toml", "other.toml"].map(|name| place.path().join(name));
    // Only if tenants have their own processes, these must be of one.
    let end = |name: &str, to: &str| {
        format!("[[vhost]]\nname = '{name}'\nsocket = '/{name}'\nlink-local-to = '{to}'\n")
    };
    fs::write(&config, end("vm1", "vm2") + &end("vm2", "vm1")).expect("written");
    assert!(check(&config, &["--dir", dir]).status.success(), "no host runs there");
    let usage = Usage { isolate: true, ..Usage::default() };
    let mut host = ringway_description::Host::empty(Usage::default()).expect("good");
    for (file, code) in [(other, 0), (config.clone(), 1)] {
        host.origin = Some(Origin { file, usage });
        let kept = serde_json::to_vec(&host).expect("JSON");
        fs::write(place.path().join("host.json"), kept).expect("written");
        let output = check(&config, &["--dir", dir]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert_eq!(text.contains("is of another tenant"), code == 1, "{text}");
    }
}

#[test]
fn a_start_with_a_wrong_description_serves_the_last_accepted_one() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let wrong = format!("{}\n[hots]\n[uplink]\nmtu = 9\n", pair());
    let fails = |place: &Path| {
        let mut run = ringway();
        run.args(["run", "--config"]).arg(place.join("host.toml"));
        let output = run.arg("--dir").arg(place.join("run")).output().expect("it can be started");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("unknown field `hots`") && text.contains("uplink.mtu: 9"), "{text}");
    };
    let place = tempfile::tempdir().expect("a directory");
    fs::write(place.path().join("host.toml"), &wrong).expect("written");
    fails(place.path());

    let host = Host::start_in(place, &pair());
    assert!(host.dir().with_extension("accepted").exists());
    host.signal(Signal::KILL);
    let (_, place, _) = host.ended();

    let path = place.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("bound");
    let host = Host::start_with(place, &wrong, &[("NOTIFY_SOCKET", path.as_os_str())]);
    host.ping("a", "10.77.0.2");
    // waits: this limit only ends a test that hangs.
    manager.set_read_timeout(Some(SOON)).expect("set");
    let mut message = [0; 4096];
    let is_status =
        |text: &str| text.starts_with("STATUS=2 vifs") && text.contains("; serving the");
    while !is_status(&String::from_utf8_lossy(&message)) {
        message = [0; 4096];
        manager.recv(&mut message).expect("a status with the notice");
    }
    fs::remove_file(path).expect("ours");
    let log = host.log();
    for part in ["unknown field `hots`", "uplink.mtu: 9", "the last accepted description instead"] {
        assert!(log.contains(part), "{part} is not in {log}");
    }
    let notice = "serving the last accepted description, not ";
    let listed = host.text(&["vif", "list"]);
    assert!(listed.contains(notice) && listed.contains("unknown field `hots`"), "{listed}");
    let listed: Value = serde_json::from_str(&host.text(&["vif", "list", "--json"])).expect("JSON");
    let listed = listed.as_array().expect("a list");
    let has_notice = |vif: &Value| vif["notice"].as_str().is_some_and(|it| it.starts_with(notice));
    assert!(!listed.is_empty() && listed.iter().all(has_notice), "{listed:?}");
    host.signal(Signal::TERM);
    let (_, place, _) = host.ended();

    // A good one is accepted again, without a notice.
    let host = Host::start_in(place, &pair());
    assert!(!host.text(&["vif", "list"]).contains(notice));
    host.signal(Signal::TERM);
    let (_, place, _) = host.ended();
    let mut names = names_in(place.path());
    names.sort();
    assert_eq!(names, ["events", "host.toml", "log", "run.accepted"]);
    // It counts for the same file only, and only while it is there.
    fs::write(place.path().join("host.toml"), &wrong).expect("written");
    let elsewhere = tempfile::tempdir().expect("a directory");
    for name in ["host.toml", "run.accepted"] {
        fs::copy(place.path().join(name), elsewhere.path().join(name)).expect("copied");
    }
    fails(elsewhere.path());
    fs::remove_file(place.path().join("run.accepted")).expect("ours");
    fails(place.path());
}

#[test]
fn a_start_that_fails_for_a_lasting_reason_is_not_tried_again() {
    let Some(_turn) = shared_turn(&[]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let config = place.path().join("host.toml");
    // The device exists, and is not ringway's.
    fs::write(&config, "[host]\nnetwork = \"private\"\n[uplink]\nname = \"lo\"\n")
        .expect("written");
    let mut run = ringway();
    run.args(["run", "--config"]).arg(&config).arg("--dir").arg(place.path().join("run"));
    let output = run.output().expect("it can be started");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("an interface lo exists already"), "{text}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("ready"), "{output:?}");
    assert_eq!(names_in(place.path()), ["host.toml"]);
}

#[test]
fn a_description_that_fails_only_at_the_start_is_replaced_by_the_last_accepted_one() {
    let Some(_turn) = shared_turn(&["ping"]) else { return };
    let host = Host::start(&pair());
    host.signal(Signal::TERM);
    let (_, place, _) = host.ended();
    let taken = format!("{}\n[uplink]\nname = \"lo\"\n", pair());
    let host = Host::start_in(place, &taken);
    host.ping("a", "10.77.0.2");
    let log = host.log();
    for part in ["an interface lo exists already", "the last accepted description instead"] {
        assert!(log.contains(part), "{part} is not in {log}");
    }
    let listed = host.text(&["vif", "list"]);
    assert!(listed.contains("serving the last accepted description, not "), "{listed}");
}

/// A start in a file system that has no room for a file, or for a page.
const START_ON_FULL_DISK: &str = "mount -t tmpfs -o $0 tmpfs \"$1\" && cp \"$1\".toml \
    \"$1\"/host.toml && cd \"$1\" && exec \"$2\" run --config host.toml --dir \"$1\"/run";

#[test]
fn a_start_on_a_full_disk_names_the_file() {
    let Some(_turn) = shared_turn(&["unshare", "mount"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let disk = place.path().join("disk");
    fs::create_dir(&disk).expect("ours");
    let uplink = "[host]\nnetwork = \"private\"\n[uplink]\naddresses = [\"10.77.0.254/24\"]\n";
    fs::write(disk.with_extension("toml"), uplink).expect("written");
    // The root of the file system and the description are two; each start gets further.
    let inodes = (3..9).map(|count| format!("nr_inodes={count}"));
    let pages = (2..5).map(|count| format!("size={}k", 4 * count));
    for limit in inodes.chain(pages) {
        let mut start = Command::new("unshare");
        start.args(["--mount", "--net", "--user", "--map-root-user", "sh", "-c"]);
        start.arg(START_ON_FULL_DISK).arg(&limit).arg(&disk).arg(ringway().get_program());
        let output = start.output().expect("util-linux");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{limit}: {text}");
        for line in text.lines().filter(|line| line.contains("No space left")) {
            assert!(line.contains(&*disk.to_string_lossy()), "{limit}: {line}");
        }
        assert!(text.contains("No space left"), "{limit}: {text}");
    }
}

#[test]
fn a_run_directory_that_cannot_be_made_names_the_option_last() {
    let place = tempfile::tempdir().expect("a directory");
    fs::write(place.path().join("file"), "").expect("ours");
    let config = place.path().join("host.toml");
    fs::write(&config, pair()).expect("written");
    let mut run = ringway();
    run.arg("run").arg("--config").arg(&config).arg("--dir").arg(place.path().join("file/run"));
    let output = run.output().expect("it can be started");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected = "file/run: Not a directory (os error 20); --dir names another\n";
    assert!(text.ends_with(expected), "{text}");
}

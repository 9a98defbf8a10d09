//! The metrics of `ringway doctor serve`, and that the shipped rules and dashboard match them.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ringway_e2e::host::{Host, describe};
use ringway_e2e::machine::EchoConnection;
use ringway_e2e::pair::{Pair, Traffic, ok, text, until};
use ringway_e2e::traffic::{Iperf, UNTIL_STOPPED};
use ringway_e2e::virtio_guest::wait_for_queues;
use ringway_e2e::virtio_guest::{Maker, guest_with};
use ringway_e2e::{is_nightly, say, shared_turn};
use serde_json::Value;

use crate::knobs::skipped;

/// A `doctor serve` in the host's namespace of a pair.
struct Watch<'a> {
    pair: &'a Pair,
    _running: Traffic,
}

impl<'a> Watch<'a> {
    /// With the directory of a running ringway, if there is one.
    fn start(pair: &'a Pair, ringway: Option<PathBuf>) -> Watch<'a> {
        let line = "serve --listen 127.0.0.1:9819 --interval 1 --every 2";
        let mut watch = pair.doctor(&pair.host, line);
        watch.envs(ringway.map(|dir| ("RINGWAY_DIR", dir)));
        let watch = watch.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts");
        Watch { pair, _running: Traffic(watch) }
    }

    /// Nothing until the first examination is finished.
    fn page(&self) -> String {
        let script = "exec 3<>/dev/tcp/127.0.0.1/9819 || exit 1; \
                      printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3";
        let mut bash = Command::new("ip");
        let bash = bash.args(["netns", "exec", &self.pair.host, "bash", "-c", script]);
        let response = text(&bash.output().expect("it starts").stdout);
        let is_fine = response.starts_with("HTTP/1.0 200") || response.starts_with("HTTP/1.1 200");
        let (_, page) = response.split_once("\r\n\r\n").filter(|_| is_fine).unwrap_or_default();
        page.to_owned()
    }
}

#[test]
fn a_fleet_is_watched() {
    let Some(_turn) = shared_turn(&["ip"]) else { return };
    let Some(pair) = Pair::new("watch") else { return };
    ok(&mut pair.on_host("sysctl -qw net.ipv4.tcp_sack=0"));
    let watch = Watch::start(&pair, None);
    let line = "ringway_doctor_findings{check=\"D19\",severity=\"problem\"} 1";
    until("the finding is a metric", || watch.page().contains(line));
    let page = watch.page();
    // Two samples, a second apart; a busy machine takes longer.
    let seconds = page.lines().find_map(|line| line.strip_prefix("ringway_doctor_look_seconds "));
    assert!(seconds.is_some_and(|number| number.parse().is_ok_and(|it: f64| it >= 1.0)), "{page}");
    check_with_promtool("metrics", &[], &page);
}

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/doctor").join(file)
}

#[test]
fn a_page_and_a_file_are_for_this_host() {
    let Some(_turn) = shared_turn(&["curl"]) else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str| dir.path().join(name).display().to_string();
    let serve = |options: &[&str]| {
        let mut serve = Command::new(env!("CARGO_BIN_EXE_ringway-doctor"));
        serve.args(["serve", "--interval", "1"]).args(options);
        serve.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        serve
    };
    let (socket, prom) = (file("doctor.sock"), file("doctor.prom"));
    let mut child = serve(&["--listen", &socket, "--textfile", &prom]).spawn().expect("it starts");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let _running = Traffic(child);
    for expected in [format!("Writing {prom}\n"), format!("Serving {socket}:/metrics\n")] {
        let mut said = String::new();
        out.read_line(&mut said).expect("it says what it does");
        assert_eq!(said, expected);
    }
    // Silent clients do not block the page for others.
    let silent: Vec<_> = (0..8).map(|_| std::os::unix::net::UnixStream::connect(&socket)).collect();
    assert!(silent.iter().all(Result::is_ok));
    let line = "ringway_doctor_check_severity{check=\"D01\"";
    until("the page is served", || {
        let mut curl = Command::new("curl");
        curl.args(["-s", "--max-time", "60", "--unix-socket", &socket, "http://ringway/metrics"]);
        text(&curl.output().expect("it starts").stdout).contains(line)
    });
    let written = std::fs::read_to_string(&prom).expect("it is written before it is served");
    assert!(written.contains(line), "{written}");
    check_with_promtool("metrics", &[], &written);

    for (options, what) in [
        (["--listen", "0.0.0.0:0"], "put a proxy with TLS and passwords in front"),
        (["--web-config", "web.yml"], "put a proxy with both in front"),
        (["--web.config.file", "web.yml"], "put a proxy with both in front"),
        (["--textfile", &file("none/doctor.prom")], "none/doctor.prom"),
    ] {
        let refused = serve(&options).output().expect("it starts");
        let said = text(&refused.stderr);
        assert!(!refused.status.success() && said.contains(what), "{options:?}: {said}");
    }
}

/// What is not served here: the driver of these interfaces counts no queues, and no toolstack says
/// that a guest is paused. Unit tests have both.
const NOT_HERE: [&str; 3] = [
    "ringway_doctor_queue_bytes_total",
    "ringway_doctor_queue_packets_total",
    "ringway_doctor_interface_paused",
];

/// The metric names in a text.
fn used(text: &str) -> BTreeSet<&str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = text.split(|letter| !is_part(letter));
    words.filter(|word| word.starts_with("ringway_doctor_")).collect()
}

#[test]
fn every_metric_of_the_rules_and_the_dashboard_is_served() {
    let Some(_turn) = shared_turn(&["ip", "iperf3"]) else { return };
    let rules = std::fs::read_to_string(packaging("alerts.yml")).expect("shipped");
    let dashboard = std::fs::read_to_string(packaging("dashboard.json")).expect("shipped");
    let parsed: Value = serde_json::from_str(&dashboard).expect("JSON");
    let panels = parsed["panels"].as_array().expect("panels");
    for panel in panels {
        let targets = panel["targets"].as_array().expect("what it shows");
        let asks = |target: &Value| target["expr"].as_str().is_some_and(|expr| !expr.is_empty());
        assert!(!targets.is_empty() && targets.iter().all(asks), "{panel:#}");
    }
    let known: BTreeSet<&str> = ringway_doctor::watch::names().into();
    let wanted: BTreeSet<&str> = used(&rules).union(&used(&dashboard)).copied().collect();
    assert!(panels.len() >= 5 && wanted.len() >= 9, "{wanted:?}");
    assert!(wanted.is_subset(&known), "{wanted:?}");
    check_with_promtool("rules", &[&packaging("alerts.yml")], "");

    let Some(pair) = Pair::new("served") else { return };
    let (a, b) = (("a", "", "queues = 2"), ("b", "", "queues = 2"));
    let place = tempfile::tempdir().expect("a directory");
    let vhost = format!(
        "[[vhost]]\nname = \"vm1\"\nsocket = \"{}/net\"\nqueues = 2\n",
        place.path().display()
    );
    let host = Host::start(&(describe("max-queues = 2", &[a, b]) + &vhost));
    let _virtio = guest_with(place.path(), "net", Maker::Guest, "");
    wait_for_queues(&host, 2);
    let echo = EchoConnection::start(&host, "a");
    echo.expect_progress(&host, "both kinds of guests");
    let watch = Watch::start(&pair, Some(host.dir()));
    let transfer = Iperf::start(&host, "a", ("b", "10.77.0.2"), UNTIL_STOPPED);
    let served = &known - &BTreeSet::from(NOT_HERE);
    let mut page = String::new();
    until("every metric is served", || {
        page = watch.page();
        served.is_subset(&used(&page))
    });
    transfer.stop();
    for (vif, direction) in [("vif1.0", "tx"), ("vif1.0", "rx"), ("vm1", "tx"), ("vm1", "rx")] {
        let labels = format!("{{interface=\"{vif}\",queue=\"1\",direction=\"{direction}\"}}");
        assert!(page.contains(&format!("ringway_doctor_vif_bytes_total{labels} ")), "{page}");
    }
    for (vif, kind) in [("vif1.0", "xen"), ("vif2.0", "xen"), ("vm1", "virtio")] {
        let version = env!("CARGO_PKG_VERSION");
        let labels = format!("interface=\"{vif}\",kind=\"{kind}\",version=\"{version}\"");
        let line = format!("ringway_doctor_vif_info{{{labels}}} 1\n");
        assert!(page.contains(&line), "no {line} in\n{page}");
        for (metric, value) in [("connected", 1), ("restarts_total", 0)] {
            let line = format!("ringway_doctor_vif_{metric}{{interface=\"{vif}\"}} {value}\n");
            assert!(page.contains(&line), "no {line} in\n{page}");
        }
    }
    check_with_promtool("metrics", &[], &page);
}

/// As users of Prometheus check their configuration.
fn check_with_promtool(what: &str, files: &[&Path], input: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", what]).args(files).stdin(Stdio::piped());
    let child = promtool.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if is_nightly() => return skipped(&format!("promtool check {what}: {error}")),
        // It comes with the whole of Prometheus.
        Err(_) => return say(&format!("NIGHTLY: promtool check {what}")),
    };
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "promtool check {what}: {said}\n{input}");
}

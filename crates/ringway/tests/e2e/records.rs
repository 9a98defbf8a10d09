//! Records sick set-ups and the same ones mended, of which `crates/doctor/fixtures` has what the
//! checks look at:
//!
//! ```text
//! RINGWAY_E2E_RECORDS=/some/directory cargo test -p ringway --test e2e records -- --ignored
//! cargo run -p ringway-doctor --example fixture -- /some/directory crates/doctor/fixtures
//! ```

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::knobs::{Guest, skipped};
use crate::pair::{Pair, TOOLS, Traffic, VIF, inside, ok, text, until};
use crate::turn;

/// Where records are written.
const RECORDS: &str = "RINGWAY_E2E_RECORDS";

/// Two states of one set-up, one of them sick.
struct Scenario {
    check: &'static str,
    make: fn(&str) -> Option<Pair>,
    place: Place,
    /// What makes traffic in the host's namespace, if that is wanted.
    load: &'static str,
    states: [State; 2],
}

/// Which end is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Host,
    Guest,
    /// Where the driver of the guest's end is called `virtio_net`.
    Disguised,
}

/// Of a set-up.
struct State {
    health: &'static str,
    from: &'static str,
    /// What makes it of the state before; a `+` at the beginning is for the guest's end.
    lines: &'static [&'static str],
}

const IPERF: &str = "iperf3 -c 10.98.0.2 -t 60";

fn scenarios() -> Vec<Scenario> {
    let state = |health, from, lines| State { health, from, lines };
    let scenario = |check, make, place, load, states| Scenario { check, make, place, load, states };
    vec![
        scenario(
            "d08",
            Pair::new,
            Place::Host,
            "",
            [
                state(
                    "sick",
                    "A bridge of a veth of MTU 9000 and another of 1500",
                    &[
                        "ip link add br0 type bridge",
                        "ip link add own type veth peer name own-port",
                        "ip link set own-port mtu 9000 master br0 up",
                        "ip link set vif1.0 master br0 up",
                        "ip link set br0 up",
                    ],
                ),
                state(
                    "healthy",
                    "The same bridge when all its members have MTU 9000",
                    &["ip link set vif1.0 mtu 9000", "ip link set br0 mtu 9000"],
                ),
            ],
        ),
        scenario(
            "d10",
            Pair::linked,
            Place::Disguised,
            "iperf3 -c 10.98.0.2 -R -t 60",
            [
                state(
                    "sick",
                    "A veth of two queues, its driver's name replaced, one connection",
                    &[
                        "+ethtool -L eth0 rx 2 tx 2",
                        "+tc qdisc replace dev eth0 root tbf rate 200mbit burst 64kb latency 50ms",
                    ],
                ),
                state("healthy", "The same link with two connections and more", &[]),
            ],
        ),
        scenario(
            "d11",
            Pair::far,
            Place::Host,
            IPERF,
            [
                state(
                    "sick",
                    "A link of 10 ms and a send buffer of 64 KiB",
                    &[
                        "ethtool -s vif1.0 speed 10000 duplex full autoneg off",
                        "sysctl -qw net.ipv4.tcp_wmem=4096,16384,65536",
                    ],
                ),
                state(
                    "healthy",
                    "The same link and a send buffer of 32 MiB",
                    &["sysctl -qw net.ipv4.tcp_wmem=4096,16384,33554432"],
                ),
            ],
        ),
        scenario(
            "d13",
            Pair::linked,
            Place::Host,
            "",
            [
                state(
                    "sick",
                    "A veth, called as a vif is, with its offloads off",
                    &["ethtool -K vif1.0 tso off gso off sg off tx off gro off"],
                ),
                state(
                    "healthy",
                    "The same veth with its offloads on",
                    &["ethtool -K vif1.0 tx on sg on tso on gso on gro on"],
                ),
            ],
        ),
        scenario(
            "d14",
            Pair::new,
            Place::Disguised,
            "",
            [
                state(
                    "sick",
                    "A veth of two CPUs that uses one queue, its driver's name replaced",
                    &[],
                ),
                state("healthy", "The same veth with two queues", &["+ethtool -L eth0 rx 2 tx 2"]),
            ],
        ),
        scenario(
            "d18",
            Pair::linked,
            Place::Guest,
            IPERF_SMALL,
            [
                state(
                    "sick",
                    "A veth of which RPS hands all to one CPU, with 3000 rules for each",
                    &["+tc qdisc add dev eth0 ingress", "+tc -b RULES", "+RPS 2"],
                ),
                state(
                    "healthy",
                    "The same link without the rules and without RPS",
                    &["+tc qdisc del dev eth0 ingress", "+RPS 0"],
                ),
            ],
        ),
        scenario(
            "d19",
            Pair::new,
            Place::Host,
            "",
            [
                state(
                    "sick",
                    "A namespace without SACK and with a txqueuelen of 300000",
                    &["sysctl -qw net.ipv4.tcp_sack=0", "ip link set vif1.0 txqueuelen 300000"],
                ),
                state(
                    "healthy",
                    "The same namespace as the kernel has it",
                    &["sysctl -qw net.ipv4.tcp_sack=1", "ip link set vif1.0 txqueuelen 1000"],
                ),
            ],
        ),
        scenario(
            "d30",
            Pair::linked,
            Place::Host,
            IPERF,
            [
                state(
                    "sick",
                    "A veth behind a token bucket of 50 Mbit/s, and TCP that wants more",
                    &["tc qdisc add dev vif1.0 root tbf rate 50mbit burst 64kb latency 50ms"],
                ),
                state(
                    "healthy",
                    "The same veth and a bucket that nobody reaches",
                    &["tc qdisc replace dev vif1.0 root tbf rate 900gbit burst 64mb latency 50ms"],
                ),
            ],
        ),
        scenario(
            "d31",
            Pair::linked,
            Place::Guest,
            "",
            [
                state(
                    "healthy",
                    "A namespace that tracks connections",
                    &[
                        "+nft add table inet seen",
                        "+nft add chain inet seen at { type filter hook prerouting priority 0 ; }",
                        "+nft add rule inet seen at ct state new counter",
                        "+sysctl -qw net.netfilter.nf_conntrack_udp_timeout=600",
                    ],
                ),
                state("sick", "The same namespace after a scan of many UDP ports", &["SCAN"]),
            ],
        ),
    ]
}

/// Small packets of many connections, from one CPU.
const IPERF_SMALL: &str = "taskset -c 0 iperf3 -c 10.98.0.2 -u -b 0 -l 64 -P 64 -t 60";

/// Of a scan: enough to fill four fifths of a table of 262144, the kernel's default for 1 GiB.
const SCANNED: u32 = 225_000;

impl Scenario {
    fn record(&self, dir: &Path) {
        let Some(pair) = (self.make)(self.check) else { return };
        for state in &self.states {
            for line in state.lines {
                step(&pair, line);
            }
            let more = if self.check == "d10" && state.health == "healthy" { " -P 4" } else { "" };
            let _traffic = (!self.load.is_empty()).then(|| start(&pair, self.load, more));
            let name = format!("{}-{}-recorded", self.check, state.health);
            let tar = dir.join(format!("{name}.tar"));
            let line = format!("record --interval 3 {}", tar.display());
            ok(&mut match self.place {
                Place::Host => pair.doctor(&pair.host, &line),
                Place::Guest => pair.doctor(&pair.guest, &line),
                Place::Disguised => Guest::new(&pair).doctor(&line),
            });
            fs::write(dir.join(format!("{name}.txt")), state.from).expect("written");
        }
    }
}

fn step(pair: &Pair, line: &str) {
    match line {
        "SCAN" => scan(pair),
        "+RPS 0" | "+RPS 2" => {
            let file = "/sys/class/net/eth0/queues/rx-0/rps_cpus";
            ok(inside(&pair.guest, "sh -c").arg(format!("echo {} > {file}", &line[5..])));
        }
        "+tc -b RULES" => {
            let rules = pair.rules(3000);
            ok(inside(&pair.guest, &format!("tc -b {}", rules.display())));
        }
        _ => {
            let (netns, line) = match line.strip_prefix('+') {
                Some(line) => (&pair.guest, line),
                None => (&pair.host, line),
            };
            // A comma stands for a space within a word.
            let mut command = Command::new("ip");
            command.args(["netns", "exec", netns]);
            ok(command.args(line.split_whitespace().map(|word| word.replace(',', " "))));
        }
    }
}

/// A packet to each of many ports, from as many.
fn scan(pair: &Pair) {
    let script = format!(
        "for ((i = 0; i < {SCANNED}; i++)); do \
         echo > /dev/udp/10.98.0.2/$((i % 60000 + 1)); done 2>/dev/null; true"
    );
    let mut bash = Command::new("ip");
    ok(bash.args(["netns", "exec", &pair.host, "bash", "-c", &script]));
}

fn start(pair: &Pair, load: &str, more: &str) -> Traffic {
    let mut command = pair.on_host(&format!("{load}{more}"));
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let traffic = Traffic(quiet.spawn().expect("it starts"));
    until("the connections are there", || {
        let all = text(&ok(&mut pair.on_host("ss -Htun state established")).stdout);
        all.lines().count() > 1
    });
    traffic
}

#[test]
#[ignore = "it writes records for a person who asks for them"]
fn records_of_sick_and_mended_hosts() {
    let Some(_turn) = turn(&[&TOOLS[..], &["nft", "taskset", "bash"]].concat()) else { return };
    let Some(dir) = std::env::var_os(RECORDS) else {
        return skipped(&format!("records: {RECORDS} names no directory"));
    };
    assert_eq!(VIF, "vif1.0");
    for scenario in scenarios() {
        scenario.record(Path::new(&dir));
    }
}

//! No advice does harm on any evidence: hosts with arbitrary numbers, inside a network namespace or
//! not, with names that are special to a shell. Every check's advice must follow these rules:
//!
//! * a shell parses a command as it was meant, and the command names what is in the evidence;
//! * a command that sets something belongs to a change, and sets the value of that change;
//! * a change that raises a setting makes no part of it smaller, and three numbers of a sysctl are
//!   in order;
//! * only a check whose purpose it is lowers a setting;
//! * nothing is set that is read-only where the evidence is from.

mod saved;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::sync::Mutex;

use proptest::prelude::*;
use ringway_doctor::check::CATALOGUE;
use ringway_doctor::evidence::{Gap, NicSettings, Piece, Source};
use ringway_doctor::fact::{Fact, Host, Interfaces, Reader};
use ringway_doctor::finding::{Advice, Change, Execution, Finding, Knob, Purpose};
use ringway_doctor::parse::coalesce::Coalescing;
use ringway_doctor::parse::cpus::masked_cpus;
use ringway_doctor::parse::ethtool::{Features, Settings, long_name};
use ringway_doctor::report::Report;
use saved::Pieces;

type Verdict = Result<(), String>;

/// All fixtures, in the order of their names.
static HOSTS: LazyLock<Vec<Pieces>> =
    LazyLock::new(|| saved::hosts().into_iter().map(|(_, pieces)| pieces).collect());

/// The checks that lower a setting, because it can be too high.
const LOWERED: [(&str, &str); 8] = [
    ("D08", "mtu"),
    ("D13", "offload"),
    ("D15", "parameter"),
    ("D19", "tx-queue-len"),
    ("D19", "sysctl"),
    ("D22", "virtual-functions"),
    ("D23", "parameter"),
    ("D24", "parameter"),
];
/// Settings whose values have no order.
const REPLACED: [&str; 6] = ["governor", "irq-affinity", "rps", "xps", "qdisc", "sysctl"];
/// Programs whose commands change nothing that evidence shows, or that only a person should run.
const OTHERS: [&str; 25] = [
    "apt-get",
    "bridge",
    "cat",
    "dmesg",
    "grep",
    "grubby",
    "head",
    "ip",
    "modprobe",
    "ovn-appctl",
    "ovs-appctl",
    "ovs-vsctl",
    "ringway",
    "sort",
    "ss",
    "systemctl",
    "taskset",
    "tc",
    "virsh",
    "xe",
    "xe-switch-network-backend",
    "xenalyze",
    "xenstore-read",
    "xentrace",
    "xl",
];

/// Words by which `ip` sets something.
const SETS: [&str; 7] = ["add", "change", "del", "delete", "flush", "replace", "set"];

/// One command of a line, as a shell reads it.
#[derive(Debug, Default)]
struct Command {
    words: Vec<String>,
    /// The file that its output goes to, and whether the file is replaced.
    into: Option<(String, bool)>,
}

/// The commands of a line; an error names what a shell would interpret differently.
fn parse(line: &str) -> Result<Vec<Command>, String> {
    let mut commands = vec![Command::default()];
    for token in tokens(line)? {
        let last = commands.last_mut().ok_or("no command")?;
        match token {
            Token::Word(word) => match &mut last.into {
                Some((path, _)) if path.is_empty() => *path = word,
                Some(_) => return Err("a word behind a redirection".to_owned()),
                None => last.words.push(word),
            },
            Token::Into { replaces } => last.into = Some((String::new(), replaces)),
            Token::Next => commands.push(Command::default()),
        }
    }
    match commands.iter().all(|one| !one.words.is_empty()) {
        true => Ok(commands),
        false => Err("a command without words".to_owned()),
    }
}

#[derive(Debug)]
enum Token {
    Word(String),
    Into {
        replaces: bool,
    },
    /// A pipe or an alternative.
    Next,
}

fn tokens(line: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        if matches!(letter, ' ' | '|' | '>') {
            tokens.extend(word.take().map(Token::Word));
        }
        match letter {
            ' ' => {}
            '|' => {
                letters.next_if_eq(&'|');
                tokens.push(Token::Next);
            }
            '>' => tokens.push(Token::Into { replaces: letters.next_if_eq(&'>').is_none() }),
            '\\' => {
                let next = letters.next().ok_or("ends in a backslash")?;
                word.get_or_insert_default().push(next);
            }
            '\'' => loop {
                let word = word.get_or_insert_default();
                match letters.next() {
                    Some('\'') => break,
                    Some(inside) => word.push(inside),
                    None => return Err("an open quote".to_owned()),
                }
            },
            // Only `grep` may have patterns of file names.
            '*' if line.starts_with("grep ") => word.get_or_insert_default().push('*'),
            plain if plain.is_ascii_alphanumeric() || "_@%+=:,./-".contains(plain) => {
                word.get_or_insert_default().push(plain);
            }
            other => return Err(format!("{other:?} means something to a shell")),
        }
    }
    tokens.extend(word.map(Token::Word));
    Ok(tokens)
}

/// All settings that advice is about, with which this test reads a host's current values.
struct All(Reader);

impl Fact for All {
    const PIECES: &'static [Piece] = &[
        Piece::Counters("proc/net/dev"),
        Piece::File("proc/irq/*/*"),
        Piece::File("proc/sys/net/*/*"),
        Piece::File("proc/sys/net/*/conf/*/*"),
        Piece::File("sys/class/net/*/*"),
        Piece::File("sys/devices/system/cpu/cpu*/cpufreq/*"),
        Piece::File("sys/class/net/*/device/*"),
        Piece::File("sys/class/net/*/queues/*/*"),
        Piece::File("sys/module/*/parameters/*"),
        Piece::Settings(NicSettings::Features),
        Piece::Settings(NicSettings::Channels),
        Piece::Settings(NicSettings::Rings),
        Piece::Settings(NicSettings::Coalescing),
    ];

    fn read(at: &Reader) -> Result<Self, Gap> {
        Ok(All(at.clone()))
    }
}

fn all(host: &Host) -> Reader {
    host.fact::<All>().expect("it reads nothing yet").0
}

/// The value of a setting in the evidence.
fn current(host: &Host, knob: &Knob) -> Option<String> {
    if let Ok(Some(path)) = knob.path() {
        let text = all(host).file(&path).ok()?;
        return Some(text.value().split_whitespace().collect::<Vec<_>>().join(" "));
    }
    let number = |nic: &str, settings, which: &str| {
        let text = all(host).settings(nic, settings).ok()?;
        Some(Settings::parse(&text).ok()?.current.get(which)?.value.to_string())
    };
    match knob {
        Knob::Channels { nic, which } => number(nic, NicSettings::Channels, which),
        Knob::Ring { nic, which } => number(nic, NicSettings::Rings, which),
        Knob::Offload { nic, feature } => {
            let text = all(host).settings(nic, NicSettings::Features).ok()?;
            let feature = Features::parse(&text).ok()?.get(long_name(feature))?;
            Some(if feature.is_on { "on" } else { "off" }.to_owned())
        }
        _ => None,
    }
}

fn numbers(value: &str) -> Option<Vec<u64>> {
    let words = value.replace("off", "0").replace("on", "1");
    words.split_whitespace().map(|word| word.parse().ok()).collect()
}

fn kind(knob: &Knob) -> String {
    serde_json::to_value(knob).expect("JSON")["kind"].as_str().expect("a kind").to_owned()
}

fn sound_change(host: &Host, check: &str, change: &Change) -> Verdict {
    let Change { knob, proposed, purpose, .. } = change;
    let now = current(host, knob);
    let kind = kind(knob);
    if let Some(nic) = knob.nic() {
        let dev = all(host).latest("proc/net/dev").ok();
        let is_counted = dev.is_some_and(|dev| dev.body().contains(&format!("{nic}:")));
        let is_known = is_counted
            || all(host).fact::<Interfaces>().expect("read").names().contains(&nic.to_owned())
            || kind == "max-queues";
        is_known.then_some(()).ok_or(format!("there is no {nic}"))?;
    }
    if let Some(why) = knob.path().expect("a plain name").and_then(|path| host.read_only(&path)) {
        return Err(format!("{} cannot be set: {why}", knob.name()));
    }
    // Queues of ringway's vifs and disciplines are shown by programs; the first has its own test.
    let is_shown = !matches!(kind.as_str(), "max-queues" | "qdisc");
    if is_shown && now.is_none() && !matches!(kind.as_str(), "rps" | "irq-affinity") {
        return Err(format!("nothing says that there is {}", knob.name()));
    }
    let values = numbers(proposed);
    if let Some(values) = values.filter(|_| !matches!(purpose, Purpose::Replace)) {
        let is_ordered = values.len() < 3 || values.is_sorted();
        is_ordered.then_some(()).ok_or(format!("out of order: {proposed}"))?;
        let is_taken = values.iter().all(|value| *value <= knob.describe().number_max);
        is_taken.then_some(()).ok_or(format!("no kernel takes {proposed}"))?;
    }
    let both = now.as_deref().and_then(numbers).zip(numbers(proposed));
    match purpose {
        Purpose::Raise => match both {
            Some((now, then)) if now.len() == then.len() && now != then => {
                let is_more = now.iter().zip(&then).all(|(now, then)| now <= then);
                is_more.then_some(()).ok_or(format!("{now:?} would be lowered to {then:?}"))
            }
            None if kind == "max-queues" => Ok(()),
            other => Err(format!("not raised: {other:?}")),
        },
        Purpose::Lower => {
            let is_meant = LOWERED.contains(&(check, kind.as_str()));
            is_meant.then_some(()).ok_or(format!("{check} lowers {}", knob.name()))
        }
        Purpose::Replace => {
            let is_meant = REPLACED.contains(&kind.as_str());
            is_meant.then_some(()).ok_or(format!("{} has an order", knob.name()))?;
            if kind == "sysctl" && !knob.name().ends_with("congestion_control") {
                return Err(format!("{} has an order", knob.name()));
            }
            if let (Knob::Rps { .. }, Some(now)) = (knob, now) {
                let then = masked_cpus(proposed).ok_or("no mask")?;
                let had = masked_cpus(&now).unwrap_or_default();
                let is_kept = had.iter().all(|cpu| then.contains(cpu));
                return is_kept.then_some(()).ok_or(format!("{now} loses CPUs: {proposed}"));
            }
            Ok(())
        }
    }
}

/// The command that makes a change, as a shell must parse it.
fn expected(change: &Change) -> Command {
    match change.knob.describe().execution(&change.proposed) {
        Execution::Run(words) => Command { words, into: None },
        Execution::Write { path, value } => Command {
            words: vec!["echo".to_owned(), value],
            into: Some((format!("/{path}"), true)),
        },
    }
}

/// Checks a command that belongs to no change: it may only show something, or do what no evidence
/// shows.
fn sound_command(host: &Host, line: &str, known: &BTreeSet<String>) -> Verdict {
    if known.contains(line) {
        return Ok(());
    }
    for command in parse(line)? {
        let words: Vec<&str> = command.words.iter().map(String::as_str).collect();
        if matches!(words.as_slice(), ["ethtool", _, "-n", ..]) {
            return Err(format!("an interface that is taken for an option: {line}"));
        }
        for word in &words {
            let is_place = word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase());
            if is_place || word.contains("...") {
                return Err(format!("{word} has to be filled in"));
            }
        }
        match words.as_slice() {
            ["sysctl", "-w", "net.ipv4.tcp_congestion_control=cubic"] => {}
            ["sysctl", names @ ..] => {
                for name in names {
                    let path = format!("proc/sys/{}", name.replace('.', "/"));
                    all(host).file(&path).map_err(|gap| format!("{line}: {gap}"))?;
                }
            }
            ["echo", ..] if matches!(command.into, Some((_, false))) => {}
            ["echo", "1"] if command.into.as_ref().is_some_and(|(path, _)| is_cpu(path)) => {
                continue;
            }
            ["ip", "route", ..] | ["tc", "filter" | "-s", ..] => {}
            ["ip", rest @ ..] if !rest.iter().any(|word| SETS.contains(word)) => {}
            ["ip" | "tc", ..] => return Err(format!("sets something, by no change: {line}")),
            ["ethtool", "-C", nic, "adaptive-rx", "on"] => {
                let now =
                    coalescing(host, nic).ok_or(format!("{line}: nothing says what it is"))?;
                (!now.is_adaptive).then_some(()).ok_or(format!("{line}: it is"))?;
            }
            ["ethtool", "-C", nic, "rx-usecs", wanted] => {
                let now = coalescing(host, nic).and_then(|now| now.usecs);
                let is_more = now.is_some_and(|(now, _)| Some(now) < wanted.parse().ok());
                is_more.then_some(()).ok_or(format!("{line}: it is {now:?}"))?;
            }
            ["sed", "-i", _, "/etc/sysconfig/unplug-vcpus"] => {}
            ["ringway", "doctor", "explain", id] => {
                let is_known = ringway_doctor::check::find(id).is_some();
                is_known.then_some(()).ok_or(format!("there is no {id}"))?;
            }
            [program, ..] if OTHERS.contains(program) => {}
            _ => return Err(format!("sets something, by no change: {line}")),
        }
        if matches!(command.into, Some((_, true))) {
            return Err(format!("writes a file, by no change: {line}"));
        }
    }
    Ok(())
}

fn coalescing(host: &Host, nic: &str) -> Option<Coalescing> {
    Coalescing::parse(&all(host).settings(nic, NicSettings::Coalescing).ok()?).ok()
}

/// Whether a file is the one that brings a CPU online.
fn is_cpu(path: &str) -> bool {
    let rest = path.strip_prefix("/sys/devices/system/cpu/cpu");
    let number = rest.and_then(|rest| rest.strip_suffix("/online"));
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

fn sound_advice(
    host: &Host,
    finding: &Finding,
    advice: &Advice,
    known: &BTreeSet<String>,
) -> Verdict {
    if advice.changes.is_empty() {
        return advice.commands.iter().try_for_each(|line| sound_command(host, line, known));
    }
    if advice.commands.len() != advice.changes.len() {
        return Err("a command for each change".to_owned());
    }
    for (change, line) in advice.changes.iter().zip(&advice.commands) {
        sound_change(host, &finding.check, change)?;
        let shown = parse(line)?;
        let wanted = expected(change);
        let is_same =
            shown.len() == 1 && (&shown[0].words, &shown[0].into) == (&wanted.words, &wanted.into);
        is_same.then_some(()).ok_or(format!("{line} is not {wanted:?}"))?;
    }
    Ok(())
}

/// The advice that was seen, so that a run which sees little fails.
static SEEN: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

fn inspect(pieces: Pieces) -> Verdict {
    let host = Host::new(Source::Memory(pieces));
    let report = Report::of(&host, &[]);
    let changes = report.findings.iter().flat_map(|one| &one.advice).flat_map(|one| &one.changes);
    let known: BTreeSet<String> = changes.map(Change::command).collect();
    for finding in &report.findings {
        for advice in &finding.advice {
            sound_advice(&host, finding, advice, &known)
                .map_err(|why| format!("{}: {why}\n{finding:#?}", finding.check))?;
            let mut seen = SEEN.lock().expect("no panic with it");
            for change in &advice.changes {
                let key = format!("{} {} {:?}", finding.check, kind(&change.knob), change.purpose);
                *seen.entry(key).or_default() += 1;
            }
        }
    }
    Ok(())
}

/// Values for settings: usual ones, and the limits of the type.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..16_u64,
        4 => 16..100_000_u64,
        2 => 100_000..4_000_000_000_u64,
        1 => prop::sample::select(vec![
            u64::from(u16::MAX), 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, u64::MAX,
        ]),
    ]
}

/// A replacement of a number: the file, the index of the number in it, and the new value.
type Swap = (usize, usize, u64);

/// Positions of the numbers in a text.
fn places(text: &str) -> Vec<(usize, usize)> {
    let mut places = Vec::new();
    let mut start = None;
    for (at, letter) in text.char_indices().chain([(text.len(), ' ')]) {
        match (letter.is_ascii_digit(), start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                places.push((from, at));
                start = None;
            }
            _ => {}
        }
    }
    places
}

fn swap(pieces: &mut Pieces, (file, place, number): Swap) {
    // Settings first: advice is about them, and most files contain many other numbers.
    let is_setting = |path: &&String| {
        path.starts_with("proc/sys/")
            || path.starts_with("sys/")
            || path.contains("netlink/")
            || path.contains("ethtool")
    };
    let mut paths: Vec<String> = pieces.keys().filter(is_setting).cloned().collect();
    if file % 3 == 0 || paths.is_empty() {
        paths = pieces.keys().filter(|path| !path.ends_with("monotonic")).cloned().collect();
    }
    let path = &paths[file / 3 % paths.len()];
    let text = &pieces[path];
    let places = places(text);
    if places.is_empty() {
        return;
    }
    let (from, to) = places[place % places.len()];
    let text = format!("{}{number}{}", &text[..from], &text[to..]);
    pieces.insert(path.clone(), text);
}

/// Renames `eth0` everywhere.
fn rename(pieces: Pieces, name: &str) -> Pieces {
    let renamed =
        |(path, text): (String, String)| (path.replace("eth0", name), text.replace("eth0", name));
    pieces.into_iter().map(renamed).collect()
}

/// Simulates a network namespace that sees only some settings and can change fewer.
fn confine(pieces: &mut Pieces, hidden: u64, read_only: u64) {
    let is_picked = |mask: u64, index: usize| mask >> (index % 64) & 1 == 1;
    let settings = |path: &&String| path.starts_with("proc/sys/") || path.ends_with("ps_cpus");
    let paths: Vec<String> = pieces.keys().filter(settings).cloned().collect();
    let mut list = String::new();
    for (index, path) in paths.iter().enumerate() {
        if is_picked(hidden, index) && path.starts_with("proc/sys/net/core") {
            pieces.remove(path);
        } else if is_picked(read_only, index) {
            list += &format!("{path}\tit can only be read here\n");
        }
    }
    pieces.insert("read-only".to_owned(), list);
    pieces.insert("netns".to_owned(), "other\n".to_owned());
}

#[test]
fn advice_of_all_fixtures_is_sound() {
    for pieces in HOSTS.iter() {
        inspect(pieces.clone()).expect("sound");
    }
}

#[test]
fn every_kind_of_setting_is_seen() {
    for pieces in HOSTS.iter() {
        inspect(pieces.clone()).expect("sound");
    }
    let seen = SEEN.lock().expect("no panic with it");
    let is_seen = |kind: &str| seen.keys().any(|key| key.split(' ').nth(1) == Some(kind));
    for kind in REPLACED.iter().chain(LOWERED.iter().map(|(_, kind)| kind)) {
        assert!(is_seen(kind), "no advice about {kind}: {seen:#?}");
    }
    for kind in ["channels", "ring", "mtu"] {
        assert!(is_seen(kind), "no advice about {kind}: {seen:#?}");
    }
    assert!(CATALOGUE.len() > 30);
}

#[test]
fn what_means_something_to_a_shell_is_refused() {
    for line in ["echo 1 > /a; reboot", "ip link set dev $x mtu 1", "echo 'a", "a && b", "| b"] {
        assert!(parse(line).is_err(), "{line}");
    }
    let read = parse("ip link set dev 'a;b'\\''c' mtu 1").expect("one command");
    assert_eq!(read[0].words[4], "a;b'c");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3072,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_a_host_says_advice_does_no_harm(
        hosts in prop::collection::vec(0..HOSTS.len(), 1..4),
        swaps in prop::collection::vec((any::<usize>(), any::<usize>(), number()), 0..24),
        name in prop::sample::select(vec!["eth0", "eth0.7", "a;b", "$(x)", "o'neil", "-n", "e*"]),
        namespace in prop::option::of((any::<u64>(), any::<u64>())),
    ) {
        let mut pieces = Pieces::new();
        for host in hosts {
            pieces.extend(HOSTS[host].clone());
        }
        for one in swaps {
            swap(&mut pieces, one);
        }
        let mut pieces = rename(pieces, name);
        if let Some((hidden, read_only)) = namespace {
            confine(&mut pieces, hidden, read_only);
        }
        inspect(pieces).map_err(TestCaseError::fail)?;
    }
}

/// A connection of `ss`, with its round trip in milliseconds and what limits it.
fn connection(rtt: f64, rate: u64, held: &str) -> String {
    format!(
        "0 0 192.0.2.1:5001 192.0.2.9:40000 cubic rtt:{rtt}/0.1 mss:1448 cwnd:100 delivery_rate \
         {rate}bps busy:60000ms {held}:54000ms(90.0%) minrtt:{rtt}\n"
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2048,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_path_makes_a_buffer_smaller(
        rtt in prop_oneof![Just(0.005), Just(0.0), 0.001..1.0, 1.0..1000.0, Just(1e9)],
        rate in number(),
        speed in number(),
        driver in prop::sample::select(vec!["ixgbe", "veth", "virtio_net", "tun", "vif"]),
        wmem in prop::collection::vec(number(), 1..5),
        limit in number(),
        held in prop::sample::select(vec!["rwnd_limited", "sndbuf_limited"]),
    ) {
        let words: Vec<String> = wmem.iter().map(u64::to_string).collect();
        let line = connection(rtt, rate, held);
        let ss = "commands/ss_-tinHO_state_established";
        let pieces = [
            ("proc/sys/net/ipv4/tcp_wmem".to_owned(), words.join("\t") + "\n"),
            ("proc/sys/net/ipv4/tcp_rmem".to_owned(), words.join("\t") + "\n"),
            ("proc/sys/net/core/wmem_max".to_owned(), format!("{limit}\n")),
            ("sys/class/net/eth0/speed".to_owned(), format!("{speed}\n")),
            ("sys/class/net/eth0/device/uevent".to_owned(), format!("DRIVER={driver}\n")),
            ("sample-1/monotonic".to_owned(), "1.0\n".to_owned()),
            ("sample-2/monotonic".to_owned(), "6.0\n".to_owned()),
            (format!("sample-1/{ss}"), line.clone()),
            (format!("sample-2/{ss}"), line),
        ];
        inspect(pieces.into()).map_err(TestCaseError::fail)?;
    }
}

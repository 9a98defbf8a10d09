//! What the doctor reads over netlink matches the tools' output, and it needs neither the tools nor
//! privileges.
//!
//! The test runs in a network namespace that ends with the process. As a program, `netlink record
//! FILE` saves the host that it runs on.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use ringway_doctor::check::CATALOGUE;
use ringway_doctor::collect;
use ringway_doctor::evidence::{Text, archive};
use ringway_doctor::fact::{Channels, Coalescence, Connections, Host, Interfaces, Offloads, Rings};
use ringway_doctor::finding::Severity;
use ringway_doctor::parse::Counters;
use ringway_doctor::parse::ethtool::{Features, Settings};
use ringway_doctor::parse::sockets::Sockets;
use ringway_sys::namespace::{enter_user_namespace, remount_sysfs, unshare_network};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// One end of a veth pair, named like a guest's interface so that checks read it.
const VIF: &str = "vif1.0";
const TAP: &str = "tap0";
/// A user without privileges.
const UNPRIVILEGED: u32 = 65534;
/// The time after which what should have come has failed.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, verb, file] = arguments.as_slice() {
        if verb == "record" {
            return Ok(archive::write(&collect(Duration::from_secs(1)), File::create(file)?)?);
        }
    }
    if unshare_network().is_err() {
        if let Err(error) = enter_user_namespace() {
            println!("SKIPPED: everything: {error}");
            return Ok(());
        }
    }
    for tool in ["ip", "ethtool", "ss"] {
        if Command::new(tool).arg("--version").output().is_err() {
            println!("SKIPPED: everything: {tool} is not installed");
            return Ok(());
        }
    }
    type Test = (&'static str, fn() -> Outcome);
    let tests: [Test; 3] = [
        ("interfaces_are_as_the_tool_says", interfaces),
        ("connections_are_as_the_tool_says", connections),
        ("a_host_without_tools_and_rights_is_diagnosed", without_tools),
    ];
    for (name, test) in tests {
        // Each test gets a thread with an empty network namespace that the next test does not see.
        let run = move || {
            unshare_network()?;
            if let Err(error) = remount_sysfs() {
                println!("SKIPPED: {name}: {error}");
                return Ok(());
            }
            test()?;
            println!("ok: {name}");
            Outcome::Ok(())
        };
        thread::spawn(run)
            .join()
            .map_err(|_| format!("{name} panicked"))?
            .map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

/// The output of a tool in the namespace of this thread.
fn printed(line: &str) -> Result<Text, String> {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    let output = command.args(words).env("LC_ALL", "C").output().map_err(|e| e.to_string())?;
    let said = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    if output.status.success() {
        return Ok(Text::new(line, said(output.stdout)));
    }
    Err(said(output.stderr))
}

fn make_links() -> Outcome {
    printed(&format!("ip link add {VIF} type veth peer name eth0"))?;
    printed("ip link add name br0 type bridge")?;
    printed(&format!("ip link set dev {VIF} up"))?;
    printed("ip link set dev eth0 up")?;
    printed("ip link set dev lo up")?;
    if let Err(error) = printed(&format!("ip tuntap add dev {TAP} mode tap")) {
        println!("SKIPPED: {TAP}: {error}");
    }
    Ok(())
}

fn here() -> Host {
    Host::new(collect(Duration::from_millis(10)))
}

fn interfaces() -> Outcome {
    make_links()?;
    for line in ["-K eth0 gro on gso off", "-K vif1.0 sg off", "-K br0 tx off"] {
        printed(&format!("ethtool {line}"))?;
    }
    let host = here();
    let (nics, offloads): (Interfaces, Offloads) = (host.fact()?, host.fact()?);
    let (channels, rings, coalescence): (Channels, Rings, Coalescence) =
        (host.fact()?, host.fact()?, host.fact()?);
    let mut compared = 0;
    for nic in nics.names() {
        let text = offloads.of(&nic)?;
        assert_eq!(text.origin(), format!("netlink/{nic}/features"));
        assert_features(&text, &printed(&format!("ethtool -k {nic}"))?);
        let others =
            [(channels.of(&nic), "-l"), (rings.of(&nic), "-g"), (coalescence.of(&nic), "-c")];
        for (settings, option) in others {
            let tool = printed(&format!("ethtool {option} {nic}"));
            match (settings, tool) {
                (Ok(text), Ok(tool)) => {
                    compared += 1;
                    assert_numbers(&text, &tool);
                }
                (Err(gap), Err(said)) => {
                    let is_same = gap.to_string().contains("not supported");
                    assert!(is_same && said.contains("not supported"), "{gap}; {said}");
                }
                (text, tool) => panic!("{nic} {option}: {text:?}; {tool:?}"),
            }
        }
    }
    assert!(compared > 0, "no driver has any numbers");
    Ok(())
}

/// Every line of the tool is known, under the same name and with the same meaning.
fn assert_features(text: &Text, tool: &Text) {
    let (read, wanted) =
        (Features::parse(text).expect("sound"), Features::parse(tool).expect("tool"));
    let mut compared = 0;
    for (line, row) in tool.lines().skip(1) {
        let name = row.split(':').next().unwrap_or_default().trim();
        let ours = read.get(name).unwrap_or_else(|| panic!("no {name} in {}", text.origin()));
        let theirs = wanted.get(name).expect("it is there");
        assert_eq!(ours.is_on, theirs.is_on, "{name} of {}", text.origin());
        // The tool does not print it for a group of several.
        let is_group = tool.lines().nth(line).is_some_and(|(_, next)| next.starts_with('\t'))
            && !row.starts_with('\t');
        assert!(is_group || ours.is_fixed == theirs.is_fixed, "{name} of {}", text.origin());
        compared += 1;
    }
    assert!(compared > 30, "{compared} features");
}

/// Values in both are equal, and the tool has no additional number.
fn assert_numbers(text: &Text, tool: &Text) {
    let (read, wanted) =
        (Settings::parse(text).expect("sound"), Settings::parse(tool).expect("tool"));
    for (ours, theirs) in [(read.current, wanted.current), (read.maximum, wanted.maximum)] {
        for (name, theirs) in theirs {
            // The tool prints 0 for kinds of queues that the driver lacks.
            let ours = ours.get(&name).map_or(0, |setting| setting.value);
            assert_eq!(ours, theirs.value, "{name} of {}", text.origin());
        }
    }
}

/// A connection that waits for a receiver that does not read, and an idle one.
fn connect() -> Result<Vec<TcpStream>, Box<dyn Error + Send + Sync>> {
    let mut all = Vec::new();
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(address)?;
        let mut stream = TcpStream::connect(listener.local_addr()?)?;
        let (mut other, _) = listener.accept()?;
        // Round trips, so that there are some to measure.
        for _ in 0..10 {
            stream.write_all(b"a")?;
            other.read_exact(&mut [0])?;
            other.write_all(b"b")?;
            stream.read_exact(&mut [0])?;
        }
        all.extend([stream, other]);
    }
    let stuck = &mut all[0];
    stuck.set_nonblocking(true)?;
    while stuck.write(&[0; 1 << 16]).is_ok() {}
    // Until the kernel's counters show what limits it.
    let begun = Instant::now();
    while !sockets()?.all.iter().any(|one| one.busy_ms > 1000.0 && one.rwnd_limited > 0.5) {
        assert!(begun.elapsed() < PATIENCE, "the receiver's window does not limit a connection");
        // waits: looks again until the counters are that high
        thread::sleep(Duration::from_millis(50));
    }
    Ok(all)
}

/// What we read of all connections.
fn sockets() -> Result<Sockets, Box<dyn Error + Send + Sync>> {
    let Connections { text, .. } = here().fact()?;
    Ok(Sockets::parse(&text)?)
}

fn connections() -> Outcome {
    printed("ip link set dev lo up")?;
    let streams = connect()?;
    // Times grow from each reading to the next.
    let earlier = Sockets::parse(&printed("ss -tinHO state established")?)?;
    let Connections { text, .. } = here().fact()?;
    let tool = printed("ss -tinHO state established")?;
    assert_eq!(text.origin(), "netlink/connections");
    let (read, wanted) = (Sockets::parse(&text)?, Sockets::parse(&tool)?);
    assert_eq!((read.all.len(), wanted.all.len()), (streams.len(), streams.len()), "{text:?}");
    let mut limited = 0;
    for theirs in &wanted.all {
        let ours = read.same(theirs).unwrap_or_else(|| panic!("{theirs:?} is not in {text:?}"));
        assert_eq!(ours.congestion, theirs.congestion);
        assert_eq!((ours.mss, ours.cwnd), (theirs.mss, theirs.cwnd), "{}", ours.local);
        assert_eq!(ours.moved_bytes, theirs.moved_bytes, "{}", ours.local);
        assert_eq!((ours.unacked, ours.notsent_bytes), (theirs.unacked, theirs.notsent_bytes));
        let (rtt, tools) = (ours.rtt_ms.expect("measured"), theirs.rtt_ms.expect("measured"));
        assert!((rtt - tools).abs() < 0.001, "{rtt} {tools}");
        let earlier = earlier.same(theirs).expect("it was there");
        // The tool prints whole milliseconds.
        let busy = earlier.busy_ms..=theirs.busy_ms + 1.0;
        let limited_part = earlier.rwnd_limited - 0.01..=theirs.rwnd_limited + 0.01;
        assert!(busy.contains(&ours.busy_ms), "{ours:?} {busy:?}");
        assert!(limited_part.contains(&ours.rwnd_limited), "{ours:?} {limited_part:?}");
        limited += usize::from(ours.rwnd_limited > 0.5);
    }
    assert_eq!(limited, 1, "{text:?}");
    assert_words(&text, &tool);
    drop(streams);
    Ok(())
}

/// Compares numbers that no check reads, under the names of both.
fn assert_words(text: &Text, tool: &Text) {
    let words = |row: &str, sign: char| -> BTreeMap<String, String> {
        let pairs = row.split_whitespace().filter_map(|word| word.split_once(sign));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    for (_, row) in tool.lines() {
        let ends: Vec<&str> = row.split_whitespace().skip(2).take(2).collect();
        let is_same = |ours: &&str| ours.split(' ').take(2).eq(ends.iter().copied());
        let ours = text.lines().map(|(_, row)| row).find(is_same).expect("it is there");
        let (ours, theirs) = (words(ours, '='), words(row, ':'));
        let scales = format!("{},{}", ours["snd_wscale"], ours["rcv_wscale"]);
        assert_eq!(Some(&scales), theirs.get("wscale"), "{row}");
        for (our_name, name) in
            [("bytes_sent", "bytes_sent"), ("pmtu", "pmtu"), ("rcv_mss", "rcvmss")]
        {
            let number = theirs.get(name).map_or("0", String::as_str);
            assert_eq!(ours[our_name], number, "{name} in {row}");
        }
        for name in ["delivery_rate", "total_retrans", "snd_wnd"] {
            assert!(ours.contains_key(name), "{name}: {ours:?}");
        }
    }
}

fn without_tools() -> Outcome {
    make_links()?;
    printed(&format!("ethtool -K {VIF} tso off"))?;
    let streams = connect()?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("host.tar");
    let ours = std::env::current_exe()?;
    match as_unprivileged(&ours, folder.path()) {
        Ok(mut command) => record(&mut command, &file)?,
        Err(error) => {
            println!("SKIPPED: to do it without rights: {error}");
            record(&mut Command::new(ours), &file)?;
        }
    }
    let host = Host::new(archive::open(&file)?);
    let quoted = |id: &str| -> Vec<String> {
        let check = CATALOGUE.iter().find(|check| check.id == id).expect("it is there");
        let findings = check.run(&host).into_iter();
        // Where all CPUs are full, D11 is only a note.
        let said = findings.filter(|finding| finding.severity >= Severity::Note);
        said.flat_map(|finding| finding.evidence.into_iter().map(|quote| quote.file)).collect()
    };
    assert!(quoted("D13").contains(&format!("netlink/{VIF}/features")), "{:?}", quoted("D13"));
    assert!(quoted("D11").contains(&"netlink/connections".to_owned()), "{:?}", quoted("D11"));
    drop(streams);
    Ok(())
}

/// This program, run by a user without privileges.
fn as_unprivileged(program: &Path, folder: &Path) -> std::io::Result<Command> {
    std::os::unix::fs::chown(folder, Some(UNPRIVILEGED), Some(UNPRIVILEGED))?;
    // That user may have no access to the build directory.
    let copy = folder.join("netlink");
    std::fs::copy(program, &copy)?;
    let mut command = Command::new(copy);
    command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
    Ok(command)
}

fn record(command: &mut Command, file: &Path) -> Outcome {
    let status = command.arg("record").arg(file).env("PATH", "/nonexistent").status()?;
    assert!(status.success(), "{status}");
    Ok(())
}

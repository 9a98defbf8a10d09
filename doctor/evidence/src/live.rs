//! Collects the evidence of the host that we run on, twice.

mod drops;
mod machines;
mod moves;
mod programs;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use self::programs::Programs;
use self::watch::Watch;
use super::access::{Netns, read_only};
use super::manifest::{Manifest, NETNS, PROFILE, Words};
use super::netlink::{
    CONNECTIONS, DESTINATIONS, Ethtool, LISTENERS, Qstats, TRANSLATIONS, connections, destinations,
    listeners, qstats_path, translations,
};
use super::piece::Piece;
use super::source::{
    PIECE_BYTES_MAX, PIECES_MAX, READ_ONLY_FILE, REFUSED_FILE, Source, command_path, text_of,
};
use super::text::Text;
use super::tool::{TOOL_SECONDS_MAX, late, output, piped};
use crate::parse::Counters;
use crate::parse::conntrack::Conntrack;
use crate::parse::qdisc::Qdiscs;

/// Interfaces, guests and domains that are queried; a host may have a thousand.
const NAMES_MAX: usize = 256;

/// Sockets of each kind whose owners are determined.
const OWNED_MAX: usize = 256;

/// Lists queueing disciplines, which show where there are filters and classes.
const QDISCS: &[&str] = &["tc", "-s", "-j", "qdisc", "show"];

/// Takes two samples of these pieces, `interval` apart. It needs no privileges, and records what it
/// may not read.
pub fn collect(interval: Duration, pieces: &[Piece]) -> Source {
    let manifest = Manifest::of(pieces);
    let mut taken = Taken::default();
    taken.sample(1, &manifest);
    // Settings are read between the samples, and that time is part of the interval.
    let begun = Instant::now();
    let drops = manifest.has_drops.then(drops::start);
    let moves = manifest.has_moves.then(moves::start);
    taken.files(&manifest.files, "");
    taken.access();
    taken.links(&manifest);
    taken.directories(&manifest);
    taken.machines(&manifest, Path::new("/"));
    taken.interfaces(Ethtool::open(), &manifest);
    taken.commands(&manifest.commands, "");
    if manifest.has_profile {
        taken.profile();
    }
    thread::sleep(interval.saturating_sub(begun.elapsed()));
    if let Some((path, seen)) = drops.map(Watch::finish) {
        taken.keep_reply("", path, seen);
    }
    if let Some((path, seen)) = moves.map(Watch::finish) {
        taken.keep_reply("", path, seen);
    }
    taken.sample(2, &manifest);
    if manifest.has_translations && taken.entries_were_refused() {
        taken.keep_reply("", TRANSLATIONS, translations());
    }
    taken.finish()
}

#[derive(Default)]
struct Taken {
    pieces: BTreeMap<String, String>,
    refused: BTreeMap<String, String>,
    /// Tools that are not installed, so that each is searched for only once.
    absent: BTreeSet<String>,
    /// CPU use of programs up to the first sample.
    programs: Programs,
}

impl Taken {
    fn sample(&mut self, number: u32, manifest: &Manifest) {
        let prefix = format!("sample-{number}/");
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let seconds = format!("{}.{:09}\n", now.tv_sec, now.tv_nsec);
        self.pieces.insert(format!("{prefix}monotonic"), seconds);
        self.files(&manifest.counters, &prefix);
        self.threads(manifest, number);
        if manifest.has_connections {
            self.keep_reply(&prefix, CONNECTIONS, connections());
        }
        if manifest.has_sockets {
            self.keep_reply(&prefix, LISTENERS, listeners());
            if number > 1 && self.ports_may_run_out() {
                self.keep_reply(&prefix, DESTINATIONS, destinations());
            }
        }
        self.commands(&manifest.sampled, &prefix);
        if manifest.has_qstats {
            self.queues(&prefix);
        }
        self.filters(manifest, &prefix);
        if manifest.has_sockets && number > 1 {
            let owners = programs::owners(&self.inodes(&prefix));
            self.keep("owners".to_owned(), owners);
        }
    }

    fn keep_reply(&mut self, prefix: &str, path: &str, reply: io::Result<String>) {
        match reply {
            Ok(text) => self.keep(format!("{prefix}{path}"), text),
            // This includes kernels without support: no check may conclude that the host has none.
            Err(error) => drop(self.refused.insert(path.to_owned(), error.to_string())),
        }
    }

    /// Whether connections use most of the available ports. Only then is it worth listing them all,
    /// because a proxy may have a million.
    fn ports_may_run_out(&self) -> bool {
        let range = read(Path::new("/proc/sys/net/ipv4/ip_local_port_range")).unwrap_or_default();
        let range: Vec<u64> = range.split_whitespace().flat_map(str::parse).collect();
        let [first, last] = range.as_slice() else { return false };
        let all = last.saturating_sub(*first).saturating_add(1);
        let sockets = read(Path::new("/proc/net/sockstat")).unwrap_or_default();
        let words: Vec<&str> = sockets.split_whitespace().collect();
        let count = |name: &str| {
            let at = words.iter().position(|word| *word == name);
            at.and_then(|at| words.get(at + 1)?.parse::<u64>().ok()).unwrap_or(0)
        };
        // Sockets in TIME_WAIT are counted for the machine or, since Linux 6, for the namespace.
        count("TCP:").max(count("inuse")).saturating_add(count("tw")) >= all / 2
    }

    /// Whether entries of connections that are tracked were refused since the first sample.
    fn entries_were_refused(&self) -> bool {
        let failed = |number: u32| {
            let path = format!("sample-{number}/proc/net/stat/nf_conntrack");
            let text = Text::new(path.clone(), self.pieces.get(&path)?.as_str());
            Some(Conntrack::parse(&text).ok()?.insert_failed)
        };
        failed(1).zip(failed(2)).is_some_and(|(before, after)| before != after)
    }

    /// Inodes of the sockets whose owners are worth determining.
    fn inodes(&self, prefix: &str) -> BTreeSet<u64> {
        let mut inodes = BTreeSet::new();
        let lines = |path: &str| {
            self.pieces.get(&format!("{prefix}{path}")).map(String::as_str).unwrap_or_default()
        };
        for line in lines(CONNECTIONS).lines().take(OWNED_MAX) {
            let mut words = line.rsplit(' ');
            inodes.extend(words.find_map(|word| word.strip_prefix("inode=")?.parse::<u64>().ok()));
        }
        let last = |line: &str| line.rsplit(' ').next().and_then(|word| word.parse::<u64>().ok());
        inodes.extend(lines(LISTENERS).lines().skip(1).take(OWNED_MAX).filter_map(last));
        for path in ["proc/net/udp", "proc/net/udp6", "proc/net/raw", "proc/net/raw6"] {
            let inode = |line: &str| line.split_whitespace().nth(9)?.parse::<u64>().ok();
            inodes.extend(lines(path).lines().skip(1).take(OWNED_MAX).filter_map(inode));
        }
        let last = |line: &str| line.split_whitespace().next_back()?.parse::<u64>().ok();
        inodes.extend(lines("proc/net/packet").lines().skip(1).take(OWNED_MAX).filter_map(last));
        inodes
    }

    fn files(&mut self, patterns: &BTreeSet<&str>, prefix: &str) {
        for pattern in patterns {
            for path in expand(pattern) {
                match read(Path::new(&format!("/{path}"))) {
                    Ok(text) => self.keep(format!("{prefix}{path}"), text),
                    Err(error) => self.refuse(path, &error),
                }
            }
        }
    }

    /// Records which settings can be read but not set, and the network namespace.
    fn access(&mut self) {
        if let Some(netns) = Netns::live() {
            self.keep(NETNS.to_owned(), format!("{}\n", netns.word()));
        }
        let is_setting = |path: &&String| {
            ["proc/sys/", "proc/irq/"].iter().any(|top| path.starts_with(top))
                || ["/mtu", "/tx_queue_len", "ps_cpus"].iter().any(|end| path.ends_with(end))
        };
        let line = |path: &String| {
            let why = read_only(Path::new(&format!("/{path}"))).ok()??;
            Some(format!("{path}\t{why}\n"))
        };
        let lines: String = self.pieces.keys().filter(is_setting).filter_map(line).collect();
        self.keep(READ_ONLY_FILE.to_owned(), lines);
    }

    fn links(&mut self, manifest: &Manifest) {
        for path in manifest.links.iter().flat_map(|pattern| expand(pattern)) {
            if let Ok(target) = fs::read_link(format!("/{path}")) {
                // A separate name, because the link's own path is used as a directory.
                self.keep(format!("{path}.link"), format!("{}\n", target.display()));
            }
        }
    }

    fn directories(&mut self, manifest: &Manifest) {
        for path in &manifest.names {
            let names = names(Path::new(&format!("/{path}")));
            if !names.is_empty() {
                self.keep(format!("{path}.names"), names.join("\n") + "\n");
            }
        }
    }

    /// The CPU time of threads that move frames: one line of `stat` each. Also the busiest
    /// programs, because that is in the same files.
    fn threads(&mut self, manifest: &Manifest, number: u32) {
        if manifest.threads.is_empty() && !manifest.has_programs {
            return;
        }
        let is_number = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
        let (mut lines, mut programs) = (String::new(), Programs::default());
        for process in names(Path::new("/proc")).into_iter().filter(is_number) {
            if manifest.has_programs {
                programs.take_groups(&process);
            }
            for thread in names(Path::new(&format!("/proc/{process}/task"))) {
                let path = format!("/proc/{process}/task/{thread}/stat");
                let Ok(stat) = read(Path::new(&path)) else { continue };
                let name = stat.split_once('(').map_or("", |(_, rest)| rest);
                if manifest.threads.iter().any(|start| name.starts_with(start)) {
                    lines += stat.trim_end();
                    lines.push('\n');
                }
                if manifest.has_programs {
                    programs.take(&process, &thread, &stat, number == 1);
                }
            }
        }
        if !manifest.threads.is_empty() {
            self.keep(format!("sample-{number}/threads"), lines);
        }
        if manifest.has_programs {
            self.keep(format!("sample-{number}/cgroups"), programs.quotas());
            if number == 1 {
                self.programs = programs;
            } else {
                let [before, after] = self.programs.busiest(&programs);
                self.keep("sample-1/busiest".to_owned(), before);
                self.keep("sample-2/busiest".to_owned(), after);
            }
        }
    }

    fn commands(&mut self, commands: &BTreeSet<Words>, prefix: &str) {
        for words in commands {
            let is_place = |place: &&str| words.iter().any(|word| word.contains(place));
            let Some(place) = ["{nic}", "{guest}", "{domid}"].into_iter().find(is_place) else {
                self.command(prefix, words);
                continue;
            };
            for name in stands_for(place) {
                let words: Vec<String> =
                    words.iter().map(|word| word.replace(place, &name)).collect();
                self.command(prefix, &words.iter().map(String::as_str).collect::<Vec<_>>());
            }
        }
    }

    /// Counters of filters and classes. Most interfaces have neither, which their disciplines show.
    fn filters(&mut self, manifest: &Manifest, prefix: &str) {
        let path = format!("{prefix}{}", command_path(QDISCS));
        let Some(body) = self.pieces.get(&path) else { return };
        let Ok(qdiscs) = Qdiscs::parse(&Text::new(path, body.as_str())) else { return };
        let hooks = qdiscs.hooks().into_iter().take(NAMES_MAX).filter(|_| manifest.has_filters);
        for (nic, hook) in hooks {
            self.command(prefix, &hook.command(nic));
        }
        let classful =
            qdiscs.with_classes().into_iter().take(NAMES_MAX).filter(|_| manifest.has_classes);
        for nic in classful {
            self.command(prefix, &["tc", "-s", "class", "show", "dev", nic]);
        }
    }

    /// Settings of interfaces over netlink, or through the tool if the kernel is too old.
    fn interfaces(&mut self, mut ethtool: io::Result<Ethtool>, manifest: &Manifest) {
        let deadline = Instant::now() + Duration::from_secs(TOOL_SECONDS_MAX);
        for nic in stands_for("{nic}") {
            for settings in manifest.settings.iter().copied() {
                let Ok(ethtool) = &mut ethtool else {
                    self.command("", &settings.command(&nic));
                    continue;
                };
                let is_late = Instant::now() > deadline;
                let reply = if is_late { Err(late()) } else { ethtool.ask(&nic, settings) };
                match reply {
                    Ok(text) => self.keep(settings.path(&nic), text),
                    Err(error) => self.refuse(settings.path(&nic), &error),
                }
            }
        }
    }

    /// Counters of queues over netlink. A kernel that lacks the family has none to report.
    fn queues(&mut self, prefix: &str) {
        let Ok(mut qstats) = Qstats::open() else { return };
        let deadline = Instant::now() + Duration::from_secs(TOOL_SECONDS_MAX);
        for nic in stands_for("{nic}") {
            let is_late = Instant::now() > deadline;
            match if is_late { Err(late()) } else { qstats.ask(&nic) } {
                Ok(text) => self.keep(format!("{prefix}{}", qstats_path(&nic)), text),
                Err(error) => self.refuse(qstats_path(&nic), &error),
            }
        }
    }

    /// Where the time of all CPUs goes, on Xen.
    fn profile(&mut self) {
        let [record, report] = PROFILE;
        let is_xen = read(Path::new("/sys/hypervisor/type")).is_ok_and(|text| text.trim() == "xen");
        if !is_xen {
            return;
        }
        let path = command_path(report);
        match piped(record, report) {
            Ok(text) => self.keep(path, text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.refused.insert(path, "perf is not installed".to_owned());
            }
            Err(error) => self.refuse(path, &error),
        }
    }

    fn command(&mut self, prefix: &str, words: &[&str]) {
        let path = command_path(words);
        let tool = words.first().copied().unwrap_or_default();
        if self.absent.contains(tool) {
            self.refused.insert(path, format!("{tool} is not installed"));
            return;
        }
        match output(words) {
            Ok(text) => self.keep(format!("{prefix}{path}"), text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.absent.insert(tool.to_owned());
                self.refused.insert(path, format!("{tool} is not installed"));
            }
            Err(error) => self.refuse(path, &error),
        }
    }

    fn keep(&mut self, path: String, text: String) {
        if self.pieces.len() < PIECES_MAX {
            self.pieces.insert(path, text);
        }
    }

    /// Records why something could not be read, unless it does not exist.
    fn refuse(&mut self, path: String, error: &io::Error) {
        if error.kind() != io::ErrorKind::NotFound {
            self.refused.insert(path, error.to_string());
        }
    }

    fn finish(mut self) -> Source {
        let line =
            |(path, why): (&String, &String)| format!("{path}\t{}\n", why.replace('\n', " "));
        let refused = self.refused.iter().map(line).collect();
        self.pieces.insert(REFUSED_FILE.to_owned(), refused);
        Source::Memory(self.pieces)
    }
}

/// The paths that match a pattern. A `*` may stand for the end of a name.
fn expand(pattern: &str) -> Vec<String> {
    let mut paths = vec![String::new()];
    for part in pattern.split('/') {
        let join = |path: &String, name: &str| {
            if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
        };
        paths = match part.strip_suffix('*') {
            None => paths.iter().map(|path| join(path, part)).collect(),
            Some(start) => paths
                .iter()
                .flat_map(|path| {
                    let names = names(Path::new(&format!("/{path}")));
                    let named = names.into_iter().filter(|name| name.starts_with(start));
                    named.map(|name| join(path, &name)).collect::<Vec<_>>()
                })
                .collect(),
        };
    }
    paths.truncate(PIECES_MAX);
    paths
}

fn names(path: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .take(PIECES_MAX)
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(PIECE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    text_of(bytes).map_err(io::Error::other)
}

/// The names that replace a placeholder in a command.
fn stands_for(place: &str) -> Vec<String> {
    let printed = |words: &[&str]| output(words).unwrap_or_default();
    let lines = |text: String| -> Vec<String> {
        let names = text.lines().map(str::trim);
        // A name that begins with a dash would be parsed as an option.
        names.filter(|name| !name.is_empty() && !name.starts_with('-')).map(str::to_owned).collect()
    };
    let mut names = match place {
        "{guest}" => lines(printed(&["virsh", "-r", "list", "--name"])),
        "{domid}" => lines(printed(&["xenstore-list", "/local/domain"])),
        _ => names(Path::new("/sys/class/net")),
    };
    names.truncate(NAMES_MAX);
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NicSettings;

    #[test]
    fn this_host_is_collected_twice() {
        let pieces = [Piece::Counters("proc/stat"), Piece::File("proc/version")];
        let source = collect(Duration::from_millis(10), &pieces);
        for file in ["sample-1/proc/stat", "sample-2/proc/stat", "proc/version"] {
            assert!(source.file(file).is_ok(), "{file}");
        }
        let at = |sample: u32| {
            let text = source.file(&format!("sample-{sample}/monotonic")).expect("a time");
            text.value().parse::<f64>().expect("a number")
        };
        assert!(at(2) - at(1) >= 0.01);
    }

    #[test]
    fn on_an_old_kernel_settings_are_what_the_tool_prints() {
        let mut taken = Taken::default();
        let manifest = Manifest::of(&[Piece::Settings(NicSettings::Features)]);
        taken.interfaces(Err(io::ErrorKind::NotFound.into()), &manifest);
        let path = command_path(&["ethtool", "-k", "lo"]);
        assert!(taken.pieces.contains_key(&path) || taken.refused.contains_key(&path));
        assert!(!taken.pieces.keys().any(|path| path.starts_with("netlink/")));
    }

    #[test]
    fn a_pattern_stands_for_what_is_there() {
        assert_eq!(expand("proc/versio*"), ["proc/version"]);
        assert!(expand("proc/sys/net/*").len() > 1);
        assert!(expand("proc/no-such/*/x").is_empty());
    }
}

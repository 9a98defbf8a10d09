//! Sources of evidence: a saved host in memory, a directory, an unpacked sos report.
//!
//! All have the same layout. A file of the host keeps its path. Outputs of tools are in
//! `commands/`, named as in a sos report, whose `sos_commands/*/` is searched as well. Netlink
//! replies are in `netlink/`, in the form of [`netlink`](super::netlink); older records and sos
//! reports have outputs of tools instead. Counters are in `sample-1/` and `sample-2/`, each with
//! its time in `monotonic`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Component, Path, PathBuf};

use super::bugtool;
use super::text::{Gap, Text};

/// Bytes of a piece of evidence. A larger one is a mistake or an attack.
pub(super) const PIECE_BYTES_MAX: u64 = 16 << 20;
/// Files of a saved host, and names in a directory that are read.
pub(super) const PIECES_MAX: usize = 100_000;
/// The folder of outputs of tools.
const COMMANDS: &str = "commands";
/// The folder of outputs in a sos report, one level deeper.
const SOS_COMMANDS: &str = "sos_commands";
/// Commands that sos runs with other options than the doctor; the parsers know both forms.
const SOS_NAMES: [(&str, &str); 7] = [
    ("ip_-d_-j_route_show_table_all_type_unicast", "ip_route_show_table_all"),
    ("ip_-j_addr_show", "ip_-d_address"),
    ("ip_-s_-j_neigh_show", "ip_-s_-s_neigh_show"),
    ("iptables-save_-c", "iptables_-vnxL"),
    ("nft_-a_list_ruleset", "nft_list_ruleset"),
    ("ss_-tinHO_state_established", "ss_-peaonmi"),
    ("tc_-s_-j_qdisc_show", "tc_-s_qdisc_show"),
];
/// The file of a saved host that lists files that could not be read: path, tab, reason.
pub(crate) const REFUSED_FILE: &str = "refused";
/// The file that lists settings that could be read but not set there: path, tab, reason.
pub(crate) const READ_ONLY_FILE: &str = "read-only";

/// The file that lists problems of the evidence as a whole, one per line.
pub(crate) const REMARKS_FILE: &str = "remarks";

/// A host's evidence by path.
#[derive(Debug)]
pub enum Source {
    /// Collected here or read from a tar.
    Memory(BTreeMap<String, String>),
    /// A directory with the layout of a tar, or a sos report.
    Directory(PathBuf),
}

impl Source {
    /// A saved host in a directory.
    pub fn directory(path: &Path) -> std::io::Result<Source> {
        let path = path.canonicalize()?;
        if !path.is_dir() {
            return Err(std::io::Error::other("expected a directory or a tar"));
        }
        Ok(Source::Directory(path))
    }

    /// This source with more pieces, if it is in memory.
    #[must_use]
    pub(crate) fn with(mut self, more: impl IntoIterator<Item = (String, String)>) -> Source {
        if let Source::Memory(pieces) = &mut self {
            pieces.extend(more);
        }
        self
    }

    /// The file of the host at `path`, which has no leading slash.
    pub fn file(&self, path: &str) -> Result<Text, Gap> {
        let origin = format!("/{path}");
        match self.read(path) {
            Ok(Some(body)) => whole(Text::new(origin, body)),
            Ok(None) => self
                .sos_setting(path)
                .ok_or_else(|| Gap::Missing { file: origin, why: self.why_missing(path) }),
            Err(why) => Err(Gap::Unreadable { file: origin, line: None, why }),
        }
    }

    /// Whether there is such a file and it can be read; cheaper than determining why not.
    pub(crate) fn has(&self, path: &str) -> bool {
        match self.read(path) {
            Ok(Some(body)) => whole(Text::new(path, body)).is_ok(),
            Ok(None) => self.sos_setting(path).is_some(),
            Err(_) => false,
        }
    }

    /// The output of a tool. `prefix` is that of a sample, or empty.
    pub(crate) fn command(&self, prefix: &str, words: &[&str]) -> Result<Text, Gap> {
        let origin = words.join(" ");
        let path = command_path(words);
        let mut found = self.read(&format!("{prefix}{path}"));
        if matches!(found, Ok(None)) && !prefix.is_empty() {
            found = self.read(&path);
        }
        let mut origin = origin;
        if matches!(found, Ok(None)) {
            found = self.bugtool(words).map(|found| {
                found.map(|(command, body)| {
                    origin = command;
                    body
                })
            });
        }
        if matches!(found, Ok(None)) {
            found = self.sos_command(&path).map(|found| {
                found.map(|(name, body)| {
                    // What the report has, if that is another command.
                    if path != format!("{COMMANDS}/{name}") {
                        origin = name.replace('_', " ");
                    }
                    body
                })
            });
        }
        match found {
            Ok(Some(body)) => whole(Text::new(origin, body)),
            Ok(None) => Err(Gap::Missing { file: origin, why: self.why_missing(&path) }),
            Err(why) => Err(Gap::Unreadable { file: origin, line: None, why }),
        }
    }

    /// A netlink reply, or the output of a tool in its place.
    pub(crate) fn reply(&self, prefix: &str, path: &str, words: &[&str]) -> Result<Text, Gap> {
        match self.read(&format!("{prefix}{path}")) {
            // A reply has at least a head; only the output of a tool may be empty.
            Ok(Some(body)) if body.is_empty() => {
                Err(Text::new(path, body).unreadable(None, "expected lines"))
            }
            Ok(Some(body)) => whole(Text::new(path, body)),
            Ok(None) => {
                self.command(prefix, words).map_err(|gap| match (gap, self.refusal(path)) {
                    (Gap::Missing { .. }, Some(why)) => Gap::Missing { file: path.to_owned(), why },
                    (gap, _) => gap,
                })
            }
            Err(why) => Err(Gap::Unreadable { file: path.to_owned(), line: None, why }),
        }
    }

    /// The output of a command in an archive of xen-bugtool, and the command that made it.
    fn bugtool(&self, words: &[&str]) -> Result<Option<(String, String)>, String> {
        let Some(inventory) = self.read(bugtool::INVENTORY)? else { return Ok(None) };
        let (file, command) = bugtool::output(words);
        let body = match words {
            ["uptime"] => bugtool::uptime(&inventory),
            _ => self.read(&file)?,
        };
        Ok(body.map(|body| (command, body)))
    }

    /// The output of a command in a sos report, and its name there.
    fn sos_command(&self, path: &str) -> Result<Option<(String, String)>, String> {
        let own = path.trim_start_matches(COMMANDS).trim_start_matches('/');
        let other = SOS_NAMES.iter().find(|(name, _)| *name == own).map(|(_, other)| *other);
        for name in [Some(own), other].into_iter().flatten() {
            for plugin in self.list(SOS_COMMANDS) {
                if let Some(text) = self.read(&format!("{SOS_COMMANDS}/{plugin}/{name}"))? {
                    return Ok(Some((name.to_owned(), text)));
                }
            }
        }
        Ok(None)
    }

    /// A file of `/proc/sys`; a sos report has only the output of `sysctl -a` instead.
    fn sos_setting(&self, path: &str) -> Option<Text> {
        const ALL: &[&str] = &["sysctl", "-a"];
        let name = path.strip_prefix("proc/sys/")?.replace('/', ".");
        let of_sos = || self.sos_command(&command_path(ALL)).ok()?;
        let (_, all) = of_sos().or_else(|| self.bugtool(ALL).ok()?)?;
        // A last line without a newline is truncated.
        let mut lines = all.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let value = lines.find_map(|line| line.strip_prefix(&name)?.strip_prefix(" = "))?;
        Some(Text::new(format!("sysctl -a, {name}"), value))
    }

    /// The names in a directory of the host, in order.
    pub fn list(&self, path: &str) -> Vec<String> {
        let mut names: Vec<String> = match self {
            Source::Memory(pieces) => {
                let start = format!("{path}/");
                let below =
                    pieces.range(start.clone()..).take_while(|(p, _)| p.starts_with(&start));
                let first = |p: &str| p[start.len()..].split('/').next().unwrap_or("").to_owned();
                below.map(|(path, _)| first(path)).collect()
            }
            Source::Directory(root) => match inside(root, path) {
                Ok(Some(path)) => fs::read_dir(path).map_or_else(
                    |_| Vec::new(),
                    |entries| {
                        let entries = entries.take(PIECES_MAX).flatten();
                        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
                    },
                ),
                _ => Vec::new(),
            },
        };
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The paths of all files, in order; in a directory only regular files, without following
    /// links.
    pub(crate) fn paths(&self) -> Vec<String> {
        let root = match self {
            Source::Memory(pieces) => return pieces.keys().cloned().collect(),
            Source::Directory(root) => root,
        };
        let (mut found, mut folders) = (Vec::new(), vec![root.clone()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => folders.push(path),
                    Ok(kind) if kind.is_file() => {
                        let below = path.strip_prefix(root).ok().and_then(Path::to_str);
                        found.extend(below.map(str::to_owned));
                    }
                    _ => {}
                }
                if found.len() + folders.len() > PIECES_MAX {
                    return found;
                }
            }
        }
        found.sort_unstable();
        found
    }

    /// The text at a path of the saved host; the error describes what is wrong with it.
    fn read(&self, path: &str) -> Result<Option<String>, String> {
        match self {
            Source::Memory(pieces) => Ok(pieces.get(path).cloned()),
            Source::Directory(root) => {
                let Some(path) = inside(root, path)? else { return Ok(None) };
                read_text(&path).map(Some)
            }
        }
    }

    fn why_missing(&self, path: &str) -> String {
        self.refusal(path).unwrap_or_else(|| "not there".to_owned())
    }

    /// Why a piece is missing, if that was saved with the host.
    pub(crate) fn refusal(&self, path: &str) -> Option<String> {
        self.reason(REFUSED_FILE, path)
    }

    /// Why a setting could be read but not set on its host.
    pub(crate) fn read_only(&self, path: &str) -> Option<String> {
        self.reason(READ_ONLY_FILE, path)
    }

    fn reason(&self, list: &str, path: &str) -> Option<String> {
        let listed = self.read(list).ok().flatten()?;
        let mut known = listed.lines().filter_map(|line| line.split_once('\t'));
        known.find(|(known, _)| *known == path).map(|(_, why)| why.to_owned())
    }
}

/// Marks a piece that exists but is not text; the reason follows. The kernel and tools print no
/// NUL, so a lost sector of zeros counts as not text, too.
pub(super) const NO_TEXT: char = '\0';

/// Refuses a truncated text: the kernel and tools end their last line, and half a number would
/// still parse as a number.
fn whole(text: Text) -> Result<Text, Gap> {
    if text.body().contains(NO_TEXT) {
        let why = text.body().strip_prefix(NO_TEXT).filter(|why| why.starts_with("expected"));
        return Err(text.unreadable(None, why.unwrap_or("expected text without NULs")));
    }
    if text.body().is_empty() || text.body().ends_with('\n') {
        return Ok(text);
    }
    let last = text.lines().last().map(|(line, _)| line);
    Err(text.unreadable(last, "cut off: the line has no end"))
}

/// The path of a command's output in a record: the name that sos uses, so that both are found.
pub fn command_path(words: &[&str]) -> String {
    let mut name = String::new();
    for letter in words.join(" ").chars() {
        let is_kept = letter.is_alphanumeric() || "-_.".contains(letter);
        match letter {
            '/' => name.push('.'),
            letter if is_kept => name.push(letter),
            _ if name.ends_with('_') => {}
            _ => name.push('_'),
        }
    }
    format!("{COMMANDS}/{}", name.trim_matches(['.', '_', ' ', '-']))
}

/// A path below the root, if it exists. A link that leaves the root is refused: a saved host must
/// not be mixed with the one that reads it.
fn inside(root: &Path, path: &str) -> Result<Option<PathBuf>, String> {
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    if !Path::new(path).components().all(is_plain) {
        return Ok(None);
    }
    match root.join(path).canonicalize() {
        Ok(path) if path.starts_with(root) => Ok(Some(path)),
        Ok(_) => Err("expected no link that leads out of the saved host".to_owned()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error.to_string()),
    }
}

fn read_text(path: &Path) -> Result<String, String> {
    if !path.is_file() {
        return Err("expected a file".to_owned());
    }
    // Not even read: it may be a sparse file of any length, and is requested repeatedly.
    if path.metadata().is_ok_and(|metadata| metadata.len() > PIECE_BYTES_MAX) {
        return Err(format!("expected no more than {} MiB", PIECE_BYTES_MAX >> 20));
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(PIECE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    text_of(bytes)
}

/// Bytes as text, or why they are not text.
pub(crate) fn text_of(bytes: Vec<u8>) -> Result<String, String> {
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > PIECE_BYTES_MAX {
        return Err(format!("expected no more than {} MiB", PIECE_BYTES_MAX >> 20));
    }
    String::from_utf8(bytes).map_err(|_| "expected text".to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn commands_are_named_as_sos_names_them() {
        assert_eq!(command_path(&["ethtool", "-k", "eth0"]), "commands/ethtool_-k_eth0");
        assert_eq!(command_path(&["xenstore-ls", "-f", "/a/b"]), "commands/xenstore-ls_-f_.a.b");
        assert_eq!(command_path(&["..", "/", ".."]).matches('/').count(), 1);
    }

    #[test]
    fn half_a_line_is_no_evidence() {
        let pieces = [("a".to_owned(), "one\n65".to_owned()), ("b".to_owned(), "65\n".to_owned())];
        let source = Source::Memory(pieces.into());
        let gap = source.file("a").expect_err("cut off");
        assert_eq!(gap.to_string(), "/a:2: cut off: the line has no end");
        assert_eq!(source.file("b").expect("whole").number(), Ok(65));
    }

    #[test]
    fn a_sos_report_is_a_source() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(dir.path().join("sos_commands/networking")).expect("made");
        let file = dir.path().join("sos_commands/networking/ethtool_-k_eth0");
        fs::write(file, "Features for eth0:\n").expect("written");
        let source = Source::directory(dir.path()).expect("a source");
        let text = source.command("sample-2/", &["ethtool", "-k", "eth0"]).expect("found");
        assert_eq!(text.quote(1).text, "Features for eth0:");
        assert_eq!(text.origin(), "ethtool -k eth0");

        let file = dir.path().join("sos_commands/networking/tc_-s_qdisc_show");
        fs::write(file, "qdisc noqueue 0: dev lo root refcnt 2\n").expect("written");
        let words = ["tc", "-s", "-j", "qdisc", "show"];
        assert!(source.command("", &words).expect("found").value().contains("noqueue"));

        fs::create_dir_all(dir.path().join("sos_commands/kernel")).expect("made");
        let settings =
            "net.ipv4.tcp_sack = 0\nnet.ipv4.tcp_wmem = 4096\t65536\nnet.ipv4.tcp_ts = 1";
        fs::write(dir.path().join("sos_commands/kernel/sysctl_-a"), settings).expect("written");
        let sack = source.file("proc/sys/net/ipv4/tcp_sack").expect("found");
        assert_eq!((sack.value(), sack.origin()), ("0", "sysctl -a, net.ipv4.tcp_sack"));
        assert!(source.file("proc/sys/net/ipv4/tcp_ts").is_err(), "cut off");
    }

    #[test]
    fn a_saved_host_is_not_mixed_with_the_reader() {
        let dir = tempfile::tempdir().expect("a directory");
        symlink("/proc", dir.path().join("proc")).expect("linked");
        let source = Source::directory(dir.path()).expect("a source");
        assert!(source.file("proc/version").is_err());
        assert!(source.file("../../../../../proc/version").is_err());
        assert!(source.list("proc").is_empty());
    }

    #[test]
    fn what_could_not_be_read_when_it_was_saved_is_known() {
        let refused = "proc/secret\tpermission denied\n".to_owned();
        let source = Source::Memory([(REFUSED_FILE.to_owned(), refused)].into());
        let gap = source.file("proc/secret").expect_err("it is not there");
        assert_eq!(gap.to_string(), "/proc/secret: permission denied");
    }
    #[test]
    fn netlink_is_asked_before_the_tools_and_they_stand_in_for_it() {
        let command = ["ethtool", "-l", "eth0"];
        let path = "netlink/eth0/channels";
        let source = |pieces: &[(&str, &str)]| {
            let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
            Source::Memory(pieces.iter().map(own).collect())
        };
        let printed = ("commands/ethtool_-l_eth0", "Channel parameters for eth0:\n");
        let both = source(&[(path, "channels of eth0: 0\n"), printed]);
        assert_eq!(both.reply("", path, &command).expect("there").origin(), path);
        let old = source(&[printed]);
        assert_eq!(old.reply("", path, &command).expect("there").origin(), "ethtool -l eth0");
        let refused = source(&[(REFUSED_FILE, "netlink/eth0/channels\tOperation not supported\n")]);
        let gap = refused.reply("", path, &command).expect_err("refused");
        assert_eq!(gap.to_string(), "netlink/eth0/channels: Operation not supported");
        let none = source(&[]).reply("", path, &command).expect_err("nothing");
        assert_eq!(none.to_string(), "ethtool -l eth0: not there");
    }
}

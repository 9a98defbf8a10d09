//! The system's ssh: its command line, the address of its host, and what its messages mean.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::process::Command;
use std::time::Duration;

use super::Destination;
use ringway_rig::child::PartError;
use ringway_rig::launcher::Launcher;

/// The program, unless the user names another.
pub const PROGRAM: &str = "ssh";
/// The Debian package that contains it.
pub const PACKAGE: &str = "openssh-client";
/// How long ssh may take to read its configuration.
const CONFIG_PATIENCE: Duration = Duration::from_secs(20);
/// Never ask, and notice a peer that is gone. ssh uses the first value that it reads, so the user's
/// own options on the command line come before.
const OPTIONS: [&str; 12] = [
    "-T",
    "-x",
    "-a",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=15",
    "-o",
    "ServerAliveInterval=15",
    "-o",
    "ServerAliveCountMax=3",
    "-oClearAllForwardings=yes",
];

/// The words of the user's ssh command; quotes are not interpreted.
///
/// # Errors
/// If it has no words.
pub fn words(command: &str) -> Result<Vec<String>, String> {
    let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
    if words.is_empty() {
        return Err("expected a command such as `ssh -p 2222`".to_owned());
    }
    Ok(words)
}

/// The host of a destination, checked.
///
/// # Errors
/// If ssh would take it for an option.
pub fn host(text: &str) -> Result<String, String> {
    let is_plain = |c: char| !c.is_control() && !c.is_whitespace();
    if text.is_empty() || text.starts_with('-') || !text.chars().all(is_plain) {
        return Err("expected a host, such as root@192.0.2.7 or a name of ssh's".to_owned());
    }
    Ok(text.to_owned())
}

/// The command that runs the agent on the peer. It ends if no request comes for `idle`.
pub(super) fn agent(launcher: &Launcher, to: &Destination, idle: Duration) -> Command {
    let mut command = base(launcher, to);
    command.args(OPTIONS).arg("--").arg(&to.host);
    let seconds = idle.as_secs();
    command.arg(format!("{} lab agent --idle-seconds {seconds}", quoted(&to.program)));
    command
}

/// The user's ssh command.
fn base(launcher: &Launcher, to: &Destination) -> Command {
    let (program, options) = to.ssh.split_first().expect("a destination has a command");
    let mut command = launcher.command(program);
    command.args(options);
    command
}

/// The addresses that the peer may have on the measured path: the one that the user names, or else
/// those of the host that ssh connects to, according to its configuration.
///
/// # Errors
/// If the name is unknown, or has IPv6 addresses only.
pub(super) fn addresses(launcher: &Launcher, to: &Destination) -> Result<Vec<Ipv4Addr>, PartError> {
    if let Some(address) = to.address {
        return Ok(vec![address]);
    }
    let mut command = base(launcher, to);
    command.arg("-G").arg("--").arg(&to.host);
    let output = launcher.start(PROGRAM, command)?.output(CONFIG_PATIENCE)?;
    let name = hostname(&output).unwrap_or(&to.host);
    let remedy = format!("name the IPv4 address of {} with --peer-address", to.host);
    let found = (name, 0)
        .to_socket_addrs()
        .map_err(|error| PartError::Failed(format!("the address of {name}: {error}; {remedy}")))?;
    let of_v4 = |ip: IpAddr| if let IpAddr::V4(v4) = ip { Some(v4) } else { None };
    let mut addresses: Vec<Ipv4Addr> = found.filter_map(|one| of_v4(one.ip())).collect();
    addresses.dedup();
    if addresses.is_empty() {
        return Err(PartError::Failed(format!("{name} has no IPv4 address; {remedy}")));
    }
    Ok(addresses)
}

/// The host that ssh connects to, from the output of `ssh -G`.
fn hostname(output: &str) -> Option<&str> {
    output.lines().find_map(|line| line.strip_prefix("hostname ")).map(str::trim)
}

/// A word for the peer's shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// A shell's exit code if there is no such program.
const NO_PROGRAM: i32 = 127;

/// Why the agent did not start, with the remedy, from what ssh or the peer's shell printed, and
/// from the exit code.
pub(super) fn explained(to: &Destination, said: &str, code: Option<i32>) -> String {
    let Destination { host, program, .. } = to;
    let ssh = to.ssh.join(" ");
    let has = |text: &str| said.contains(text);
    let remedy = if has("IDENTIFICATION HAS CHANGED") {
        "the host's key has changed: find out why before you remove the old one with ssh-keygen -R"
            .to_owned()
    } else if has("Host key verification failed") {
        format!("ssh does not know the host's key: check it, and accept it with `{ssh} {host}`")
    } else if has("Permission denied (") || has("Too many authentication failures") {
        format!("ssh may not ask here: set up a key for {host}, as with ssh-copy-id")
    } else if has("Could not resolve hostname") {
        "check the name, or add it to ~/.ssh/config".to_owned()
    } else if has("Connection refused") {
        "no ssh server listens there: start one, or name its port in --peer-ssh".to_owned()
    } else if has("No route to host") || has("timed out") || has("unreachable") {
        "check that the host runs and that the network leads there".to_owned()
    } else if code == Some(NO_PROGRAM) || has("command not found") {
        format!(
            "there is no {program} on {host}: install ringway there, or say where it is with \
             --peer-command"
        )
    } else if has("unrecognized subcommand") {
        format!("{program} on {host} is older and cannot be a peer: install the same version there")
    } else {
        format!("try `{ssh} {host} {program} --version`")
    };
    let said = if said.is_empty() { "it printed nothing" } else { said };
    format!("{host}: {said}; {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination() -> Destination {
        Destination {
            host: "red".to_owned(),
            ssh: words("ssh -p 2222").expect("words"),
            program: "ringway".to_owned(),
            address: None,
        }
    }

    #[test]
    fn each_fault_names_its_remedy() {
        for (said, remedy) in [
            ("Host key verification failed.", "accept it with `ssh -p 2222 red`"),
            ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", "ssh-keygen -R"),
            ("a@red: Permission denied (publickey).", "ssh-copy-id"),
            ("ssh: connect to host red port 22: Connection refused", "--peer-ssh"),
            ("ssh: connect to host red port 22: No route to host", "network leads there"),
            ("ssh: Could not resolve hostname red: Name or service not known", "check the name"),
            ("bash: line 1: ringway: command not found", "--peer-command"),
            ("error: unrecognized subcommand 'agent'", "the same version"),
            ("", "try `ssh -p 2222 red ringway --version`"),
        ] {
            let text = explained(&destination(), said, Some(255));
            assert!(text.contains(remedy) && text.contains(said), "{text}");
        }
        // In any language.
        let text = explained(&destination(), "sh: ringway: nicht gefunden", Some(NO_PROGRAM));
        assert!(text.contains("--peer-command"), "{text}");
    }

    #[test]
    fn a_host_is_never_an_option_and_a_path_is_one_word() {
        for bad in ["", "-oProxyCommand=sh", "a b", "a\nb"] {
            assert!(host(bad).is_err(), "{bad}");
        }
        assert_eq!(host("me@red").as_deref(), Ok("me@red"));
        assert_eq!(quoted("a b'c"), "'a b'\\''c'");
        assert!(words("  ").is_err());
        assert_eq!(hostname("user me\nhostname 192.0.2.7\nport 22\n"), Some("192.0.2.7"));
    }
}

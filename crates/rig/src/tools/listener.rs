//! Servers that must listen before their clients may start.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::child::{Child, PartError};
use crate::launcher::Launcher;

/// The longest time from the start of a server until it listens.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two checks of whether it does.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The state of a listening socket in `/proc/PID/net/tcp`.
const LISTENS: &str = "0A";

/// Waits until a server listens on a port of its network namespace.
pub(super) fn wait_for(
    launcher: &Launcher,
    server: &mut Child,
    port: u16,
) -> Result<(), PartError> {
    let deadline = Instant::now() + PATIENCE;
    while !listens(server.pid(), port) {
        if launcher.stop().is_due() {
            return Err(PartError::Interrupted);
        }
        if let Some(trouble) = server.premature_exit() {
            return Err(trouble);
        }
        if Instant::now() > deadline {
            return Err(PartError::Failed(format!("a server does not listen on port {port}")));
        }
        // waits: it reads again until the server listens.
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn listens(pid: u32, port: u16) -> bool {
    ["tcp", "tcp6"].into_iter().any(|table| {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        has_listener(&text, port)
    })
}

fn has_listener(table: &str, port: u16) -> bool {
    table.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next().and_then(|word| word.rsplit_once(':'));
        let is_here = local.is_some_and(|(_, digits)| u16::from_str_radix(digits, 16) == Ok(port));
        is_here && words.nth(1) == Some(LISTENS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_in_the_table_of_sockets() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n\
            \x20  0: 00000000:1451 00000000:0000 0A 00000000:00000000\n\
            \x20  1: 0100007F:1452 0100007F:1451 01 00000000:00000000\n";
        assert!(has_listener(table, 5201));
        assert!(!has_listener(table, 5202), "it is connected, and does not listen");
        assert!(!has_listener("", 5201));
    }
}

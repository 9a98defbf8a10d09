//! Orders that wait until a process reads.
//!
//! The kernel keeps a limited number of messages for a process, and the start of a tenant with many
//! vifs takes more. So orders wait here: the supervisor never does.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway_control::Link;
use ringway_sys::tun::TunFile;
use rustix::io::Errno;
use serde::Serialize;
use serde_json::Value;

/// How long a process may leave orders unread.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(60);
/// When orders for which the kernel had no room are sent again.
const RESEND: Duration = Duration::from_millis(10);
/// Orders that may wait: more than the start of a tenant takes.
const UNSENT_MAX: usize = 16 << 10;

/// Orders that wait until a process reads.
#[derive(Debug)]
pub(super) struct Outbox {
    /// Each with the open files that go with it.
    unsent: VecDeque<(Value, Vec<Arc<TunFile>>)>,
    /// When an order was last sent, or none was left.
    last_sent: Instant,
}

impl Outbox {
    pub(super) fn new() -> Outbox {
        Outbox { unsent: VecDeque::new(), last_sent: Instant::now() }
    }

    pub(super) fn push(&mut self, order: &impl Serialize, files: Vec<Arc<TunFile>>) {
        match serde_json::to_value(order) {
            Ok(order) => self.unsent.push_back((order, files)),
            Err(error) => tracing::error!("an order is not sent: {error}"),
        }
    }

    /// Sends the orders for which there is room, in order.
    ///
    /// # Errors
    /// If the process has left too many unread, or for too long.
    pub(super) fn send(&mut self, link: &Link) -> io::Result<()> {
        while let Some((order, files)) = self.unsent.front() {
            let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
            match link.send(order, &fds) {
                Err(error) if is_no_room(&error) => {
                    let is_late = self.last_sent.elapsed() >= UNREAD_TIMEOUT;
                    return if is_late || self.unsent.len() > UNSENT_MAX {
                        Err(error)
                    } else {
                        Ok(())
                    };
                }
                // The end of the process is noticed elsewhere.
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
                _ => drop(self.unsent.pop_front()),
            }
            self.last_sent = Instant::now();
        }
        self.last_sent = Instant::now();
        Ok(())
    }

    /// When to send again, if orders are left.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.unsent.is_empty()).then(|| Instant::now() + RESEND)
    }
}

/// Whether there is room once the other process has read more: for messages, or for descriptors of
/// this user.
fn is_no_room(error: &io::Error) -> bool {
    let no_room = [Errno::AGAIN, Errno::TOOMANYREFS].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|errno| no_room.contains(&errno))
}

#[cfg(test)]
mod tests {
    use ringway_control::Received;

    use super::*;

    #[test]
    fn orders_arrive_in_order_however_many_there_are_before_the_first_is_read() {
        const ORDERS: usize = 10_000;
        let (ours, theirs) = Link::pair().expect("descriptors");
        let theirs = Link::new(theirs);
        let mut outbox = Outbox::new();
        for number in 0..ORDERS {
            outbox.push(&number, Vec::new());
            outbox.send(&ours).expect("it may still read them");
        }
        assert!(outbox.due().is_some(), "the kernel keeps fewer");
        for expected in 0..ORDERS {
            let received: Received<usize> = match theirs.receive().expect("a message") {
                Received::Nothing => {
                    outbox.send(&ours).expect("there is room");
                    theirs.receive().expect("a message")
                }
                received => received,
            };
            assert!(matches!(received, Received::Message(number, _) if number == expected));
        }
        assert!(outbox.due().is_none());
    }

    #[test]
    fn a_process_that_reads_nothing_is_given_up() {
        let (ours, _theirs) = Link::pair().expect("descriptors");
        let mut outbox = Outbox::new();
        let sent = (0..=2 * UNSENT_MAX).map(|number| {
            outbox.push(&number, Vec::new());
            outbox.send(&ours)
        });
        let refused = sent.filter_map(Result::err).next().expect("there is a limit");
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    }
}

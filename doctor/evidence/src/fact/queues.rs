//! Counters of queues, from the driver or from the kernel.

use super::{Fact, Reader, Span};
use crate::parse::ethtool::Statistics;
use crate::{Gap, Piece};

on_demand! {
    /// Drivers' counters of each interface, read one by one. `ethtool -S` has all that a driver
    /// counts. Netlink has only the standardised counters of queues; many drivers have these in
    /// only one of the two.
    QueueCounters = [Piece::Sampled(&["ethtool", "-S", "{nic}"]), Piece::Qstats];
}

impl QueueCounters {
    /// All counters of an interface's driver.
    pub fn of(&self, nic: &str) -> Result<Span<Statistics>, Gap> {
        self.0.command_span(&["ethtool", "-S", nic])
    }

    /// Counters with the bytes of each queue, if there are any: those of `ethtool -S` or, if it has
    /// no such bytes, those that the kernel reports.
    pub fn of_queues(&self, nic: &str) -> Result<Span<Statistics>, Gap> {
        let printed = self.of(nic);
        let is_enough = match &printed {
            Ok(span) => span.after.has_queue_bytes(),
            Err(gap) => !is_missing(gap),
        };
        if is_enough {
            return printed;
        }
        match self.0.qstats_span(nic) {
            Ok(reported) if printed.is_ok() && !reported.after.has_queue_bytes() => printed,
            Err(gap) if is_missing(&gap) => printed,
            reported => reported,
        }
    }
}

fn is_missing(gap: &Gap) -> bool {
    matches!(gap, Gap::Missing { .. } | Gap::NotHere(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;
    use crate::fact::Host;

    const PRINTED: &str = "commands/ethtool_-S_eth0";
    const REPORTED: &str = "netlink/eth0/qstats";
    const KICKS: &str = "NIC statistics:\n     rx0_drops: 0\n     rx0_kicks: 9\n";
    const BYTES: &str = "NIC statistics:\n     rx_queue_0_bytes: 7\n";
    const QSTATS: &str = "qstats of eth0: 2\nrx-0 packets: 1\nrx-0 bytes: 60\n";

    /// Where the counters are from, with the bytes of the first receive queue.
    fn bytes(pieces: &[(&str, &str)]) -> Result<(String, Option<u64>), Gap> {
        let both = ["sample-1", "sample-2"].into_iter().zip(["1\n", "2\n"]);
        let all = both.flat_map(|(sample, time)| {
            let own =
                move |(path, text): &(&str, &str)| (format!("{sample}/{path}"), (*text).to_owned());
            pieces.iter().chain(&[("monotonic", time)]).map(own).collect::<Vec<_>>()
        });
        let counters: QueueCounters = Host::new(Source::Memory(all.collect())).fact()?;
        let span = counters.of_queues("eth0")?;
        let names = ["rx_queue_0_bytes", "rx-0 bytes"];
        let found = names.iter().find_map(|name| span.after.counters.get(*name));
        Ok((span.text.origin().to_owned(), found.map(|(count, _)| *count)))
    }

    #[test]
    fn the_tool_is_read_first_and_the_kernel_where_it_has_no_queues() {
        let printed = |count| Ok(("ethtool -S eth0".to_owned(), count));
        let reported = Ok((REPORTED.to_owned(), Some(60)));
        assert_eq!(bytes(&[(PRINTED, BYTES), (REPORTED, QSTATS)]), printed(Some(7)));
        assert_eq!(bytes(&[(PRINTED, KICKS), (REPORTED, QSTATS)]), reported);
        assert_eq!(bytes(&[(REPORTED, QSTATS)]), reported);
        assert_eq!(bytes(&[(PRINTED, KICKS)]), printed(None));
        let no_bytes = "qstats of eth0: 1\nrx-0 packets: 1\n";
        assert_eq!(bytes(&[(PRINTED, KICKS), (REPORTED, no_bytes)]), printed(None));
        assert_eq!(bytes(&[(REPORTED, no_bytes)]), Ok((REPORTED.to_owned(), None)));
        assert!(matches!(bytes(&[]), Err(Gap::Missing { file, .. }) if file == "ethtool -S eth0"));
    }

    #[test]
    fn torn_counters_are_not_replaced_by_others() {
        for torn in ["qstats of eth0: 2\nrx-0 bytes: 60\n", "qstats of eth0: 1\nrx-0 bytes: x\n"] {
            let read = bytes(&[(PRINTED, KICKS), (REPORTED, torn)]);
            assert!(matches!(read, Err(Gap::Unreadable { .. })), "{read:?}");
        }
        let read = bytes(&[(PRINTED, "NIC statistics:\n rx_queue_0_bytes: 7"), (REPORTED, QSTATS)]);
        assert!(matches!(read, Err(Gap::Unreadable { .. })), "{read:?}");
    }
}

//! How long a card waits before it interrupts: as the kernel says it over netlink, and as
//! `ethtool -c` prints it.

use super::ethtool::Settings;
use super::reply_lines;
use crate::{Gap, NicSettings, Text};

/// What a card may wait for when it received something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Coalescing {
    /// Whether the driver changes the others by the load.
    pub is_adaptive: bool,
    /// Microseconds, with the line; none if the driver has none.
    pub usecs: Option<(u64, usize)>,
    /// Frames, whichever comes first.
    pub frames: Option<(u64, usize)>,
}

impl Coalescing {
    /// Reads what the kernel says, or the output of `ethtool -c`, where `n/a` stands for what a
    /// driver does not have.
    pub fn parse(text: &Text) -> Result<Coalescing, Gap> {
        if reply_lines(text, NicSettings::Coalescing.name())?.is_some() {
            let settings = Settings::parse(text)?.current;
            let of = |name| settings.get(name).map(|setting| (setting.value, setting.line));
            return Ok(Coalescing {
                is_adaptive: of("adaptive rx").is_some_and(|(value, _)| value > 0),
                usecs: of("rx-usecs"),
                frames: of("rx-frames"),
            });
        }
        let head = text.lines().next().map(|(_, line)| line).unwrap_or_default();
        if !head.starts_with("Coalesce parameters for ") {
            return Err(text.unreadable(Some(1), "expected coalesce parameters"));
        }
        let value = |key: &str| {
            let row = text.lines().find_map(|(line, row)| Some((line, row.strip_prefix(key)?)));
            let Some((line, row)) = row else { return Ok(None) };
            let word = row.trim_start_matches(':').split_whitespace().next().unwrap_or("n/a");
            if word == "n/a" {
                return Ok(None);
            }
            let number = word.parse().map_err(|_| text.unreadable(Some(line), "expected a number"));
            number.map(|number| Some((number, line)))
        };
        // Its line ends with TX's, so a torn one has no end and is refused before.
        let adaptive = text.lines().find_map(|(_, row)| row.strip_prefix("Adaptive RX:"));
        let is_adaptive = adaptive.is_some_and(|row| row.split_whitespace().next() == Some("on"));
        Ok(Coalescing { is_adaptive, usecs: value("rx-usecs:")?, frames: value("rx-frames:")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_the_same() {
        let text = "coalescing of eth0: 3\nrx-usecs: 3\nrx-frames: 7\nadaptive rx: 1\n";
        let read = Coalescing::parse(&Text::new("netlink", text)).expect("sound");
        assert_eq!((read.is_adaptive, read.usecs, read.frames), (true, Some((3, 2)), Some((7, 3))));
        let torn = text.replace("adaptive rx: 1\n", "");
        assert!(Coalescing::parse(&Text::new("netlink", torn)).is_err());
    }

    #[test]
    fn what_a_driver_does_not_have_is_none() {
        let text = "Coalesce parameters for eth0:\nAdaptive RX: off  TX: n/a\n\
                    rx-usecs:\t3\nrx-frames:\tn/a\nrx-usecs-irq:\t7\n";
        let read = Coalescing::parse(&Text::new("ethtool", text)).expect("sound");
        assert_eq!((read.is_adaptive, read.usecs, read.frames), (false, Some((3, 3)), None));
        let on = text.replace("RX: off", "RX: on");
        assert!(Coalescing::parse(&Text::new("ethtool", on)).expect("sound").is_adaptive);
        let odd = text.replace("\t3\n", "\tthree\n");
        assert!(Coalescing::parse(&Text::new("ethtool", odd)).is_err());
        assert!(Coalescing::parse(&Text::new("ethtool", "x")).is_err());
    }
}

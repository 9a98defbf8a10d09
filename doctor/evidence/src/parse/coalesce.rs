//! How long a card waits before it interrupts, from netlink or from `ethtool -c`.

use super::ethtool::Settings;
use super::reply_lines;
use crate::{Gap, NicSettings, Text};

/// How long a card may delay a receive interrupt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Coalescing {
    /// Whether the driver adapts the other values to the load.
    pub is_adaptive: bool,
    /// Microseconds, with the line; `None` if the driver has no such setting.
    pub usecs: Option<(u64, usize)>,
    /// Frames, whichever comes first.
    pub frames: Option<(u64, usize)>,
}

impl Coalescing {
    /// Parses the kernel's reply, or the output of `ethtool -c`, where `n/a` marks settings that a
    /// driver lacks.
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
        // The line ends with TX's value, so a truncated one has no end and was refused before.
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

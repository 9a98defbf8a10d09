//! The vifs of a running ringway, at both samples.

use super::named::{RINGWAY_VIFS, RingwayVifs};
use super::{Fact, Reader, Span};
use crate::parse::Counters;
use crate::parse::ringway::Vifs;
use crate::parse::threads::Threads;
use crate::{Gap, Piece};

/// What `ringway` prints for root where it serves nothing.
const SERVES_NOTHING: &str = "no host runs in /run/ringway/default";

impl Fact for Span<Vifs> {
    const PIECES: &'static [Piece] =
        &[Piece::All(RingwayVifs::PIECES), Piece::Threads(&["ringway"])];

    /// A host without ringway has no vifs. A user who is not root is shown none of the machine's
    /// either, so there a process of ringway makes it a gap.
    fn read(at: &Reader) -> Result<Self, Gap> {
        let (file, why) = match at.command_span(RINGWAY_VIFS) {
            Err(Gap::Missing { file, why }) => (file, why),
            other => return other,
        };
        let threads = at.latest("threads").and_then(|text| Threads::parse(&text));
        let Threads { threads } = threads.unwrap_or_default();
        let is_running = threads.values().any(|thread| thread.name == "ringway");
        if is_running && why != "not there" && !why.contains(SERVES_NOTHING) {
            return Err(Gap::Missing { file, why });
        }
        Err(Gap::NotHere("no ringway runs here".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;
    use crate::fact::Host;

    #[test]
    fn vifs_that_a_user_may_not_see_are_no_absent_ones() {
        let vifs = |name: &str, why: &str| {
            let threads = format!("7 ({name}) S{}\n", " 0".repeat(49));
            let pieces = [
                ("sample-1/monotonic", "1.0\n".to_owned()),
                ("sample-2/monotonic", "2.0\n".to_owned()),
                ("sample-2/threads", threads),
                ("refused", format!("commands/ringway_vif_list_--json\t{why}\n")),
            ];
            let own = |(path, text): (&str, String)| (path.to_owned(), text);
            let host = Host::new(Source::Memory(pieces.map(own).into()));
            host.fact::<Span<Vifs>>().expect_err("nothing was printed")
        };
        let of_user = "ringway: no host runs in /run/user/7/ringway/default: start one";
        assert!(matches!(vifs("ringway", of_user), Gap::Missing { .. }));
        for (name, why) in [
            ("ringway", "ringway: no host runs in /run/ringway/default: start one"),
            ("ringway-doctor", of_user),
            ("bash", "ringway is not installed"),
        ] {
            assert!(matches!(vifs(name, why), Gap::NotHere(_)), "{name} {why}");
        }
    }
}

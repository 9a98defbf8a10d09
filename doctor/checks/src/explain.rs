//! What `doctor explain` shows: topics that are no check, and citations as numbers above a list.

use ringway_sources::numbered;

/// A topic that is explained but is not a check.
pub struct Topic {
    /// Its name for `doctor explain`.
    pub id: &'static str,
    /// Its title in one line.
    pub title: &'static str,
    /// The places of sources that it covers.
    pub sources: &'static [&'static str],
    /// The text, with `{ID}` where it cites.
    pub explanation: &'static str,
}

/// All of them.
pub static TOPICS: &[Topic] = &[Topic {
    id: "measuring",
    title: "how to measure before and after",
    sources: &[
        "throughput-guide:applies-to",
        "throughput-guide:scenarios",
        "throughput-guide:start-simple",
        "throughput-guide:iperf-rules",
        "throughput-guide:iperf-build",
        "throughput-guide:iperf-windows",
        "throughput-guide:iperf-commands",
        "throughput-guide:iperf-many-guests",
        "throughput-guide:netperf",
        "throughput-guide:netserver",
        "throughput-guide:netperf-parallel",
        "throughput-guide:ntttcp",
        "throughput-guide:cpu-bound",
        "throughput-guide:pairs-and-threads",
        "network-node-blog:method",
        "network-node-blog:one-queue",
    ],
    explanation: include_str!("measuring.txt"),
}];

/// An explanation with numbers for its citations, and the list of its sources below it: those of
/// its text, then those of `sources` that the text does not name.
pub fn explained(explanation: &str, sources: &[&str]) -> String {
    let (text, cited) = numbered(explanation);
    let list =
        ringway_sources::list(cited.iter().map(String::as_str).chain(sources.iter().copied()));
    if list.is_empty() { text } else { format!("{text}\n{list}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::CATALOGUE;

    /// The sources of which the doctor covers every place, except their measurements.
    const COVERED: [&str; 2] = ["throughput-guide:", "network-node-blog:"];
    /// The places that it must cover of other sources.
    const REQUIRED: [&str; 9] = [
        "multi-queue-study:guest-cpus",
        "multi-queue-study:placement",
        "multi-queue-study:interrupts",
        "multi-queue-study:rx",
        "multi-queue-study:rx-limits",
        "multi-queue-series:maximum",
        "arm64-latency-report:tx",
        "arm64-latency-report:domain-switch",
        "arm64-latency-report:bounce-buffer",
    ];

    fn texts() -> impl Iterator<Item = (&'static str, &'static [&'static str], &'static str)> {
        let checks = CATALOGUE.iter().map(|check| (check.id, check.sources, check.explanation));
        checks.chain(TOPICS.iter().map(|topic| (topic.id, topic.sources, topic.explanation)))
    }

    #[test]
    fn every_place_is_covered() {
        let all = ringway_sources::all().place.iter().map(|place| place.id.as_str());
        let of_whole = all.filter(|id| COVERED.iter().any(|source| id.starts_with(source)));
        assert!(of_whole.clone().count() > 80);
        for id in of_whole.chain(REQUIRED) {
            assert!(texts().any(|(_, sources, _)| sources.contains(&id)), "nothing covers {id}");
        }
    }

    #[test]
    fn no_check_covers_a_place_that_is_not_there() {
        for (id, covered, _) in texts() {
            for source in covered {
                assert!(ringway_sources::find(source).is_some(), "{id} names {source}");
            }
        }
    }

    #[test]
    fn what_covers_a_place_cites_it() {
        for (id, covered, text) in texts() {
            let (_, cited) = numbered(text);
            for source in covered {
                assert!(cited.iter().any(|one| one == source), "{id} does not cite {source}");
            }
        }
    }

    #[test]
    fn an_explanation_ends_with_titles_and_addresses() {
        for (id, covered, text) in texts() {
            let shown = explained(text, covered);
            assert!(!shown.contains("{throughput") && !shown.contains("{network"), "{id}: {shown}");
            let sources = shown.split_once("\nSources\n").map(|(_, sources)| sources);
            assert_eq!(sources.is_some(), !covered.is_empty(), "{id}");
            // Of some sources no address could be confirmed.
            let has_address = |id: &&str| {
                ringway_sources::find(id).is_some_and(|cited| cited.source.address.is_some())
            };
            let is_there = sources.is_some_and(|sources| sources.contains("https://"));
            assert!(is_there || !covered.iter().any(|id| has_address(&&**id)), "{id}");
        }
    }
}

//! Hosts for the tests of checks, from texts by their paths.

use ringway_evidence::Source;
use ringway_evidence::fact::Host;

/// A host with these files.
pub(crate) fn host<P: Into<String>, T: Into<String>>(
    files: impl IntoIterator<Item = (P, T)>,
) -> Host {
    let own = |(path, text): (P, T)| (path.into(), text.into());
    Host::new(Source::Memory(files.into_iter().map(own).collect()))
}

/// Files of two samples, a second apart: those that `of` has for the number of each.
pub(crate) fn sampled<const N: usize>(
    of: impl Fn(u64) -> [(&'static str, String); N],
) -> Vec<(String, String)> {
    let sample = |number: u64| {
        let time = ("monotonic", format!("{number}.0\n"));
        let files = of(number).into_iter().chain([time]);
        files.map(move |(path, text)| (format!("sample-{number}/{path}"), text))
    };
    [1, 2].into_iter().flat_map(sample).collect()
}

/// `/proc/net/dev` with these rows, each with the line's end.
pub(crate) fn net_dev(rows: &str) -> String {
    format!("Inter-|   Receive   |  Transmit\n face |bytes    packets|bytes packets\n{rows}")
}

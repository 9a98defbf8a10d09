//! TCP between two namespaces, by iperf3.

use anyhow::Result;

use crate::child::is_installed;
use crate::options::{Congestion, Options};
use crate::path::{self, BUFFERS_NAME, OpenPath};
use crate::report::{Better, Case, Report};
use crate::transfer::{Load, Transfer, transfer};

/// Concurrent connections.
const STREAMS: [u32; 4] = [1, 2, 4, 8];

/// One round: each number of streams on each path. A path is built once for all of them.
pub(crate) fn round(options: &Options, report: &mut Report) {
    if !is_installed("iperf3") {
        report.skip("tcp", "all", "apt-get install iperf3");
        return;
    }
    let seconds = options.spans.window.as_secs().max(1);
    for path in path::all("tcp", options, report) {
        let mut open = None;
        for streams in STREAMS {
            let cases = cases(options.congestion, streams);
            if !cases.iter().any(|case| options.wants(&case.name)) {
                continue;
            }
            // Between veth devices there is no process to count.
            let cases = if path.has_processes() { &cases[..] } else { &cases[..1] };
            report.measure_all(cases, &path.name, || {
                let open = match &open {
                    Some(open) => open,
                    None => open.insert(path.open()?),
                };
                let congestion = options.congestion;
                let sent = send(open, Load { streams, seconds, congestion })?;
                Ok(vec![sent.gbits, sent.cpu_micros, sent.wake_ups, sent.switches])
            });
        }
    }
}

/// The cases of a transfer, the rate first.
fn cases(congestion: Congestion, streams: u32) -> [Case; 4] {
    let case = |what: &str, unit, better| {
        let name = format!("{what}TCP {congestion}, {BUFFERS_NAME}, {streams} stream(s)");
        Case::new("tcp", name, unit, better)
    };
    [
        case("", "Gbit/s", Better::More),
        case("own CPU for 64 KiB, ", "us", Better::Less),
        case("own wake-ups for 64 KiB, ", "", Better::Less),
        case("own switches for 64 KiB, ", "", Better::Less),
    ]
}

fn send(path: &OpenPath, load: Load) -> Result<Transfer> {
    let start = |end, words: &[&str]| path.start(end, "iperf3", words);
    transfer(&start, &path.end(1).address.to_string(), load, &path.processes()?)
}

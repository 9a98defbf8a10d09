//! What the log of `ovn-controller` says of ports that several hosts have (`ovn-binding-blog`).

use crate::Text;

/// Claims, in the order of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claims {
    /// Ports that were taken from another host.
    pub taken: Vec<Taking>,
    /// Ports that are left to another host, as OVN's configuration says, each with its line.
    pub left: Vec<(String, usize)>,
}

/// A port that was taken from another host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taking {
    /// The logical port.
    pub port: String,
    /// What OVN calls the host that had it.
    pub from: String,
    /// What it calls the host that has taken it.
    pub to: String,
    /// When, to the minute, such as `2026-01-31T23:59`.
    pub minute: String,
    /// The line that says so.
    pub line: usize,
}

/// Columns of a date and a time without seconds.
const MINUTE: usize = 16;

impl Claims {
    /// Parses lines of the time, a number, a module, a level and a message. There may be others.
    pub fn parse(text: &Text) -> Claims {
        let mut claims = Claims::default();
        for (line, row) in text.lines() {
            let Some((head, message)) = row.split_once("|INFO|") else { continue };
            let words: Vec<&str> = message.split_whitespace().collect();
            match words.as_slice() {
                ["Changing", "chassis", "for", "lport", port, "from", from, "to", to] => {
                    claims.taken.extend(head.get(..MINUTE).map(|minute| Taking {
                        port: (*port).to_owned(),
                        from: (*from).to_owned(),
                        to: to.trim_end_matches('.').to_owned(),
                        minute: minute.to_owned(),
                        line,
                    }));
                }
                ["Not", "claiming", "lport", port, ..] => {
                    claims.left.push((port.trim_end_matches(',').to_owned(), line));
                }
                _ => {}
            }
        }
        claims
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_read_and_other_lines_are_not() {
        let text = "cut off\n2026-01-31T23:59:07.825Z|18183|binding|INFO|Changing chassis for \
                    lport lsp1 from hv1 to hv2.\n2026-02-01T00:00:07.825Z|18184|binding|INFO|lsp1: \
                    Claiming fa:16:3e:10:e6:74 10.0.0.44/24\n2026-02-01T00:00:08.000Z|9|binding|\
                    INFO|Not claiming lport lsp2, chassis hv2 requested-chassis hv1\nx|INFO|\
                    Changing chassis for lport a from b to c.\n";
        let claims = Claims::parse(&Text::new("tail", text));
        let [taking] = claims.taken.as_slice() else { panic!("{claims:?}") };
        assert_eq!((taking.port.as_str(), taking.from.as_str()), ("lsp1", "hv1"));
        assert_eq!((taking.to.as_str(), taking.minute.as_str()), ("hv2", "2026-01-31T23:59"));
        assert_eq!((taking.line, claims.left), (2, vec![("lsp2".to_owned(), 4)]));
    }
}

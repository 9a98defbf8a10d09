//! What the evidence describes, and how complete it is.

use super::interfaces::Interfaces;
use super::named::{TcpCongestionAllowed, TcpCongestionAvailable};
use super::{Fact, Reader, Tried};
use crate::{Gap, NETNS, Netns, Piece, REMARKS_FILE};

/// The network namespace that the evidence describes; `None` if unknown.
#[derive(Debug, Clone, Copy)]
pub struct Namespace(pub Option<Netns>);

impl Fact for Namespace {
    const PIECES: &'static [Piece] = &[Piece::Saved(NETNS)];

    fn read(at: &Reader) -> Result<Self, Gap> {
        Ok(Namespace(at.file(NETNS).ok().and_then(|text| Netns::of_word(text.value()))))
    }
}

/// What is wrong with the evidence as a whole.
#[derive(Debug)]
pub struct Remarks(pub Vec<String>);

impl Fact for Remarks {
    const PIECES: &'static [Piece] = &[Piece::Saved(REMARKS_FILE)];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let text = at.file(REMARKS_FILE).ok();
        let lines =
            text.iter().flat_map(|text| text.lines().map(|(line, _)| text.quote(line).text));
        Ok(Remarks(lines.chain(at.remarks().iter().cloned()).collect()))
    }
}

/// Whether the evidence lists the interfaces. Without the list, it cannot show that a host lacks
/// anything.
#[derive(Debug, Clone, Copy)]
pub struct ListsInterfaces(pub bool);

impl Fact for ListsInterfaces {
    const PIECES: &'static [Piece] = Interfaces::PIECES;

    fn read(at: &Reader) -> Result<Self, Gap> {
        let is_listed = !at.list("sys/class/net").is_empty() || at.latest("proc/net/dev").is_ok();
        Ok(ListsInterfaces(is_listed))
    }
}

/// The congestion control algorithms that can be set for new connections. A network namespace can
/// set only those that the machine allows for everyone.
#[derive(Debug)]
pub struct CongestionControls {
    available: Tried<TcpCongestionAvailable>,
    allowed: Tried<TcpCongestionAllowed>,
    /// The namespace that the evidence describes.
    pub netns: Option<Netns>,
}

impl Fact for CongestionControls {
    const PIECES: &'static [Piece] = &[
        Piece::All(TcpCongestionAvailable::PIECES),
        Piece::All(TcpCongestionAllowed::PIECES),
        Piece::All(Namespace::PIECES),
    ];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let Namespace(netns) = at.fact()?;
        Ok(CongestionControls { available: at.fact()?, allowed: at.fact()?, netns })
    }
}

impl CongestionControls {
    /// Whether this one can be set for new connections.
    pub fn may_use(&self, algorithm: &str) -> bool {
        let has = |list: &str| list.split_whitespace().any(|one| one == algorithm);
        let is_there = self.available.ok().is_some_and(|text| has(text.value()));
        let is_everybodys = self.allowed.ok().is_none_or(|text| has(text.value()));
        is_there && (is_everybodys || self.netns != Some(Netns::Other))
    }
}

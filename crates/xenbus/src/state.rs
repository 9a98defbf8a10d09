//! The states of both ends of a device.

use core::fmt;

/// `enum xenbus_state`. Each end writes its own and watches the other's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum XenbusState {
    /// There is no such node: the end does not exist.
    Unknown = 0,
    /// The end is getting ready.
    Initialising = 1,
    /// The backend has written its offer.
    InitWait = 2,
    /// The frontend has written its keys.
    Initialised = 3,
    /// The end is ready for traffic.
    Connected = 4,
    /// The end is closing.
    Closing = 5,
    /// The end is closed and has released everything.
    Closed = 6,
    /// The end is connected, and wants to change something.
    Reconfiguring = 7,
    /// The end has accepted a change of the other.
    Reconfigured = 8,
}

impl XenbusState {
    /// All of them, by number.
    pub const ALL: [XenbusState; 9] = [
        XenbusState::Unknown,
        XenbusState::Initialising,
        XenbusState::InitWait,
        XenbusState::Initialised,
        XenbusState::Connected,
        XenbusState::Closing,
        XenbusState::Closed,
        XenbusState::Reconfiguring,
        XenbusState::Reconfigured,
    ];

    /// The value of a `state` node.
    pub fn value(self) -> &'static str {
        match self {
            XenbusState::Unknown => "0",
            XenbusState::Initialising => "1",
            XenbusState::InitWait => "2",
            XenbusState::Initialised => "3",
            XenbusState::Connected => "4",
            XenbusState::Closing => "5",
            XenbusState::Closed => "6",
            XenbusState::Reconfiguring => "7",
            XenbusState::Reconfigured => "8",
        }
    }

    /// Parses the value of a `state` node. A missing node or an invalid value is
    /// [`XenbusState::Unknown`]: an end that writes an invalid state counts as absent.
    pub fn parse(value: Option<&str>) -> XenbusState {
        let found = XenbusState::ALL.into_iter().find(|state| Some(state.value()) == value);
        found.unwrap_or(XenbusState::Unknown)
    }

    /// Whether a frontend in this state has written its keys.
    pub fn has_keys(self) -> bool {
        use XenbusState::{Connected, Initialised, Reconfiguring};
        matches!(self, Initialised | Connected | Reconfiguring)
    }

    /// Whether an end in this state has released everything of the other end.
    pub fn is_gone(self) -> bool {
        matches!(self, XenbusState::Closed | XenbusState::Unknown)
    }
}

/// The name of the state, for messages.
impl fmt::Display for XenbusState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_survives_being_written_and_parsed() {
        for state in XenbusState::ALL {
            assert_eq!(XenbusState::parse(Some(state.value())), state);
        }
        assert_eq!(XenbusState::parse(None), XenbusState::Unknown);
        for nonsense in ["", "9", "04", " 4", "Connected", "-1"] {
            assert_eq!(XenbusState::parse(Some(nonsense)), XenbusState::Unknown);
        }
        assert_eq!(XenbusState::InitWait.to_string(), "InitWait");
    }
}

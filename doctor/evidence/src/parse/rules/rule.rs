//! One rule of a packet filter, whatever tool has printed it.

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    /// As printed, without its counter.
    pub(super) text: String,
    pub(super) line: usize,
    /// Packets that it has counted; `None` without a counter.
    pub(super) packets: Option<u64>,
    pub(super) takes: Takes,
    pub(super) does: Does,
}

/// Which packets reach the verdict of a rule, from the most to the fewest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Takes {
    All,
    /// All of an interface, of a protocol family or of new connections, or all broadcasts.
    AllOfKind,
    Some,
}

/// What a rule does with the packets that it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Does {
    Drop,
    /// They pass, at least this chain and those that called it.
    Accept,
    /// The chain that called this one goes on.
    Return,
    /// Another chain decides, and this one goes on if that does not.
    Jump(String),
    /// Another chain decides in place of this one.
    Goto(String),
    /// A program decides.
    Queue,
    /// An entry of a map decides.
    Map {
        has_drops: bool,
        chains: Vec<String>,
    },
    /// The next rule decides.
    Nothing,
}

/// The words of a line. What stands in quotes is one word, with its quotes.
pub(super) fn words(row: &str) -> Vec<&str> {
    let mut all = Vec::new();
    let (mut start, mut is_quoted) = (None, false);
    for (at, letter) in row.char_indices() {
        match (start, letter.is_whitespace() && !is_quoted) {
            (Some(from), true) => {
                all.push(&row[from..at]);
                start = None;
            }
            (None, false) => start = Some(at),
            _ => {}
        }
        is_quoted ^= letter == '"';
    }
    all.extend(start.map(|from| &row[from..]));
    all
}

/// What a target of `iptables` does, if it is one of the kernel's; others may be chains.
pub(super) fn of_target(name: &str) -> Option<Does> {
    match name {
        "DROP" | "REJECT" => Some(Does::Drop),
        // These of xtables-addons reply to a packet, or not, and drop it.
        "CHAOS" | "DELUDE" | "STEAL" | "TARPIT" => Some(Does::Drop),
        "NFQUEUE" | "QUEUE" => Some(Does::Queue),
        "RETURN" => Some(Does::Return),
        "ACCEPT" | "DNAT" | "MASQUERADE" | "NETMAP" | "REDIRECT" | "SNAT" | "SYNPROXY"
        | "TPROXY" => Some(Does::Accept),
        _ => None,
    }
}

/// Whether these states of connections include new ones, and not those that were let in.
pub(super) fn are_of_new(states: &str) -> bool {
    let known = ["invalid", "new", "untracked"];
    has_state(states, "new") && states.split(',').all(|one| known.contains(&lower(one).as_str()))
}

/// Whether all but these states of connections are those of new ones.
pub(super) fn are_of_old(states: &str) -> bool {
    has_state(states, "established") && !has_state(states, "new")
}

/// Whether a rule takes only packets that fit no tracked connection and begin none.
pub(super) fn is_of_invalid(rule: &str) -> bool {
    let words = words(rule);
    let states = ["state", "ctstate", "--state", "--ctstate"];
    let is_it = |two: &[&str]| states.contains(&two[0]) && lower(two[1]) == "invalid";
    words.windows(2).position(is_it).is_some_and(|at| at == 0 || words[at - 1] != "!")
}

/// Whether these kinds of addresses are those of more than one host.
pub(super) fn are_of_many(kinds: &str) -> bool {
    let known = ["anycast", "broadcast", "multicast"];
    kinds.split(',').all(|one| known.contains(&lower(one).as_str()))
}

fn has_state(states: &str, wanted: &str) -> bool {
    states.split(',').any(|one| lower(one) == wanted)
}

fn lower(word: &str) -> String {
    word.trim().to_lowercase()
}
